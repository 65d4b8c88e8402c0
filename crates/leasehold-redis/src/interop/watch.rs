//! Keeps a list of the locks that are waited for or held, and decides what to report about them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ErrorKind, Fence, Key, Token, Wake};
use redis::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::layout::Layout;
use crate::classify::{self, Verdict};

/// How long after its end a lease or a wait is still watched.
const SLACK: Duration = Duration::from_secs(30);

/// The watched locks. All handles of a store share them.
#[derive(Debug)]
pub(super) struct Watches {
    pub(super) layout: Layout,
    state: Mutex<State>,
    /// Notified when a key has to be read.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By their keys in the server.
    locks: HashMap<String, Watched>,
    /// The keys to read next.
    fresh: HashSet<String>,
    /// How many locks remained after the last clean-up.
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
    /// The value at the key, if it is known and stays the same.
    value: Option<String>,
    until: Instant,
    /// The lease's number, counted from 1.
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
    /// The entry of a watched lock, created if needed.
    fn watch(&mut self, stored: String, name: &Key) -> &mut Watched {
        if self.locks.len() > self.kept.saturating_mul(2).saturating_add(64) {
            let now = Instant::now();
            self.locks.retain(|_, watched| !watched.is_over(now));
            self.kept = self.locks.len();
        }
        self.fresh.insert(stored.clone());
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

    /// Records a waiter, which will send its next request within `window`.
    pub(super) fn waits(&self, name: &Key, ticket: u64, token: Token, window: Duration) {
        let until = Instant::now() + window.saturating_add(SLACK);
        self.state()
            .watch(self.layout.key(name), name)
            .waiters
            .insert(ticket, Waiter { token, until });
        self.changed.notify_one();
    }

    /// Records a holder.
    pub(super) fn holds(&self, name: &Key, token: Token, fence: Fence, ttl: Duration) {
        let until = Instant::now() + ttl.saturating_add(SLACK);
        {
            let mut state = self.state();
            state.begun = state.begun.saturating_add(1);
            let number = state.begun;
            let watched = state.watch(self.layout.key(name), name);
            watched.waiters.retain(|_, waiter| waiter.token != token);
            watched.holders.retain(|holder| holder.token != token);
            watched.holders.push(Holder { token, fence, value: None, until, number });
        }
        self.changed.notify_one();
    }

    /// Records the stored value of a lease.
    pub(super) fn holds_by(&self, name: &Key, token: Token, value: String) {
        if let Some(watched) = self.state().locks.get_mut(&self.layout.key(name)) {
            let ours = watched.holders.iter_mut().find(|holder| holder.token == token);
            ours.into_iter().for_each(|holder| holder.value = Some(value.clone()));
        }
    }

    /// The stored value of a lease, if it is known.
    pub(super) fn value_of(&self, name: &Key, token: Token) -> Option<String> {
        let state = self.state();
        let holders = &state.locks.get(&self.layout.key(name))?.holders;
        holders.iter().find(|holder| holder.token == token)?.value.clone()
    }

    /// Records that a lease was renewed.
    pub(super) fn renewed(&self, name: &Key, token: Token, ttl: Duration) {
        let until = Instant::now() + ttl.saturating_add(SLACK);
        if let Some(watched) = self.state().locks.get_mut(&self.layout.key(name)) {
            let ours = watched.holders.iter_mut().find(|holder| holder.token == token);
            ours.into_iter().for_each(|holder| holder.until = until);
        }
    }

    /// Forgets what the token has: the owner itself ends it.
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

    /// The fence of this process's lease with this value.
    pub(super) fn fence_of(&self, name: &Key, value: &[u8]) -> Option<Fence> {
        let state = self.state();
        let holders = &state.locks.get(&self.layout.key(name))?.holders;
        let ours = holders.iter().find(|holder| self.is_of(value, &holder.token));
        ours.map(|holder| holder.fence)
    }

    /// The fence with which a token already holds its lease.
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

    /// All watched keys.
    pub(super) fn all(&self) -> Vec<String> {
        let mut state = self.state();
        state.fresh.clear();
        state.locks.keys().cloned().collect()
    }

    /// The keys to read next.
    pub(super) fn take_fresh(&self) -> Vec<String> {
        std::mem::take(&mut self.state().fresh).into_iter().collect()
    }

    /// Whether a key is watched.
    pub(super) fn has(&self, key: &str) -> bool {
        self.state().locks.contains_key(key)
    }

    /// The watched ones among some keys, in order.
    pub(super) fn known(&self, keys: impl IntoIterator<Item = String>) -> Vec<String> {
        let state = self.state();
        let mut known: Vec<_> =
            keys.into_iter().filter(|key| state.locks.contains_key(key)).collect();
        known.sort_unstable();
        known.dedup();
        known
    }

    /// How many leases have begun so far.
    pub(super) fn begun(&self) -> u64 {
        self.state().begun
    }

    /// The reports about a lock, from what was read. `begun` is how many leases had begun when the
    /// read was sent.
    pub(super) fn tell(&self, stored: &str, seen: &Seen, begun: u64) -> Vec<Wake> {
        let now = Instant::now();
        let mut state = self.state();
        let Some(watched) = state.locks.get_mut(stored) else { return Vec::new() };
        let Watched { name, waiters, holders } = watched;
        let mut told = Vec::new();
        holders.retain(|holder| {
            // The server may have answered before a later grant, whose read is still to come.
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

/// What was read at a key.
pub(super) struct Seen {
    /// The string, the fields, or the members.
    values: Vec<Vec<u8>>,
    /// The time left until it expires, if it does.
    left: Option<Duration>,
}

impl Seen {
    /// Reads both answers: the value, and its time to live.
    ///
    /// # Errors
    ///
    /// The server's error, which shows nothing about the lock.
    pub(super) fn read(value: &Value, left: &Value) -> Result<Self, Verdict> {
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => Some(bytes.clone()),
            Value::SimpleString(text) => Some(text.clone().into_bytes()),
            _ => None,
        };
        let refused = |value: &Value| match value {
            Value::ServerError(error) => {
                Some(classify::server(error.code(), error.details().unwrap_or("")))
            }
            _ => None,
        };
        let values = match value {
            Value::Array(values) | Value::Set(values) => values.iter().filter_map(text).collect(),
            value => match refused(value) {
                // A value outside this layout belongs to another program: the lock is held, but not
                // by this process.
                Some(verdict) if verdict.kind == ErrorKind::Foreign => vec![Vec::new()],
                Some(verdict) => return Err(verdict),
                None => text(value).into_iter().collect(),
            },
        };
        let left = match left {
            Value::Int(ms) => u64::try_from(*ms).ok().map(Duration::from_millis),
            left => match refused(left) {
                Some(verdict) => return Err(verdict),
                None => None,
            },
        };
        Ok(Self { values, left })
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
