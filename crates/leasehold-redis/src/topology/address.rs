//! Reads a URL: where the server is, how to log in, and how locks are kept there.
//!
//! Errors and `Debug` output leave out URLs, and all parts of them that may be secret.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result, checked_log, escape};
use url::Url;

use crate::wire::names::Names;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26_379;

/// The default of the longest lease, if grants are confirmed.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);
/// Servers report their age in seconds.
const MAX_TTL_MIN: Duration = Duration::from_secs(1);

/// The default time to wait for replicas.
pub(crate) const REPLICATE_TIMEOUT: Duration = Duration::from_secs(1);

/// How servers work together.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Topology {
    /// One server.
    Single,
    /// The addresses belong to sentinels, which know the primary of this name.
    Sentinel { name: String },
    /// The addresses belong to some nodes of a cluster, which know the others.
    Cluster,
}

/// How a server is reached.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16, tls: Option<TlsFiles> },
    Unix(PathBuf),
}

impl Endpoint {
    /// Another server with the same way to reach it.
    pub(crate) fn sibling(&self, host: &str, port: u16) -> Self {
        let tls = match self {
            Self::Tcp { tls, .. } => tls.clone(),
            Self::Unix(_) => None,
        };
        Self::Tcp { host: host.to_owned(), port, tls }
    }

    /// A single server's name for people.
    pub(crate) fn location(&self) -> String {
        let scheme = match self {
            Self::Tcp { tls: Some(_), .. } => "rediss",
            Self::Tcp { tls: None, .. } => "redis",
            Self::Unix(_) => "redis+unix",
        };
        format!("{scheme}://{self}")
    }

    pub(crate) const fn is_secured(&self) -> bool {
        matches!(self, Self::Tcp { tls: Some(_), .. })
    }

    /// The address for other machines, for people.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp { .. } => self.to_string(),
            Self::Unix(_) => "host:port".to_owned(),
        }
    }

    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Unix(_) => "",
        }
    }
}

impl fmt::Display for Endpoint {
    /// Without the scheme.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => {
                let host = escape::terminal(host).to_string();
                if host.contains(':') {
                    write!(f, "[{host}]:{port}")
                } else {
                    write!(f, "{host}:{port}")
                }
            }
            Self::Unix(path) => write!(f, "{}", escape::terminal(&path.to_string_lossy())),
        }
    }
}

/// Files for TLS. By default, the system's authorities are trusted, and the client has no
/// certificate.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// A parsed URL.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) topology: Topology,
    pub(crate) endpoint: Endpoint,
    /// The other sentinels or nodes that the URL names.
    pub(crate) more: Vec<Endpoint>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) sentinel_password_file: Option<PathBuf>,
    pub(crate) replicas: Option<u32>,
    pub(crate) replicate_timeout: Option<Duration>,
    pub(crate) fsync: Option<bool>,
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) keep_leases: Option<bool>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// The password is on its first line.
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) database: i64,
    pub(crate) resp3: bool,
    pub(crate) prefix: Option<Names>,
    pub(crate) fence_retention: Option<Duration>,
    pub(crate) log: Option<u32>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topology, endpoint, more, database, resp3, prefix, fence_retention, .. } = self;
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "***");
        f.debug_struct("Address")
            .field("topology", topology)
            .field("endpoint", endpoint)
            .field("more", more)
            .field("user", &hidden(&self.user))
            .field("password", &hidden(&self.password))
            .field("sentinel_user", &hidden(&self.sentinel_user))
            .field("sentinel_password", &hidden(&self.sentinel_password))
            .field("database", database)
            .field("resp3", resp3)
            .field("prefix", prefix)
            .field("fence_retention", fence_retention)
            .field("log", &self.log)
            .field("replicas", &self.replicas)
            .field("replicate_timeout", &self.replicate_timeout)
            .field("fsync", &self.fsync)
            .field("max_ttl", &self.max_ttl)
            .field("keep_leases", &self.keep_leases)
            .finish()
    }
}

