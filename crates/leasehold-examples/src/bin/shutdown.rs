//! A worker that releases everything when SIGTERM or Ctrl-C tells it to end.
//!
//! It holds one lock for its lifetime, works under others, and waits for one that it never gets. It
//! leaves nothing in the store when its process has ended, so its successor begins at once.
//!
//! `cargo run -p leasehold-examples --bin shutdown [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long begun work may go on: the orchestrator's patience, which is 10 s in Docker and 30 s in
/// Kubernetes, less the time that `close` may take ([`leasehold::CLOSE_WITHIN`]).
const FINISH_WITHIN: Duration = Duration::from_secs(4);

/// Works on one order after the other, each under its lock.
async fn work(client: Client, mut ending: watch::Receiver<bool>) -> leasehold::Result<u32> {
    let mut done = 0;
    while !*ending.borrow_and_update() {
        let order = client.mutex(format!("order/{done}"));
        // `run` releases in every case, and drops the body when the lease is lost.
        order.run(async |_| tokio::time::sleep(Duration::from_millis(20)).await).await?;
        done += 1;
    }
    Ok(done)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "embedded:".to_owned());
    // Before any lock is taken: a signal that comes earlier kills the process.
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let client = Client::connect(&store).await?;

    let post = client.mutex("worker").lock().await?;
    let (end, ending) = watch::channel(false);
    let mut works = JoinSet::new();
    works.spawn(work(client.clone(), ending));
    let waits = tokio::spawn({
        let busy = client.mutex("worker");
        async move { busy.lock().await }
    });
    println!("working, with fence {}", post.fence()?);

    tokio::select! {
        _ = term.recv() => println!("told to end"),
        _ = int.recv() => println!("interrupted"),
        () = post.lost() => println!("the post is lost, so another may have it: ending"),
    }

    // 1. No new work. 2. Begun work may finish. 3. What has not finished by then is dropped.
    end.send_replace(true);
    let finish = async {
        while let Some(done) = works.join_next().await {
            println!("orders done: {}", done??);
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(FINISH_WITHIN, finish).await {
        Ok(finished) => finished?,
        Err(_) => works.shutdown().await,
    }
    // 4. All the rest, the post too: every wait ends, every lease is released, and so is what
    //    dropped futures left behind. An error says that some leases will expire instead.
    client.close().await?;
    let waited = waits.await?.map(drop);
    anyhow::ensure!(
        waited.is_err_and(|error| error.kind() == ErrorKind::Closed),
        "it got the lock"
    );
    println!("nothing is left");
    Ok(())
}
