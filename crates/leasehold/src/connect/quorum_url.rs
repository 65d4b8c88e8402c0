//! Turns a quorum's URL into the URLs of its nodes and its settings.
//!
//! ```text
//! quorum:STORE,STORE,…                            stores of any kind, with settings among them
//! quorum+redis://[user:password@]HOST,HOST,…[/database][?setting=value&…]
//! ```

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};

/// A quorum's URL, in parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QuorumUrl {
    /// May hold passwords.
    pub(crate) nodes: Vec<String>,
    pub(crate) settings: Settings,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) keep_leases: Option<bool>,
}

const SETTINGS: [&str; 3] = ["keep_leases", "max_ttl", "node_timeout"];

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, why)
}

impl QuorumUrl {
    /// Reads what follows `quorum:`.
    pub(crate) fn of_stores(list: &str) -> Result<Self> {
        let mut url = Self::default();
        for part in split(list) {
            match part.split_once('=') {
                Some((name, value)) if SETTINGS.contains(&name) => url.settings.set(name, value)?,
                _ if starts_store(part) && !has_many_hosts(part) => url.nodes.push(part.to_owned()),
                _ => {
                    return Err(refuse(
                        "after quorum: write a list of stores, each with its scheme, such as \
                         quorum:redis://a,redis://b,redis://c",
                    ));
                }
            }
        }
        url.checked()
    }

    /// Reads what follows `quorum+`, which is the URL of one server with several hosts.
    pub(crate) fn of_hosts(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            refuse("after quorum+ write a URL with several hosts, such as redis://a,b,c")
        })?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (login, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at.saturating_add(1)),
            None => ("", authority),
        };
        if login.matches('@').count() > 1 {
            return Err(refuse(
                "user and password are given once, before the first host; encode an @ in them as \
                 %40",
            ));
        }
        let mut whole = Self::default();
        let mut passed_on = Vec::new();
        // Nodes whose replicas confirm every grant have to know what restarts mean as well.
        let confirmed = query.split('&').any(|pair| pair.starts_with("replicas="));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let of_quorum = pair.split_once('=').filter(|(name, _)| SETTINGS.contains(name));
            if let Some((name, value)) = of_quorum {
                whole.settings.set(name, value)?;
                if !confirmed || name == "node_timeout" {
                    continue;
                }
            }
            passed_on.push(pair);
        }
        let query =
            if passed_on.is_empty() { String::new() } else { format!("?{}", passed_on.join("&")) };
        for host in hosts.split(',') {
            if host.is_empty() {
                return Err(refuse("a host is missing between two commas; write it"));
            }
            whole.nodes.push(format!("{scheme}://{login}{host}{path}{query}"));
        }
        whole.checked()
    }

    fn checked(self) -> Result<Self> {
        let twice = self.nodes.iter().enumerate().any(|(at, node)| {
            node != "memory:" && self.nodes.iter().take(at).any(|other| other == node)
        });
        if twice {
            return Err(refuse(
                "a quorum names the same node twice, which would give it two votes; \
                               name it once",
            ));
        }
        Ok(self)
    }
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let before = match name {
            "max_ttl" => self.max_ttl.replace(length(name, value)?).is_some(),
            "node_timeout" => self.node_timeout.replace(length(name, value)?).is_some(),
            _ => {
                let keep = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(refuse(format!("{name} must be yes or no"))),
                };
                self.keep_leases.replace(keep).is_some()
            }
        };
        if before {
            return Err(refuse(format!("the quorum's URL sets {name} twice; set it once")));
        }
        Ok(())
    }
}

/// A whole number with a unit.
fn length(name: &str, text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ms_each: Option<u64> = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let ms = number.parse::<u64>().ok().zip(ms_each).and_then(|(n, each)| n.checked_mul(each));
    ms.map(Duration::from_millis).ok_or_else(|| {
        refuse(format!("{name} must be a whole number with a unit (ms, s, m or h), such as 30s"))
    })
}

/// Whether the text begins with a store's URL. A host with its port, such as `redis:6380`, looks
/// much like a scheme, so the schemes of servers need their slashes.
fn starts_store(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    match scheme {
        "memory" => rest.is_empty() || rest.starts_with(','),
        "embedded" => true,
        _ => {
            let word = |c: char| c.is_ascii_lowercase() || c == '+';
            rest.starts_with("//") && !scheme.is_empty() && scheme.chars().all(word)
        }
    }
}