/// A URL with several hosts, which the URL standard does not allow.
struct Hosts {
    /// The URL with the first host alone.
    url: String,
    more: Vec<String>,
    /// The part before the hosts has an `@`, which belongs to a password, or to a login for each
    /// host.
    doubtful_login: bool,
}

impl Hosts {
    fn split(url: &str) -> Self {
        let whole = || Self { url: url.to_owned(), more: Vec::new(), doubtful_login: false };
        let Some((scheme, rest)) = url.split_once("://") else { return whole() };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let mut hosts = hosts.split(',');
        let first = hosts.next().unwrap_or_default();
        let more = hosts.map(str::to_owned).collect();
        let doubtful_login = user.matches('@').count() > 1;
        Self { url: format!("{scheme}://{user}{first}{path}"), more, doubtful_login }
    }
}

impl Address {
    /// Reads a URL; refuses parts that would have no effect.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let hosts = Hosts::split(url);
        let url = Url::parse(&hosts.url).map_err(|error| {
            refuse(format!("the store's URL is not valid: {error}; write redis://host:6379"))
        })?;
        if url.fragment().is_some() {
            return Err(refuse("the store's URL has a #; encode it as %23"));
        }
        let tls = || Some(TlsFiles::default());
        let mut address = match url.scheme() {
            "redis" | "valkey" => Self::tcp(&url, None)?,
            "rediss" | "valkeys" => Self::tcp(&url, tls())?,
            "redis+sentinel" | "valkey+sentinel" => Self::sentinel(&url, None)?,
            "rediss+sentinel" | "valkeys+sentinel" => Self::sentinel(&url, tls())?,
            "redis+cluster" | "valkey+cluster" => Self::cluster(&url, None)?,
            "rediss+cluster" | "valkeys+cluster" => Self::cluster(&url, tls())?,
            "redis+unix" | "valkey+unix" | "unix" => Self::unix(&url)?,
            other => {
                return Err(refuse(format!(
                    "unknown scheme {}; use redis, rediss (TLS), redis+sentinel, redis+cluster, \
                     redis+unix, or the same with valkey",
                    escape::terminal(other)
                )));
            }
        };
        if hosts.doubtful_login && address.topology != Topology::Single {
            return Err(refuse(
                "user and password are given once, before the first host; encode an @ in them as \
                 %40",
            ));
        }
        let mut said = BTreeSet::new();
        for (key, value) in url.query_pairs() {
            address.set(&key, &value)?;
            // A known option, so it can't be part of a password.
            if let Some(key) = said.replace(key) {
                return Err(refuse(format!("the store's URL sets {key} twice; set it once")));
            }
        }
        if let Endpoint::Tcp { tls: Some(files), .. } = &address.endpoint
            && files.certificate.is_some() != files.key.is_some()
        {
            return Err(refuse("certfile and keyfile belong together; give both"));
        }
        for (password, file) in [
            (&address.password, &address.password_file),
            (&address.sentinel_password, &address.sentinel_password_file),
        ] {
            if password.is_some() && file.is_some() {
                return Err(refuse("the store's URL has a password and a password file; keep one"));
            }
        }
        address.more = hosts.more.iter().map(|host| address.other(host)).collect::<Result<_>>()?;
        Ok(address)
    }

    /// Another host of the same URL.
    fn other(&self, host: &str) -> Result<Endpoint> {
        let default = match self.topology {
            Topology::Sentinel { .. } => DEFAULT_SENTINEL_PORT,
            Topology::Cluster => DEFAULT_PORT,
            Topology::Single => {
                return Err(refuse(
                    "several hosts need redis+sentinel:// or redis+cluster://; write one of these",
                ));
            }
        };
        let bad = || {
            refuse(
                "the store's URL has an invalid host; write them with commas, as in \
                 redis+cluster://host:7000,host:7001",
            )
        };
        let url = Url::parse(&format!("redis://{host}")).map_err(|_| bad())?;
        let plain = url.username().is_empty() && url.password().is_none() && url.path().is_empty();
        if !plain {
            return Err(bad());
        }
        let (host, port) = host_and_port(&url, default)?;
        Ok(self.endpoint.sibling(&host, port))
    }

    /// The servers to contact: sentinels, nodes, or the one server.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.endpoint).chain(&self.more)
    }

    fn at(endpoint: Endpoint) -> Self {
        Self {
            topology: Topology::Single,
            endpoint,
            more: Vec::new(),
            sentinel_user: None,
            sentinel_password: None,
            sentinel_password_file: None,
            replicas: None,
            replicate_timeout: None,
            fsync: None,
            max_ttl: None,
            keep_leases: None,
            user: None,
            password: None,
            password_file: None,
            database: 0,
            resp3: false,
            prefix: None,
            fence_retention: None,
            log: None,
        }
    }

    fn tcp(url: &Url, tls: Option<TlsFiles>) -> Result<Self> {
        let mut address = Self::remote(url, tls, DEFAULT_PORT)?;
        match url.path().trim_start_matches('/') {
            "" => {}
            number => address.database = database(number)?,
        }
        Ok(address)
    }

    fn sentinel(url: &Url, tls: Option<TlsFiles>) -> Result<Self> {
        let mut address = Self::remote(url, tls, DEFAULT_SENTINEL_PORT)?;
        let name = decoded(url.path().trim_start_matches('/'))?;
        if name.is_empty() || name.contains(|c: char| c == '/' || c.is_control()) {
            return Err(refuse(
                "the URL must end in the sentinels' name for the primary, as in \
                 redis+sentinel://host:26379/mymaster",
            ));
        }
        address.topology = Topology::Sentinel { name };
        Ok(address)
    }

    fn cluster(url: &Url, tls: Option<TlsFiles>) -> Result<Self> {
        let mut address = Self::remote(url, tls, DEFAULT_PORT)?;
        if !matches!(url.path(), "" | "/" | "/0") {
            return Err(refuse("a cluster has one database; leave the number out"));
        }
        address.topology = Topology::Cluster;
        Ok(address)
    }

    fn remote(url: &Url, tls: Option<TlsFiles>, port: u16) -> Result<Self> {
        let (host, port) = host_and_port(url, port)?;
        let mut address = Self::at(Endpoint::Tcp { host, port, tls });
        if !url.username().is_empty() {
            address.user = Some(decoded(url.username())?);
        }
        address.password = url.password().map(decoded).transpose()?;
        Ok(address)
    }

    fn unix(url: &Url) -> Result<Self> {
        if url.host().is_some_and(|host| !host.to_string().is_empty()) {
            return Err(refuse(
                "the path of a socket is absolute; write \
                               redis+unix:///path/to/socket",
            ));
        }
        if !url.path().starts_with('/') || url.path().len() < 2 {
            return Err(refuse("the URL names no socket; write redis+unix:///path/to/socket"));
        }
        Ok(Self::at(Endpoint::Unix(decoded(url.path())?.into())))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let Some((name, at, set)) = OPTIONS.iter().find(|(name, ..)| *name == key) else {
            return Err(unknown(key, value));
        };
        at.check(name, self)?;
        set(self, name, value)
    }

    /// A file for TLS. Its option is checked first, so there is always one.
    fn tls_file(
        &mut self,
        file: fn(&mut TlsFiles) -> &mut Option<PathBuf>,
        path: &str,
    ) -> Result<()> {
        if let Endpoint::Tcp { tls: Some(files), .. } = &mut self.endpoint {
            *file(files) = Some(path.into());
        }
        Ok(())
    }

    /// The server's name for people, without secrets.
    pub(crate) fn location(&self) -> String {
        let database = match self.database {
            0 => String::new(),
            number => format!("/{number}"),
        };
        let hosts = || {
            let all: Vec<String> = self.endpoints().map(ToString::to_string).collect();
            all.join(",")
        };
        match &self.endpoint {
            Endpoint::Tcp { tls, .. } => {
                let scheme = if tls.is_some() { "rediss" } else { "redis" };
                match &self.topology {
                    Topology::Single => format!("{scheme}://{}{database}", self.endpoint),
                    Topology::Sentinel { name } => {
                        let database = database.replace('/', "?db=");
                        let name = escape::terminal(name);
                        format!("{scheme}+sentinel://{}/{name}{database}", hosts())
                    }
                    Topology::Cluster => format!("{scheme}+cluster://{}", hosts()),
                }
            }
            Endpoint::Unix(_) => {
                let database = database.replace('/', "?db=");
                format!("redis+unix://{}{database}", self.endpoint)
            }
        }
    }
}

