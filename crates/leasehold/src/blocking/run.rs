//! Runs a body under a lease, on the caller's thread.

use leasehold_core::Result;

use super::driven::Driven;
use crate::lease::handle::requests::Afterwards;
use crate::lease::release::Release;
use crate::lease::run::{Leases, RunError, judge};

/// A view of what a body runs under.
pub(super) trait View {
    type Part: Leases;

    fn part(&self) -> &Self::Part;
}

/// Runs a body under a lease, which `end` then releases. `cooldown` chooses the cooldown by what
/// the body returned.
pub(super) fn run_under<T, G, V: View, F>(
    guard: Driven<G>,
    lease: &V,
    body: impl FnOnce(&V) -> T,
    cooldown: impl FnOnce(&T) -> Afterwards,
    end: impl FnOnce(G, Afterwards) -> F,
) -> Result<T, RunError<T>>
where
    F: Future<Output = Result<Release>>,
{
    guard.io().check()?;
    let done = body(lease);
    let in_time = lease.part().are_held();
    let at_fault = lease.part().at_fault();
    let cooldown = cooldown(&done);
    let answer = guard.end(|guard| end(guard, cooldown));
    judge(at_fault.as_ref(), in_time, done, answer)
}
