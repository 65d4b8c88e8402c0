//! What surrounds each request: its time, its way, its answer, and the verdict on that.

use std::time::Duration;

use leasehold_core::{Effect, ErrorKind, Reason};
use redis::{RedisResult, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::classify::{self, Stage, Verdict};
use crate::topology::replication::Replication;

/// The end of a call's time, and its length for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    within: Duration,
    /// When the first of its callers stops waiting: from then on the server refuses the request.
    pub(crate) not_after: Instant,
}

impl Deadline {
    pub(crate) fn after(within: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(within).unwrap_or_else(|| now + Duration::from_secs(86_400));
        Self { at, within, not_after: at }
    }

    /// The last of these deadlines. The first of their requests still ends with its own.
    pub(crate) fn of_all(all: impl Iterator<Item = Self> + Clone) -> Option<Self> {
        let last = all.clone().max_by_key(|one| one.at)?;
        let not_after = all.map(|one| one.not_after).min()?;
        Some(Self { not_after, ..last })
    }

    /// The same, but at most `within` from now.
    pub(crate) fn at_most(self, within: Duration) -> Self {
        let sooner = Self::after(within);
        let not_after = sooner.at.min(self.not_after);
        if sooner.at < self.at { Self { not_after, ..sooner } } else { self }
    }

    /// The same for one of many requests. A server counts as silent after a tenth of the whole
    /// time, and after a second at the earliest.
    pub(crate) fn of_one(self) -> Self {
        self.at_most((self.within / 10).max(Duration::from_secs(1)))
    }

    /// How much time is left.
    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    /// Nothing was sent in time.
    pub(crate) fn missed_unsent(self, last: Option<&Verdict>) -> Verdict {
        let within = self.rounded();
        let message = match last {
            // It names the limit of the attempt to connect, which began before this request.
            Some(last) if last.reason == Some(Reason::NoAnswer) => last.message().to_owned(),
            Some(last) => format!("no connection within {within:?}: {}", last.message()),
            None => format!("no connection within {within:?}; check the address"),
        };
        let verdict = Verdict::out_of_time(Effect::NotApplied, message);
        match last.and_then(|last| last.reason) {
            Some(reason) => verdict.because(reason),
            None => verdict,
        }
    }

    /// No answer came in time.
    pub(crate) fn missed(self) -> Verdict {
        let within = self.rounded();
        Verdict::out_of_time(Effect::Unknown, format!("no answer within {within:?}"))
    }

    /// The time given, for people.
    fn rounded(self) -> Duration {
        let ms = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX);
        if ms == 0 { self.within } else { Duration::from_millis(ms) }
    }
}

/// On which connection a request is sent, and what follows it there.
#[derive(Clone, Copy)]
pub(crate) enum Delivery {
    /// On the one that all share.
    None,
    /// Behind all requests about the same lock that were sent with [`Delivery::Confirmed`].
    InOrder,
    /// Followed, if the answer calls for it, by a wait for replicas.
    Confirmed {
        replication: Replication,
        needed: fn(&Value) -> bool,
        /// Whether a server that is warming up gets it too: its answer proves no lease there, but
        /// it keeps the waiter's position in the queue.
        keeps_place: bool,
    },
}

impl Delivery {
    /// The same for a request that may keep a position in the queue.
    pub(crate) fn keeping_place(self, keeps_place: bool) -> Self {
        match self {
            Self::Confirmed { replication, needed, keeps_place: _ } => {
                Self::Confirmed { replication, needed, keeps_place }
            }
            delivery => delivery,
        }
    }

    /// Whether what is confirmed for one request is confirmed for the other.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) | (Self::InOrder, Self::InOrder) => true,
            (
                Self::Confirmed { replication, keeps_place, .. },
                Self::Confirmed { replication: other, keeps_place: others, .. },
            ) => replication == other && keeps_place == others,
            _ => false,
        }
    }
}

/// The parts of a request that depend on the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    /// The fail-over epoch in which the server was found.
    pub(crate) epoch: u64,
    /// From then on the server refuses the request as late: µs since the Unix epoch by its clock,
    /// or 0 without a limit.
    pub(crate) not_after: u64,
}

/// An answer of a server.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// The fail-over epoch of the request.
    pub(crate) epoch: u64,
    /// Why it proves no lease: too few replicas confirmed it, or the server is warming up.
    pub(crate) unconfirmed: Option<Verdict>,
}

impl Answer {
    pub(crate) fn new(value: Value, epoch: u64) -> Self {
        Self { value, epoch, unconfirmed: None }
    }
}

/// The runtime of the caller, whose timers every request needs.
pub(crate) fn here() -> Result<Handle, Verdict> {
    Handle::try_current().map_err(|_| {
        Verdict::refused(
            ErrorKind::Misuse,
            classify::Next::Fail,
            "a Redis store works inside a tokio runtime only",
        )
    })
}

/// Judges an answer to one request.
pub(crate) fn judged(answer: RedisResult<Value>) -> Result<Value, Verdict> {
    match answer {
        Ok(Value::ServerError(error)) => {
            Err(classify::server(error.code(), error.details().unwrap_or("")))
        }
        Ok(value) => Ok(value),
        Err(error) => Err(classify::judge(&error, Stage::Asked)),
    }
}

/// The same outcome for every request.
pub(crate) fn all_failed(requests: usize, verdict: &Verdict) -> Vec<Result<Answer, Verdict>> {
    (0..requests).map(|_| Err(verdict.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_not_sent_names_one_limit() {
        let told = |last: &Verdict| {
            let missed = Deadline::after(Duration::from_millis(1666)).missed_unsent(Some(last));
            missed.message().to_owned()
        };
        let silent = Verdict::unconnected("the server did not answer within 2s");
        let silent = silent.because(Reason::NoAnswer);
        assert_eq!(told(&silent), "the server did not answer within 2s");
        let refused = Verdict::unconnected("connection refused").because(Reason::Disconnected);
        assert_eq!(told(&refused), "no connection within 1.666s: connection refused");
    }
}