/// Whether the URL of a single server names several hosts, for which there is `quorum+redis`.
fn has_many_hosts(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys") && hosts.contains(',')
}

/// Splits at the commas after which a store or a setting begins; others belong to a store's URL,
/// which may have several hosts itself.
pub(crate) fn split(list: &str) -> Vec<&str> {
    let starts = |text: &str| {
        let setting = text.split_once('=').is_some_and(|(name, _)| SETTINGS.contains(&name));
        setting || starts_store(text)
    };
    let mut parts = Vec::new();
    let mut rest = list;
    let mut from = 0;
    while let Some(found) = rest.get(from..).and_then(|text| text.find(',')) {
        let comma = from.saturating_add(found);
        let after = comma.saturating_add(1);
        if rest.get(after..).is_some_and(starts) {
            parts.push(rest.get(..comma).unwrap_or_default());
            rest = rest.get(after..).unwrap_or_default();
            from = 0;
        } else {
            from = after;
        }
    }
    parts.push(rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores(list: &str) -> Vec<String> {
        QuorumUrl::of_stores(list).unwrap().nodes
    }

    #[test]
    fn stores_of_any_kind_are_distinguished_though_their_urls_have_commas() {
        assert_eq!(
            stores("redis://a,rediss://u:p,w@b:7000/2,embedded:/x,y,memory:,memory:"),
            ["redis://a", "rediss://u:p,w@b:7000/2", "embedded:/x,y", "memory:", "memory:"]
        );
        assert_eq!(
            stores("redis+sentinel://redis:1,redis:2/m,redis://[::1]:6379"),
            ["redis+sentinel://redis:1,redis:2/m", "redis://[::1]:6379"]
        );
    }

    #[test]
    fn settings_stand_among_the_stores_or_after_the_hosts() {
        let settings = Settings {
            max_ttl: Some(Duration::from_secs(10)),
            node_timeout: Some(Duration::from_millis(200)),
            keep_leases: Some(true),
        };
        let list = "max_ttl=10s,redis://a,node_timeout=200ms,redis://b,keep_leases=yes";
        let url = QuorumUrl::of_stores(list).unwrap();
        assert_eq!((url.nodes.len(), url.settings), (2, settings));
        let url = QuorumUrl::of_hosts(
            "rediss://u:p%40@a,b:7000,[::1]/2?max_ttl=10s&prefix=x&node_timeout=200ms&keep_leases=yes",
        );
        let url = url.unwrap();
        assert_eq!(
            url.nodes,
            [
                "rediss://u:p%40@a/2?prefix=x",
                "rediss://u:p%40@b:7000/2?prefix=x",
                "rediss://u:p%40@[::1]/2?prefix=x"
            ]
        );
        assert_eq!(url.settings, settings);
        let url = QuorumUrl::of_hosts("redis://a,b?replicas=1&max_ttl=10s&node_timeout=200ms");
        let passed_on = ["redis://a?replicas=1&max_ttl=10s", "redis://b?replicas=1&max_ttl=10s"];
        assert_eq!(url.unwrap().nodes, passed_on, "nodes that confirm need it as well");
    }

    #[test]
    fn what_makes_no_quorum_is_refused_without_being_repeated() {
        let bad = "redis://a,b|redis://a,,redis://b|redis://a,redis://a|max_ttl=9,redis://a|a,b|\
                   max_ttl=9s,redis://a,redis://b,max_ttl=9s|";
        for list in bad.split('|') {
            assert!(QuorumUrl::of_stores(list).is_err(), "{list}");
        }
        for url in [
            "redis:a",
            "redis://a,,b",
            "redis://a,b,a",
            "redis://a,b?max_ttl=long",
            "redis://a,b?max_ttl=9s&keep_leases=yes&max_ttl=8s",
            "redis://:p@a,:p@b,:p@c",
        ] {
            assert!(QuorumUrl::of_hosts(url).is_err(), "{url}");
        }
        let error = QuorumUrl::of_hosts("redis://:secret@a,a").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
