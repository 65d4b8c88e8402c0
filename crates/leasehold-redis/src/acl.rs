//! Lists the least rights that a user of a server needs for each feature.
//!
//! ```
//! use leasehold_redis::acl::{self, Feature};
//!
//! let url = "redis://locks.example.com/0?prefix=app";
//! let rule = acl::rule(url, "locks", &[Feature::Lock, Feature::List])?;
//! assert!(rule.starts_with("ACL SETUSER locks reset on >PASSWORD ~app:{* "));
//! # Ok::<(), leasehold_core::Error>(())
//! ```

use std::collections::BTreeSet;

use leasehold_core::{Error, ErrorKind, Result};

#[cfg(feature = "interop")]
use crate::interop::Layout;
use crate::topology::address::{Address, Topology};
use crate::wire::names::Names;

/// A feature that a user of a server may need.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Feature {
    /// Acquire free exclusive locks; renew, release, inspect and force-release them.
    Lock,
    /// Wait in the queue and be notified.
    Wait,
    /// Share locks: read-write locks and semaphores.
    Share,
    /// List locks.
    List,
    /// Write the log of each lock, and read it.
    Log,
    /// Be a node of a quorum, whose clients read how long it has run.
    Quorum,
    /// Examine the server. Its `config|get` shows the passwords in the server's configuration,
    /// so give it to people, not to services.
    Doctor,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 7] =
        [Self::Lock, Self::Wait, Self::Share, Self::List, Self::Log, Self::Quorum, Self::Doctor];
    /// The features of a service that uses all of leasehold: all but [`Feature::Log`],
    /// [`Feature::Quorum`] and [`Feature::Doctor`].
    pub const SERVICE: [Self; 4] = [Self::Lock, Self::Wait, Self::Share, Self::List];

    /// Its name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Wait => "wait",
            Self::Share => "share",
            Self::List => "list",
            Self::Log => "log",
            Self::Quorum => "quorum",
            Self::Doctor => "doctor",
        }
    }

    /// The commands that it needs in addition to [`Feature::Lock`], which is always needed.
    pub(crate) const fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Lock => &[
                "ping", "evalsha", "eval", "time", "pttl", "hget", "hgetall", "hset", "hdel",
                "pexpire",
            ],
            Self::Wait => &["publish", "subscribe"],
            Self::Share => &[],
            Self::List => &["scan"],
            Self::Log => &["xadd", "xrevrange"],
            Self::Quorum => &["info"],
            Self::Doctor => &["info", "config|get", "acl|whoami"],
        }
    }
}

/// The order of commands in a rule, as in docs/wire.md.
const ORDER: [&str; 18] = [
    "ping",
    "evalsha",
    "eval",
    "time",
    "pttl",
    "hget",
    "hgetall",
    "hset",
    "hdel",
    "pexpire",
    "publish",
    "subscribe",
    "scan",
    "xadd",
    "xrevrange",
    "info",
    "config|get",
    "acl|whoami",
];

/// The command that creates a user of the server at `url` with just the rights that the features
/// need, for the URL's prefix and database.
///
/// It is one line for `redis-cli`, the same for every version from Redis 6.2 on; `PASSWORD` stands
/// for the password. [`Feature::Lock`] is always included. The command also removes rights that the
/// user had before.
///
/// # Errors
///
/// [`ErrorKind::Config`] for a URL that can't be used, and for a user name that is empty or has
/// blanks, quotes or control characters.
pub fn rule(url: &str, user: &str, features: &[Feature]) -> Result<String> {
    let address = Address::parse(url)?;
    let names = address.prefix.clone().unwrap_or_else(Names::standard);
    let mut words = beginning(user)?;
    words.push(quoted(&keys(&names)));
    // From 7 on, a new user has none anyway.
    words.push("resetchannels".to_owned());
    if features.contains(&Feature::Wait) {
        words.push(quoted(&channels(&names)));
    }
    words.push("-@all".to_owned());
    let mut wanted: BTreeSet<&str> = Feature::Lock.commands().iter().copied().collect();
    wanted.extend(features.iter().flat_map(|feature| feature.commands()));
    if address.log.is_some_and(|events| events > 0) {
        wanted.extend(Feature::Log.commands());
    }
    let replicas = address.replicas.is_some_and(|replicas| replicas > 0);
    let on_disk = address.fsync == Some(true);
    if replicas && !on_disk && address.keep_leases != Some(true) {
        // The client requests the servers' age.
        wanted.insert("info");
    }
    words.extend(
        ORDER
            .iter()
            .filter(|command| wanted.contains(*command))
            .map(|command| format!("+{command}")),
    );
    ending(&address, &mut words);
    Ok(words.join(" "))
}

