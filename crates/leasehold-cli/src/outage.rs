//! Reports a store that is away, and its return.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Reason};
use tokio::time::Instant;

use crate::duration;
use crate::failure::chain;
use crate::output;
use crate::pauses::Pauses;

/// A store that is away, told at growing intervals.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    pauses: Pauses,
    quiet_until: Option<Instant>,
}

impl Outage {
    /// Prints the error of the last try, unless it was printed a short while ago.
    pub(crate) fn tell(&mut self, error: &Error) {
        let now = Instant::now();
        if self.quiet_until.is_none_or(|until| now >= until) {
            output::message(&format!("{}; trying again", chain(error)));
            self.quiet_until = now.checked_add(self.pauses.next());
        }
    }
}

/// A listing of this store without an answer for this time.
pub(crate) fn late(store: &str, length: Duration) -> Error {
    let why = format!("no answer within {}", duration::show(length));
    let error = Error::new(ErrorKind::Unavailable, why).with_reason(Reason::NoAnswer);
    error.during("list").at_store(store)
}

/// Whether it is of use to try again.
pub(crate) fn may_pass(error: &Error) -> bool {
    error.is_retryable() && error.kind() != ErrorKind::Timeout
}
