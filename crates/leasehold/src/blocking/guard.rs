//! A held lock, for threads.

use std::fmt;
use std::time::Duration;

use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Fence, Key, Result};
use tokio_util::sync::CancellationToken;

use super::driven::Driven;
use super::face::Face;
use super::io::Io;
use super::run::View;
use super::table::{ends, guard, methods, value};
use crate::Loss;
use crate::rt;

guard! {
    /// A held lock: the proof that this process may act. For threads what [`crate::Guard`] is for
    /// tasks.
    Guard: HeldLease
}
ends!(Guard);

impl Guard {
    /// Keeps the lease without this guard, for code that works by name. See [`crate::Guard::keep`].
    pub fn keep(self) {
        self.0.into_inner().0.keep();
    }

    pub(super) fn into_driven(self) -> Driven<crate::Guard> {
        self.0
    }
}

value! {
    /// A view of a held lease: what the work under it needs to know. For threads what
    /// [`crate::HeldLease`] is for tasks.
    ///
    /// Cheap to clone and to send to other threads. It does not keep the lock, which the [`Guard`]
    /// does. Once the guard is gone, the view says that no lease is held.
    #[derive(Clone)]
    HeldLease
}

methods! { HeldLease {
    /// The lock's name.
    tells key() -> &Key;
    /// The text that is kept with the lease; empty if none was set.
    tells metadata() -> &str;
    /// How many of a semaphore's permits it has; `None` for other kinds of locks.
    tells permits() -> Option<u32>;
    /// The fencing token of this lease.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once the lease is lost: no work may begin under
    /// it. For logs there is [`fence_even_if_lost`](Self::fence_even_if_lost).
    checks fence() -> Fence;
    /// The fencing token, whether or not the lease still holds; for logs.
    tells fence_even_if_lost() -> Fence;
    /// How the lease was lost, if it was while its guard lived, with the error of the last failed
    /// renewal. Sends no request.
    tells loss() -> Option<Loss>;
    /// Whether the longest hold (`max_hold`) has ended, or ends with the lease as it is now. It
    /// distinguishes an expected loss from any other.
    tells is_max_hold_over() -> bool;
} }

impl HeldLease {
    /// Notes how the work under the lease ended, as in `sent 120 mails` or `exit 3`, for the log of
    /// the store: the event of its end has it as
    /// [`LogEntry::result`](crate::store::LogEntry::result). Call it before the release. The first
    /// note counts, up to 64 characters of it; without a log it is dropped. Sends no request.
    pub fn note_result(&self, result: &str) {
        self.0.part().note_result(result);
    }
}

/// A view of the leases that were taken together. For threads what [`crate::HeldLeases`] is for
/// tasks.
///
/// Cheap to clone. It does not keep the locks, which the [`MultiGuard`](super::MultiGuard) does.
/// Once the guard is gone, the view says that no lease is held.
///
/// # Errors
///
/// Each method says its own. Inside an async runtime and in a fork's child, calls that would wait
/// fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse).
#[derive(Clone)]
pub struct HeldLeases(Driven<crate::HeldLeases>, Vec<HeldLease>);

impl Face<crate::HeldLeases> for HeldLeases {
    fn of(part: crate::HeldLeases, io: &Io) -> Self {
        let leases = Face::of(part.leases().to_vec(), io);
        Self(Driven::new(part, io.clone()), leases)
    }
}

impl fmt::Debug for HeldLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.part().fmt(f)
    }
}

impl HeldLeases {
    /// The single leases, in the order of their names.
    #[must_use]
    pub fn leases(&self) -> &[HeldLease] {
        &self.1
    }
}

methods! { HeldLeases {
    /// Each lock with its fencing token, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once any of them is lost.
    checks fences() -> Vec<(Key, Fence)>;
} }

