//! Shrinks a failing profile to what its failure needs.

use crate::profile::{Profile, Us};
use crate::watch::Watch;
use crate::world::{self, Outcome};

const SECOND: Us = 1_000_000;

/// The smallest profile found within `seconds` that fails in the same way, with its outcome.
pub(crate) fn shrink(
    profile: &Profile,
    kind: &str,
    watch: &Watch,
    seconds: u64,
) -> (Profile, Outcome) {
    let until = watch.seconds() + seconds;
    let fails = |profile: &Profile| {
        watch.alive();
        let outcome = world::run(profile, true);
        (outcome.kind() == Some(kind)).then_some(outcome)
    };
    let mut best = (profile.clone(), world::run(profile, true));
    let attempt = |best: &mut (Profile, Outcome), change: &dyn Fn(&mut Profile)| {
        if watch.seconds() >= until {
            return false;
        }
        let mut smaller = best.0.clone();
        change(&mut smaller);
        let found = fails(&smaller);
        let better = found.is_some();
        if let Some(outcome) = found {
            *best = (smaller, outcome);
        }
        better
    };
    // First the time: the part after the failure.
    let failed_at = best.1.simulated;
    attempt(&mut best, &|profile| {
        profile.faults.retain(|fault| fault.at < failed_at);
    });
    // Then the faults: ever smaller parts of the list.
    let mut part = best.0.faults.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        while from < best.0.faults.len() {
            let upto = (from + part).min(best.0.faults.len());
            if !attempt(&mut best, &|profile| drop(profile.faults.drain(from..upto))) {
                from = upto;
            }
        }
        part /= 2;
    }
    while best.0.hosts > 2 && attempt(&mut best, &|profile| profile.hosts -= 1) {}
    while best.0.tasks > 1 && attempt(&mut best, &|profile| profile.tasks -= 1) {}
    while best.0.lasts > 2 * SECOND && attempt(&mut best, &|profile| profile.lasts /= 2) {}
    best
}
