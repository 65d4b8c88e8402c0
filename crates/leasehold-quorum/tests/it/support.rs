//! Nodes of all kinds, and requests to quorums of them.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Acquire, AcquireRequest, FenceBlock, Key, Store, Token, Ttl};
use leasehold_embedded::MemoryStore;
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;

/// The limit for a call; only a call that hangs exceeds it.
pub(crate) const CALL: Duration = Duration::from_secs(20);

pub(crate) fn memories(count: usize) -> Vec<Arc<dyn Store>> {
    (0..count).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>).collect()
}

/// Stores on servers that may still be down.
pub(crate) fn connected(servers: &[RedisServer]) -> Vec<Arc<dyn Store>> {
    let store = |server: &RedisServer| RedisStore::connect_lazy(&server.url()).unwrap();
    servers.iter().map(|server| Arc::new(store(server)) as Arc<dyn Store>).collect()
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn key() -> Key {
    Key::new(format!("quorum/{}", Token::generate().unwrap().fingerprint())).unwrap()
}

/// The request of a new caller.
pub(crate) fn wish(key: &Key, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(key.clone(), Token::generate().unwrap(), Ttl::new(ttl).unwrap())
}

/// Acquires a free lock.
pub(crate) async fn granted(store: &dyn Store, asked: &AcquireRequest) -> FenceBlock {
    match store.acquire(asked, CALL).await.unwrap() {
        Acquire::Granted(granted) => granted.fences,
        other => panic!("not granted: {other:?}"),
    }
}

/// Requests like a client, with a new token after each split among contenders, until the result is
/// clear.
pub(crate) async fn ask_until_settled(store: &dyn Store, asked: &mut AcquireRequest) -> Acquire {
    loop {
        match store.acquire(asked, CALL).await.unwrap() {
            Acquire::Busy(busy) if busy.is_contended() => {
                tokio::time::sleep(ms(100).mul_f64(fastrand::f64())).await;
                asked.token = Token::generate().unwrap();
            }
            answer => return answer,
        }
    }
}
