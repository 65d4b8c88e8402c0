//! Running a body under a lease.

use std::fmt;

use leasehold_core::{Error, ErrorKind, Result};

use crate::guard::{Guard, HeldLease};
use crate::hold::Closing;
use crate::release::Release;

/// Why a body did not run under its lock from beginning to end, with what it returned.
///
/// `?` turns it into the plain [`Error`], and drops the output.
#[must_use = "it may have the body's output in it"]
pub struct RunError<T> {
    error: Error,
    output: Option<T>,
}

impl<T> RunError<T> {
    /// Why.
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// What to branch on: see [`Error::kind`].
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// What the body returned; `None` when it was never begun, or was cut short.
    pub const fn output(&self) -> Option<&T> {
        self.output.as_ref()
    }

    /// What the body returned.
    pub fn into_output(self) -> Option<T> {
        self.output
    }

    /// Why, and what the body returned.
    pub fn into_parts(self) -> (Error, Option<T>) {
        (self.error, self.output)
    }
}

impl<T> From<Error> for RunError<T> {
    fn from(error: Error) -> Self {
        Self { error, output: None }
    }
}

impl<T> From<RunError<T>> for Error {
    fn from(not: RunError<T>) -> Self {
        not.error
    }
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunError")
            .field("error", &self.error)
            .field("has_output", &self.output.is_some())
            .finish()
    }
}

impl<T> fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Runs a body under a lease and releases it, closing the lock by how the body ended;
/// `if_cut_short` is for one that did not.
pub(crate) async fn run_under<T, F>(
    guard: Guard,
    if_cut_short: Closing,
    body: impl FnOnce(HeldLease) -> F,
    closing: impl FnOnce(&T) -> Closing,
) -> Result<T, RunError<T>>
where
    F: Future<Output = T>,
{
    let lease = guard.lease().clone();
    let done = tokio::select! {
        biased;
        () = lease.lost() => None,
        done = body(lease.clone()) => Some(done),
    };
    let in_time = guard.is_held();
    let longest = guard.hold().was_held_for_longest(guard.client().clock.now());
    let closing = done.as_ref().map_or(if_cut_short, closing);
    let answer = guard.end(closing).await;
    match done {
        Some(done) => judge(&lease, in_time, done, answer),
        None => {
            let why = if longest {
                "the longest hold (`max_hold`) was over, and the body was cut short"
            } else {
                "the lease was lost, and the body was cut short"
            };
            Err(lease.explain(Error::new(ErrorKind::Lost, why), "run").into())
        }
    }
}

/// What a release means for a body that came to its end.
pub(crate) fn judge<T>(
    lease: &HeldLease,
    in_time: bool,
    done: T,
    answer: Result<Release>,
) -> Result<T, RunError<T>> {
    let (kind, why) = match answer {
        Ok(Release::Released | Release::StillHeld { .. }) if in_time => return Ok(done),
        Err(error) if in_time => {
            // The work was under the lock to its end, whatever becomes of the lease now.
            tracing::warn!(target: "leasehold", %error, "a release failed after a body had ended");
            return Ok(done);
        }
        Ok(Release::Late | Release::Released | Release::StillHeld { .. }) => {
            (ErrorKind::Late, "the body ended after its lease, though nobody held the lock since")
        }
        _ => (
            ErrorKind::Lost,
            "the body ended after its lease was lost; it may have overlapped with another holder",
        ),
    };
    Err(RunError { error: lease.explain(Error::new(kind, why), "run"), output: Some(done) })
}
