//! What a case works with: the store, fresh names, and patience.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{
    Cooldown, Fence, FenceBlock, ForceRelease, ForceReleaseRequest, Key, Leave, LeaveRequest,
    ListRequest, LockInfo, Release, ReleaseRequest, Renew, RenewRequest, Store, Token, Ttl,
};

use super::party::Party;

/// A lease that lasts for the whole case.
pub(super) const LONG: Duration = Duration::from_secs(30);
/// A lease that expires while the case waits.
const SHORT: Duration = Duration::from_millis(200);
/// The same at a quorum, whose nodes have to answer within a quarter of a lease.
const SHORT_AT_NODES: Duration = Duration::from_secs(4);
/// The limit for a call; only a store that hangs exceeds it.
pub(super) const CALL: Duration = Duration::from_secs(20);
/// How long a case waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);
/// By how much a store's times may differ from the test's: rounding, and clock drift.
pub(super) const SLACK: Duration = Duration::from_millis(5);

/// What a case works with.
#[derive(Debug)]
pub struct Context {
    store: Arc<dyn Store>,
    prefix: String,
    keys: AtomicU32,
}

impl Context {
    /// A context with its own names.
    ///
    /// # Panics
    ///
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let random = token().fingerprint();
        Self { store, prefix: format!("conformance/{random}/"), keys: AtomicU32::new(0) }
    }

    /// A lease that expires while the case waits, and outlasts its grant on a busy machine.
    pub(super) fn short(&self) -> Duration {
        if self.store.capability().undoes { SHORT_AT_NODES } else { SHORT }
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(super) fn shared_store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The prefix of all names of this case.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A fresh name.
    pub(super) fn key(&self) -> Key {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        self.named(format_args!("k{number}"))
    }

    pub(super) fn named(&self, rest: impl fmt::Display) -> Key {
        key(&format!("{}{rest}", self.prefix))
    }

    /// A new party with its own token, which wants the lock exclusively, for a long time, at once.
    pub(super) fn party(&self, key: &Key) -> Party {
        Party::new(self.shared_store(), key)
    }

    pub(super) async fn inspect(&self, key: &Key) -> Option<LockInfo> {
        self.store.inspect(key, CALL).await.expect("inspect answers")
    }

    /// Describes a lock that is in use.
    pub(super) async fn show(&self, key: &Key) -> LockInfo {
        self.inspect(key).await.unwrap_or_else(|| panic!("nobody uses {key}"))
    }

    /// The owners' names of the holders.
    pub(super) async fn holders(&self, key: &Key) -> Vec<String> {
        let info = self.inspect(key).await;
        let holders = info.iter().flat_map(|info| &info.holders);
        holders.map(|holder| holder.owner.as_str().to_owned()).collect()
    }

    /// The owners' names of the waiters.
    pub(super) async fn waiters(&self, key: &Key) -> Vec<String> {
        let info = self.inspect(key).await;
        let waiters = info.iter().flat_map(|info| &info.waiters);
        waiters.map(|waiter| waiter.owner.as_str().to_owned()).collect()
    }

    pub(super) async fn list(&self, prefix: &str) -> Vec<LockInfo> {
        let listing = self.store.list(&ListRequest::new(prefix), CALL).await.expect("list answers");
        assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
        listing.locks
    }

    pub(super) async fn names(&self, prefix: &str) -> Vec<Key> {
        self.list(prefix).await.into_iter().map(|info| info.key).collect()
    }

    pub(super) async fn renew(&self, request: RenewRequest) -> Renew {
        let mut answers = self.store.renew(&[request], CALL).await;
        assert_eq!(answers.len(), 1, "one request, one answer");
        answers.remove(0).expect("renew answers")
    }

    pub(super) async fn release(&self, request: &ReleaseRequest) -> Release {
        self.store.release(request, CALL).await.expect("release answers")
    }

    pub(super) async fn leave(&self, key: &Key, token: Token) -> Leave {
        let request = LeaveRequest::new(key.clone(), token);
        self.store.leave(&request, CALL).await.expect("leave answers")
    }

    pub(super) async fn force_release(&self, key: &Key, fence: Fence) -> ForceRelease {
        let request = ForceReleaseRequest::new(key.clone(), fence);
        self.store.force_release(&request, CALL).await.expect("force_release answers")
    }

    /// Waits until the lock is idle.
    pub(super) async fn until_idle(&self, key: &Key) {
        let mut patience = Patience::for_what(format!("{key} to fall idle"));
        while self.inspect(key).await.is_some() {
            patience.pause().await;
        }
    }
}

/// Polling with a limit.
pub(super) struct Patience {
    what: String,
    started: Instant,
}

impl Patience {
    pub(super) fn for_what(what: impl Into<String>) -> Self {
        Self { what: what.into(), started: Instant::now() }
    }

    pub(super) async fn pause(&mut self) {
        self.pause_for(Duration::from_millis(5)).await;
    }

    /// Pauses for a random part of `longest`.
    pub(super) async fn pause_within(&mut self, longest: Duration) {
        self.pause_for(longest.mul_f64(fastrand::f64())).await;
    }

    async fn pause_for(&mut self, length: Duration) {
        let waited = self.started.elapsed();
        assert!(waited < PATIENCE, "waited {waited:?} in vain for {}", self.what);
        tokio::time::sleep(length).await;
    }
}

/// Waits for an event that must come.
pub(super) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain for {what}"))
}

pub(super) fn key(name: &str) -> Key {
    Key::new(name).expect("cases use good names")
}

pub(super) fn token() -> Token {
    Token::generate().expect("the operating system has randomness")
}

pub(super) fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).expect("cases use good ttls")
}

pub(super) fn cool(length: Duration) -> Cooldown {
    Cooldown::new(length).expect("cases use good cooldowns")
}

/// Fences that no lease has.
pub(super) fn no_fences() -> FenceBlock {
    FenceBlock::new(Fence::ZERO, 1)
}
