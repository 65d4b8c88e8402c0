//! Reads a URL: where the database is, how to log in, and how locks are kept there.
//!
//! Errors and `Debug` output leave out URLs, and all parts of them that may be secret.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Reason, Result, checked_log, escape};
use percent_encoding::percent_decode_str;

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_SCHEMA: &str = "leasehold";
const DEFAULT_CONNECTIONS: usize = 4;
const CONNECTIONS_MAX: usize = 64;
/// For how long the last fence of an idle lock is kept.
const DEFAULT_RETENTION: Duration = Duration::from_secs(10 * 60);
const RETENTION_MIN: Duration = Duration::from_secs(1);
const RETENTION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A server of the database.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Host {
    Tcp(String, u16),
    /// The folder of the socket, and the port in its name.
    Unix(PathBuf, u16),
}

/// Files for TLS, which verifies certificates and host names. Without authorities, the system's are
/// trusted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Where notifications come from.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Listen {
    /// The same URL.
    #[default]
    Here,
    /// Nowhere: waiters poll.
    Never,
    /// Another way to the same database, such as past a pooler.
    At(Box<Address>),
}

/// A parsed URL.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Address {
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) database: String,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) schema: String,
    pub(crate) connections: usize,
    pub(crate) listen: Listen,
    /// Whether to make tables that are missing.
    pub(crate) create: Option<bool>,
    pub(crate) log: Option<u32>,
    /// Whether commits don't wait for the disk.
    pub(crate) is_async: bool,
    /// Whether commits must wait for a standby.
    pub(crate) is_synchronous: bool,
    /// Whether leases are granted at once after writes may have been lost.
    pub(crate) grants_after_failover: bool,
    /// Whether the login must be bound to the server's certificate.
    pub(crate) binds_channel: bool,
    pub(crate) fence_retention: Option<Duration>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location())
    }
}

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, why).with_reason(Reason::StoreSettings)
}