/// The name of an option of the query, where it has an effect, and how its value is stored.
type UrlOption = (&'static str, At, fn(&mut Address, &str, &str) -> Result<()>);

const OPTIONS: &[UrlOption] = &[
    ("cafile", At::Tls, |it, _, value| it.tls_file(|files| &mut files.authorities, value)),
    ("certfile", At::Tls, |it, _, value| it.tls_file(|files| &mut files.certificate, value)),
    ("db", At::SocketOrSentinels, |it, _, value| put(&mut it.database, database(value))),
    ("fence_retention", At::All, |it, _, value| put(&mut it.fence_retention, retention(value))),
    ("fsync", At::All, |it, name, value| put(&mut it.fsync, yes_or_no(name, value))),
    ("keep_leases", At::All, |it, name, value| put(&mut it.keep_leases, yes_or_no(name, value))),
    ("keyfile", At::Tls, |it, _, value| it.tls_file(|files| &mut files.key, value)),
    ("log", At::All, |it, _, value| put(&mut it.log, checked_log(value))),
    ("max_ttl", At::All, |it, _, value| put(&mut it.max_ttl, checked_max_ttl(seconds(value)))),
    ("pass", At::Socket, |it, _, value| put(&mut it.password, Ok(value.to_owned()))),
    ("password_file", At::All, |it, name, value| put(&mut it.password_file, file(name, value))),
    ("prefix", At::All, |it, _, value| put(&mut it.prefix, Names::new(value))),
    ("protocol", At::All, |it, _, value| put(&mut it.resp3, is_resp3(value))),
    ("replicas", At::All, |it, _, value| put(&mut it.replicas, replicas(value))),
    ("replicate_timeout", At::All, |it, _, value| put(&mut it.replicate_timeout, patience(value))),
    ("sentinel_password", At::Sentinels, |it, _, value| {
        put(&mut it.sentinel_password, Ok(value.to_owned()))
    }),
    ("sentinel_password_file", At::Sentinels, |it, name, value| {
        put(&mut it.sentinel_password_file, file(name, value))
    }),
    ("sentinel_user", At::Sentinels, |it, _, value| {
        put(&mut it.sentinel_user, Ok(value.to_owned()))
    }),
    ("user", At::Socket, |it, _, value| put(&mut it.user, Ok(value.to_owned()))),
];

const FOR_SOCKETS: &str = "is for sockets only; write redis://user:password@host:port/db";

/// The addresses at which an option has an effect.
#[derive(Clone, Copy)]
enum At {
    All,
    Tls,
    Sentinels,
    Socket,
    SocketOrSentinels,
}

impl At {
    fn check(self, name: &str, address: &Address) -> Result<()> {
        let socket = matches!(address.endpoint, Endpoint::Unix(_));
        let sentinels = matches!(address.topology, Topology::Sentinel { .. });
        let (here, why) = match self {
            Self::All => return Ok(()),
            Self::Tls => (address.endpoint.is_secured(), "is for TLS only; write rediss://…"),
            Self::Sentinels => (sentinels, "is for redis+sentinel:// only; leave it out"),
            Self::SocketOrSentinels if address.topology == Topology::Cluster => {
                (false, "has no effect, since a cluster has one database; leave it out")
            }
            Self::SocketOrSentinels => (socket || sentinels, FOR_SOCKETS),
            Self::Socket => (socket, FOR_SOCKETS),
        };
        if here {
            return Ok(());
        }
        Err(refuse(format!("{name} {why}")))
    }
}

fn put<T, V: Into<T>>(slot: &mut T, value: Result<V>) -> Result<()> {
    *slot = value?.into();
    Ok(())
}

/// Refuses an option that is not in the table.
fn unknown(key: &str, value: &str) -> Error {
    if key == "insecure" {
        return refuse("certificates are always verified; name the authority with cafile");
    }
    // An option without a value may be part of a password that was typed unescaped.
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    if value.is_empty() || key.len() > 32 || !key.bytes().all(letters) {
        return refuse(
            "unknown setting in the store's URL; a ? in a password is written %3F, and & is %26",
        );
    }
    let remedy = match nearest(key) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "remove it".to_owned(),
    };
    refuse(format!("unknown setting {key} in the store's URL; {remedy}"))
}

