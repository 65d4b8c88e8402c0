//! A world in which time stands still until all tasks wait.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Cooldown};
use leasehold_clock::TokioClock;
use leasehold_core::{AcquireRequest, Clock, Key, ReleaseRequest, Store, Token, Ttl};
use leasehold_embedded::MemoryStore;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn cool(length: Duration) -> Cooldown {
    Cooldown::new(length).unwrap()
}

/// Longer than anything here takes, even on a machine that does ten other things.
pub(crate) const PATIENCE: Duration = secs(90);

/// What comes of the future, which comes to something before long.
#[cfg(feature = "redis")]
pub(crate) async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A store in memory and clients of it, all on tokio's clock.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) clock: Arc<dyn Clock>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        Self { store: MemoryStore::with_clock(Arc::clone(&clock)), clock }
    }

    /// A client as a process of its own would have one.
    pub(crate) fn client(&self) -> Client {
        self.client_of(Arc::new(self.store.clone()))
    }

    pub(crate) fn client_of(&self, store: Arc<dyn Store>) -> Client {
        Client::builder().tokio_time().clock(Arc::clone(&self.clock)).store(store).unwrap()
    }

    /// Takes a lock behind the client's back, as a foreign process that never renews.
    pub(crate) async fn stranger_takes(&self, key: &str, ttl: Duration) -> ReleaseRequest {
        let key = Key::new(key).unwrap();
        let token = Token::generate().unwrap();
        let request = AcquireRequest::new(key.clone(), token, Ttl::new(ttl).unwrap());
        match self.store.acquire(&request, secs(1)).await.unwrap() {
            leasehold_core::Acquire::Granted(granted) => {
                ReleaseRequest::new(key, token, granted.fences)
            }
            other => panic!("a stranger could not take the lock: {other:?}"),
        }
    }

    /// Whether the lock is free, and has no waiter.
    pub(crate) async fn is_idle(&self, key: &str) -> bool {
        let key = Key::new(key).unwrap();
        self.store.inspect(&key, secs(1)).await.unwrap().is_none()
    }

    /// Returns once the lock is free, and has no waiter.
    pub(crate) async fn idle(&self, key: &str) {
        let idle = async {
            while !self.is_idle(key).await {
                tokio::time::sleep(ms(1)).await;
            }
        };
        tokio::time::timeout(secs(3600), idle).await.expect("the lock never came to rest");
    }

    /// The number of waiters at the store.
    pub(crate) async fn waiters(&self, key: &str) -> usize {
        let key = Key::new(key).unwrap();
        let info = self.store.inspect(&key, secs(1)).await.unwrap();
        info.map_or(0, |info| info.waiters.len())
    }
}

/// Returns once a lease of this length that is held will end later than it was granted to, as the
/// store has it.
#[cfg(feature = "redis")]
pub(crate) async fn renewed(client: &Client, key: &str, ttl: Duration, check: impl Fn()) {
    loop {
        check();
        let info = client.inspect(key).await.unwrap().unwrap();
        let holder = info.holders.first().unwrap();
        if holder.held_for + holder.remaining > ttl + ttl / 10 {
            return;
        }
        tokio::time::sleep(ms(20)).await;
    }
}