impl Address {
    /// Reads a URL such as `postgres://user@host:5432/database?schema=leasehold`.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let rest =
            ["postgres://", "postgresql://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let rest = rest.ok_or_else(|| {
            refuse("not a URL of PostgreSQL; write postgres://user@host/database")
        })?;
        if rest.contains('#') {
            return Err(refuse("the URL has a #; write %23 for it in a name or password"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let text = |text: &str| -> Result<String> {
            let decoded = percent_decode_str(text).decode_utf8();
            Ok(decoded.map_err(|_| refuse("a part of the URL is not UTF-8"))?.into_owned())
        };
        if database.contains('/') {
            return Err(refuse(
                "the URL names more than a database behind the host; write %2F for a / in its name",
            ));
        }
        let mut address = Self {
            hosts: hosts
                .split(',')
                .filter(|host| !host.is_empty())
                .map(|one| host(&text(one)?))
                .collect::<Result<_>>()?,
            user: text(user)?,
            password: Some(text(password)?).filter(|password| !password.is_empty()),
            password_file: None,
            database: text(database)?,
            tls: None,
            schema: DEFAULT_SCHEMA.to_owned(),
            connections: DEFAULT_CONNECTIONS,
            listen: Listen::Here,
            create: None,
            log: None,
            is_async: false,
            is_synchronous: false,
            grants_after_failover: false,
            binds_channel: false,
            fence_retention: None,
        };
        let (mut mode, mut files) = (None, TlsFiles::default());
        let mut set = BTreeSet::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if key != "host" && !set.insert(key) {
                let key = escape::terminal(key);
                return Err(refuse(format!("the store's URL sets {key} twice; set it once")));
            }
            let value = text(value)?;
            let path = || Some(PathBuf::from(&value));
            match key {
                "host" => address.hosts.push(host(&value)?),
                "sslmode" => mode = Some(value),
                "sslrootcert" => files.authorities = path(),
                "sslcert" => files.certificate = path(),
                "sslkey" => files.key = path(),
                "password_file" => address.password_file = path(),
                "schema" => address.schema = schema(&value)?,
                "connections" => {
                    let count =
                        value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
                    address.connections = count.ok_or_else(|| {
                        refuse(format!("connections must be a number from 1 to {CONNECTIONS_MAX}"))
                    })?;
                }
                "listen" if value == "none" => address.listen = Listen::Never,
                "listen" => address.listen = Listen::At(Box::new(Self::parse(&value)?)),
                "create" => address.create = Some(one_of(key, &value, ["yes", "no"])?),
                "durability" => address.is_async = one_of(key, &value, ["async", "full"])?,
                "synchronous" => address.is_synchronous = one_of(key, &value, ["require", "any"])?,
                "after_failover" => {
                    address.grants_after_failover = one_of(key, &value, ["grant", "wait"])?;
                }
                "channel_binding" => {
                    address.binds_channel = one_of(key, &value, ["require", "prefer"])?;
                }
                "log" => address.log = Some(checked_log(&value)?),
                "fence_retention" => {
                    address.fence_retention = Some(retention(span(&value).unwrap_or_default())?)
                }
                _ => {
                    let key = escape::terminal(key);
                    return Err(refuse(format!(
                        "unknown setting \"{key}\" in the store's URL; leave it out"
                    )));
                }
            }
        }
        address.finish(mode.as_deref(), files)
    }

    fn finish(mut self, mode: Option<&str>, files: TlsFiles) -> Result<Self> {
        if self.hosts.is_empty() {
            self.hosts.push(Host::Tcp("localhost".to_owned(), DEFAULT_PORT));
        }
        if self.user.is_empty() {
            return Err(refuse("the URL names no user; write postgres://user@host/database"));
        }
        if self.database.is_empty() {
            self.database.clone_from(&self.user);
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err(refuse(
                "the URL has a password and a password_file; leave one of them out",
            ));
        }
        if self.is_async && self.is_synchronous {
            return Err(refuse(
                "durability=async waits for no standby; leave it or synchronous=require out",
            ));
        }
        if files.certificate.is_some() != files.key.is_some() {
            return Err(refuse("sslcert and sslkey belong together; set both"));
        }
        let is_near = |host: &Host| match host {
            Host::Unix(..) => true,
            Host::Tcp(host, _) => {
                host == "localhost"
                    || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        };
        let is_secured = match mode {
            None => !self.hosts.iter().all(is_near) || files != TlsFiles::default(),
            Some("disable") => false,
            // Stronger than asked: these modes alone would trust any server.
            Some("verify-full" | "verify-ca" | "require") => true,
            Some(_) => {
                return Err(refuse(
                    "sslmode must be verify-full or disable: the other modes send data in clear text",
                ));
            }
        };
        if is_secured && self.hosts.iter().any(|host| matches!(host, Host::Unix(..))) {
            return Err(refuse("there is no TLS on a Unix socket; leave the ssl settings out"));
        }
        if !is_secured && files != TlsFiles::default() {
            return Err(refuse(
                "sslmode=disable uses no certificate; leave the other ssl settings out",
            ));
        }
        if !is_secured && self.binds_channel {
            return Err(refuse("channel_binding=require needs TLS; leave one of them out"));
        }
        self.tls = is_secured.then_some(files);
        Ok(self)
    }

    /// The store's name for people, without secrets.
    pub(crate) fn location(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        let database = escape::terminal(&self.database);
        let schema = if self.schema == DEFAULT_SCHEMA {
            String::new()
        } else {
            format!("?schema={}", self.schema)
        };
        format!("postgres://{}/{database}{schema}", hosts.join(","))
    }

    pub(crate) fn retention(&self) -> Duration {
        self.fence_retention.unwrap_or(DEFAULT_RETENTION)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => {
                write!(f, "[{}]:{port}", escape::terminal(host))
            }
            Self::Tcp(host, port) => write!(f, "{}:{port}", escape::terminal(host)),
            Self::Unix(folder, port) => {
                let folder = folder.to_string_lossy().replace('/', "%2F");
                write!(f, "{}:{port}", escape::terminal(&folder))
            }
        }
    }
}