/// The command that creates a user of the server at `url` with just the rights that locks in this
/// layout need: to acquire, wait for, renew, release and inspect them.
///
/// It is like [`rule`]'s, except for the keys. If the layout has no prefix before a lock's name,
/// replace `~*` by the names of your locks, or by their prefix.
///
/// A cluster before version 7 lacks `+spublish`; write `+publish` instead.
///
/// # Errors
///
/// As [`rule`].
#[cfg(feature = "interop")]
pub fn rule_for_layout(url: &str, user: &str, layout: &Layout) -> Result<String> {
    let address = Address::parse(url)?;
    let is_cluster = matches!(address.topology, Topology::Cluster);
    let mut words = beginning(user)?;
    words.extend(layout.key_patterns(literal).iter().map(|pattern| quoted(&format!("~{pattern}"))));
    // From 7 on, a new user has none anyway.
    words.push("resetchannels".to_owned());
    if let Some(pattern) = layout.channel_pattern(literal) {
        words.push(quoted(&format!("&{pattern}")));
    }
    words.push("-@all".to_owned());
    let commands = layout.commands(is_cluster);
    let own = ["ping", "evalsha", "eval", "time", "client|tracking"];
    words.extend(own.iter().chain(&commands).map(|command| format!("+{command}")));
    // A server that waits for replicas counts only after its age is known.
    let asks_age = address.replicas.is_some_and(|replicas| replicas > 0)
        && address.fsync != Some(true)
        && address.keep_leases != Some(true);
    words.extend(asks_age.then(|| "+info".to_owned()));
    ending(&address, &mut words);
    Ok(words.join(" "))
}

/// The first words of a rule, up to the user's password.
fn beginning(user: &str) -> Result<Vec<String>> {
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '"' | '\'' | '\\');
    if user.is_empty() || user.contains(odd) {
        return Err(Error::new(
            ErrorKind::Config,
            "a user's name in a rule has no blanks, quotes, backslashes and control characters",
        ));
    }
    let words = ["ACL", "SETUSER", user, "reset", "on", ">PASSWORD"];
    Ok(words.map(str::to_owned).to_vec())
}

/// The rights to the commands that the URL's options need.
fn ending(address: &Address, words: &mut Vec<String>) {
    if address.database != 0 {
        words.push("+select".to_owned());
    }
    match address.topology {
        Topology::Single | Topology::Sentinel { .. } => {}
        Topology::Cluster => words.push("+cluster|nodes +asking".to_owned()),
    }
    if address.fsync == Some(true) {
        words.push("+waitaof".to_owned());
    } else if address.replicas.is_some_and(|replicas| replicas > 0) {
        words.push("+wait".to_owned());
    }
}

/// The pattern of a prefix's keys.
pub(crate) fn keys(names: &Names) -> String {
    format!("~{}:{{*", literal(names.prefix()))
}

/// The pattern of a prefix's channels.
pub(crate) fn channels(names: &Names) -> String {
    format!("&{}:wake:*", literal(names.prefix()))
}