/// The setting that a name was meant to be: one that begins alike, or differs in few letters.
fn nearest(name: &str) -> Option<&'static str> {
    let known = || OPTIONS.iter().map(|(known, ..)| *known);
    let distance = |known: &&str| edits(known.as_bytes(), name.as_bytes());
    let alike = |known: &&str| known.get(..3).is_some_and(|start| name.starts_with(start));
    let close = |known: &&str| distance(known) <= name.len() / 3;
    known()
        .filter(alike)
        .min_by_key(distance)
        .or_else(|| known().min_by_key(distance).filter(close))
}

/// How many letters have to be added, removed or replaced to make one name of the other.
fn edits(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, letter) in (1_usize..).zip(one) {
        let (mut left, mut above_left) = (number, number.saturating_sub(1));
        for (cell, with) in row.iter_mut().skip(1).zip(other) {
            let replaced = above_left.saturating_add(usize::from(letter != with));
            above_left = *cell;
            left = replaced.min(left.saturating_add(1)).min(above_left.saturating_add(1));
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = number;
        }
    }
    row.last().copied().unwrap_or_default()
}

fn is_resp3(value: &str) -> Result<bool> {
    match value {
        "resp2" => Ok(false),
        "resp3" => Ok(true),
        _ => Err(refuse("protocol must be resp2 or resp3")),
    }
}

