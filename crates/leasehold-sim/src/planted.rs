//! Runs the table of planted faults: turns each on, and counts the seconds until a check finds it.

use std::process::{Command, ExitCode};
use std::time::Duration;

use leasehold_core::planted::{self, Fault};

use crate::profile::{Profile, Stores};
use crate::watch::{Watch, thread_seconds};
use crate::{model, world};

/// Whether only a quorum has the fault.
const fn is_of_a_quorum(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::YoungNodeCounts
            | Fault::MinorityIsEnough
            | Fault::LowestFence
            | Fault::VainNotUndone
    )
}

/// Looks for the faults of these numbers, or for all.
///
/// Each fault gets `seconds` of one processor, in its own process, since some keep a simulation
/// from ending. Faults that the simulation misses are left to the model.
pub(crate) fn run(numbers: &[u64], seconds: u64, from: u64) -> ExitCode {
    if let [number] = numbers {
        return find(*number, seconds, from);
    }
    let all: Vec<u64> = (1..).take(Fault::ALL.len()).collect();
    let (mut found, numbers) = (0, if numbers.is_empty() { &all } else { numbers });
    for number in numbers {
        let Ok(this) = std::env::current_exe() else { return ExitCode::from(2) };
        let mut search = Command::new(this);
        search.args(["planted", &number.to_string(), "--seconds", &seconds.to_string()]);
        search.args(["--from", &from.to_string()]);
        found += usize::from(search.status().is_ok_and(|status| status.success()));
    }
    println!("{found} of {} planted faults found", numbers.len());
    if found == numbers.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn find(number: u64, seconds: u64, from: u64) -> ExitCode {
    let fault = usize::try_from(number).ok().and_then(|n| Fault::ALL.get(n.checked_sub(1)?));
    let Some(fault) = fault.copied() else {
        eprintln!("leasehold-sim: there is no planted fault {number}");
        return ExitCode::from(2);
    };
    planted::choose(fault);
    let stores = if is_of_a_quorum(fault) { Stores::Quorum } else { Stores::Memory };
    let watch = Watch::start();
    let seconds_max = Duration::from_secs(seconds).as_secs_f64();
    let mut grants = 0;
    for seed in from.. {
        if thread_seconds() >= seconds_max {
            break;
        }
        watch.begins(seed);
        let outcome = world::run(&Profile::draw(seed, stores), false);
        grants += outcome.books.grants + outcome.books.calm_grants;
        if let Some(fault_found) = &outcome.fault {
            let took = thread_seconds();
            println!(
                "{number:>2} {fault:?}: found after {took:.1} s in seed {seed}: {fault_found}"
            );
            return ExitCode::SUCCESS;
        }
    }
    println!("{number:>2} {fault:?}: not found in {seconds} s, {grants} grants");
    let Some((rule, took)) = model::find() else { return ExitCode::FAILURE };
    println!("{number:>2} {fault:?}: found after {took:.1} s by the model: {rule}");
    ExitCode::SUCCESS
}
