//! Reports the events of a client's locks as values, for a program that keeps a record.

use std::time::Duration;

pub use leasehold_core::LossReason;
use leasehold_core::{Fence, Key, Reason};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::lease::outcome::Release;

/// How many events are kept for a slow reader.
pub(crate) const KEPT: usize = 1_024;

/// Something that happened to a lease of a client. Read by
/// [`Client::events`](crate::Client::events).
///
/// It has no time of its own: a reader gets it as it happens.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct LockEvent {
    /// The lock.
    pub key: Key,
    /// The fencing token (fence) of the hold that it is about.
    pub fence: Fence,
    /// What happened.
    pub what: LockEventKind,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LockEventKind {
    /// The store granted it, at once or to a waiter in the queue.
    Granted,
    /// It was adopted after it had been [detached](crate::Guard::detach).
    Adopted,
    /// It went on to the next contender of this process, which has it under this event's fence.
    HandedOn {
        /// The fence of the hold that ended with it.
        from: Fence,
    },
    /// It goes on in another mode, under this event's fence.
    Changed {
        /// The fence of the hold that ended with it.
        from: Fence,
    },
    /// It was [detached](crate::Guard::detach) from its guard.
    Detached,
    /// It was released, by its holder or in the background, and the store has said how that went;
    /// [`Release::Unknown`] if the store never did.
    Released {
        /// How that went.
        outcome: Release,
        /// The cooldown that came with it.
        cooldown: Option<Duration>,
    },
    /// It can't be proven any more, before it was released.
    Lost {
        /// What ended it.
        reason: LossReason,
        /// Why the last renewal failed, if that is known.
        cause: Option<Reason>,
    },
    /// This client force-released it ([`Client::force_release`](crate::Client::force_release)).
    Forced,
}

impl LockEventKind {
    /// One word that means the same in every version: `granted`, `adopted`, `handed_on`, `changed`,
    /// `detached`, `released`, `lost` or `forced`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Adopted => "adopted",
            Self::HandedOn { .. } => "handed_on",
            Self::Changed { .. } => "changed",
            Self::Detached => "detached",
            Self::Released { .. } => "released",
            Self::Lost { .. } => "lost",
            Self::Forced => "forced",
        }
    }
}

/// The events of a client's leases, from the call of [`Client::events`](crate::Client::events) on.
#[derive(Debug)]
#[must_use = "events are lost unless they are read"]
pub struct LockEvents {
    receiver: broadcast::Receiver<LockEvent>,
    missed: u64,
}

impl LockEvents {
    pub(crate) const fn of(receiver: broadcast::Receiver<LockEvent>) -> Self {
        Self { receiver, missed: 0 }
    }

    /// The next event, in the order in which they happened to each lock. `None` when the client and
    /// all of its leases are gone.
    ///
    /// # Cost
    ///
    /// No round trip. It waits for an event without a limit.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no event is lost.
    pub async fn next(&mut self) -> Option<LockEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => self.missed = self.missed.saturating_add(missed),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// How many events were not read in time, and are gone: the last 1 024 are kept.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.missed
    }
}
