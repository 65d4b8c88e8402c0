//! A client's wake channel, and its notifications.

use std::fmt::Debug;
use std::time::Duration;

use super::BoxFuture;
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;

/// A client's open wake channel. Dropping it closes the channel.
pub trait Listener: Debug + Send {
    /// The next message. Cancel safe: dropping the future loses none. Messages may get lost on
    /// the way: a waiter relies on its own timers and takes a message as a hint.
    fn next(&mut self) -> BoxFuture<'_, Wake>;

    /// A message that should have come did not: the channel makes sure that it still lives, and
    /// is made anew if not. Does not block.
    fn doubt(&mut self) {}
}

/// A message on a client's wake channel.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Wake {
    /// A waiter has become the holder.
    Granted {
        /// The waiter, by the number its client gave it.
        ticket: u64,
        /// The last heartbeat that the store had received from it. The lease runs for the
        /// waiter's window from the moment the store received *that* request, so the client
        /// counts it from when it sent that one.
        heartbeat: u32,
        /// The fences granted.
        fences: FenceBlock,
    },
    /// A waiter is first in line and can be served in this time at the earliest: it has become the
    /// first, or it was and that time has changed.
    First {
        /// The waiter, by the number its client gave it.
        ticket: u64,
        /// When the lock could come free unless it is renewed.
        retry_after: Duration,
    },
    /// A lease has ended by no doing of its holder's: the store has seen that somebody else's, or
    /// none, is in its place. Only where [`Capability::tells_loss`](super::Capability::tells_loss)
    /// says so, and of leases that were granted to this client through this handle.
    Lost {
        /// The lock.
        key: Key,
        /// The first fence of the lease.
        fence: Fence,
    },
    /// Messages may have been lost: every waiter should send a heartbeat.
    Resync,
    /// No messages come for now, until [`Wake::Resync`]: waiters should ask instead.
    Silent,
}
