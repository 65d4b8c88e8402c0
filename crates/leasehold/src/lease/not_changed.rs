//! The error of a failed change, which gives the guard back.

use std::fmt;

use leasehold_core::{Error, ErrorKind};

/// A failed change, with the guard that is left.
///
/// `?` turns it into the plain [`Error`], and drops the guard.
#[must_use = "it has the guard in it, and dropping it releases the lock"]
pub struct NotChanged<G> {
    guard: G,
    error: Error,
}

impl<G> NotChanged<G> {
    pub(crate) const fn new(guard: G, error: Error) -> Self {
        Self { guard, error }
    }

    /// Why.
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// What to branch on: see [`Error::kind`].
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The guard; the method that failed says how it is held.
    pub fn into_guard(self) -> G {
        self.guard
    }

    /// This error with the guard in another type.
    pub(crate) fn map<H>(self, map: impl FnOnce(G) -> H) -> NotChanged<H> {
        NotChanged { guard: map(self.guard), error: self.error }
    }

    /// The guard and why.
    pub fn into_parts(self) -> (G, Error) {
        (self.guard, self.error)
    }
}

impl<G> fmt::Debug for NotChanged<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotChanged").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<G> fmt::Display for NotChanged<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> std::error::Error for NotChanged<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<G> From<NotChanged<G>> for Error {
    fn from(not: NotChanged<G>) -> Self {
        not.error
    }
}
