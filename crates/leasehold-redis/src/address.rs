//! What a URL says: where the server is, who we are to it, and how locks are kept there.
//!
//! Nothing here repeats a URL or a part of it that could be a secret: not in an error, not in
//! `Debug`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result, escape};
use url::Url;

use crate::names::Names;

const DEFAULT_PORT: u16 = 6379;

/// All that may stand after the question mark.
const QUERY_KEYS: [&str; 9] = [
    "cafile",
    "certfile",
    "db",
    "fence_retention",
    "keyfile",
    "pass",
    "prefix",
    "protocol",
    "user",
];

/// How a server is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16, tls: Option<TlsFiles> },
    Unix(PathBuf),
}

/// Files for TLS; without any, the system's authorities are trusted and no certificate is shown.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// A parsed URL.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) endpoint: Endpoint,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) resp3: bool,
    pub(crate) prefix: Option<Names>,
    pub(crate) fence_retention: Option<Duration>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, user, password, database, resp3, prefix, fence_retention } = self;
        f.debug_struct("Address")
            .field("endpoint", endpoint)
            .field("user", &user.as_ref().map(|_| "***"))
            .field("password", &password.as_ref().map(|_| "***"))
            .field("database", database)
            .field("resp3", resp3)
            .field("prefix", prefix)
            .field("fence_retention", fence_retention)
            .finish()
    }
}