fn replicas(value: &str) -> Result<u32> {
    match value.parse() {
        Ok(count) if count <= REPLICAS_MAX => Ok(count),
        _ => Err(refuse("replicas must be a number of replicas, as in replicas=1")),
    }
}

fn host_and_port(url: &Url, default: u16) -> Result<(String, u16)> {
    let host = match url.host() {
        Some(url::Host::Ipv6(address)) => address.to_string(),
        Some(host) if !host.to_string().is_empty() => decoded(&host.to_string())?,
        _ => return Err(refuse("the store's URL names no host; write redis://host:6379")),
    };
    Ok((host, url.port().unwrap_or(default)))
}

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, why)
}

fn database(number: &str) -> Result<i64> {
    match number.parse::<u32>() {
        Ok(number) => Ok(number.into()),
        Err(_) => Err(refuse("the database must be a number, as in redis://host:6379/2")),
    }
}

/// The longest time to keep an idle lock's last fence: as long as the longest lease.
const RETENTION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Checks how long an idle lock's last fence is kept.
pub(crate) fn checked_retention(length: Duration) -> Result<Duration> {
    if (Duration::from_secs(1)..=RETENTION_MAX).contains(&length) {
        return Ok(length);
    }
    Err(refuse("fence_retention must be 1s to 30d, as in fence_retention=10m"))
}

fn retention(text: &str) -> Result<Duration> {
    checked_retention(seconds(text))
}

/// The path of a file that may be read again after the process has changed its directory.
fn file(key: &str, value: &str) -> Result<PathBuf> {
    let path = PathBuf::from(value);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(refuse(format!("{key} must be an absolute path, as in {key}=/run/secrets/redis")))
}

