//! Turns answers of the async API into the types of the blocking one.

use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{ForceRelease, Listing, LockInfo, LogEntry, Metadata};

use super::io::Io;
use crate::kinds::election::Leader;
use crate::lease::detached::DetachedLease;
use crate::lease::prolonged::Prolonged;
use crate::lease::release::{Release, Releases};

/// The type for threads that stands for a part of the async API.
pub(super) trait Face<Part>: Sized {
    fn of(part: Part, io: &Io) -> Self;
}

/// A type that tasks and threads share.
pub(super) trait Plain {}

impl Plain for () {}
impl Plain for bool {}
impl Plain for u32 {}
impl Plain for DetachedLease {}
impl Plain for Duration {}
impl Plain for Finding {}
impl Plain for ForceRelease {}
impl Plain for Leader {}
impl Plain for Listing {}
impl Plain for LockInfo {}
impl Plain for LogEntry {}
impl Plain for Metadata {}
impl<G: Plain> Plain for Prolonged<G> {}
impl Plain for Release {}
impl Plain for Releases {}
impl Plain for String {}

impl<T: Plain> Face<T> for T {
    fn of(part: T, _: &Io) -> Self {
        part
    }
}

impl<Part, T: Face<Part>> Face<Option<Part>> for Option<T> {
    fn of(part: Option<Part>, io: &Io) -> Self {
        part.map(|part| T::of(part, io))
    }
}

impl<Part, T: Face<Part>> Face<Vec<Part>> for Vec<T> {
    fn of(part: Vec<Part>, io: &Io) -> Self {
        part.into_iter().map(|part| T::of(part, io)).collect()
    }
}
