//! A store in this process's memory, for tests and for locks within one process.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_clock::SystemClock;
use leasehold_clock::wall::{fence_floor, fence_floor_at};
use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::table::{self, Entries, LockEntry, Notice, Now, Operation, StoreTime};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Clock,
    Convert, ConvertRequest, Fence, ForceRelease, ForceReleaseRequest, Key, Leave, LeaveRequest,
    ListRequest, Listener, Listing, LockInfo, Release, ReleaseRequest, Renew, RenewRequest, Result,
    SetLimit, SetLimitRequest, Store, Token, Wake,
};
use tokio::sync::mpsc;

use crate::{RETENTION, tokens};

/// A store in memory. Clones share the state, which ends with the last of them.
///
/// It runs the lock table on any [`Clock`], so a test with its own clock decides when leases end.
/// Ten minutes on that clock after its last use, a name is forgotten. Its next holder gets a fence
/// above all fences that were ever issued here.
///
/// The first poll of an operation's future carries the operation out, in less than a microsecond.
/// Operations always succeed, so `within` has no effect. A fork has its own copy, which excludes no
/// other process.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use leasehold_clock::ManualClock;
/// use leasehold_core::{Acquire, AcquireRequest, Key, Store, Token, Ttl};
/// use leasehold_embedded::MemoryStore;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::with_clock(Arc::new(clock.clone()));
/// let within = Duration::from_secs(1);
/// let ask = || {
///     let ttl = Ttl::new(Duration::from_secs(30))?;
///     Ok(AcquireRequest::new(Key::new("k")?, Token::generate()?, ttl))
/// };
/// assert!(matches!(store.acquire(&ask()?, within).await?, Acquire::Granted(_)));
/// assert!(matches!(store.acquire(&ask()?, within).await?, Acquire::Busy(_)));
/// clock.advance(Duration::from_secs(30));
/// assert!(matches!(store.acquire(&ask()?, within).await?, Acquire::Granted(_)));
/// # Ok::<(), leasehold_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    /// Replaces the system's time of day, if set.
    time_of_day: Option<Arc<dyn Clock>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    slots: BTreeMap<Key, Slot>,
    channels: HashMap<ClientId, mpsc::UnboundedSender<Wake>>,
    /// The highest fence of all forgotten names.
    forgotten: Fence,
    /// Operations until the next look for names to forget.
    sweep_in: usize,
}

#[derive(Debug)]
struct Slot {
    entry: LockEntry,
    /// When the last operation used it.
    touched_at: StoreTime,
}

/// The least number of operations between two looks for names to forget.
const SWEEP_EVERY: usize = 64;

impl MemoryStore {
    /// An empty store on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// An empty store on a clock that the caller brings.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::on(clock, None)
    }

    /// An empty store on clocks that the caller brings, for simulations. Leases run on `clock`.
    /// `time_of_day` seeds the fences; its origin stands for 1970-01-01 UTC.
    #[must_use]
    pub fn with_clocks(clock: Arc<dyn Clock>, time_of_day: Arc<dyn Clock>) -> Self {
        Self::on(clock, Some(time_of_day))
    }

    fn on(clock: Arc<dyn Clock>, time_of_day: Option<Arc<dyn Clock>>) -> Self {
        let state = State {
            slots: BTreeMap::new(),
            channels: HashMap::new(),
            forgotten: Fence::ZERO,
            sweep_in: SWEEP_EVERY,
        };
        Self { shared: Arc::new(Shared { clock, time_of_day, state: Mutex::new(state) }) }
    }

    /// How many names the store has an entry for, in use or not; for tests.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.state().slots.len()
    }

    /// How many names are held, waited for, or cooling down; for tests.
    #[must_use]
    pub fn in_use(&self) -> usize {
        let state = self.state();
        let at = self.now().at;
        state.slots.values().filter(|slot| slot.entry.in_use_until() > Some(at)).count()
    }

    /// How many notification channels are open; for tests.
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
        let Shared { clock, time_of_day, .. } = &*self.shared;
        let fence_floor = match time_of_day {
            Some(time_of_day) => fence_floor_at(micros(&**time_of_day)),
            None => fence_floor(),
        };
        Now::new(StoreTime::from_micros(micros(&**clock)), fence_floor)
    }

    /// Carries operations out in one step.
    fn step<T>(&self, operations: impl FnOnce(&mut Step<'_>) -> T) -> T {
        let mut state = self.state();
        let now = self.now();
        let mut step = Step { state: &mut state, now, notices: Vec::new() };
        let answer = operations(&mut step);
        let notices = step.notices;
        state.end(notices, now);
        answer
    }

    /// Carries out one operation on one lock.
    fn perform<'a, O>(&'a self, key: &'a Key, operation: &'a O) -> BoxFuture<'a, Result<O::Answer>>
    where
        O: Operation<Answer: Send> + Sync,
    {
        Box::pin(async move {
            let Ok(answer) = self.step(|step| step.perform(key, operation));
            Ok(answer)
        })
    }
}

