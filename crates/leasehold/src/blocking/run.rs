//! Running a body under a lease, on the caller's thread.

use leasehold_core::Result;

use super::guard::{Guard, HeldLease};
use crate::hold::Closing;
use crate::run::{RunError, judge};

/// Runs a body under a lease and releases it, closing the lock by how the body ended.
pub(super) fn run_under<T>(
    guard: Guard,
    body: impl FnOnce(&HeldLease) -> T,
    closing: impl FnOnce(&T) -> Closing,
) -> Result<T, RunError<T>> {
    guard.can_wait()?;
    let lease = guard.lease().clone();
    let done = body(&lease);
    let in_time = guard.is_held();
    let answer = guard.end(closing(&done));
    judge(lease.part(), in_time, done, answer)
}
