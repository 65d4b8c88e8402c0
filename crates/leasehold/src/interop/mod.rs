//! Locks that other libraries keep: shared with their programs, in their layouts.
//!
//! Both sides exclude each other: a service in Go, Java, Node, PHP or Python keeps its library, and
//! a program with this one takes the same locks. [`Plain`] is for libraries that keep one value per
//! lock, [`Redisson`] for Redisson's re-entrant lock. `docs/interop.md` has a section for each
//! library: what was tried, and code for both sides.
//!
//! These types lack what the layouts lack:
//!
//! - There is no queue, so any waiter may be next.
//! - Only [`Redisson`]'s fenced lock has a fencing token.
//! - For an expired lease, a release does not say whether another holder came since.
//!
//! The rest is as everywhere. A lease counts from before its request was sent. It is renewed on a
//! thread of its own, and its loss is reported before another holder can have it. The server tracks
//! the key, so a holder learns at once when another program ends its lease, and a waiter when the
//! lock comes free. If the key can't be tracked ([`InteropStore`]), waiters poll.

mod plain;
mod redisson;

pub use leasehold_redis::interop::{InteropStore, Layout};

pub use self::plain::{Plain, PlainGuard, PlainLease, PlainMutex};
pub use self::redisson::{Redisson, RedissonGuard, RedissonLock};
