//! A store in this process's memory, for tests and for locks within one process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_clock::SystemClock;
use leasehold_clock::wall::fence_floor;
use leasehold_core::table::{LockEntry, Notice, Now, StoreTime};
use leasehold_core::{
    Acquire, AcquireRequest, BoxFuture, Capability, ClientId, Clock, ForceRelease,
    ForceReleaseRequest, Key, Leave, LeaveRequest, ListRequest, Listener, LockInfo, Release,
    ReleaseRequest, Renew, RenewRequest, Result, Store, Wake,
};
use tokio::sync::mpsc;

/// How long the last fence of an idle name is kept, by which a late release is told from a lost
/// one and fences keep rising when the wall clock is set back.
const RETENTION: Duration = Duration::from_secs(600);

/// A store in memory. Clones share the state; nothing survives the last of them.
///
/// It runs the lock table as it is, on any [`Clock`]: a test that brings its own clock decides
/// when leases end.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Key, LockEntry>,
    channels: HashMap<ClientId, mpsc::UnboundedSender<Wake>>,
    /// Operations until the next look for entries to forget.
    sweep_in: usize,
}

impl MemoryStore {
    /// An empty store on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// An empty store on a clock of the caller's.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { shared: Arc::new(Shared { clock, state: Mutex::default() }) }
    }

    /// How many names the store keeps anything about, in use or not; for tests.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.state().entries.len()
    }

    /// How many wake channels are open; for tests.
    #[must_use]
    pub fn channels(&self) -> usize {
        let mut state = self.state();
        state.channels.retain(|_, channel| !channel.is_closed());
        state.channels.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let since_origin = self.shared.clock.now().since_origin();
        let us = u64::try_from(since_origin.as_micros()).unwrap_or(u64::MAX);
        Now { at: StoreTime::from_micros(us), fence_floor: fence_floor() }
    }

    /// Carries out one operation on one name.
    fn step<T>(
        &self,
        key: &Key,
        operation: impl FnOnce(&mut LockEntry, Now, &mut Vec<Notice>) -> T,
    ) -> T {
        let mut state = self.state();
        let now = self.now();
        let mut notices = Vec::new();
        let outcome = operation(state.entries.entry(key.clone()).or_default(), now, &mut notices);
        for Notice { client, wake, .. } in notices {
            if let Some(channel) = state.channels.get(&client)
                && channel.send(wake).is_err()
            {
                state.channels.remove(&client);
            }
        }
        state.sweep(now);
        outcome
    }
}

impl State {
    /// Forgets idle names, once in as many operations as there are names.
    fn sweep(&mut self, now: Now) {
        if let Some(left) = self.sweep_in.checked_sub(1) {
            self.sweep_in = left;
            return;
        }
        self.entries.retain(|_, entry| {
            let kept_until = entry.in_use_until().map(|until| until.saturating_add(RETENTION));
            kept_until.is_some_and(|until| until > now.at) || (!entry.may_be_forgotten(now))
        });
        self.sweep_in = self.entries.len().max(64);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(async move {
            Ok(self.step(&request.key, |entry, now, notices| entry.acquire(request, now, notices)))
        })
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        _within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let renew = |request: &RenewRequest| {
                Ok(self
                    .step(&request.key, |entry, now, notices| entry.renew(request, now, notices)))
            };
            requests.iter().map(renew).collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            Ok(self.step(&request.key, |entry, now, notices| entry.release(request, now, notices)))
        })
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            Ok(self.step(&request.key, |entry, now, notices| entry.leave(request, now, notices)))
        })
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let state = self.state();
            let at = self.now().at;
            Ok(state.entries.get(key).and_then(|entry| entry.inspect(key, at)))
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>>> {
        Box::pin(async move {
            let state = self.state();
            let at = self.now().at;
            let matching =
                state.entries.iter().filter(|(key, _)| key.as_str().starts_with(&request.prefix));
            Ok(matching.filter_map(|(key, entry)| entry.inspect(key, at)).collect())
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        Box::pin(async move {
            Ok(self.step(&request.key, |entry, now, notices| {
                entry.force_release(request, now, notices)
            }))
        })
    }

    fn listen<'a>(
        &'a self,
        client: ClientId,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (sender, messages) = mpsc::unbounded_channel();
            self.state().channels.insert(client, sender);
            Ok(Box::new(Channel { messages }) as Box<dyn Listener>)
        })
    }

    fn capability(&self) -> Capability {
        Capability::ALL
    }

    fn location(&self) -> String {
        "memory:".to_owned()
    }
}

#[derive(Debug)]
struct Channel {
    messages: mpsc::UnboundedReceiver<Wake>,
}

impl Listener for Channel {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async move {
            match self.messages.recv().await {
                Some(wake) => wake,
                None => std::future::pending().await,
            }
        })
    }
}
