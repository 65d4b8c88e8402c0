//! Locks that other libraries keep: shared with their programs, in their layouts.
//!
//! Each keeps the other out: a service in Go, Java, Node, PHP or Python goes on with the library
//! that it has, and a program with this one takes the same locks. [`Plain`] is for libraries that
//! keep one value per lock, [`Redisson`] for that one's re-entrant lock. `docs/interop.md` has a
//! section for each library: what was tried, and code for both sides.
//!
//! What these layouts don't have is not on these types: there is no line, so of the waiters one is
//! lucky; no fence but that of [`Redisson`]'s fenced lock; and a release that comes late is not
//! told from one of a lease that another holder had meanwhile.
//!
//! The rest is as everywhere: a lease counts from before its request was sent, is renewed on a
//! thread of its own, and is told to be lost before another holder can have it. A holder whose
//! lease another program ends is told at once, since the server tracks the key for it, and so is a
//! waiter when the lock comes free; where it can't be tracked ([`InteropStore`]), waiters ask.

mod plain;
mod redisson;

pub use leasehold_redis::interop::{InteropStore, Layout};

pub use self::plain::{Plain, PlainGuard, PlainLease, PlainMutex};
pub use self::redisson::{Redisson, RedissonGuard, RedissonLock};
