//! Names the keys of another library's lock, and describes what is stored there.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use leasehold_core::{AcquireRequest, Error, ErrorKind, Key, Metadata, OwnerName, Result, Token};

/// How another library stores its locks, so that its programs and leasehold's exclude each other.
///
/// As text, a layout has the name of its library: `redis-py`, `python-redis-lock`, `node-redlock`,
/// `redis-semaphore`, `redislock`, `redsync`, `symfony`, `spring:REGISTRY`, `shedlock:ENVIRONMENT`,
/// `redisson` or `redisson-fenced`. `plain` is a string without further peculiarities.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Layout {
    /// A string at the lock's own name: 32 hexadecimal digits, then the metadata. All libraries
    /// that store a string accept it.
    Plain,
    /// redis-py (Python).
    RedisPy,
    /// python-redis-lock: the string `lock:NAME`. A release leaves a signal for waiters in the list
    /// `lock-signal:NAME`.
    PythonRedisLock,
    /// redlock (Node.js) and its forks, on one server.
    NodeRedlock,
    /// The mutex of redis-semaphore (Node.js): the string `mutex:NAME`.
    RedisSemaphore,
    /// bsm/redislock (Go): the metadata follows the token.
    Redislock,
    /// redsync (Go), on one server.
    Redsync,
    /// Symfony's Lock component (PHP), from 5.2 on: a sorted set at the lock's own name.
    Symfony,
    /// Spring Integration's `RedisLockRegistry` (Java): the string `REGISTRY:NAME`. A release is
    /// also published for registries that wait for messages.
    Spring {
        /// The registry's key.
        registry: String,
    },
    /// The Redis provider of ShedLock (Java): the string `job-lock:ENVIRONMENT:NAME`.
    ShedLock {
        /// The environment of the provider; ShedLock's own default is `default`.
        environment: String,
    },
    /// Redisson's `RLock` (Java): a hash at the lock's own name, which counts holds.
    Redisson,
    /// Redisson's `RFencedLock` (Java): like `RLock`, with a number that grows with each hold.
    RedissonFenced,
}

/// The type of value that a layout stores.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shape {
    Text,
    Hash,
    Set,
}

/// The signal to waiters when a lock becomes free.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Signal {
    None,
    /// An element of this list.
    List(String),
    /// A message on this channel.
    Publish {
        channel: String,
        message: String,
    },
}

