//! Helpers for the tests: callers, requests, and patience.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, ClientId, Error, FenceBlock, Key, LeaveRequest, QueueRequest,
    ReleaseRequest, RenewRequest, Store as _, Token, Ttl, Waiting,
};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::server::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

/// Longer than any call takes, even on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);
/// For calls that should time out.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

pub(crate) fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

/// A name that no other test uses.
pub(crate) fn key() -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Key::new(format!("it/{}/{number}", std::process::id())).unwrap()
}

/// A caller that wants a lock.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) store: RedisStore,
    pub(crate) request: AcquireRequest,
}

impl Caller {
    pub(crate) fn new(store: &RedisStore, key: &Key) -> Self {
        let request = AcquireRequest::new(key.clone(), Token::generate().unwrap(), ttl(60));
        Self { store: store.clone(), request }
    }

    /// A caller that queues.
    pub(crate) fn patient(store: &RedisStore, key: &Key, client: ClientId) -> Self {
        let mut caller = Self::new(store, key);
        caller.request.queue = Some(QueueRequest::new(client, 7, ttl(60)));
        caller
    }

    pub(crate) async fn try_take(&self) -> Result<Acquire, Error> {
        self.store.acquire(&self.request, WITHIN).await
    }

    pub(crate) async fn take(&self) -> FenceBlock {
        match self.try_take().await.unwrap() {
            Acquire::Granted(granted) => granted.fences,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn wait(&self) -> Waiting {
        match self.try_take().await.unwrap() {
            Acquire::Waiting(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn renewal(&self, fences: FenceBlock) -> RenewRequest {
        RenewRequest::new(self.request.key.clone(), self.request.token, fences, ttl(60))
    }

    /// A release before the deadline, as most are.
    pub(crate) fn ending(&self, fences: FenceBlock) -> ReleaseRequest {
        let mut request = ReleaseRequest::new(self.request.key.clone(), self.request.token, fences);
        request.in_time = true;
        request
    }

    pub(crate) fn leaving(&self) -> LeaveRequest {
        LeaveRequest::new(self.request.key.clone(), self.request.token)
    }
}

/// A connection of the client library. By its defaults an answer takes half a second at most, which
/// a busy machine exceeds now and then.
pub(crate) async fn connection(client: &redis::Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new();
    let config = config.set_response_timeout(Some(WITHIN)).set_connection_timeout(Some(WITHIN));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// All stored fields of a lock.
pub(crate) async fn fields(server: &RedisServer, key: &Key) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = connection(&client).await.unwrap();
    redis::cmd("HGETALL").arg(record(key)).query_async(&mut raw).await.unwrap()
}

/// The key of a lock.
pub(crate) fn record(key: &Key) -> String {
    format!("leasehold:{{{key}}}")
}

/// Sets or removes a field of a lock.
pub(crate) async fn put(
    server: &RedisServer,
    key: &Key,
    field: &[u8],
    value: Option<&[u8]>,
) -> u64 {
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = connection(&client).await.unwrap();
    let mut command = redis::cmd(if value.is_some() { "HSET" } else { "HDEL" });
    command.arg(record(key)).arg(field).arg(value);
    command.query_async(&mut raw).await.unwrap()
}

/// The field of the sharer with this number: docs/wire.md.
pub(crate) fn slot(number: u32) -> Vec<u8> {
    [&b"@"[..], &number.to_le_bytes()].concat()
}

/// The field of a position.
pub(crate) fn place_name(place: u64) -> Vec<u8> {
    #[expect(clippy::cast_precision_loss, reason = "places are below 2^53")]
    let place = place as f64;
    place.to_be_bytes().to_vec()
}

/// All texts of an error, to search for secrets.
pub(crate) fn all_words(error: &Error) -> String {
    let mut words = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        words.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    words
}
