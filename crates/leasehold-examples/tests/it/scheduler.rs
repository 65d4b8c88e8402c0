//! The scheduler.

use std::collections::BTreeSet;

use crate::{Service, directory};

/// How many ticks of each job a host comes to.
const TICKS: usize = 3;

#[test]
fn each_tick_runs_once_on_whichever_host_is_first() {
    let (_dir, url) = directory();
    let start = |_| Service::start(env!("CARGO_BIN_EXE_scheduler"), &[&url, &TICKS.to_string()]);
    let hosts: Vec<_> = (0..3).map(start).collect();
    let ran: Vec<_> = hosts.into_iter().flat_map(Service::end).collect();
    let ticks: BTreeSet<_> = ran.iter().cloned().collect();
    assert_eq!(ticks.len(), ran.len(), "a tick ran twice: {ran:?}");
    // What a host came to was run, there or elsewhere.
    for job in ["mail ", "report "] {
        assert!(ticks.iter().filter(|tick| tick.starts_with(job)).count() >= TICKS, "{ran:?}");
    }
}
