//! Checks typed arguments where clap can't: names, combinations, fences.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use leasehold::interop::Layout;
use leasehold::store::length;
use leasehold::{Fence, Key, Ttl};

use crate::failure::{Failure, Outcome};

/// Judges a name.
pub(crate) fn key(typed: &OsStr) -> Outcome<Key> {
    Key::from_bytes(typed.as_bytes()).map_err(|error| Failure::of_argument(&error))
}

/// Judges names, of which each may be given once.
pub(crate) fn keys(typed: &[OsString]) -> Outcome<Vec<Key>> {
    let keys = typed.iter().map(|typed| key(typed)).collect::<Outcome<Vec<_>>>()?;
    let mut sorted: Vec<&Key> = keys.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([twice, ..]) => {
            Err(Failure::usage(format!("\"{twice}\" is named twice; name each lock once")))
        }
        _ => Ok(keys),
    }
}

/// Judges the longest hold, and says how long the lease runs then: no longer than that.
pub(crate) fn within(
    max_hold: Option<Duration>,
    ttl: Ttl,
    grace: Option<Duration>,
) -> Outcome<Ttl> {
    if let (Some(longest), Some(grace)) = (max_hold, grace)
        && grace > longest / 2
    {
        return Err(Failure::usage(format!(
            "a grace of {} is too long for --max-hold {}; give at most half of that",
            length::typed(grace),
            length::typed(longest)
        )));
    }
    match max_hold.filter(|longest| *longest < ttl.duration()) {
        None => Ok(ttl),
        Some(longest) => Ttl::new(longest).map_err(|error| Failure::of_argument(&error)),
    }
}

/// Refuses options that locks of another library lack. Each has whether it was given, and the name
/// of the missing feature.
pub(crate) fn refuse_for(layout: Option<&Layout>, options: &[(bool, &str, &str)]) -> Outcome<()> {
    let Some(layout) = layout else { return Ok(()) };
    match options.iter().find(|(given, ..)| *given) {
        None => Ok(()),
        Some((_, option, what)) => {
            Err(Failure::usage(format!("locks of {layout} have no {what}; leave {option} out")))
        }
    }
}

/// Judges what the names of locks are to begin with.
pub(crate) fn prefix(typed: Option<&OsStr>) -> Outcome<&str> {
    typed
        .unwrap_or_default()
        .to_str()
        .ok_or_else(|| Failure::usage("the prefix is not UTF-8, as all names are; give another"))
}

/// Judges the limit of a semaphore.
pub(crate) fn limit(typed: u32) -> Outcome<NonZeroU32> {
    NonZeroU32::new(typed)
        .ok_or_else(|| Failure::usage("a limit of 0 has no permits; give at least 1"))
}

/// Judges a fence.
pub(crate) fn fence(typed: u64) -> Outcome<Fence> {
    Fence::from_value(typed).map_err(|error| Failure::of_argument(&error))
}
