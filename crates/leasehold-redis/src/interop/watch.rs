//! Which locks somebody waits for or holds, and a connection that tracks them.
//!
//! A program of another library wakes nobody of ours, and tells no holder that it took the lock
//! away. The server does: it tells a connection that tracks its keys of every change to what it has
//! read. The expiry of a key is told late, so waiters have timers of their own for that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Fence, Key, Listener, Token, Wake};
use redis::aio::ConnectionLike as _;
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::layout::{Layout, Shape};
use crate::access::{Access, Tracking};
use crate::classify::Verdict;
use crate::connection::pause_after;
use crate::listen::Listening;
use crate::transport::{Deadline, here};

/// How often a connection on which nothing came is asked for a sign of life, and how long it has.
const PING_EVERY: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How many keys are looked at in one go.
const LOOK_MAX: usize = 100;
/// How long after its end a lease, or a place, is still looked after.
const SLACK: Duration = Duration::from_secs(30);

/// The locks that are looked after. All handles of a store share it.
#[derive(Debug)]
pub(super) struct Watches {
    layout: Layout,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By their keys in the server.
    locks: HashMap<String, Watched>,
    /// To be looked at.
    fresh: Vec<String>,
    /// How many there were when those that are over were last dropped.
    kept: usize,
    /// How many leases have begun.
    begun: u64,
}

