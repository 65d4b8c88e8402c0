//! Requests, made short.

use std::time::Duration;

use leasehold_core::{Acquire, AcquireRequest, FenceBlock, Key, Token, Ttl};

/// Longer than any operation takes on any machine that works.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

/// A request for a lease of half an hour: tests don't wait for its end.
pub(crate) fn request(name: &str) -> AcquireRequest {
    AcquireRequest::new(key(name), Token::generate().unwrap(), ttl(1_800_000))
}

#[track_caller]
pub(crate) fn granted(answer: Acquire) -> FenceBlock {
    match answer {
        Acquire::Granted(granted) => granted.fences,
        other => panic!("not granted: {other:?}"),
    }
}
