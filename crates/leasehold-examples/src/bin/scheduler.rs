//! A scheduler as cron is one, on every host: each tick of each job runs on one host.
//!
//! The first host runs it, so no job depends on a host that is down.
//!
//! `cargo run -p leasehold-examples --bin scheduler [store URL [ticks]]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, HeldLease};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// A job, and how often it runs. With crontab's rules, a library computes the next time.
#[derive(Clone, Copy, Debug)]
struct Job {
    name: &'static str,
    every: Duration,
}

const JOBS: [Job; 2] = [
    Job { name: "mail", every: Duration::from_millis(500) },
    Job { name: "report", every: Duration::from_secs(1) },
];
/// For how long after a tick another host may still reach it: how far apart clocks may be, and how
/// long a host may be delayed.
const LATE_HOSTS: Duration = Duration::from_secs(3_600);

#[expect(clippy::disallowed_methods, reason = "a schedule is about the time of day")]
fn time_of_day() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Job {
    /// The number of the next tick, and how long until then.
    fn next(self, now: Duration) -> (u128, Duration) {
        let next = now.as_millis() / self.every.as_millis() + 1;
        let at = next.saturating_mul(self.every.as_millis());
        let wait = at.saturating_sub(now.as_millis());
        (next, Duration::from_millis(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// Runs one tick, unless another host does or did.
    async fn tick(self, client: &Client, number: u128) -> leasehold::Result<()> {
        // The tick is in the name: a host whose clock is behind reaches the same tick, finds it
        // done, and leaves it. The work of a tick may take longer than the time to the next tick.
        let tick = client.once_per(format!("cron/{}/{number}", self.name), LATE_HOSTS);
        // `run` drops the work where it stands when its lease is lost.
        if tick.run(async |lease| self.work(number, &lease).await).await?.is_some() {
            println!("{} {number}", self.name);
        }
        Ok(())
    }

    async fn work(self, _number: u128, _lease: &HeldLease) {
        // … the work; `lease.fence()` is for what it writes to …
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    /// Runs one tick after the other, `ticks` in all.
    async fn keep(self, client: Client, ticks: u64) -> leasehold::Result<()> {
        for _ in 0..ticks {
            let (number, wait) = self.next(time_of_day());
            tokio::time::sleep(wait).await;
            // A store that is away for a while costs ticks, not the scheduler.
            if let Err(error) = self.tick(&client, number).await {
                println!("{} {number} was not run here: {error}", self.name);
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().unwrap_or_else(|| "embedded:".to_owned());
    let ticks = arguments.next().map_or(Ok(u64::MAX), |ticks| ticks.parse())?;
    let client = Client::connect(&store).await?;
    let mut term = signal(SignalKind::terminate())?;
    let mut jobs = JoinSet::new();
    for job in JOBS {
        jobs.spawn(job.keep(client.clone(), ticks));
    }
    let all = async {
        while let Some(job) = jobs.join_next().await {
            job??;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        done = all => done?,
        _ = term.recv() => {}
    }
    // Running work is dropped where it stands, and its lease released.
    drop(jobs);
    client.close().await?;
    Ok(())
}