impl Address {
    /// Reads a URL, and accepts nothing in it that would be ignored.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let url = Url::parse(url).map_err(|error| {
            refuse(format!(
                "the store's URL can't be read: {error}; it looks like redis://host:6379"
            ))
        })?;
        if url.fragment().is_some() {
            return Err(refuse("a store's URL has no part after #; encode a # in it as %23"));
        }
        let mut address = match url.scheme() {
            "redis" | "valkey" => Self::tcp(&url, None)?,
            "rediss" | "valkeys" => Self::tcp(&url, Some(TlsFiles::default()))?,
            "redis+unix" | "valkey+unix" | "unix" => Self::unix(&url)?,
            other => {
                return Err(refuse(format!(
                    "{} is no scheme of a Redis store; use redis, rediss (TLS), redis+unix, valkey \
                     or valkeys",
                    escape::terminal(other)
                )));
            }
        };
        for (key, value) in url.query_pairs() {
            address.set(&key, &value)?;
        }
        if let Endpoint::Tcp { tls: Some(files), .. } = &address.endpoint
            && files.certificate.is_some() != files.key.is_some()
        {
            return Err(refuse("certfile and keyfile go together; give both or neither"));
        }
        Ok(address)
    }

    fn at(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            user: None,
            password: None,
            database: 0,
            resp3: false,
            prefix: None,
            fence_retention: None,
        }
    }

    fn tcp(url: &Url, tls: Option<TlsFiles>) -> Result<Self> {
        let host = match url.host() {
            Some(url::Host::Ipv6(address)) => address.to_string(),
            Some(host) if !host.to_string().is_empty() => decoded(&host.to_string())?,
            _ => return Err(refuse("the store's URL names no host; write redis://host:6379")),
        };
        let port = url.port().unwrap_or(DEFAULT_PORT);
        let mut address = Self::at(Endpoint::Tcp { host, port, tls });
        if !url.username().is_empty() {
            address.user = Some(decoded(url.username())?);
        }
        address.password = url.password().map(decoded).transpose()?;
        match url.path().trim_start_matches('/') {
            "" => {}
            number => address.database = database(number)?,
        }
        Ok(address)
    }

    fn unix(url: &Url) -> Result<Self> {
        if url.host().is_some_and(|host| !host.to_string().is_empty()) {
            return Err(refuse("a socket's path is absolute; write redis+unix:///path/to/socket"));
        }
        if !url.path().starts_with('/') || url.path().len() < 2 {
            return Err(refuse("the URL names no socket; write redis+unix:///path/to/socket"));
        }
        Ok(Self::at(Endpoint::Unix(decoded(url.path())?.into())))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let on_unix = matches!(self.endpoint, Endpoint::Unix(_));
        let tls = match &mut self.endpoint {
            Endpoint::Tcp { tls, .. } => tls.as_mut(),
            Endpoint::Unix(_) => None,
        };
        match key {
            "prefix" => self.prefix = Some(Names::new(value)?),
            "fence_retention" => self.fence_retention = Some(retention(value)?),
            "protocol" => {
                self.resp3 = match value {
                    "resp2" => false,
                    "resp3" => true,
                    _ => return Err(refuse("protocol is resp2 or resp3")),
                }
            }
            "db" if on_unix => self.database = database(value)?,
            "user" if on_unix => self.user = Some(value.to_owned()),
            "pass" if on_unix => self.password = Some(value.to_owned()),
            "db" | "user" | "pass" => {
                return Err(refuse(format!(
                    "{key} is for sockets; write redis://user:password@host:port/db"
                )));
            }
            "cafile" | "certfile" | "keyfile" => {
                let Some(files) = tls else {
                    return Err(refuse(format!("{key} is for TLS; write rediss://…")));
                };
                let slot = match key {
                    "cafile" => &mut files.authorities,
                    "certfile" => &mut files.certificate,
                    _ => &mut files.key,
                };
                *slot = Some(value.into());
            }
            "insecure" => {
                return Err(refuse(
                    "certificates are always verified; name the authority with cafile instead",
                ));
            }
            _ => {
                return Err(refuse(format!(
                    "the store's URL has an unknown setting; known are {}",
                    QUERY_KEYS.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The server's name for people, without any secret.
    pub(crate) fn location(&self) -> String {
        let database = match self.database {
            0 => String::new(),
            number => format!("/{number}"),
        };
        match &self.endpoint {
            Endpoint::Tcp { host, port, tls } => {
                let scheme = if tls.is_some() { "rediss" } else { "redis" };
                let host = escape::terminal(host).to_string();
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                format!("{scheme}://{host}:{port}{database}")
            }
            Endpoint::Unix(path) => {
                let path = path.to_string_lossy();
                let database = database.replace('/', "?db=");
                format!("redis+unix://{}{database}", escape::terminal(&path))
            }
        }
    }
}

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, why)
}

fn database(number: &str) -> Result<i64> {
    match number.parse::<u32>() {
        Ok(number) => Ok(number.into()),
        Err(_) => Err(refuse("a database is a number, as in redis://host:6379/2")),
    }
}

/// How long an idle lock's last fence may be kept: as long as the longest lease.
const RETENTION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Checks how long an idle lock's last fence is kept.
pub(crate) fn checked_retention(length: Duration) -> Result<Duration> {
    if (Duration::from_secs(1)..=RETENTION_MAX).contains(&length) {
        return Ok(length);
    }
    Err(refuse("fence_retention is between 1s and 30d, as in fence_retention=10m"))
}

/// Reads a length of time such as `90s`, `10m`, `1h` or `2d`.
fn retention(text: &str) -> Result<Duration> {
    let seconds = text
        .char_indices()
        .last()
        .and_then(|(at, unit)| {
            let unit = match unit {
                's' => 1_u64,
                'm' => 60,
                'h' => 60 * 60,
                'd' => 24 * 60 * 60,
                _ => return None,
            };
            text.get(..at)?.parse::<u64>().ok()?.checked_mul(unit)
        })
        .unwrap_or(0);
    checked_retention(Duration::from_secs(seconds))
}

/// Decodes `%41`.
fn decoded(text: &str) -> Result<String> {
    match percent_encoding::percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(refuse("a part of the store's URL is not UTF-8 once it is decoded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Address {
        Address::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[track_caller]
    fn refused(url: &str, advice: &str) {
        let error = Address::parse(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(advice), "{url}: {error}");
    }

    #[test]
    fn a_url_says_where_the_server_is_and_who_we_are() {
        let address = parse("redis://ann%40x:p%2Fw%3A+1@db.example:7000/2");
        let host = "db.example".to_owned();
        assert_eq!(address.endpoint, Endpoint::Tcp { host, port: 7000, tls: None });
        assert_eq!(address.user.as_deref(), Some("ann@x"));
        assert_eq!(address.password.as_deref(), Some("p/w:+1"));
        assert_eq!(address.database, 2);
        assert_eq!(address.location(), "redis://db.example:7000/2");
        let password_only = parse("redis://:secret@h/");
        assert_eq!((password_only.user, password_only.database), (None, 0));
        assert_eq!(password_only.password.as_deref(), Some("secret"));
    }

    #[test]
    fn defaults_are_what_one_expects() {
        let address = parse("redis://h");
        assert_eq!(address.location(), "redis://h:6379");
        assert!(!address.resp3 && address.prefix.is_none() && address.fence_retention.is_none());
    }

    #[test]
    fn addresses_of_both_families_are_taken() {
        assert_eq!(parse("redis://[::1]:7000").location(), "redis://[::1]:7000");
        let Endpoint::Tcp { host, .. } = parse("redis://[::1]").endpoint else { panic!() };
        assert_eq!(host, "::1", "as the resolver wants it");
        assert_eq!(parse("valkey://127.0.0.1").location(), "redis://127.0.0.1:6379");
    }

    #[test]
    fn tls_is_on_by_the_scheme_alone() {
        let files = |url| match parse(url).endpoint {
            Endpoint::Tcp { tls, .. } => tls,
            Endpoint::Unix(_) => panic!("{url}"),
        };
        assert_eq!(files("redis://h"), None);
        assert_eq!(files("valkeys://h"), Some(TlsFiles::default()));
        let all = files("rediss://h?cafile=/a&certfile=/b&keyfile=/c%20d").unwrap();
        assert_eq!(all.authorities, Some("/a".into()));
        assert_eq!((all.certificate, all.key), (Some("/b".into()), Some("/c d".into())));
        assert_eq!(parse("valkeys://h").location(), "rediss://h:6379");
    }

    #[test]
    fn sockets_have_a_path() {
        for url in ["redis+unix:///run/r%20s.sock?db=3", "unix:/run/r%20s.sock?db=3"] {
            let address = parse(url);
            assert_eq!(address.endpoint, Endpoint::Unix("/run/r s.sock".into()), "{url}");
            assert_eq!(address.location(), "redis+unix:///run/r s.sock?db=3");
        }
    }

    #[test]
    fn settings_are_read() {
        let address = parse("redis://h?protocol=resp3&prefix=app%3Alocks&fence_retention=2h");
        assert!(address.resp3);
        assert_eq!(address.prefix, Some(Names::new("app:locks").unwrap()));
        assert_eq!(address.fence_retention, Some(Duration::from_secs(7_200)));
    }

    #[test]
    fn nothing_in_a_url_is_ignored() {
        refused("redis://h?prefx=a", "known are cafile, certfile");
        refused("redis://h?cafile=/a", "rediss://");
        refused("redis://h?db=1", "host:port/db");
        refused("redis://h#insecure", "after #");
        refused("rediss://h?insecure=1", "always verified");
        refused("rediss://h?certfile=/a", "go together");
        refused("redis://h/one", "a database is a number");
        refused("redis://h/-1", "a database is a number");
        refused("redis://h?protocol=3", "resp2 or resp3");
        refused("redis://h?prefix=", "1 to 64 bytes");
        refused("redis://", "names no host");
        refused("redis://h:99999", "can't be read");
        refused("h:6379", "no scheme of a Redis store");
        refused("host", "can't be read");
        refused("redis+unix://run/socket", "absolute");
        refused("redis+unix:///", "names no socket");
    }

    #[test]
    fn lengths_of_time_have_a_unit_and_a_limit() {
        assert_eq!(retention("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(retention("30d").unwrap(), RETENTION_MAX);
        for bad in
            ["", "s", "10", "0s", "-1s", "1.5h", "31d", "99999999999999999999d", "10ms", "1µ"]
        {
            assert!(retention(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_shows_neither_user_nor_password() {
        let shown = format!("{:?}", parse("redis://ann:secret@h"));
        assert!(!shown.contains("ann") && !shown.contains("secret"), "{shown}");
    }
}
