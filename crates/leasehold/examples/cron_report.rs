//! A report that cron starts on every host, and that one of them writes: once per period.
//!
//! `cargo run -p leasehold --example cron_report [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::time::Duration;

use leasehold::Client;
use tokio::time::Instant;

const HOSTS: u32 = 5;
/// Clearly shorter than the schedule's: 55 minutes for a report that cron starts every hour.
const PERIOD: Duration = Duration::from_millis(400);

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    // Each host would have a client of its own; `memory:` is the store of one client only.
    let report = client.once_per("example/report", PERIOD);

    let started = Instant::now();
    let mut written = 0;
    for hour in 1..=2 {
        let mut hosts = Vec::new();
        for host in 1..=HOSTS {
            let report = report.clone();
            hosts.push(tokio::spawn(async move {
                // A caller never waits here: for a closed period the answer is `None`.
                report.run(async |lease| (host, lease.fence_even_if_lost())).await
            }));
        }
        for host in hosts {
            let run = host.await.expect("a task panicked")?;
            if let Some((host, fence)) = run {
                println!("hour {hour}: host {host} wrote the report, under fence {fence}");
                written += 1;
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
    let periods = started.elapsed().as_millis() / PERIOD.as_millis();
    assert!(written <= periods + 1, "one report in each period");

    // With `run_or_reopen`, a report that fails may be started again in the same period.
    while report.run_or_reopen(async |_| Err::<(), _>("no paper")).await?.is_none() {
        tokio::time::sleep(PERIOD / 10).await;
    }
    let again = report.run_or_reopen(async |_| Ok::<_, &str>("written")).await?;
    println!("after a failure: {again:?}");
    client.close().await
}