fn yes_or_no(key: &str, value: &str) -> Result<bool> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(refuse(format!("{key} must be yes or no"))),
    }
}

/// Checks how long the longest lease may be.
pub(crate) fn checked_max_ttl(length: Duration) -> Result<Duration> {
    if (MAX_TTL_MIN..=RETENTION_MAX).contains(&length) {
        return Ok(length);
    }
    Err(refuse("max_ttl must be 1s to 30d, as in max_ttl=2m"))
}

/// Reads a length of time such as `90s`, `10m`, `1h` or `2d`; zero if it is malformed.
fn seconds(text: &str) -> Duration {
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
    Duration::from_secs(seconds)
}

/// More replicas than any primary has.
const REPLICAS_MAX: u32 = 1_000;
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// Checks how long replicas may be waited for.
pub(crate) fn checked_patience(length: Duration) -> Result<Duration> {
    if (Duration::from_millis(1)..=PATIENCE_MAX).contains(&length) {
        return Ok(length);
    }
    Err(refuse("replicate_timeout must be 1ms to 1m, as in replicate_timeout=500ms"))
}

/// Reads a short length of time such as `500ms` or `2s`.
fn patience(text: &str) -> Result<Duration> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    let ms = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => number(digits),
        (None, Some(digits)) => number(digits).and_then(|seconds| seconds.checked_mul(1_000)),
        (None, None) => None,
    };
    checked_patience(Duration::from_millis(ms.unwrap_or(0)))
}

