//! Reads a store's URL without opening the store.

use std::fmt;

use leasehold_core::Result;

use crate::connect::spread_url;

/// A store's URL, read without opening the store: whether it has passwords, and how it reads when
/// they are left out.
///
/// For programs that pass a store's URL on, or show people which store it is.
///
/// ```
/// use leasehold::store::StoreUrl;
///
/// # #[cfg(feature = "redis")] {
/// let url = StoreUrl::read("redis://app:secret@db:6379/1?prefix=lock@")?;
/// assert!(url.has_password());
/// assert_eq!(url.without_passwords(), "redis://app@db:6379/1?prefix=lock@");
/// # }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct StoreUrl {
    without_passwords: String,
    has_password: bool,
    has_sentinel_password: bool,
    has_password_file: bool,
    nodes: Option<usize>,
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUrl").field(&self.without_passwords).finish()
    }
}

impl StoreUrl {
    /// Reads a URL by the rules of [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// As for that: [`ErrorKind::Config`](crate::ErrorKind::Config) for a URL that can't be used,
    /// and [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a store that this build
    /// leaves out.
    pub fn read(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        match scheme {
            "memory" | "embedded" => Ok(Self::plain(url)),
            "spread" => {
                let mut all = Self::plain("spread:");
                for (number, (name, url)) in (0..).zip(spread_url::stores(rest)?) {
                    let comma = if number == 0 { "" } else { "," };
                    all.add(&format!("{comma}{name}="), Self::read(&url)?);
                }
                Ok(all)
            }
            "postgres" | "postgresql" => Self::database(url),
            _ if scheme == "quorum" || scheme.starts_with("quorum+") => Self::quorum(url),
            _ => Self::server(url),
        }
    }

    fn plain(url: &str) -> Self {
        let without_passwords = url.to_owned();
        Self {
            without_passwords,
            has_password: false,
            has_sentinel_password: false,
            has_password_file: false,
            nodes: None,
        }
    }

    fn add(&mut self, before: &str, other: Self) {
        self.without_passwords.push_str(before);
        self.without_passwords.push_str(&other.without_passwords);
        self.has_password |= other.has_password;
        self.has_sentinel_password |= other.has_sentinel_password;
        self.has_password_file |= other.has_password_file;
    }

    #[cfg(feature = "redis")]
    fn server(url: &str) -> Result<Self> {
        let passwords = leasehold_redis::passwords_of(url)?;
        Ok(Self {
            without_passwords: leasehold_redis::without_passwords(url),
            has_password: passwords.of_servers,
            has_sentinel_password: passwords.of_sentinels,
            has_password_file: passwords.file_of_servers,
            nodes: None,
        })
    }

    #[cfg(not(feature = "redis"))]
    fn server(_url: &str) -> Result<Self> {
        Err(leasehold_core::Error::new(
            leasehold_core::ErrorKind::Unsupported,
            "this build has no Redis store; build with the feature \"redis\"",
        ))
    }

    #[cfg(feature = "postgres")]
    fn database(url: &str) -> Result<Self> {
        let passwords = leasehold_postgres::passwords_of(url)?;
        Ok(Self {
            has_password: passwords.of_server,
            has_password_file: passwords.file_of_server,
            ..Self::plain(&leasehold_postgres::without_passwords(url))
        })
    }

    #[cfg(not(feature = "postgres"))]
    fn database(_url: &str) -> Result<Self> {
        Err(leasehold_core::Error::new(
            leasehold_core::ErrorKind::Unsupported,
            "this build has no PostgreSQL store; build with the feature \"postgres\"",
        ))
    }