/// What one lease and several have in common.
macro_rules! view {
    ($type:ident) => {
        impl View for $type {
            type Part = crate::$type;

            fn part(&self) -> &crate::$type {
                self.0.part()
            }
        }

        methods! { $type {
            /// Whether it is all held at this moment. Sends no request: it compares deadlines with
            /// a clock that also counts while the machine sleeps.
            tells is_held() -> bool;
            /// How long it is all held for certain; zero once it is lost. Renewals extend it.
            tells remaining() -> Duration;
            /// How long it is until the store may grant a lock to another holder:
            /// [`remaining`](Self::remaining) and the grace for stopping.
            tells until_deadline() -> Duration;
            /// Whether a renewal has failed or stayed unanswered; all is still held.
            tells is_at_risk() -> bool;
            /// Succeeds while it is all held; for a look before each side effect.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when it is not.
            checks check() -> ();
            /// Whether a release request has reached this holder. Sends no request.
            tells is_asked() -> bool;
            /// Reads from the store how long the lease runs on there, the shortest of several. If
            /// the store does not have it, the answer is zero, and the lease is lost from then on.
            asks ttl() -> Duration, errors store, costs asking_each;
            /// Checks whether the store still has this very lease. If it does not, the lease is
            /// lost from then on.
            asks is_held_by_store() -> bool, errors store, costs asking_each;
            /// Sets a new length: the lease expires `ttl` from now unless it is renewed, even if
            /// that is earlier than before.
            asks renew_to(ttl: Duration) -> (), errors renewing, costs request_in_turn_each;
            /// Waits until the lease is lost, or its guard is gone.
            waits lost() -> (), costs losing;
            /// Waits until there is a release request, or the lease is lost.
            waits asked() -> (), costs being_asked;
        } }

        impl $type {
            /// Reports that the work makes progress, if its renewal depends on that. See
            /// [`Mutex::progress_within`](super::Mutex::progress_within).
            pub fn progress(&self) {
                self.0.part().progress();
            }

            /// Waits until the lease is lost, or its guard is gone, for at most `limit`; returns
            /// whether it is. For work that goes on in steps: `while !guard.lost_within(pause)? {
            /// step() }`. By [`asked_within`](Self::asked_within), which also returns on a loss, a
            /// holder learns of a release request sooner.
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(losing_within)]
            ///
            /// # Errors
            ///
            #[doc = super::errors::errors!(waiting)]
            pub fn lost_within(&self, limit: Duration) -> Result<bool> {
                self.0.wait(|lease| within(limit, lease.lost()))
            }

            /// Waits until there is a release request, or the lease is lost, for at most `limit`.
            /// Returns whether there is a request.
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(being_asked_within)]
            ///
            /// # Errors
            ///
            #[doc = super::errors::errors!(waiting)]
            pub fn asked_within(&self, limit: Duration) -> Result<bool> {
                self.0.wait(|lease| within(limit, lease.asked()))?;
                Ok(self.is_asked())
            }

            /// A token that is cancelled when the lease is lost or its guard is gone. Threads can
            /// look at it; async code can await it. In a fork's child it is cancelled.
            #[must_use]
            pub fn cancellation_token(&self) -> CancellationToken {
                if self.0.io().is_ours() {
                    return self.0.part().cancellation_token();
                }
                let cancelled = CancellationToken::new();
                cancelled.cancel();
                cancelled
            }
        }
    };
}

view!(HeldLease);
view!(HeldLeases);

/// Whether something happens within `limit`.
pub(super) async fn within(limit: Duration, happens: impl Future<Output = ()>) -> bool {
    let clock = SystemClock::new();
    let until = clock.now().saturating_add(limit);
    tokio::select! {
        biased;
        () = happens => true,
        () = rt::sleep_until(&clock, until) => false,
    }
}

/// What the guard of one kind of lock has in addition to the plain [`Guard`].
macro_rules! into_guard {
    ($type:ident) => {
        impl $type {
            /// The plain guard of the same lease.
            pub fn into_guard(self) -> super::guard::Guard {
                let (guard, io) = self.0.into_inner();
                super::face::Face::of(guard.into_guard(), &io)
            }
        }

        impl From<$type> for super::guard::Guard {
            fn from(guard: $type) -> Self {
                guard.into_guard()
            }
        }
    };
}
pub(super) use into_guard;
