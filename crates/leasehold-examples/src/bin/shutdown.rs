//! A worker that releases everything when SIGTERM or Ctrl-C tells it to end.
//!
//! It holds one lock for its lifetime, works under others, and waits for one that it never gets. None
//! of it is left in the store when its process has ended, so its successor begins at once and not after
//! a ttl.
//!
//! `cargo run -p leasehold-examples --bin shutdown [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long work that was begun may go on. Less than the orchestrator's patience, which is 10 s in
/// Docker and 30 s in Kubernetes, by what `close` may take: [`leasehold::CLOSE_WITHIN`].
const FINISH_WITHIN: Duration = Duration::from_secs(4);

/// Works on one order after the other, each under its lock.
async fn work(client: Client, mut ending: watch::Receiver<bool>) -> leasehold::Result<u32> {
    let mut done = 0;
    while !*ending.borrow_and_update() {
        let order = client.mutex(format!("order/{done}"));
        // `run` releases whatever comes, and drops the body when the lease is lost.
        order.run(async |_| tokio::time::sleep(Duration::from_millis(20)).await).await?;
        done += 1;
    }
    Ok(done)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "embedded:".to_owned());
    // Before anything is taken: a signal that comes earlier ends the process the hard way.
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

    // 1. No new work. 2. What was begun may come to its end. 3. What has not by then is dropped.
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
    // 4. All the rest, the post too: every wait ends, every lease is released, and what dropped
    // futures left behind is given up. An error says that some of it will end by its ttl only.
    client.close().await?;
    let waited = waits.await?.map(drop);
    anyhow::ensure!(
        waited.is_err_and(|error| error.kind() == ErrorKind::Closed),
        "it got the lock"
    );
    println!("nothing is left");
    Ok(())
}
