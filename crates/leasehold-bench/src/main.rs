//! Measures what a lock costs, and the best that its store could do in the same run.
//!
//! Every command starts private servers on loopback, and the variants alternate within each round.
//! The results are medians over the rounds, and medians of the ratios *within* a round, which
//! survive a noisy machine. Time decides no result here. The crate's tests check those counts that
//! are the same on every machine.
#![allow(
    clippy::disallowed_methods,
    reason = "intervals of some seconds are measured here, and no lease depends on them"
)]

mod bare;
mod cli;
mod command;
mod crowd;
#[cfg_attr(not(target_os = "linux"), path = "no_delay.rs")]
mod delay;
mod embedded_floor;
mod expiry;
mod fifo;
mod handoff;
mod machine;
mod meter;
mod others;
mod page;
mod peers;
mod plot;
mod postgres;
mod renew;
mod report;
mod scale;
mod scripts;
mod server;
mod stats;
mod uncontended;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Args, What};
use crate::report::Document;

/// How many parts a report has.
const PARTS: u32 = 10;

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
    // One thread, as most users of a lock have for their input and output. A second one makes many
    // small requests over one connection slower.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut document = Document::new(args);
        let report = args.what == What::Report;
        let all = args.what == What::All || report;
        let begun = std::time::Instant::now();
        // Prints the progress of a report.
        let step = |part: u32, what: &str| {
            if report {
                report::progress(part, PARTS, begun.elapsed(), what);
            }
        };
        // First, while only the leases have allocated memory.
        if all || args.what == What::Renew {
            step(0, "renewals");
            document.renew = Some(renew::run(args).await?);
        }
        if all || args.what == What::Others {
            step(1, "others beside renewals");
            document.others = Some(others::run(args).await?);
        }
        if all || args.what == What::Uncontended {
            step(2, "take and release");
            document.uncontended = Some(uncontended::run(args).await?);
        }
        if all || args.what == What::Handoff {
            step(3, "hand-off");
            document.handoff = Some(handoff::run(args, &handoff::Plan::of(args)).await?);
            if all {
                step(4, "hand-off at a distance");
                document.handoff_delayed =
                    Some(handoff::run(args, &handoff::Plan::delayed(args)).await?);
            }
        }
        if all || args.what == What::Expiry {
            step(5, "dead holders");
            document.expiry = Some(expiry::run(args).await?);
        }
        if all || args.what == What::Scripts {
            step(6, "scripts");
            document.scripts = Some(scripts::run(args).await?);
        }
        if args.what == What::Postgres {
            document.postgres = Some(postgres::run(args).await?);
        }
        if report {
            step(7, "run");
            document.run = command::run(args)?;
            document.peers = Some(peers::run(args, |what| step(8, what)).await?);
            document.scale = Some(scale::run(args, |what| step(9, what)).await?);
        }
        document.finish();
        if report && !args.json {
            let docs = args.docs();
            page::write(&docs, &document)?;
            step(PARTS, &format!("written to performance.md and plots in {}", docs.display()));
            return Ok(());
        }
        report::print(&document, args.json)
    })
}
