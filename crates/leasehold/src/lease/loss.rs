//! Says how a lease was lost.

use std::fmt;
use std::time::Duration;

use leasehold_core::{Error, LeaseMachine, LossReason, Lost, Reason, length};

/// How a lease was lost, with the error of the last failed renewal. Read by
/// [`HeldLease::loss`](crate::HeldLease::loss).
///
/// Its `Display` is a sentence for people. The alternate form (`{:#}`) leaves out the lock and the
/// store.
#[derive(Clone, Debug)]
#[must_use]
pub struct Loss {
    reason: LossReason,
    error: Option<Error>,
    unconfirmed_for: Duration,
}

impl Loss {
    /// The loss that was reported, if one was.
    pub(crate) fn of(lease: &LeaseMachine<Error>) -> Option<Self> {
        let Lost { reason, unconfirmed_for } = lease.loss()?;
        Some(Self { reason, error: lease.failure().cloned(), unconfirmed_for })
    }

    /// What ended it.
    #[must_use]
    pub const fn reason(&self) -> LossReason {
        self.reason
    }

    /// How the last renewal failed, if none succeeded after it.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Why the last renewal failed, if that is known: [`Error::reason`].
    #[must_use]
    pub fn cause(&self) -> Option<Reason> {
        self.error.as_ref().and_then(Error::reason)
    }

    /// How long before the loss the last confirmed request was sent: the acquisition, or a renewal.
    #[must_use]
    pub const fn unconfirmed_for(&self) -> Duration {
        self.unconfirmed_for
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, &self.error) {
            (LossReason::MaxHold, _) => f.write_str("held for as long as max_hold allows"),
            (LossReason::Refuted, Some(error)) => error.fmt(f),
            (LossReason::Refuted, None) => {
                f.write_str("force-released, or the store lost its data")
            }
            (_, error) => {
                write!(
                    f,
                    "no renewal was confirmed for {}",
                    length::measured(self.unconfirmed_for)
                )?;
                let Some(error) = error else { return Ok(()) };
                f.write_str(" (")?;
                error.fmt(f)?;
                f.write_str(")")
            }
        }
    }
}