fn host(text: &str) -> Result<Host> {
    let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, port)) => (name, port.strip_prefix(':').unwrap_or(port)),
        None => text.rsplit_once(':').unwrap_or((text, "")),
    };
    let port = match port {
        "" => DEFAULT_PORT,
        port => {
            port.parse().map_err(|_| refuse("a port in the URL is not a number from 1 to 65535"))?
        }
    };
    if name.is_empty() {
        return Err(refuse("a host in the URL has no name; write host:port"));
    }
    Ok(if name.starts_with('/') {
        Host::Unix(name.into(), port)
    } else {
        Host::Tcp(name.to_owned(), port)
    })
}

/// A name that needs no quotes in SQL.
fn schema(name: &str) -> Result<String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let fits =
        (1..=63).contains(&name.len()) && !name.starts_with(|first: char| first.is_ascii_digit());
    if fits && name.bytes().all(is_plain) && !name.starts_with("pg_") {
        return Ok(name.to_owned());
    }
    Err(refuse("schema must be a name of lower-case letters, digits and _, as in schema=locks"))
}

/// Whether a setting has the first of its two values.
fn one_of(key: &str, value: &str, values: [&str; 2]) -> Result<bool> {
    let [first, second] = values;
    if !values.contains(&value) {
        return Err(refuse(format!("{key} must be {first} or {second}")));
    }
    Ok(value == first)
}

/// A length such as `10m`.
fn span(text: &str) -> Option<Duration> {
    let units = [("s", 1), ("m", 60), ("h", 60 * 60), ("d", 24 * 60 * 60)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    number.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_secs)
}

/// Checks for how long the last fence of an idle lock is kept.
pub(crate) fn retention(length: Duration) -> Result<Duration> {
    if (RETENTION_MIN..=RETENTION_MAX).contains(&length) {
        return Ok(length);
    }
    Err(refuse("fence_retention must be from 1s to 30 days, as in fence_retention=10m"))
}

/// The passwords in a URL.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Passwords {
    /// A password for the server, or in the URL of `listen`.
    pub of_server: bool,
    /// A file with the password.
    pub file_of_server: bool,
}

/// Reads which passwords a URL has.
///
/// # Errors
///
/// [`ErrorKind::Config`] for a URL that can't be used.
pub fn passwords_of(url: &str) -> Result<Passwords> {
    let address = Address::parse(url)?;
    let listens_with_one = matches!(&address.listen, Listen::At(other) if other.password.is_some());
    Ok(Passwords {
        of_server: address.password.is_some() || listens_with_one,
        file_of_server: address.password_file.is_some(),
    })
}

