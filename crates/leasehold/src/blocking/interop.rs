//! Locks that other libraries keep, for threads. See [`crate::interop`].
//!
//! ```no_run
//! # fn main() -> leasehold::Result<()> {
//! use leasehold::blocking::interop::Plain;
//! use leasehold::interop::Layout;
//!
//! // Go programs take the same locks with bsm/redislock.
//! let locks = Plain::connect("redis://127.0.0.1", Layout::Redislock)?;
//! let guard = locks.mutex("orders:42").metadata("billing").lock()?;
//! // … no other program has it, in Go or in Rust …
//! guard.release()?;
//! locks.close()
//! # }
//! ```

use std::time::Duration;

use leasehold_core::retry::RetryStrategy;
use leasehold_core::{IntoKey, Key, Metadata, Result};
use leasehold_redis::interop::{InteropStore, Layout};

use super::driven::Driven;
use super::face::Face as _;
use super::guard::within;
use super::io::{Io, check_caller};
use super::run::View;
use super::table::{guard, methods, value};
use crate::lease::not_changed::NotChanged;
use crate::lease::release::Release;
use crate::owner::Owner;

/// Connects on leasehold's own thread.
fn connected<T>(connecting: impl Future<Output = Result<T>>) -> Result<Driven<T>> {
    check_caller()?;
    let io = Io::start()?;
    let part = io.wait(connecting)?;
    Ok(Driven::new(part, io))
}

/// Makes a client of a store, which lives on leasehold's own thread.
fn made<T>(make: impl FnOnce() -> Result<T>) -> Result<Driven<T>> {
    let io = Io::start()?;
    let entered = io.runtime().enter();
    let part = make();
    drop(entered);
    Ok(Driven::new(part?, io))
}

value! {
    /// Locks in the layout of a library that keeps one value per lock. For threads what
    /// [`crate::interop::Plain`] is for tasks.
    ///
    /// Cheap to clone; clones share everything.
    #[derive(Clone)]
    Plain
}

methods! { Plain {
    /// The options of these locks.
    sets options(options: &crate::LockOptions);
    /// The lock of this name: a value, which can't fail and sends its first request when it is
    /// locked.
    makes mutex(key: impl IntoKey) -> PlainMutex;
    /// The text that is kept with the holder's lease; `None` if the lock is not held.
    asks metadata(key: impl IntoKey) -> Option<Metadata>, errors asking_foreign, costs request;
    /// Releases what is held, and ends the work in the background. Call it before `main` returns.
    asks close() -> (), errors store, costs closing;
} }

impl Plain {
    /// Connects to the server at a URL.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`crate::interop::Plain::connect`], and [`ErrorKind::Misuse`](crate::ErrorKind::Misuse)
    /// inside an async runtime.
    pub fn connect(url: impl AsRef<str>, layout: Layout) -> Result<Self> {
        connected(crate::Plain::connect(url, layout)).map(Self)
    }

    /// Locks in a store that was made already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a layout of Redisson,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the thread can't be started.
    pub fn new(store: InteropStore) -> Result<Self> {
        made(|| crate::Plain::new(store)).map(Self)
    }
}

value! {
    /// A lock that one holder has at a time, in a program of this library or of the other one. For
    /// threads what [`crate::interop::PlainMutex`] is for tasks.
    #[derive(Clone)]
    #[must_use = "a mutex does nothing until it is locked"]
    PlainMutex
}

methods! { PlainMutex {
    /// The length of a lease: 10 ms to 30 days, by default the client's.
    sets ttl(ttl: Duration);
    /// How early a loss is reported, before the server can grant the lock to another holder.
    sets stop_grace(grace: Duration);
    /// Whether leases are renewed in the background; they are by default.
    sets renew(renew: bool);
    /// The longest time for which one lease is held, renewals included.
    sets max_hold(max_hold: impl Into<Option<Duration>>);
    /// Renews the lease only while its work makes progress.
    sets progress_within(limit: impl Into<Option<Duration>>);
    /// Text that is kept with the lease. All that can read the key can read it.
    sets metadata(metadata: impl AsRef<str>);
    /// The name of the holder, for people.
    sets owner(owner: impl AsRef<str>);
    /// When to try again while waiting, and when to stop waiting, in place of being woken.
    sets retry(strategy: impl RetryStrategy);
    /// Stops waiting at once if the holder's lease, as it is now, expires after the time to wait.
    sets give_up_early(give_up_early: bool);
    /// How long to wait if the call sets no limit: for ever by default.
    sets wait_limit(limit: impl Into<crate::WaitLimit>);
    /// Sets these options.
    sets options(options: &crate::LockOptions);
    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Tries to take the lock, once. `None` if another holder has it.
    asks try_lock() -> Option<PlainGuard>, errors trying_foreign, costs trying;
    /// Takes the lock, and waits until it is free.
    asks lock() -> PlainGuard, errors taking_foreign, costs entering_plain;
    /// Takes the lock, and waits for at most `limit`; with a limit of zero it tries once.
    asks lock_within(limit: Duration) -> PlainGuard, errors taking_foreign, costs entering_plain_within;
} }

