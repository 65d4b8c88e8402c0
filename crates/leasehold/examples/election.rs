//! Candidates for one post: one leads, the others stand by, and all can see which one leads.
//!
//! `cargo run -p leasehold --example election [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::Client;
use tokio::sync::oneshot;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    let mut candidates = BTreeMap::new();
    for n in 1..=3 {
        let address = format!("10.0.0.{n}:8080");
        let post = client.election("example/post").metadata(&address);
        let (stop, stopped) = oneshot::channel::<()>();
        let candidate = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            // The body is dropped when the post is lost, before another candidate can have it, and
            // the next campaign begins.
            let lead = async |lease: leasehold::HeldLease| {
                println!("candidate {n} leads, under fence {}", lease.fence_even_if_lost());
                std::future::pending::<()>().await;
            };
            post.run(stopped, lead).await
        });
        candidates.insert(address, (stop, candidate));
    }

    let mut observer =
        client.election("example/post").look_every(Duration::from_millis(50)).observe();
    let mut last = None;
    while !candidates.is_empty() {
        let leader = loop {
            if let Some(leader) = observer.changed().await? {
                break leader;
            }
        };
        println!("seen from outside: {}", leader.metadata);
        assert!(Some(leader.fence) > last, "each leader has a larger fence");
        last = Some(leader.fence);
        let Some((stop, candidate)) = candidates.remove(leader.metadata.as_str()) else { continue };
        drop(stop);
        let done: Option<()> = candidate.await.expect("a task panicked")?;
        assert!(done.is_none());
    }
    client.close().await
}