fn micros(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.now().since_origin().as_micros()).unwrap_or(u64::MAX)
}

/// Operations that are carried out together.
struct Step<'a> {
    state: &'a mut State,
    now: Now,
    notices: Vec<Notice>,
}

impl Entries for Step<'_> {
    type Error = Infallible;

    fn perform<O: Operation>(
        &mut self,
        key: &Key,
        operation: &O,
    ) -> std::result::Result<O::Answer, Infallible> {
        let Self { state, now, notices } = self;
        if let Some(slot) = state.slots.get_mut(key) {
            slot.touched_at = now.at;
            return Ok(slot.entry.perform(operation, *now, notices));
        }
        let fence_floor = now.fence_floor.max(state.forgotten.saturating_add(1));
        let mut entry = LockEntry::default();
        let answer = entry.perform(operation, Now { fence_floor, ..*now }, notices);
        if entry.in_use_until().is_some() || entry.last_fence().is_some() {
            state.slots.insert(key.clone(), Slot { entry, touched_at: now.at });
        }
        Ok(answer)
    }
}

impl State {
    /// Delivers the notifications of a step, and forgets what is idle.
    fn end(&mut self, notices: Vec<Notice>, now: Now) {
        for Notice { client, wake, .. } in notices {
            if let Some(channel) = self.channels.get(&client)
                && channel.send(wake).is_err()
            {
                self.channels.remove(&client);
            }
        }
        self.sweep(now);
    }

    /// Forgets names long unused. Runs once per as many operations as there are names, so its cost
    /// per operation is constant.
    fn sweep(&mut self, now: Now) {
        if let Some(left) = self.sweep_in.checked_sub(1) {
            self.sweep_in = left;
            return;
        }
        let forgotten = &mut self.forgotten;
        self.slots.retain(|_, Slot { entry, touched_at }| {
            let idle_since = entry.in_use_until().unwrap_or_default().max(*touched_at);
            let stays =
                idle_since.saturating_add(RETENTION) > now.at || !entry.may_be_forgotten(now);
            if !stays {
                *forgotten = entry.last_fence().unwrap_or(Fence::ZERO).max(*forgotten);
            }
            stays
        });
        self.sweep_in = self.slots.len().max(SWEEP_EVERY);
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
        self.perform(&request.key, request)
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        _within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let renew = |request: &RenewRequest| {
                let Ok(answer) = self.step(|step| step.perform(&request.key, request));
                Ok(answer)
            };
            requests.iter().map(renew).collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        self.perform(&request.key, request)
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        self.perform(&request.key, request)
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        _within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(async move {
            AcquireAll::check(requests)?;
            let Ok(answer) = self.step(|step| table::acquire_all(requests, step));
            Ok(answer)
        })
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        self.perform(&request.key, request)
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        self.perform(&request.key, request)
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, _within: Duration) -> BoxFuture<'a, Result<Ask>> {
        self.perform(&request.key, request)
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let state = self.state();
            let at = self.now().at;
            Ok(state.slots.get(key).and_then(|slot| slot.entry.inspect(key, at)))
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(async move {
            let state = self.state();
            let at = self.now().at;
            let matching =
                state.slots.iter().filter(|(key, _)| key.as_str().starts_with(&request.prefix));
            let locks = matching.filter_map(|(key, slot)| slot.entry.inspect(key, at));
            Ok(Listing::new(locks.collect(), Vec::new()))
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        self.perform(&request.key, request)
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

    fn remembers_for(&self, _within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn examine<'a>(&'a self, _within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async {
            let finding = Finding::new(
                Severity::Note,
                "reach",
                "the locks are in this process's memory",
                "they keep out this process alone, and end with it",
            );
            Ok(vec![finding.advise("for other processes, use embedded: or a Redis server")])
        })
    }

    fn token(&self) -> Result<Token> {
        tokens::draw()
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