impl Layout {
    /// The layouts without parameters, by their names.
    const NAMES: [(&'static str, Self); 10] = [
        ("plain", Self::Plain),
        ("redis-py", Self::RedisPy),
        ("python-redis-lock", Self::PythonRedisLock),
        ("node-redlock", Self::NodeRedlock),
        ("redis-semaphore", Self::RedisSemaphore),
        ("redislock", Self::Redislock),
        ("redsync", Self::Redsync),
        ("symfony", Self::Symfony),
        ("redisson", Self::Redisson),
        ("redisson-fenced", Self::RedissonFenced),
    ];

    /// Whether the server counts the same owner's holds.
    #[must_use]
    pub const fn counts_holds(&self) -> bool {
        matches!(self, Self::Redisson | Self::RedissonFenced)
    }

    /// Whether each grant has a number above all earlier ones.
    #[must_use]
    pub const fn has_fences(&self) -> bool {
        matches!(self, Self::RedissonFenced)
    }

    /// Whether a lease can store metadata.
    #[must_use]
    pub const fn has_metadata(&self) -> bool {
        !self.counts_holds() && !matches!(self, Self::ShedLock { .. })
    }

    /// Whether a lease stores the owner's name. Otherwise others see only what distinguishes two
    /// holders.
    #[must_use]
    pub const fn has_owner(&self) -> bool {
        matches!(self, Self::ShedLock { .. })
    }

    /// Whether the keys of one lock are in different slots.
    pub(super) const fn spreads(&self) -> bool {
        matches!(self, Self::PythonRedisLock)
    }

    pub(super) const fn shape(&self) -> Shape {
        match self {
            Self::Redisson | Self::RedissonFenced => Shape::Hash,
            Self::Symfony => Shape::Set,
            _ => Shape::Text,
        }
    }

    /// The lock's key in the server.
    pub(super) fn key(&self, name: &Key) -> String {
        let name = name.as_str();
        match self {
            Self::PythonRedisLock => format!("lock:{name}"),
            Self::RedisSemaphore => format!("mutex:{name}"),
            Self::Spring { registry } => format!("{registry}:{name}"),
            Self::ShedLock { environment } => format!("job-lock:{environment}:{name}"),
            _ => name.to_owned(),
        }
    }

    /// The second key that scripts use, if the lock has one.
    pub(super) fn counter(&self, name: &Key) -> Option<String> {
        self.has_fences().then(|| format!("redisson_lock_token:{}", tagged(name.as_str())))
    }

    pub(super) fn signal(&self, name: &Key) -> Signal {
        match self {
            Self::PythonRedisLock => Signal::List(format!("lock-signal:{name}")),
            Self::Spring { registry } => Signal::Publish {
                channel: format!("{registry}-channel:{}", self.key(name)),
                message: self.key(name),
            },
            Self::Redisson | Self::RedissonFenced => Signal::Publish {
                channel: format!("redisson_lock__channel:{}", tagged(name.as_str())),
                message: "0".to_owned(),
            },
            _ => Signal::None,
        }
    }

    /// Patterns of the keys of its locks; `literal` escapes the user's own part.
    pub(crate) fn key_patterns(&self, literal: impl Fn(&str) -> String) -> Vec<String> {
        match self {
            Self::PythonRedisLock => vec!["lock:*".to_owned(), "lock-signal:*".to_owned()],
            Self::RedisSemaphore => vec!["mutex:*".to_owned()],
            Self::Spring { registry } => vec![format!("{}:*", literal(registry))],
            Self::ShedLock { environment } => {
                vec![format!("job-lock:{}:*", literal(environment))]
            }
            _ => vec!["*".to_owned()],
        }
    }

    /// The pattern of the channels that notify waiters, if there are any.
    pub(crate) fn channel_pattern(&self, literal: impl Fn(&str) -> String) -> Option<String> {
        match self {
            Self::Spring { registry } => Some(format!("{}-channel:*", literal(registry))),
            Self::Redisson | Self::RedissonFenced => Some("redisson_lock__channel:*".to_owned()),
            _ => None,
        }
    }

    /// The commands that its locks need.
    pub(crate) fn commands(&self, is_cluster: bool) -> Vec<&'static str> {
        let mut commands = match self.shape() {
            Shape::Text => vec!["type", "get", "set", "del", "pttl", "pexpire"],
            Shape::Hash => vec![
                "type", "exists", "hexists", "hkeys", "hgetall", "hset", "del", "pttl", "pexpire",
            ],
            Shape::Set => vec![
                "type",
                "pttl",
                "zscore",
                "zcount",
                "zrange",
                "zrevrange",
                "zrevrangebyscore",
                "zadd",
                "zrem",
                "zremrangebyscore",
                "pexpireat",
            ],
        };
        match self {
            Self::PythonRedisLock => commands.push("lpush"),
            Self::Spring { .. } => commands.push("publish"),
            Self::Redisson | Self::RedissonFenced => {
                commands.push(if is_cluster { "spublish" } else { "publish" });
            }
            _ => {}
        }
        if self.has_fences() {
            commands.extend(["incr", "get"]);
        }
        commands
    }

    /// The token in this layout's form. A secret.
    #[must_use]
    pub fn token(&self, token: &Token) -> String {
        let bytes = token.as_bytes();
        match self {
            Self::Plain | Self::RedisPy | Self::NodeRedlock => token.to_hex(),
            Self::PythonRedisLock => STANDARD.encode(stretched::<18>(bytes)),
            Self::Symfony => STANDARD.encode(stretched::<32>(bytes)),
            Self::Redislock => URL_SAFE_NO_PAD.encode(bytes),
            Self::Redsync => STANDARD.encode(bytes),
            Self::RedisSemaphore | Self::Spring { .. } | Self::ShedLock { .. } => uuid(token),
            // The number after the colon is a thread's.
            Self::Redisson | Self::RedissonFenced => format!("{}:1", uuid(token)),
        }
    }

    /// Whether the token is at the end of the value, not at its beginning.
    pub(super) const fn token_is_last(&self) -> bool {
        matches!(self, Self::ShedLock { .. })
    }

