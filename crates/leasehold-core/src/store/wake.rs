//! A client's notification channel, and its notifications.

use std::fmt::Debug;
use std::time::Duration;

use super::BoxFuture;
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;

/// A client's open notification channel. Dropping it closes the channel.
pub trait Listener: Debug + Send {
    /// The next notification. Cancel safe: dropping the future loses none. Notifications may get
    /// lost on the way: a waiter relies on its own timers and takes a notification as a hint.
    fn next(&mut self) -> BoxFuture<'_, Wake>;

    /// An expected notification did not come. The channel checks that it still lives, and is opened
    /// again if not. Does not block.
    fn doubt(&mut self) {}
}

/// A notification on a client's notification channel.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Wake {
    /// A waiter has become the holder.
    Granted {
        /// The waiter, by its client's number for it.
        ticket: u64,
        /// The last heartbeat that the store had received from it. The lease runs for the waiter's
        /// heartbeat timeout from the moment the store received *that* request, so the client
        /// counts it from when it sent that one.
        heartbeat: u32,
        /// The fences granted.
        fences: FenceBlock,
    },
    /// A waiter is the head of the queue, and the lock can come free in this time at the earliest:
    /// it has become the head, or that time has changed.
    First {
        /// The waiter, by its client's number for it.
        ticket: u64,
        /// When the lock could come free unless it is renewed.
        retry_after: Duration,
    },
    /// A lease has ended, but its holder did not release it: the store has seen that it is gone or
    /// replaced. Only with [`Capability::tells_loss`](super::Capability::tells_loss), and for
    /// leases that were granted to this client through this handle.
    Lost {
        /// The lock.
        key: Key,
        /// The first fence of the lease.
        fence: Fence,
    },
    /// Notifications may have been lost: every waiter should send a heartbeat.
    Resync,
    /// No notifications come until [`Wake::Resync`]: waiters should poll instead.
    Silent,
}
