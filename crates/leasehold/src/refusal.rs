//! Explains a store's refusal in words.

use leasehold_core::{Error, ErrorKind, Kind, Reason, Refusal};

pub(crate) fn refused(refusal: Refusal, asked: Kind) -> Error {
    let mut reason = None;
    let why = match refusal {
        Refusal::WrongKind { stored } => match (stored, asked) {
            (Kind::Semaphore { limit: stored }, Kind::Semaphore { limit: asked }) => {
                reason = Some(Reason::OtherLimit);
                format!("in use with limit {stored}, not {asked}, and all users must agree on one")
            }
            _ => format!("in use as a {stored}, not as a {asked}; use another name for this"),
        },
        Refusal::TooManyPermits { limit } => {
            format!("more permits were requested than the limit of {limit}")
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
    let why =
        format!("{waiters} waiters are in the queue already, which is the limit that was set");
    Error::new(ErrorKind::Conflict, why).held_by(None, None)
}