/// The URL without its passwords. The rest stays as it was written. A URL in `listen` with a
/// password is left out.
#[must_use]
pub fn without_passwords(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let authority = match authority.rsplit_once('@') {
        Some((login, hosts)) => {
            format!("{}@{hosts}", login.split_once(':').map_or(login, |(user, _)| user))
        }
        None => authority.to_owned(),
    };
    let is_kept = |pair: &&str| {
        let other =
            pair.strip_prefix("listen=").map(|url| percent_decode_str(url).decode_utf8_lossy());
        other.is_none_or(|url| {
            url == "none" || Address::parse(&url).is_ok_and(|other| other.password.is_none())
        })
    };
    let query: Vec<&str> =
        query.split('&').filter(|pair| !pair.is_empty()).filter(is_kept).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{scheme}://{authority}{path}{mark}{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_the_database_is_and_how_locks_are_kept() {
        let url = "postgres://app:s3%40cret@db1:6000,db2/shop?schema=locks&connections=2&log=9&fence_retention=1h&create=yes";
        let address = Address::parse(url).unwrap();
        assert_eq!(address.hosts, [Host::Tcp("db1".into(), 6000), Host::Tcp("db2".into(), 5432)]);
        assert_eq!((address.user.as_str(), address.database.as_str()), ("app", "shop"));
        assert_eq!(address.password.as_deref(), Some("s3@cret"));
        assert_eq!(
            (address.schema.as_str(), address.connections, address.create),
            ("locks", 2, Some(true))
        );
        assert_eq!((address.log, address.retention()), (Some(9), Duration::from_secs(3600)));
        assert_eq!(address.location(), "postgres://db1:6000,db2:5432/shop?schema=locks");
        assert!(!format!("{address:?}").contains("cret"));
        let address = Address::parse("postgresql://app@/").unwrap();
        assert_eq!(address.location(), "postgres://localhost:5432/app");
        for socket in ["postgres://app@%2Frun%2Fpg:6000/db", "postgres://app@/db?host=/run/pg:6000"]
        {
            let address = Address::parse(socket).unwrap();
            assert_eq!(address.hosts, [Host::Unix("/run/pg".into(), 6000)]);
            assert_eq!(address.location(), "postgres://%2Frun%2Fpg:6000/db");
        }
        let address = Address::parse("postgres://app@[::1]:7000/db?listen=none").unwrap();
        assert_eq!(address.hosts, [Host::Tcp("::1".into(), 7000)]);
        assert_eq!(address.listen, Listen::Never);
    }

    #[test]
    fn a_setting_that_is_given_twice_is_refused() {
        let error = Address::parse("postgres://a@db/d?schema=x&log=1&schema=y").unwrap_err();
        assert!(error.to_string().contains("sets schema twice"), "{error}");
    }

    #[test]
    fn the_server_is_verified_unless_it_is_on_this_machine_or_the_url_says_otherwise() {
        let secured = |url: &str| Address::parse(url).unwrap().tls.is_some();
        for url in [
            "postgres://a@db/d",
            "postgres://a@127.0.0.1/d?sslmode=verify-full",
            "postgres://a@db/d?sslmode=require",
            "postgres://a@localhost,db/d",
            "postgres://a@localhost/d?sslrootcert=/c",
        ] {
            assert!(secured(url), "{url}");
        }
        for url in [
            "postgres://a@127.0.0.1/d",
            "postgres://a@localhost/d",
            "postgres://a@[::1]/d",
            "postgres://a@/d?host=/run",
            "postgres://a@db/d?sslmode=disable",
        ] {
            assert!(!secured(url), "{url}");
        }
    }

    #[test]
    fn what_can_not_be_used_is_refused_and_not_repeated() {
        for bad in [
            "redis://h",
            "postgres://:s3cret@h/d",
            "postgres://a:s3cret@h:x/d",
            "postgres://a:s3cret@h/d?sslmode=prefer",
            "postgres://a:s3cret@h/d?schema=A",
            "postgres://a:s3cret@h/d?schema=pg_x",
            "postgres://a:s3cret@h/d?connections=0",
            "postgres://a:s3cret@h/d?s3cret=1",
            "postgres://a:s3cret@h/d?create=maybe",
            "postgres://a:s3cret@h/d?durability=some",
            "postgres://a:s3cret@h/d?durability=async&synchronous=require",
            "postgres://a:s3cret@h/d?sslmode=disable&channel_binding=require",
            "postgres://a:s3cret@h/d?password_file=/p",
            "postgres://a:s3cret@h/d?sslcert=/c",
            "postgres://a:s3cret@h/d/e",
            "postgres://a:s3cret@h/d#x",
            "postgres://a:s3cret@h/d?fence_retention=0s",
            "postgres://a:s3cret@h/d?listen=s3cret",
        ] {
            let error = Address::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
            assert!(!error.to_string().contains("s3cret") || bad.contains("?s3cret"), "{error}");
        }
    }

    #[test]
    fn a_url_loses_its_passwords_and_nothing_else() {
        for (url, expected, has_one) in [
            ("postgres://u:p%40w@a,b:6000/d?schema=x", "postgres://u@a,b:6000/d?schema=x", true),
            ("postgres://u@h/d?listen=none&log=9", "postgres://u@h/d?listen=none&log=9", false),
            (
                "postgres://u@h/d?listen=postgres%3A%2F%2Fu:pw%40h&log=9",
                "postgres://u@h/d?log=9",
                true,
            ),
            (
                "postgres://u@h/d?password_file=/p:q@r",
                "postgres://u@h/d?password_file=/p:q@r",
                false,
            ),
        ] {
            assert_eq!(without_passwords(url), expected);
            assert_eq!(passwords_of(url).unwrap().of_server, has_one, "{url}");
        }
    }
}
