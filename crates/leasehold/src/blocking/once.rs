//! Once per period, for threads.

use std::ops::Deref;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::{Guard, HeldLease};
use super::mutex::run_under;
use super::value::{holding_setters, owner_setter};
use crate::guard::Release;
use crate::hold::Closing;

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
    pub fn run<T>(&self, body: impl FnOnce(&HeldLease) -> T) -> Result<Option<T>> {
        let Some(guard) = self.try_start()? else { return Ok(None) };
        run_under(guard.0, body, |_| Closing::No).map(Some)
    }

    /// As [`run`](Self::run), and opens the period again when the body fails. See
    /// [`crate::OncePer::run_or_reopen`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn run_or_reopen<T, E>(
        &self,
        body: impl FnOnce(&HeldLease) -> std::result::Result<T, E>,
    ) -> Result<Option<std::result::Result<T, E>>> {
        let Some(guard) = self.try_start()? else { return Ok(None) };
        let closing = |done: &std::result::Result<T, E>| match done {
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
    pub fn release(self) -> Result<Release> {
        self.0.release()
    }

    /// The job has failed, and may be started again in this period. See
    /// [`crate::OnceGuard::release_and_reopen`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_and_reopen(self) -> Result<Release> {
        self.0.end(Closing::Undo)
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