impl PlainMutex {
    /// Renews the lease of `guard`, or takes the lock again; `None` if the lease is gone and
    /// another holder has the lock. See [`crate::interop::PlainMutex::relock`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(refreshing)]
    ///
    /// # Errors
    ///
    /// As [`crate::Mutex::relock`]. The guard comes back with the error, and holds what it held.
    #[expect(clippy::result_large_err, reason = "the caller gets the guard back")]
    pub fn relock(&self, guard: PlainGuard) -> Result<Option<PlainGuard>, NotChanged<PlainGuard>> {
        if let Err(error) = self.0.io().check() {
            return Err(NotChanged::new(guard, error));
        }
        let (guard, io) = guard.0.into_inner();
        match self.0.io().wait(self.0.part().relock(guard)) {
            Ok(guard) => Ok(guard.map(|guard| PlainGuard::of(guard, self.0.io()))),
            // The guard's own thread: it may be of another client.
            Err(not) => Err(not.map(|guard| PlainGuard::of(guard, &io))),
        }
    }
}

guard! {
    /// A held lease of a [`PlainMutex`]. For threads what [`crate::interop::PlainGuard`] is for tasks.
    PlainGuard: PlainLease, crate::PlainGuard::end
}

methods! { PlainGuard {
    /// Ends the lease. An `Ok` says that it was held to its end.
    ends release() -> (), errors releasing_foreign, costs request_in_turn;
    /// Ends the lease, and reports how that went.
    ends release_outcome() -> Release, errors ending, costs request_in_turn;
} }

value! {
    /// A view of a held lease. For threads what [`crate::interop::PlainLease`] is for tasks. It does not
    /// keep the lock.
    #[derive(Clone)]
    PlainLease
}

impl View for PlainLease {
    type Part = crate::HeldLease;

    fn part(&self) -> &crate::HeldLease {
        self.0.part().view()
    }
}

methods! { PlainLease {
    /// The lock's name.
    tells key() -> &Key;
    /// The token that the server has for this lease. A secret.
    tells token() -> String;
    /// The text that is kept with the lease; empty if none was set.
    tells metadata() -> &str;
    /// Whether the lease is held at this moment. Sends no request.
    tells is_held() -> bool;
    /// How long the lease is held for certain; zero once it is lost. Renewals extend it.
    tells remaining() -> Duration;
    /// Succeeds while the lease is held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once it is not.
    checks check() -> ();
    /// Waits until the lease is lost, in time or because another program has ended it, or its guard is
    /// gone.
    waits lost() -> (), costs losing;
    /// Reads from the server how long the lease runs on there; zero when it is not held there.
    asks ttl() -> Duration, errors store, costs request;
    /// Checks whether the server still has this very lease.
    asks is_held_by_store() -> bool, errors store, costs request;
    /// Sets a new length: the lease expires `ttl` from now unless it is renewed, even if that is
    /// earlier than before.
    asks renew_to(ttl: Duration) -> (), errors renewing_foreign, costs request_in_turn;
} }

impl PlainLease {
    /// Reports that the work makes progress, for a lease that is renewed only [while it
    /// does](PlainMutex::progress_within).
    pub fn progress(&self) {
        self.0.part().progress();
    }
}

value! {
    /// Locks that Redisson's `RLock` and `RFencedLock` take in Java programs. For threads what
    /// [`crate::interop::Redisson`] is for tasks.
    ///
    /// Cheap to clone; clones share everything.
    #[derive(Clone)]
    Redisson
}

methods! { Redisson {
    /// The options of these locks.
    sets options(options: &crate::LockOptions);
    /// The lock of this name, which `owner` may take again while it has it: a value, which can't
    /// fail and sends its first request when it is locked.
    makes lock(key: impl IntoKey, owner: &Owner) -> RedissonLock;
    /// Releases what is held, and ends the work in the background. Call it before `main` returns.
    asks close() -> (), errors store, costs closing;
} }