    /// The whole value.
    pub(super) fn value(&self, request: &AcquireRequest) -> String {
        let token = self.token(&request.token);
        match self {
            Self::ShedLock { .. } => {
                let now = Duration::from_micros(leasehold_clock::wall::unix_micros());
                let now = humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + now);
                format!("ADDED:{now}@{}:{token}", request.owner.as_str())
            }
            _ if self.counts_holds() => token,
            _ => token + request.metadata.as_str(),
        }
    }

    /// What a stored value shows of its holder. It leaves out the token, which is a secret, if the
    /// value has the library's form.
    pub(super) fn read(&self, value: &[u8]) -> (OwnerName, Metadata) {
        let text = String::from_utf8_lossy(value);
        let owner = |text: &str| OwnerName::new(text).unwrap_or_default();
        match self {
            Self::ShedLock { .. } => {
                let host = text.split_once('@').map_or("", |(_, host)| host);
                // Newer versions append a number.
                let host = match host.rsplit_once(':') {
                    Some((host, token)) if token.len() == UUID_BYTES => host,
                    _ => host,
                };
                (owner(host), Metadata::default())
            }
            _ if self.counts_holds() => {
                let told = text.split_once(':').filter(|it| is_of_redisson(*it)).and_then(
                    |(client, thread)| {
                        Some(format!("client {}, thread {thread}", client.get(..8)?))
                    },
                );
                // Another program's value is all there is to show.
                (owner(told.as_deref().unwrap_or(&text)), Metadata::default())
            }
            _ => {
                let length = self.token(&Token::from_bytes([0; 16])).len();
                let metadata = text
                    .split_at_checked(length)
                    .filter(|(token, _)| token.bytes().all(is_of_a_token))
                    .and_then(|(_, metadata)| Metadata::new(metadata).ok());
                (OwnerName::default(), metadata.unwrap_or_default())
            }
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spring { registry } => write!(f, "spring:{registry}"),
            Self::ShedLock { environment } => write!(f, "shedlock:{environment}"),
            _ => {
                let name = Self::NAMES.iter().find(|(_, layout)| layout == self);
                f.write_str(name.map_or("", |(name, _)| *name))
            }
        }
    }
}