/// Escapes the special characters of a pattern.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// A word as `redis-cli` reads it back: unchanged, or quoted if it has quotes itself.
fn quoted(word: &str) -> String {
    if !word.contains(['"', '\'']) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_of_a_service_is_the_documented_one() {
        let wire = include_str!("../../../docs/wire.md");
        let documented =
            wire.lines().find_map(|line| line.strip_prefix("user locks on >PASSWORD "));
        let rule = rule("redis://h", "locks", &Feature::SERVICE).unwrap();
        assert_eq!(
            rule.strip_prefix("ACL SETUSER locks reset on >PASSWORD "),
            documented,
            "docs/wire.md"
        );
    }

    #[test]
    fn every_command_that_a_script_calls_is_in_a_feature() {
        let known: BTreeSet<&str> =
            Feature::ALL.iter().flat_map(|one| one.commands()).copied().collect();
        let mut files = 0;
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts")).unwrap()
        {
            let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            files += 1;
            for call in source.split("redis.").skip(1) {
                let Some((function, rest)) = call.split_once("('") else { continue };
                if !matches!(function, "call" | "pcall") {
                    continue;
                }
                let command = rest.split('\'').next().unwrap().to_lowercase();
                assert!(known.contains(&*command), "{command} is in no feature");
            }
        }
        assert!(files > 10);
        assert_eq!(known, ORDER.into_iter().collect(), "and every command has its place");
    }

    #[test]
    fn a_url_decides_on_prefix_and_database() {
        let url = "redis://h/3?prefix=a*b:c";
        let rule = rule(url, "u", &[Feature::Wait]).unwrap();
        assert!(rule.contains(" ~a\\*b:c:{* resetchannels &a\\*b:c:wake:* -@all "), "{rule}");
        assert!(rule.ends_with(" +subscribe +select"), "{rule}");
        assert_eq!(rule.lines().count(), 1);
    }

    #[test]
    fn a_url_decides_on_what_its_servers_are_asked_besides() {
        let rule = |url: &str| rule(url, "u", &[]).unwrap();
        assert!(rule("redis+sentinel://h/m?db=2&replicas=1").ends_with(" +select +wait"));
        assert!(rule("redis+cluster://h?fsync=yes").ends_with(" +cluster|nodes +asking +waitaof"));
        assert!(rule("redis://h?replicas=1").contains(" +info "));
        assert!(rule("redis://h?log=100").ends_with(" +xadd +xrevrange"));
        assert!(!rule("redis://h?log=0").contains("xadd"));
        assert!(!rule("redis://h?replicas=1&keep_leases=yes").contains("+info"));
        assert!(!rule("redis://h?replicas=1&fsync=yes").contains("+info"));
    }

    #[test]
    fn quotes_in_a_prefix_survive_the_command_line() {
        let rule = rule("redis://h?prefix=a%22b'c", "u", &[]).unwrap();
        assert!(rule.contains(" \"~a\\\"b'c:{*\" "), "{rule}");
    }

    #[test]
    fn names_that_would_break_the_line_are_refused() {
        for bad in ["", "a b", "a\"", "a'", "a\n", "a\\"] {
            assert_eq!(
                rule("redis://h", bad, &[]).unwrap_err().kind(),
                ErrorKind::Config,
                "{bad:?}"
            );
        }
        assert!(rule("embedded:", "u", &[]).is_err());
    }

    #[cfg(feature = "interop")]
    #[test]
    fn a_rule_names_keys_and_channels_of_the_layout() {
        let rule = |url, layout: &str| rule_for_layout(url, "u", &layout.parse().unwrap()).unwrap();
        let spring = rule("redis://h", "spring:a*b");
        assert!(spring.contains(" ~a\\*b:* resetchannels &a\\*b-channel:* -@all "), "{spring}");
        assert!(rule("redis://h/3", "python-redis-lock").contains(" ~lock:* ~lock-signal:* "));
        let redisson = rule("redis+cluster://h", "redisson");
        assert!(redisson.contains(" ~* ") && redisson.contains(" +spublish "), "{redisson}");
        assert!(redisson.ends_with(" +cluster|nodes +asking"), "{redisson}");
        assert!(rule("redis://h/3", "plain").ends_with(" +select"));
    }
}