impl Redisson {
    /// Connects to the server at a URL, for locks that Java programs get by `getLock`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`crate::Client::connect`], and [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
    /// async runtime.
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        connected(crate::Redisson::connect(url)).map(Self)
    }

    /// Connects to the server at a URL, for locks that Java programs get by `getFencedLock`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_fenced(url: impl AsRef<str>) -> Result<Self> {
        connected(crate::Redisson::connect_fenced(url)).map(Self)
    }

    /// Locks in a store that was made already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a layout of another library,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the thread can't be started.
    pub fn new(store: InteropStore) -> Result<Self> {
        made(|| crate::Redisson::new(store)).map(Self)
    }
}

value! {
    /// A lock of Redisson's, which one owner has at a time and may take again. For threads what
    /// [`crate::interop::RedissonLock`] is for tasks.
    ///
    /// The owner is the value, never the thread that calls.
    #[derive(Clone)]
    #[must_use = "a lock does nothing until it is locked"]
    RedissonLock
}

methods! { RedissonLock {
    /// The length of a lease: 10 ms to 30 days, by default the client's.
    sets ttl(ttl: Duration);
    /// Whether leases are renewed in the background; they are by default.
    sets renew(renew: bool);
    /// How early a loss is reported, before the server can grant the lock to another holder.
    sets stop_grace(grace: Duration);
    /// When to try again while waiting, and when to stop waiting, in place of being woken.
    sets retry(strategy: impl RetryStrategy);
    /// Stops waiting at once if the holder's lease, as it is now, expires after the time to wait.
    sets give_up_early(give_up_early: bool);
    /// How long to wait if the call sets no limit: for ever by default.
    sets wait_limit(limit: impl Into<crate::WaitLimit>);
    /// Sets these options.
    sets options(options: &crate::LockOptions);
    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Tries to take the lock, once. `None` when another owner has it.
    asks try_lock() -> Option<RedissonGuard>, errors trying_foreign, costs trying_again;
    /// Takes the lock, and waits until it is free; at once when this owner has it.
    asks lock() -> RedissonGuard, errors taking_foreign, costs entering_redisson;
    /// Takes the lock, and waits for at most `limit`.
    asks lock_within(limit: Duration) -> RedissonGuard, errors taking_foreign, costs entering_redisson_within;
} }

value! {
    /// A hold of a [`RedissonLock`]: one of its owner's, which share one lease. For threads what
    /// [`crate::interop::RedissonGuard`] is for tasks.
    ///
    /// # Dropping is not releasing
    ///
    /// A dropped guard counts down on leasehold's own thread, and the last one releases the lease
    /// there: soon, but without a time limit. Drop never blocks or panics.
    #[must_use = "dropping the guard counts down in the background; end it by a call to be sure"]
    #[clippy::has_significant_drop]
    RedissonGuard
}

methods! { RedissonGuard {
    /// The lock's name.
    tells key() -> &Key;
    /// The fencing token of the lease in a fenced lock, for the protected resource; `None` in a
    /// lock without fences.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once the lease is lost.
    checks token() -> Option<u64>;
    /// How many guards this owner has of the lock at this moment.
    tells holds() -> u32;
    /// Whether the lease is held at this moment. Sends no request.
    tells is_held() -> bool;
    /// How long the lease is held for certain; zero once it is lost.
    tells remaining() -> Duration;
    /// Succeeds while the lease is held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once it is not.
    checks check() -> ();
    /// Waits until the lease is lost, in time or because another program has ended it, or the last guard
    /// is gone.
    waits lost() -> (), costs losing;
    /// Ends this hold, and with the last one the lease. Returns how many holds of the same owner
    /// remain; with 0 the lock is free.
    ends release() -> u32, errors releasing_foreign, costs releasing_hold;
    /// Ends this hold, and reports how that went.
    ends release_outcome() -> Release, errors ending, costs releasing_hold;
} }

/// A wait for a loss that has a limit.
macro_rules! lost_within {
    ($($type:ident)*) => { $(
        impl $type {
            /// Waits until the lease is lost, or its guard is gone, for at most `limit`; returns
            /// whether it is. For work that goes on in steps: `while !guard.lost_within(pause)? {
            /// step() }`.
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(losing_within)]
            ///
            /// # Errors
            ///
            #[doc = super::errors::errors!(waiting)]
            pub fn lost_within(&self, limit: Duration) -> Result<bool> {
                self.0.wait(|part| within(limit, part.lost()))
            }
        }
    )* };
}

lost_within!(PlainLease RedissonGuard);