/// Decodes `%41`.
fn decoded(text: &str) -> Result<String> {
    match percent_encoding::percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(refuse("a part of the store's URL is not UTF-8 when decoded")),
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
    fn an_unknown_setting_is_met_with_the_one_that_is_nearest() {
        for (typed, meant) in [
            ("perfix", Some("prefix")),
            ("keep_lease", Some("keep_leases")),
            ("certificate", Some("certfile")),
            ("replica", Some("replicas")),
            ("sentinel_pass", Some("sentinel_password")),
            ("max-ttl", Some("max_ttl")),
            ("rotocol", Some("protocol")),
            ("colour", None),
            ("a", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed), meant, "{typed}");
        }
        assert_eq!(edits(b"kitten", b"sitting"), 3);
        assert_eq!(edits(b"", b"four"), 4);
    }

    #[test]
    fn nothing_in_a_url_is_ignored() {
        refused(
            "redis://h?prefx=a",
            "unknown setting prefx in the store's URL; did you mean prefix?",
        );
        refused("redis://h?colour=a", "unknown setting colour in the store's URL; remove it");
        refused("redis://h?hunter2", "a ? in a password is written %3F");
        refused("redis://h?prefix=a&max_ttl=1m&prefix=b", "sets prefix twice");
        refused("redis://h?replicas=1&replicas=1", "sets replicas twice");
        refused("redis://h?cafile=/a", "rediss://");
        refused("redis://h?db=1", "host:port/db");
        refused("redis://h#insecure", "has a #");
        refused("rediss://h?insecure=1", "always verified");
        refused("rediss://h?certfile=/a", "belong together");
        refused("redis://h/one", "the database must be a number");
        refused("redis://h/-1", "the database must be a number");
        refused("redis://h?protocol=3", "resp2 or resp3");
        refused("redis://h?prefix=", "1 to 64 bytes");
        refused("redis://", "names no host");
        refused("redis://h:99999", "is not valid");
        refused("h:6379", "unknown scheme");
        refused("host", "is not valid");
        refused("redis+unix://run/socket", "absolute");
        refused("redis+unix:///", "names no socket");
    }

    #[test]
    fn sentinels_are_named_with_the_primary_that_they_know() {
        let address = parse(
            "redis+sentinel://ann:pw@h1:7000,h2,[::1]:7001/my%20master\
             ?db=2&sentinel_user=sam&sentinel_password=s%2Fpw",
        );
        assert_eq!(address.topology, Topology::Sentinel { name: "my master".into() });
        assert_eq!(
            address.location(),
            "redis+sentinel://h1:7000,h2:26379,[::1]:7001/my master?db=2"
        );
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("ann"), Some("pw"))
        );
        assert_eq!(address.sentinel_user.as_deref(), Some("sam"));
        assert_eq!(address.sentinel_password.as_deref(), Some("s/pw"));
        let secure = parse("rediss+sentinel://h1,h2/m?cafile=/a");
        assert!(secure.endpoints().all(
            |one| matches!(one, Endpoint::Tcp { tls: Some(files), .. } if files.authorities.is_some())
        ));
        assert_eq!(secure.location(), "rediss+sentinel://h1:26379,h2:26379/m");
        refused("redis+sentinel://h1,h2", "the sentinels' name");
        refused("redis+sentinel://h1/a/b", "the sentinels' name");
        refused("redis+sentinel://h1,x:99999/m", "an invalid host");
        refused("redis+sentinel://h1,,h2/m", "names no host");
    }

    #[test]
    fn nodes_of_a_cluster_have_one_database() {
        let address = parse("redis+cluster://:pw@h1,h2:7001");
        assert_eq!(address.topology, Topology::Cluster);
        assert_eq!(address.location(), "redis+cluster://h1:6379,h2:7001");
        assert_eq!(parse("valkeys+cluster://h1").location(), "rediss+cluster://h1:6379");
        refused("redis+cluster://h1,h2/2", "one database");
        refused("redis+cluster://h1?db=2", "one database");
        refused("redis+cluster://h1?sentinel_password=x", "for redis+sentinel:// only");
        refused("redis://h1,h2", "several hosts need");
    }

    #[test]
    fn replicas_that_must_have_a_grant_are_counted() {
        let address = parse("redis://h?replicas=2&replicate_timeout=500ms&fsync=yes");
        assert_eq!(address.replicas, Some(2));
        assert_eq!(address.replicate_timeout, Some(Duration::from_millis(500)));
        assert_eq!(address.fsync, Some(true));
        assert_eq!(patience("2s").unwrap(), Duration::from_secs(2));
        refused("redis://h?replicas=-1", "as in replicas=1");
        refused("redis://h?replicas=all", "as in replicas=1");
        refused("redis://h?replicate_timeout=0ms", "must be 1ms to 1m");
        refused("redis://h?replicate_timeout=5", "must be 1ms to 1m");
        refused("redis://h?fsync=1", "yes or no");
        let address = parse("redis://h?replicas=1&max_ttl=2m&keep_leases=no");
        assert_eq!(address.max_ttl, Some(Duration::from_secs(120)));
        assert_eq!(address.keep_leases, Some(false));
        refused("redis://h?replicas=1&max_ttl=0s", "must be 1s to 30d");
        refused("redis://h?replicas=1&max_ttl=long", "must be 1s to 30d");
        refused("redis://h?replicas=1&keep_leases=1", "yes or no");
    }

    #[test]
    fn a_login_at_each_host_is_not_taken_for_a_long_password() {
        for url in ["redis+cluster://u:secret@a,u:secret@b", "rediss+sentinel://:secret@a,:x@b/m"] {
            refused(url, "before the first host");
            assert!(!Address::parse(url).unwrap_err().to_string().contains("secret"));
        }
        assert_eq!(parse("redis+cluster://u:p%40,@a,b").password.as_deref(), Some("p@,"));
        assert_eq!(parse("redis://u:p@ss@a").password.as_deref(), Some("p@ss"));
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
        for url in [
            "redis://ann:secret@h",
            "redis+sentinel://ann:secret@h/m?sentinel_user=ann&sentinel_password=secret",
        ] {
            let shown = format!("{:?} {}", parse(url), parse(url).location());
            assert!(!shown.contains("ann") && !shown.contains("secret"), "{shown}");
        }
    }
}