#[derive(Debug)]
struct Watched {
    name: Key,
    waiters: HashMap<u64, Waiter>,
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Waiter {
    token: Token,
    until: Instant,
}

#[derive(Debug)]
struct Holder {
    token: Token,
    fence: Fence,
    until: Instant,
    /// Which lease it is, counted from 1.
    number: u64,
}

impl Watched {
    fn is_over(&mut self, now: Instant) -> bool {
        self.waiters.retain(|_, waiter| waiter.until > now);
        self.holders.retain(|holder| holder.until > now);
        self.waiters.is_empty() && self.holders.is_empty()
    }
}

impl State {
    /// What is known of a lock, from now on at least.
    fn watch(&mut self, stored: String, name: &Key) -> &mut Watched {
        if self.locks.len() > self.kept.saturating_mul(2).saturating_add(64) {
            let now = Instant::now();
            self.locks.retain(|_, watched| !watched.is_over(now));
            self.kept = self.locks.len();
        }
        self.fresh.push(stored.clone());
        self.locks.entry(stored).or_insert_with(|| Watched {
            name: name.clone(),
            waiters: HashMap::new(),
            holders: Vec::new(),
        })
    }
}

impl Watches {
    pub(super) fn new(layout: Layout) -> Arc<Self> {
        Arc::new(Self { layout, state: Mutex::default(), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for a lock, and will have asked again after `window`.
    pub(super) fn waits(&self, name: &Key, ticket: u64, token: Token, window: Duration) {
        let until = Instant::now() + window.saturating_add(SLACK);
        self.state()
            .watch(self.layout.key(name), name)
            .waiters
            .insert(ticket, Waiter { token, until });
        self.changed.notify_one();
    }

    /// Somebody holds a lock.
    pub(super) fn holds(&self, name: &Key, token: Token, fence: Fence, ttl: Duration) {
        let until = Instant::now() + ttl.saturating_add(SLACK);
        {
            let mut state = self.state();
            state.begun = state.begun.saturating_add(1);
            let number = state.begun;
            let watched = state.watch(self.layout.key(name), name);
            watched.waiters.retain(|_, waiter| waiter.token != token);
            watched.holders.retain(|holder| holder.token != token);
            watched.holders.push(Holder { token, fence, until, number });
        }
        self.changed.notify_one();
    }

    /// A lease runs on.
    pub(super) fn renewed(&self, name: &Key, token: Token, ttl: Duration) {
        let until = Instant::now() + ttl.saturating_add(SLACK);
        if let Some(watched) = self.state().locks.get_mut(&self.layout.key(name)) {
            let ours = watched.holders.iter_mut().find(|holder| holder.token == token);
            ours.into_iter().for_each(|holder| holder.until = until);
        }
    }

    /// Whatever becomes of what the token has is its owner's own doing.
    pub(super) fn forget(&self, name: &Key, token: Token) {
        let stored = self.layout.key(name);
        let mut state = self.state();
        if let Some(watched) = state.locks.get_mut(&stored) {
            watched.waiters.retain(|_, waiter| waiter.token != token);
            watched.holders.retain(|holder| holder.token != token);
            if watched.waiters.is_empty() && watched.holders.is_empty() {
                state.locks.remove(&stored);
            }
        }
    }

    /// The fence of the lease of ours that a value is of.
    pub(super) fn fence_of(&self, name: &Key, value: &[u8]) -> Option<Fence> {
        let state = self.state();
        let holders = &state.locks.get(&self.layout.key(name))?.holders;
        let ours = holders.iter().find(|holder| self.is_of(value, &holder.token));
        ours.map(|holder| holder.fence)
    }

    /// The fence under which a token has its lease already.
    pub(super) fn fence_under(&self, name: &Key, token: Token) -> Option<Fence> {
        let state = self.state();
        let holders = &state.locks.get(&self.layout.key(name))?.holders;
        holders.iter().find(|holder| holder.token == token).map(|holder| holder.fence)
    }

    fn is_of(&self, value: &[u8], token: &Token) -> bool {
        let token = self.layout.token(token);
        if self.layout.token_is_last() {
            value.ends_with(token.as_bytes())
        } else {
            value.starts_with(token.as_bytes())
        }
    }

    fn all(&self) -> Vec<String> {
        let mut state = self.state();
        state.fresh.clear();
        state.locks.keys().cloned().collect()
    }

    fn take_fresh(&self) -> Vec<String> {
        std::mem::take(&mut self.state().fresh)
    }

    /// Those of some keys that are looked after.
    fn known(&self, keys: impl IntoIterator<Item = String>) -> Vec<String> {
        let state = self.state();
        let mut known: Vec<_> =
            keys.into_iter().filter(|key| state.locks.contains_key(key)).collect();
        known.sort_unstable();
        known.dedup();
        known
    }

    /// How many leases have begun so far.
    fn begun(&self) -> u64 {
        self.state().begun
    }

    /// What is to be told of a lock in which these hold, as a question was answered that was sent
    /// when `begun` leases had begun.
    fn tell(&self, stored: &str, seen: &Seen, begun: u64) -> Vec<Wake> {
        let now = Instant::now();
        let mut state = self.state();
        let Some(watched) = state.locks.get_mut(stored) else { return Vec::new() };
        let Watched { name, waiters, holders } = watched;
        let mut told = Vec::new();
        holders.retain(|holder| {
            // The server may have answered before it granted a later one, which is yet to be looked at.
            let is_in = holder.number > begun
                || seen.values.iter().any(|value| self.is_of(value, &holder.token));
            if !is_in {
                told.push(Wake::Lost { key: name.clone(), fence: holder.fence });
            }
            is_in
        });
        let free_in = if seen.values.is_empty() { Some(Duration::ZERO) } else { seen.left };
        if let Some(retry_after) = free_in {
            let first = |(ticket, _): (&u64, &Waiter)| Wake::First { ticket: *ticket, retry_after };
            told.extend(waiters.iter().filter(|(_, waiter)| waiter.until > now).map(first));
        }
        if watched.is_over(now) {
            state.locks.remove(stored);
        }
        told
    }
}

/// What stands at a key.
struct Seen {
    /// The string, the fields, or the members.
    values: Vec<Vec<u8>>,
    /// How long it is there yet, if that has an end.
    left: Option<Duration>,
}

impl Seen {
    /// Reads the answers to the two questions of [`question`].
    fn read(value: &Value, left: &Value) -> Self {
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => Some(bytes.clone()),
            Value::SimpleString(text) => Some(text.clone().into_bytes()),
            // What is no lock of this layout is somebody else's value: held, by nobody of ours.
            Value::ServerError(_) => Some(Vec::new()),
            _ => None,
        };
        let values = match value {
            Value::Array(values) | Value::Set(values) => values.iter().filter_map(text).collect(),
            value => text(value).into_iter().collect(),
        };
        let left = match left {
            Value::Int(ms) => u64::try_from(*ms).ok().map(Duration::from_millis),
            _ => None,
        };
        Self { values, left }
    }
}

/// Reads what stands at a key, which is tracked from then on.
fn question(shape: Shape, key: &str) -> [Cmd; 2] {
    let mut value = match shape {
        Shape::Text => redis::cmd("GET"),
        Shape::Hash => redis::cmd("HKEYS"),
        Shape::Set => redis::cmd("ZRANGE"),
    };
    value.arg(key);
    if shape == Shape::Set {
        value.arg(0).arg(-1);
    }
    let mut left = redis::cmd("PTTL");
    left.arg(key);
    [value, left]
}

/// Opens the connection, and returns once the server tracks for it.
pub(super) async fn listen(
    access: Arc<Access>,
    watches: Arc<Watches>,
    deadline: Deadline,
) -> Result<Box<dyn Listener>, Verdict> {
    here()?;
    let there = access.runtime()?;
    Listening::start(&there, deadline, |messages, doubts, ready| {
        Watcher { access, watches, messages, doubts }.run(ready)
    })
    .await
}

/// Nobody wants to be told any more.
struct Unwanted;

struct Watcher {
    access: Arc<Access>,
    watches: Arc<Watches>,
    messages: mpsc::Sender<Wake>,
    doubts: Arc<Notify>,
}

impl Watcher {
    async fn run(self, ready: oneshot::Sender<Result<(), Verdict>>) {
        let mut tracking = match self.access.open_tracking().await {
            Ok(tracking) => tracking,
            Err(verdict) => {
                // The receiver may have run out of time.
                drop(ready.send(Err(verdict)));
                return;
            }
        };
        drop(ready.send(Ok(())));
        loop {
            if self.follow(tracking).await.is_err() {
                return;
            }
            tracking = match self.again().await {
                Ok(tracking) => tracking,
                Err(Unwanted) => return,
            };
            if self.messages.send(Wake::Resync).await.is_err() {
                return;
            }
        }
    }

    /// Connects, trying for as long as it takes.
    async fn again(&self) -> Result<Tracking, Unwanted> {
        let mut failures = 0_u32;
        loop {
            match self.access.open_tracking().await {
                Ok(tracking) => return Ok(tracking),
                Err(verdict) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(why = verdict.message(), "locks are not tracked");
                    if failures == 1 {
                        self.messages.send(Wake::Silent).await.map_err(|_| Unwanted)?;
                    }
                    sleep(pause_after(failures)).await;
                }
            }
        }
    }

    /// Tells of changes until the connection ends, or gives no answer.
    async fn follow(&self, mut tracking: Tracking) -> Result<(), Unwanted> {
        let mut keys = self.watches.all();
        loop {
            for some in keys.chunks(LOOK_MAX) {
                if !self.look(&mut tracking, some).await? {
                    return Ok(());
                }
            }
            let from = tracking.from.clone();
            keys = tokio::select! {
                push = tracking.pushes.recv() => match push.map(|push| self.changed(push)) {
                    Some(Some(keys)) => keys,
                    Some(None) | None => return Ok(()),
                },
                () = self.watches.changed.notified() => {
                    self.watches.known(self.watches.take_fresh())
                }
                () = self.access.left(&from) => return Ok(()),
                () = self.doubts.notified() => self.watches.all(),
                () = sleep(PING_EVERY) => {
                    let ping = redis::cmd("PING");
                    let answer = tracking.connection.req_packed_command(&ping);
                    if !matches!(timeout(ANSWER_WITHIN, answer).await, Ok(Ok(_))) {
                        return Ok(());
                    }
                    Vec::new()
                }
            };
            // What came at the same time is looked at in one go.
            while let Ok(push) = tracking.pushes.try_recv() {
                match self.changed(push) {
                    Some(more) => keys.extend(more),
                    None => return Ok(()),
                }
            }
            keys = self.watches.known(keys);
        }
    }

    /// The keys that a push says have changed; `None` when the connection has ended.
    fn changed(&self, push: PushInfo) -> Option<Vec<String>> {
        match push.kind {
            PushKind::Disconnection => None,
            PushKind::Invalidate => Some(match push.data.into_iter().next() {
                Some(Value::Array(keys)) => {
                    let text = |key| match key {
                        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
                        Value::SimpleString(text) => Some(text),
                        _ => None,
                    };
                    keys.into_iter().filter_map(text).collect()
                }
                // All keys are gone.
                _ => self.watches.all(),
            }),
            _ => Some(Vec::new()),
        }
    }

    /// Looks at some locks and tells of what it finds; `false` when there was no answer.
    async fn look(&self, tracking: &mut Tracking, keys: &[String]) -> Result<bool, Unwanted> {
        let shape = self.watches.layout.shape();
        let mut pipeline = Pipeline::with_capacity(keys.len().saturating_mul(2));
        for command in keys.iter().flat_map(|key| question(shape, key)) {
            pipeline.add_command(command);
        }
        let begun = self.watches.begun();
        let answers = tracking.connection.req_packed_commands(&pipeline, 0, pipeline.len());
        let Ok(Ok(answers)) = timeout(ANSWER_WITHIN, answers).await else { return Ok(false) };
        for (key, pair) in keys.iter().zip(answers.chunks_exact(2)) {
            let [value, left] = pair else { continue };
            for wake in self.watches.tell(key, &Seen::read(value, left), begun) {
                self.messages.send(wake).await.map_err(|_| Unwanted)?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::Ttl;

    use super::*;

    #[test]
    fn a_look_that_was_sent_before_a_grant_says_nothing_of_it() {
        let watches = Watches::new(Layout::Plain);
        let key = Key::new("k").unwrap();
        let token = Token::generate().unwrap();
        let nobody = Seen { values: Vec::new(), left: None };
        let before = watches.begun();
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap().duration();
        watches.holds(&key, token, Fence::new(0, 1).unwrap(), ttl);
        let lost = |begun| {
            let told = watches.tell("k", &nobody, begun);
            told.iter().any(|wake| matches!(wake, Wake::Lost { .. }))
        };
        assert!(!lost(before));
        assert_eq!(watches.take_fresh(), ["k"], "it is looked at once more");
        assert!(lost(watches.begun()));
    }
}
