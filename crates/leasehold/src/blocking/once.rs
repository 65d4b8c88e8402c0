//! Once per period, for threads.

use std::ops::Deref;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::{Guard, HeldLease};
use super::run::run_under;
use super::value::{holding_setters, owner_setter};
use crate::hold::Closing;
use crate::release::{self, Release};
use crate::run::RunError;

/// A job that starts at most once per period, on all hosts together. The blocking twin of
/// [`crate::OncePer`].
///
/// # Errors
///
/// Methods that ask the store fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
/// async runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "nothing is done until it is started"]
pub struct OncePer(Driven<crate::OncePer>);

holding_setters!(OncePer);
owner_setter!(OncePer);

impl OncePer {
    pub(super) const fn new(driven: Driven<crate::OncePer>) -> Self {
        Self(driven)
    }

    /// The job's name.
    ///
    /// # Errors
    ///
    /// What is wrong with the name, or the first setting that is wrong.
    pub fn key(&self) -> Result<&Key> {
        self.0.part().key()
    }

    /// Starts the job if nobody has in this period. See [`crate::OncePer::try_start`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_start(&self) -> Result<Option<OnceGuard>> {
        let guard = self.0.wait(crate::OncePer::try_start)??;
        Ok(guard.map(|guard| OnceGuard(Guard::new(self.0.with(guard.into_guard())))))
    }

    /// Runs `body` if nobody has started the job in this period. See [`crate::OncePer::run`].
    ///
    /// A thread can't be stopped from outside: let the body look, as under
    /// [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn run<T>(&self, body: impl FnOnce(&HeldLease) -> T) -> Result<Option<T>, RunError<T>> {
        let Some(guard) = self.try_start()? else { return Ok(None) };
        run_under(guard.0, body, |_| Closing::No).map(Some)
    }

    /// As [`run`](Self::run), and opens the period again when the body fails. See
    /// [`crate::OncePer::run_or_reopen`].
    ///
    /// # Errors
    ///
    /// As its twin.
    #[expect(clippy::type_complexity, reason = "a name for it would have to be looked up")]
    pub fn run_or_reopen<T, E>(
        &self,
        body: impl FnOnce(&HeldLease) -> Result<T, E>,
    ) -> Result<Option<Result<T, E>>, RunError<Result<T, E>>> {
        let Some(guard) = self.try_start()? else { return Ok(None) };
        let closing = |done: &Result<T, E>| match done {
            Ok(_) => Closing::No,
            Err(_) => Closing::Undo,
        };
        run_under(guard.0, body, closing).map(Some)
    }
}

/// A job that has started. The blocking twin of [`crate::OnceGuard`].
#[derive(Debug)]
#[must_use = "dropping the guard gives the lock up in the background; call release() to be sure"]
#[clippy::has_significant_drop]
pub struct OnceGuard(Guard);

impl OnceGuard {
    /// The job is done. See [`crate::OnceGuard::release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release(self) -> Result<()> {
        self.0.release()
    }

    /// As [`release`](Self::release), and says how that went.
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_outcome(self) -> Result<Release> {
        self.0.release_outcome()
    }

    /// The job has failed, and may be started again in this period. See
    /// [`crate::OnceGuard::release_and_reopen`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_and_reopen(self) -> Result<()> {
        self.0.end_well(Closing::Undo)
    }

    /// As [`release_and_reopen`](Self::release_and_reopen), and says how that went.
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_and_reopen_outcome(self) -> Result<Release> {
        release::outcome(self.0.end(Closing::Undo))
    }

    /// The plain guard.
    pub fn into_guard(self) -> Guard {
        self.0
    }
}

impl Deref for OnceGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
