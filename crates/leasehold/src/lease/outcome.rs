//! The outcomes of a release, and what they mean for the work.

use std::fmt;
use std::time::Duration;

use leasehold_core::{
    Cooldown, Effect, Error, ErrorKind, Release as StoreRelease, ReleaseRequest, Result, Store,
    length,
};

/// How a release went, for callers that distinguish the outcomes: see
/// [`Guard::release_outcome`](crate::Guard::release_outcome).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a late or lost lease means that the work may have overlapped with another holder's"]
#[non_exhaustive]
pub enum Release {
    /// The lease was held to its end, and the lock is free now.
    Released,
    /// The lease had expired before, but no other holder has had the lock since: the work was
    /// undisturbed, but its ttl was too short.
    Late {
        /// How long before the release another holder could have come: the time since the lease's
        /// deadline, on this process's clock. `None` if that clock does not know when the lease
        /// ended, as for a [detached](crate::DetachedLease) one.
        by: Option<Duration>,
    },
    /// Other holds of the same owner remain, so the lock is not free yet: the answer of a
    /// [re-entrant](crate::Reentrant) lock.
    StillHeld {
        /// How many.
        holds: u32,
    },
    /// The lease was not held any more, and another holder may have come since: the work may have
    /// overlapped with that holder's.
    NotHeld,
    /// The store did not answer, or with an error that leaves open what it did. The background
    /// retries the release until the lease would have expired anyway.
    Unknown,
}

impl Release {
    /// How the release of a lease went, by the store's answer. By this process's clock, the lease
    /// had expired `over_for` before.
    pub(crate) const fn of(answer: &StoreRelease, over_for: Option<Duration>) -> Self {
        match answer {
            StoreRelease::Released | StoreRelease::StillHeld { .. } => Self::Released,
            StoreRelease::Late => Self::Late { by: over_for },
            _ => Self::NotHeld,
        }
    }

    /// What the outcome means for the work: an error unless the lease was held to its end.
    pub(crate) fn verdict(self) -> Result<()> {
        match self {
            Self::Released | Self::StillHeld { .. } => Ok(()),
            Self::Late { by } => Err(late(by)),
            Self::NotHeld => Err(not_held()),
            Self::Unknown => Err(Error::new(
                ErrorKind::Unavailable,
                "the release was not answered; it is retried in the background, and the lease \
                 expires with its ttl at the latest",
            )
            .with_effect(Effect::Unknown)),
        }
    }
}

/// Ends a lease in its store. A store without cooldowns refuses a release with one, but the lease
/// should end anyway. It is then ended without the cooldown, and the error says so.
pub(crate) async fn end_in(
    store: &dyn Store,
    request: &ReleaseRequest,
    within: Duration,
) -> Result<StoreRelease> {
    let refusal = match store.release(request, within).await {
        Err(error) if error.kind() == ErrorKind::Unsupported && !request.cooldown.is_none() => {
            error
        }
        answer => return answer,
    };
    let mut plain = request.clone();
    plain.cooldown = Cooldown::NONE;
    store.release(&plain, within).await?;
    let why = format!("the lock is released, but without its cooldown: {refusal}");
    Err(Error::new(refusal.kind(), why).with_effect(Effect::Applied))
}

fn late(by: Option<Duration>) -> Error {
    let by = by.map_or_else(String::new, |by| lateness(by) + " ");
    let why = format!(
        "the lease expired {by}before its release, though no other holder has come since; give it \
         a longer ttl"
    );
    Error::new(ErrorKind::Late, why)
}

/// A length of time for people: whole milliseconds suffice.
pub(crate) fn lateness(by: Duration) -> String {
    let ms = Duration::from_millis(by.as_millis().try_into().unwrap_or(u64::MAX));
    length::measured(ms.max(Duration::from_millis(1))).to_string()
}

fn not_held() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the lease was lost: it expired, was force-released or was released before; check its last \
         writes",
    )
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::Late { by: Some(by) } => {
                write!(
                    f,
                    "{} late: the lease had expired, but no other holder has come since",
                    lateness(*by)
                )
            }
            Self::Late { by: None } => {
                f.write_str("late: the lease had expired, but no other holder has come since")
            }
            Self::StillHeld { holds } => write!(f, "still held {holds} times by the same owner"),
            Self::NotHeld => f.write_str("not held any more; another holder may have come since"),
            Self::Unknown => f.write_str("unknown: no answer"),
        }
    }
}