    #[cfg(feature = "quorum")]
    fn quorum(url: &str) -> Result<Self> {
        use crate::connect::quorum_url::{QuorumUrl, split};

        let mut all = Self::plain("");
        if let Some(list) = url.strip_prefix("quorum:") {
            let nodes = QuorumUrl::of_stores(list)?.nodes;
            all.nodes = Some(nodes.len());
            all.without_passwords.push_str("quorum:");
            for (number, part) in (0..).zip(split(list)) {
                let is_node = nodes.iter().any(|node| node == part);
                let part = if is_node { Self::read(part)? } else { Self::plain(part) };
                all.add(if number == 0 { "" } else { "," }, part);
            }
            return Ok(all);
        }
        #[cfg(feature = "redis")]
        {
            // The nodes' URLs differ by their hosts.
            let nodes = QuorumUrl::of_hosts(url.strip_prefix("quorum+").unwrap_or(url))?.nodes;
            for node in &nodes {
                all.add("", Self::server(node)?);
            }
            all.nodes = Some(nodes.len());
            all.without_passwords = leasehold_redis::without_passwords(url);
            Ok(all)
        }
        #[cfg(not(feature = "redis"))]
        Self::server(url)
    }

    #[cfg(not(feature = "quorum"))]
    fn quorum(_url: &str) -> Result<Self> {
        Err(leasehold_core::Error::new(
            leasehold_core::ErrorKind::Unsupported,
            "this build knows no quorums; build with the feature \"quorum\"",
        ))
    }

    /// The same URL without its passwords. The rest stays as it was written, so a process that has
    /// the passwords from elsewhere finds the same store by it.
    #[must_use]
    pub fn without_passwords(&self) -> &str {
        &self.without_passwords
    }

    /// Whether it has a password for servers that keep the locks.
    #[must_use]
    pub const fn has_password(&self) -> bool {
        self.has_password
    }

    /// How many nodes decide, of a quorum.
    #[must_use]
    pub const fn nodes(&self) -> Option<usize> {
        self.nodes
    }

    /// Whether it names a file with a password for servers that keep the locks.
    #[must_use]
    pub const fn has_password_file(&self) -> bool {
        self.has_password_file
    }

    /// Whether it has a password for sentinels.
    #[must_use]
    pub const fn has_sentinel_password(&self) -> bool {
        self.has_sentinel_password
    }
}

#[cfg(all(test, feature = "quorum", feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_each_sort_of_store_loses_its_passwords_and_nothing_else() {
        for (url, expected, has_password) in [
            ("memory:", "memory:", false),
            ("embedded:/a:b@c?log=9", "embedded:/a:b@c?log=9", false),
            ("redis://:pw@h/1", "redis://h/1", true),
            (
                "quorum:redis://u:pw@a,max_ttl=9s,redis+unix:///r?pass=pw,embedded:/x,redis://b",
                "quorum:redis://u@a,max_ttl=9s,redis+unix:///r,embedded:/x,redis://b",
                true,
            ),
            (
                "quorum+rediss://u:pw@a,b:7000/2?max_ttl=9s&prefix=x@",
                "quorum+rediss://u@a,b:7000/2?max_ttl=9s&prefix=x@",
                true,
            ),
            (
                "spread:a=redis://:pw@h1?prefix=x,b=redis+sentinel://s1,s2/m,c=embedded:/x,y",
                "spread:a=redis://h1?prefix=x,b=redis+sentinel://s1,s2/m,c=embedded:/x,y",
                true,
            ),
            ("spread:a=redis://h1?prefix=l@", "spread:a=redis://h1?prefix=l@", false),
        ] {
            let read = StoreUrl::read(url).unwrap();
            assert_eq!((read.without_passwords(), read.has_password()), (expected, has_password));
            assert!(!format!("{read:?}").contains("pw"), "{read:?}");
        }
    }

    #[test]
    fn the_nodes_of_a_quorum_are_counted() {
        for (url, nodes) in [
            ("quorum+redis://h", Some(1)),
            ("quorum+redis://a,b,c?max_ttl=9s", Some(3)),
            ("quorum:redis://a", Some(1)),
            ("redis+cluster://a,b", None),
        ] {
            assert_eq!(StoreUrl::read(url).unwrap().nodes(), nodes, "{url}");
        }
    }

    #[test]
    fn what_is_no_stores_url_is_refused_without_being_repeated() {
        for bad in ["redis://bob:s3cret/x@db", "quorum:redis://:s3cret@a,,b", "fly://:s3cret@h"] {
            let error = StoreUrl::read(bad).unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
