//! A held lock, for threads.

use std::fmt;
use std::time::Duration;

use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Fence, Key, Result};
use tokio_util::sync::CancellationToken;

use super::driven::Driven;
use super::run::run_under;
use crate::change::{self, NotChanged};
use crate::detached::DetachedLease;
use crate::hold::Closing;
use crate::release::Release;
use crate::rt;
use crate::run::RunError;

/// A held lock: the proof that this process may act. The blocking twin of [`crate::Guard`].
///
/// # Dropping is not releasing
///
/// A dropped guard gives its lease up on the client's thread: soon, but not at a moment anybody
/// can tell, and when the process ends first, only when its ttl has run out. Drop never blocks
/// and never panics. Use [`release`](Self::release) to know.
///
/// # Errors
///
/// Methods that ask the store, and those that wait, fail with
/// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an async runtime and in a fork's child,
/// besides what their twins say. A guard that was consumed by such a call is dropped.
#[must_use = "dropping the guard gives the lock up in the background; call release() to be sure"]
#[clippy::has_significant_drop]
pub struct Guard {
    driven: Driven<crate::Guard>,
    lease: HeldLease,
}

/// A view of a held lease: what the work under it needs to know. The blocking twin of
/// [`crate::HeldLease`].
///
/// Cheap to clone and to send to other threads. It does not keep the lock: that is the
/// [`Guard`]'s part, and once the guard is gone the view says that nothing is held.
#[derive(Clone)]
pub struct HeldLease(Driven<crate::HeldLease>);

impl HeldLease {
    pub(super) const fn new(driven: Driven<crate::HeldLease>) -> Self {
        Self(driven)
    }

    pub(super) fn part(&self) -> &crate::HeldLease {
        self.0.part()
    }

    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.part().key()
    }

    /// The text that is kept with the lease. See [`crate::HeldLease::metadata`].
    #[must_use]
    pub fn metadata(&self) -> &str {
        self.0.part().metadata()
    }

    /// How many of a semaphore's permits it is. See [`crate::HeldLease::permits`].
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        self.0.part().permits()
    }

    /// The fencing token of this lease. See [`crate::HeldLease::fence`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once the lease is lost.
    pub fn fence(&self) -> Result<Fence> {
        self.0.part().fence()
    }

    /// The fencing token, whether or not the lease still holds; for logs.
    #[must_use]
    pub fn fence_even_if_lost(&self) -> Fence {
        self.0.part().fence_even_if_lost()
    }

    /// Whether the lease is held at this moment; asks nobody.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.part().is_held()
    }

    /// How long the lease is held for certain; zero once it is lost. Renewals push it on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.part().remaining()
    }

    /// How long it is until the store may grant the lock to somebody else. See
    /// [`crate::HeldLease::until_deadline`].
    #[must_use]
    pub fn until_deadline(&self) -> Duration {
        self.0.part().until_deadline()
    }

    /// Whether a renewal has failed or stayed unanswered; the lease still holds.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.0.part().is_at_risk()
    }

    /// Says that the work gets on. See [`crate::HeldLease::progress`].
    pub fn progress(&self) {
        self.0.part().progress();
    }

    /// Waits until the lease is lost, or its guard is gone. See [`crate::HeldLease::lost`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn lost(&self) -> Result<()> {
        self.0.wait(crate::HeldLease::lost)
    }

    /// Waits until the lease is lost, or its guard is gone, for at most `limit`; whether it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn lost_within(&self, limit: Duration) -> Result<bool> {
        let clock = SystemClock::new();
        let until = clock.now().saturating_add(limit);
        self.0.wait(|lease| async move {
            tokio::select! {
                biased;
                () = lease.lost() => true,
                () = rt::sleep_until(&clock, until) => false,
            }
        })
    }

    /// Waits until somebody asks the holder to let go, or the lease is lost. See
    /// [`crate::HeldLease::asked`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn asked(&self) -> Result<()> {
        self.0.wait(crate::HeldLease::asked)
    }

    /// Waits until somebody asks the holder to let go, or the lease is lost, for at most `limit`;
    /// whether somebody has asked.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn asked_within(&self, limit: Duration) -> Result<bool> {
        let clock = SystemClock::new();
        let until = clock.now().saturating_add(limit);
        self.0.wait(|lease| async move {
            tokio::select! {
                biased;
                () = lease.asked() => {}
                () = rt::sleep_until(&clock, until) => {}
            }
        })?;
        Ok(self.is_asked())
    }

    /// Whether somebody has asked the holder to let go. See [`crate::HeldLease::is_asked`].
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.part().is_asked()
    }

    /// Passes when the lease is held; for a look before each side effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when it is not.
    pub fn check(&self) -> Result<()> {
        self.0.part().check()
    }

    /// A token that is cancelled when the lease is lost or given up. Threads can look at it;
    /// async code can await it. See [`crate::HeldLease::cancellation_token`].
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

impl Guard {
    pub(super) fn new(driven: Driven<crate::Guard>) -> Self {
        let lease = HeldLease(driven.with(driven.part().lease().clone()));
        Self { driven, lease }
    }

    pub(super) fn into_driven(self) -> Driven<crate::Guard> {
        self.driven
    }

    pub(super) fn part(&self) -> &crate::Guard {
        self.driven.part()
    }

    /// Passes where waiting is right.
    pub(super) fn can_wait(&self) -> Result<()> {
        self.driven.io().check()
    }

    /// Ends the lease, and closes or opens the lock by that. A store that did not answer is an
    /// error that says so by its effect.
    pub(super) fn end(self, closing: Closing) -> Result<Release> {
        self.driven.end(|guard| guard.end(closing))
    }

