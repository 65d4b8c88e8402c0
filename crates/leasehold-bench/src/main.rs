//! What a lock costs: leasehold beside what its store could do at best, in the same run.
//!
//! Every command starts private servers on loopback, takes the variants in turn within each round,
//! and reports medians over the rounds together with the median of the ratios *within* a round,
//! which is what survives a noisy machine. Nothing here passes or fails on time; the counts that
//! no machine can change are checked by the crate's tests.
#![allow(
    clippy::disallowed_methods,
    reason = "intervals of some seconds are measured here, and no lease depends on them"
)]

mod bare;
mod cli;
#[cfg_attr(not(target_os = "linux"), path = "no_delay.rs")]
mod delay;
mod expiry;
mod handoff;
mod machine;
mod meter;
mod renew;
mod report;
mod scripts;
mod server;
mod stats;
mod uncontended;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Args, What};
use crate::report::Document;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    // One thread, as most users of a lock have for their input and output; a second one makes
    // many small requests over one connection slower, not faster.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut document = Document::new(args);
        let all = args.what == What::All;
        if all || args.what == What::Uncontended {
            document.uncontended = Some(uncontended::run(args).await?);
        }
        if all || args.what == What::Handoff {
            document.handoff = Some(handoff::run(args, &handoff::Plan::of(args)).await?);
            if all {
                document.handoff_delayed =
                    Some(handoff::run(args, &handoff::Plan::delayed(args)).await?);
            }
        }
        if all || args.what == What::Expiry {
            document.expiry = Some(expiry::run(args).await?);
        }
        if all || args.what == What::Renew {
            document.renew = Some(renew::run(args).await?);
        }
        if all || args.what == What::Scripts {
            document.scripts = Some(scripts::run(args).await?);
        }
        document.finish();
        report::print(&document, args.json)
    })
}
