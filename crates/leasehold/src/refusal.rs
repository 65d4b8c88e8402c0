//! Explains a store's refusal in words.

use leasehold_core::{Error, ErrorKind, Kind, Reason, Refusal};

pub(crate) fn refused(refusal: Refusal, asked: Kind) -> Error {
    let mut reason = None;
    let why = match refusal {
        Refusal::WrongKind { stored } => {
            let remedy = match (stored, asked) {
                (Kind::Semaphore { .. }, Kind::Semaphore { .. }) => {
                    reason = Some(Reason::OtherLimit);
                    "agree on one limit, take the stored one, or change it for all users"
                }
                _ => "use it as that, or wait until nobody uses it",
            };
            format!("the name is in use as a {stored}, not as a {asked}; {remedy}")
        }
        Refusal::TooManyPermits { limit } => {
            format!("more permits were asked for than there are ({limit})")
        }
        Refusal::QueueFull { waiters } => return queue_full(waiters),
        _ => "the store refuses this use of the name".to_owned(),
    };
    let error = Error::new(ErrorKind::Conflict, why);
    match reason {
        Some(reason) => error.with_reason(reason),
        None => error,
    }
}

/// The queue is as long as the caller accepts.
pub(crate) fn queue_full(waiters: u32) -> Error {
    let why = format!("{waiters} are waiting already, which is the limit asked for");
    Error::new(ErrorKind::Conflict, why).held_by(None, None)
}
