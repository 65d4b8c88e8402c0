//! Fault test of the whole command: real processes, killed and stopped, over broken servers.
//!
//! The processes use all kinds and options, and end at random moments.
//!
//! `cargo xtask torture` builds and runs it; docs/reliability.md says what it does and judges.
//!
//! * [`plan`] draws each worker's commands and their faults from a seed; [`worker`] carries them
//!   out.
//! * [`section`] is the command under the lock. It holds kernel locks, which end exactly when it
//!   does, and records what it sees.
//! * [`site`] is the store with its servers; [`nemesis`] injects faults there.
//! * [`judge`] reads the records afterwards; [`epilogue`] checks that all is cleaned up.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]
#![allow(clippy::panic, reason = "a torture that cannot be set up has failed")]

#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod epilogue;
#[cfg(target_os = "linux")]
mod judge;
#[cfg(target_os = "linux")]
mod nemesis;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod section;
#[cfg(target_os = "linux")]
mod site;
#[cfg(target_os = "linux")]
mod torture;
#[cfg(target_os = "linux")]
mod worker;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((first, rest)) if first == section::COMMAND => section::main(rest),
        _ => torture::main(&args),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("torture: it finds processes in /proc, which only Linux has");
    ExitCode::FAILURE
}