impl FromStr for Layout {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::Config`] for any other name.
    fn from_str(text: &str) -> Result<Self> {
        if let Some((_, layout)) = Self::NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(layout.clone());
        }
        match text.split_once(':') {
            Some(("spring", registry)) if !registry.is_empty() => {
                Ok(Self::Spring { registry: registry.to_owned() })
            }
            Some(("shedlock", environment)) if !environment.is_empty() => {
                Ok(Self::ShedLock { environment: environment.to_owned() })
            }
            _ => {
                let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
                Err(Error::new(
                    ErrorKind::Config,
                    format!(
                        "unknown layout; known are {}, spring:REGISTRY and shedlock:ENVIRONMENT",
                        names.join(", ")
                    ),
                ))
            }
        }
    }
}

/// The length of a UUID as text.
const UUID_BYTES: usize = 36;

/// The token in the form of a UUID.
fn uuid(token: &Token) -> String {
    let hex = token.to_hex();
    let mut text = String::with_capacity(UUID_BYTES);
    for (place, digit) in hex.chars().enumerate() {
        if matches!(place, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

/// As many bytes as the library's random part has, made from leasehold's token.
fn stretched<const N: usize>(bytes: &[u8; 16]) -> [u8; N] {
    let mut all = bytes.iter().cycle();
    std::array::from_fn(|_| all.next().copied().unwrap_or_default())
}

/// A name in braces, unless it already has braces.
fn tagged(name: &str) -> String {
    if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") }
}

/// Whether it is a client's number in hexadecimal digits, usually a UUID, and a thread's number.
fn is_of_redisson((client, thread): (&str, &str)) -> bool {
    client.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        && !thread.is_empty()
        && thread.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_of_a_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+' | b'/' | b'=')
}

#[cfg(test)]
mod tests {
    use leasehold_core::Ttl;

    use super::*;

    fn token() -> Token {
        Token::from_hex("00112233445566778899aabbccddeeff").unwrap()
    }

    #[test]
    fn a_token_is_written_as_the_library_writes_its_own() {
        for (layout, expected) in [
            ("redis-py", "00112233445566778899aabbccddeeff"),
            ("python-redis-lock", "ABEiM0RVZneImaq7zN3u/wAR"),
            ("node-redlock", "00112233445566778899aabbccddeeff"),
            ("redis-semaphore", "00112233-4455-6677-8899-aabbccddeeff"),
            ("redislock", "ABEiM0RVZneImaq7zN3u_w"),
            ("redsync", "ABEiM0RVZneImaq7zN3u/w=="),
            ("symfony", "ABEiM0RVZneImaq7zN3u/wARIjNEVWZ3iJmqu8zd7v8="),
            ("redisson", "00112233-4455-6677-8899-aabbccddeeff:1"),
        ] {
            assert_eq!(layout.parse::<Layout>().unwrap().token(&token()), expected, "{layout}");
        }
    }

    #[test]
    fn keys_and_channels_are_those_of_the_library() {
        let key = Key::new("orders").unwrap();
        for (layout, expected) in [
            ("plain", "orders"),
            ("python-redis-lock", "lock:orders"),
            ("redis-semaphore", "mutex:orders"),
            ("spring:reg", "reg:orders"),
            ("shedlock:prod", "job-lock:prod:orders"),
            ("redisson", "orders"),
        ] {
            let layout: Layout = layout.parse().unwrap();
            assert_eq!(layout.key(&key), expected, "{layout}");
        }
        let channel = |layout: &str, name: &str| match layout
            .parse::<Layout>()
            .unwrap()
            .signal(&Key::new(name).unwrap())
        {
            Signal::Publish { channel, message } => (channel, message),
            other => panic!("{other:?}"),
        };
        let expected = ("redisson_lock__channel:{orders}".to_owned(), "0".to_owned());
        assert_eq!(channel("redisson", "orders"), expected);
        assert_eq!(channel("redisson", "a{b}").0, "redisson_lock__channel:a{b}");
        let expected = ("reg-channel:reg:orders".to_owned(), "reg:orders".to_owned());
        assert_eq!(channel("spring:reg", "orders"), expected);
    }

    #[test]
    fn metadata_comes_back_and_the_token_does_not() {
        let key = Key::new("a").unwrap();
        let mut request =
            AcquireRequest::new(key, token(), Ttl::new(Duration::from_secs(1)).unwrap());
        request.metadata = Metadata::new("host-7: a job").unwrap();
        request.owner = OwnerName::new("web-3").unwrap();
        for (name, layout) in Layout::NAMES {
            let value = layout.value(&request);
            let (_, metadata) = layout.read(value.as_bytes());
            let expected = if layout.has_metadata() { "host-7: a job" } else { "" };
            assert_eq!(metadata.as_str(), expected, "{name}");
        }
        let shedlock: Layout = "shedlock:default".parse().unwrap();
        let value = shedlock.value(&request);
        assert!(value.starts_with("ADDED:20") && value.ends_with("-aabbccddeeff"), "{value}");
        assert_eq!(shedlock.read(value.as_bytes()).0.as_str(), "web-3");
        let older = b"ADDED:2026-01-01T00:00:00.000Z@web-3";
        assert_eq!(shedlock.read(older).0.as_str(), "web-3");
    }

    #[test]
    fn a_holder_is_shown_as_redisson_writes_it_or_as_it_is_stored() {
        let owner = |value: &str| Layout::Redisson.read(value.as_bytes()).0.as_str().to_owned();
        let ours = Layout::Redisson.token(&token());
        assert_eq!(owner(&ours), format!("client {}, thread 1", &ours[..8]));
        for value in ["a:1", ":1", "abcdef0:1", "a host, long:1", "01234567:", "01234567:main", "x"]
        {
            assert_eq!(owner(value), value);
        }
        assert_eq!(owner(""), "");
    }

    #[test]
    fn a_value_of_no_known_form_names_no_holder() {
        for value in [&b"1"[..], b"", b"\xff\xfe", b"a free text that is longer than any token is"]
        {
            assert_eq!(Layout::Redislock.read(value).1.as_str(), "", "{value:?}");
        }
    }

    #[test]
    fn names_are_read_back_and_others_refused() {
        for text in ["plain", "redisson-fenced", "spring:a:b", "shedlock:prod"] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
        for text in ["", "spring", "spring:", "Redisson", "plain:x"] {
            assert_eq!(text.parse::<Layout>().unwrap_err().kind(), ErrorKind::Config, "{text}");
        }
    }
}