    /// As [`end`](Self::end); an error unless the lease was held to its end.
    pub(super) fn end_well(self, closing: Closing) -> Result<()> {
        self.driven.end(|guard| guard.end_well(closing))
    }

    /// A view of the lease, to be given to the work.
    #[must_use]
    pub const fn lease(&self) -> &HeldLease {
        &self.lease
    }

    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.lease.key()
    }

    /// The text that is kept with the lease. See [`crate::HeldLease::metadata`].
    #[must_use]
    pub fn metadata(&self) -> &str {
        self.lease.metadata()
    }

    /// How many of a semaphore's permits it is. See [`crate::HeldLease::permits`].
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        self.lease.permits()
    }

    /// The fencing token of this lease. See [`crate::HeldLease::fence`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once the lease is lost.
    pub fn fence(&self) -> Result<Fence> {
        self.lease.fence()
    }

    /// The fencing token, whether or not the lease still holds; for logs.
    #[must_use]
    pub fn fence_even_if_lost(&self) -> Fence {
        self.lease.fence_even_if_lost()
    }

    /// Whether the lease is held at this moment; asks nobody.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// How long the lease is held for certain; zero once it is lost. Renewals push it on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// Waits until the lease is lost. See [`HeldLease::lost`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn lost(&self) -> Result<()> {
        self.lease.lost()
    }

    /// Waits until the lease is lost, for at most `limit`; whether it is. For work that goes on
    /// in steps: `while !guard.lost_within(pause)? { step() }`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn lost_within(&self, limit: Duration) -> Result<bool> {
        self.lease.lost_within(limit)
    }

    /// Waits until somebody asks the holder to let go. See [`HeldLease::asked`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn asked(&self) -> Result<()> {
        self.lease.asked()
    }

    /// Waits until somebody asks the holder to let go, for at most `limit`; whether somebody has.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn asked_within(&self, limit: Duration) -> Result<bool> {
        self.lease.asked_within(limit)
    }

    /// Whether somebody has asked the holder to let go. See [`HeldLease::is_asked`].
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.lease.is_asked()
    }

    /// Passes when the lease is held; for a look before each side effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when it is not.
    pub fn check(&self) -> Result<()> {
        self.lease.check()
    }

    /// Asks the store how long the lease runs on there; zero when it is not held there. See
    /// [`crate::Guard::ttl`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn ttl(&self) -> Result<Duration> {
        self.driven.wait(crate::Guard::ttl)?
    }

    /// Asks the store whether the lock is still held by this very lease.
    ///
    /// # Errors
    ///
    /// As [`ttl`](Self::ttl).
    pub fn is_held_by_store(&self) -> Result<bool> {
        self.driven.wait(crate::Guard::is_held_by_store)?
    }

    /// Gives the held lock a new length, counted from now. See [`crate::Guard::renew_to`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn renew_to(&self, ttl: Duration) -> Result<()> {
        self.driven.wait(|guard| guard.renew_to(ttl))?
    }

    /// Ends the lease. See [`crate::Guard::release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release(self) -> Result<()> {
        self.driven.end(crate::Guard::release)
    }

    /// Ends the lease, and says how that went. See [`crate::Guard::release_outcome`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_outcome(self) -> Result<Release> {
        self.driven.end(crate::Guard::release_outcome)
    }

    /// Ends the lease, and keeps the lock closed to everybody for `cooldown` after. See
    /// [`crate::Guard::release_with_cooldown`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_with_cooldown(self, cooldown: Duration) -> Result<()> {
        self.driven.end(|guard| guard.release_with_cooldown(cooldown))
    }

    /// As [`release_with_cooldown`](Self::release_with_cooldown), and says how that went. See
    /// [`crate::Guard::release_with_cooldown_outcome`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_with_cooldown_outcome(self, cooldown: Duration) -> Result<Release> {
        self.driven.end(|guard| guard.release_with_cooldown_outcome(cooldown))
    }

    /// Gives back `n` of a semaphore's permits and keeps the others. See
    /// [`crate::Guard::release_permits`].
    ///
    /// # Errors
    ///
    /// As its twin; where waiting is wrong nothing was asked.
    pub fn release_permits(self, n: u32) -> std::result::Result<Self, NotChanged<Self>> {
        if let Err(error) = self.can_wait() {
            return Err(NotChanged::new(self, error));
        }
        let (guard, io) = self.into_driven().into_inner();
        match io.wait(change::release_permits(guard, n)) {
            Ok(guard) => Ok(Self::new(Driven::new(guard, io))),
            Err(not) => {
                let (guard, error) = not.into_parts();
                Err(NotChanged::new(Self::new(Driven::new(guard, io)), error))
            }
        }
    }

    /// Runs `body` under the held lock, and releases it. See [`crate::Guard::run`].
    ///
    /// A thread can't be stopped from outside: let the body look, as under
    /// [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn run<T>(self, body: impl FnOnce(&HeldLease) -> T) -> Result<T, RunError<T>> {
        run_under(self, body, |_| Closing::No)
    }

    /// Lets go of the lease without ending it: it lives on until its ttl, for whoever has the
    /// returned value. See [`crate::Guard::detach`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn detach(self) -> Result<DetachedLease, NotChanged<Self>> {
        if let Err(error) = self.can_wait() {
            return Err(NotChanged::new(self, error));
        }
        let (guard, io) = self.into_driven().into_inner();
        io.wait(guard.detach()).map_err(|not| {
            let (guard, error) = not.into_parts();
            NotChanged::new(Self::new(Driven::new(guard, io)), error)
        })
    }
}

impl fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.part().fmt(f)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.driven.part().fmt(f)
    }
}
