//! Runs a body under a lease.

use std::fmt;

use leasehold_core::{Error, ErrorKind, Result};

use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::outcome::{Release, lateness};

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

    /// What the body returned; `None` when it never began, or was cut short.
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

/// What a body runs under: one lease, or several.
pub(crate) trait Leases: Clone {
    fn are_held(&self) -> bool;

    /// Returns when one is lost. Cancel safe.
    fn lost(&self) -> impl Future<Output = ()> + Send;

    /// Whether one is lost because it was held for as long as it may be.
    fn were_held_for_longest(&self) -> bool;

    /// The lease that an error is about: among several, the lost one. Call it before they are
    /// released.
    fn at_fault(&self) -> Option<HeldLease>;
}

impl Leases for HeldLease {
    fn are_held(&self) -> bool {
        self.is_held()
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        Self::lost(self)
    }

    fn were_held_for_longest(&self) -> bool {
        self.is_max_hold_over()
    }

    fn at_fault(&self) -> Option<HeldLease> {
        Some(self.clone())
    }
}

/// Runs a body under a lease, which `end` then releases. `cooldown` chooses the cooldown by what
/// the body returned; `if_cut_short` is for a body that returned nothing.
pub(crate) async fn run_under<T, F, L: Leases, E>(
    lease: L,
    end: impl FnOnce(Afterwards) -> E,
    if_cut_short: Afterwards,
    body: impl FnOnce(L) -> F,
    cooldown: impl FnOnce(&T) -> Afterwards,
) -> Result<T, RunError<T>>
where
    F: Future<Output = T>,
    E: Future<Output = Result<Release>>,
{
    let done = tokio::select! {
        biased;
        () = lease.lost() => None,
        done = body(lease.clone()) => Some(done),
    };
    let in_time = lease.are_held();
    let longest = lease.were_held_for_longest();
    let at_fault = lease.at_fault();
    let cooldown = done.as_ref().map_or(if_cut_short, cooldown);
    let answer = end(cooldown).await;
    match done {
        Some(done) => judge(at_fault.as_ref(), in_time, done, answer),
        None => {
            let why = if longest {
                "the longest hold (`max_hold`) was over, and the body was cut short"
            } else {
                "the lease was lost, and the body was cut short"
            };
            Err(explain(at_fault.as_ref(), ErrorKind::Lost, why).into())
        }
    }
}

/// What a release means for a body that came to its end.
pub(crate) fn judge<T>(
    at_fault: Option<&HeldLease>,
    in_time: bool,
    done: T,
    answer: Result<Release>,
) -> Result<T, RunError<T>> {
    let (kind, why) = match answer {
        Ok(Release::Released | Release::StillHeld { .. }) if in_time => return Ok(done),
        Err(error) if in_time => {
            // The work was under the lock to its end, even if the lease is not released now.
            tracing::warn!(target: "leasehold", %error, "a release failed after a body had ended");
            return Ok(done);
        }
        Ok(Release::Late { by: Some(by) }) => (
            ErrorKind::Late,
            format!(
                "the body ended {} after its lease, though no other holder has come since",
                lateness(by)
            ),
        ),
        Ok(Release::Late { .. } | Release::Released | Release::StillHeld { .. }) => (
            ErrorKind::Late,
            "the body ended after its lease, though no other holder has come since".to_owned(),
        ),
        _ => (
            ErrorKind::Lost,
            "the body ended after its lease was lost; it may have overlapped with another holder"
                .to_owned(),
        ),
    };
    Err(RunError { error: explain(at_fault, kind, &why), output: Some(done) })
}

fn explain(at_fault: Option<&HeldLease>, kind: ErrorKind, why: &str) -> Error {
    match at_fault {
        Some(lease) => lease.explain(lease.lost_by(kind, why), "run"),
        None => Error::new(kind, why).during("run"),
    }
}
