//! A store that loses requests and replies, delays them, and sends them twice.
//!
//! [`FaultStore`] wraps any other store for the code under test. The faults of calls can be planned
//! ([`FaultStore::next`], [`FaultStore::script`]), decided by a function ([`FaultStore::decide`]),
//! or drawn from a seed ([`FaultStore::random`]). Every call is recorded.
//!
//! All waiting is done on tokio's clock, so paused time makes it instant and exact. As on a real
//! network, a delayed request is carried out when it arrives, even if its caller is gone. It runs
//! in its own task, so delays need a runtime.

mod carry;
mod listener;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use leasehold_core::Method as Op;
use leasehold_core::{Error, Key, Store};
use tokio::sync::watch;
use tokio::time::Instant;

/// The fault of a call.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Fault {
    /// No fault: the request is carried out and answered.
    #[default]
    None,
    /// The request is lost and never carried out. Once the call's time is over, its caller gets a
    /// timeout with an unknown effect.
    DropRequest,
    /// The request is carried out and its reply is lost. To the caller it looks like
    /// [`Fault::DropRequest`].
    DropReply,
    /// Request and reply travel slowly. A caller whose time is over first gets a timeout. The
    /// request is carried out anyway when it arrives, unless it acquires something and its own time
    /// is over too.
    Delay {
        /// How long the request travels.
        before: Duration,
        /// How long the reply travels.
        after: Duration,
    },
    /// The connection breaks after the request. Its caller learns at once that no answer will come,
    /// with an unknown effect. The request is carried out as with [`Fault::Delay`].
    Break {
        /// How long the request travels.
        before: Duration,
    },
    /// The request is refused at once as unavailable, and not carried out.
    Refuse,
    /// The request fails at once with this error, and is not carried out.
    Fail(Error),
    /// The answer never comes, and the call outlasts its timeout. A store must not do this, and a
    /// client should survive it.
    Hang {
        /// Whether the request is carried out.
        applied: bool,
    },
    /// The request is carried out twice in a row, and the second answer arrives.
    Duplicate,
    /// The request is carried out and answered, and carried out again later, if its time allows.
    Echo {
        /// How much later.
        after: Duration,
    },
}

/// The fault of notifications on notification channels.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Messages {
    /// They arrive.
    #[default]
    Arrive,
    /// They are lost without notice.
    Vanish,
    /// They arrive twice.
    ArriveTwice,
}

/// A recorded call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The locks and the fingerprints of the tokens: one for most operations, several for a batch
    /// of renewals, none for others.
    pub targets: Vec<Target>,
    /// How long it was allowed to take.
    pub within: Duration,
    /// When it was made, counted from when the store was wrapped.
    pub at: Duration,
    /// Its fault.
    pub fault: Fault,
}

impl Call {
    /// Whether it concerned this lock.
    #[must_use]
    pub fn is_on(&self, key: &Key) -> bool {
        self.targets.iter().any(|target| target.key == *key)
    }
}

/// The target of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Target {
    /// The lock.
    pub key: Key,
    /// The fingerprint of the token, if there is one.
    pub token: Option<String>,
}

type Decide = Box<dyn FnMut(&Call) -> Fault + Send>;

/// A store with faults. Clones share the faults and the record.
#[derive(Clone)]
pub struct FaultStore {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<dyn Store>,
    started: Instant,
    state: Mutex<State>,
    /// Counts the ends of black-outs, after which listeners report that they may have lost
    /// notifications.
    lit: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    next: VecDeque<(Op, Fault)>,
    script: VecDeque<Fault>,
    decide: Option<Decide>,
    always: Fault,
    messages: Messages,
    dark: bool,
    calls: Vec<Call>,
}

impl FaultStore {
    /// Wraps a store, without faults at first.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let (lit, _) = watch::channel(0);
        let state = Mutex::default();
        Self { shared: Arc::new(Shared { inner, started: Instant::now(), state, lit }) }
    }

    /// The next call of this operation without another planned fault gets `fault`. Several calls of
    /// this method plan for several calls, in order.
    pub fn next(&self, op: Op, fault: Fault) {
        self.state().next.push_back((op, fault));
    }

    /// The next calls of any operation get these faults in order.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().script.extend(faults);
    }

    /// From now on a function decides the fault of calls without a planned one.
    pub fn decide(&self, decide: impl FnMut(&Call) -> Fault + Send + 'static) {
        self.state().decide = Some(Box::new(decide));
    }

    /// From now on a `share` of all calls (0.0 to 1.0) gets a fault drawn from `seed`. Delays are
    /// up to twice the call's time limit, and at most `delay_max`.
    pub fn random(&self, seed: u64, share: f64, delay_max: Duration) {
        let mut random = fastrand::Rng::with_seed(seed);
        self.decide(move |call| {
            if random.f64() >= share {
                return Fault::None;
            }
            let longest = call.within.saturating_mul(2).min(delay_max);
            let mut some = || longest.mul_f64(random.f64());
            let (before, after) = (some(), some());
            match random.u8(..6) {
                0 => Fault::DropRequest,
                1 => Fault::DropReply,
                2 => Fault::Delay { before, after },
                3 => Fault::Refuse,
                4 => Fault::Duplicate,
                _ => Fault::Echo { after },
            }
        });
    }

    /// From now on every call gets `fault`, before any planned one; [`Fault::None`] ends it.
    pub fn always(&self, fault: Fault) {
        self.state().always = fault;
    }

    /// Cuts all clients off, or connects them again. During a black-out, requests and notifications
    /// are lost. After it, listeners report [`Wake::Resync`](leasehold_core::Wake::Resync).
    pub fn black_out(&self, dark: bool) {
        let was_dark = std::mem::replace(&mut self.state().dark, dark);
        if was_dark && !dark {
            self.shared.lit.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// From now on notifications on notification channels get this fault.
    pub fn messages(&self, messages: Messages) {
        self.state().messages = messages;
    }

    /// Forgets all planned faults; the record stays.
    pub fn heal(&self) {
        self.black_out(false);
        let calls = std::mem::take(&mut self.state().calls);
        *self.state() = State { calls, ..State::default() };
    }

    /// All calls so far, in the order in which they were made.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// How many calls of this operation were made.
    #[must_use]
    pub fn count(&self, op: Op) -> usize {
        self.state().calls.iter().filter(|call| call.op == op).count()
    }

    /// Empties the record.
    pub fn forget_calls(&self) {
        self.state().calls.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call and returns its fault.
    fn meet(&self, op: Op, targets: Vec<Target>, within: Duration) -> Fault {
        let at = self.started.elapsed();
        let mut call = Call { op, targets, within, at, fault: Fault::None };
        let mut state = self.state();
        let foreseen = state.next.iter().position(|(next, _)| *next == op);
        call.fault = if state.dark {
            Fault::DropRequest
        } else if !matches!(state.always, Fault::None) {
            state.always.clone()
        } else if let Some(fault) = foreseen.and_then(|at| state.next.remove(at)) {
            fault.1
        } else if let Some(fault) = state.script.pop_front() {
            fault
        } else if let Some(decide) = &mut state.decide {
            decide(&call)
        } else {
            Fault::None
        };
        let fault = call.fault.clone();
        state.calls.push(call);
        fault
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("FaultStore")
            .field("inner", &self.shared.inner)
            .field("dark", &state.dark)
            .field("always", &state.always)
            .field("calls", &state.calls.len())
            .finish_non_exhaustive()
    }
}
