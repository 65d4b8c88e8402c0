//! Taking a lock, waiting for it, and what there is to know about it.
//!
//! `cargo run -p leasehold --example mutex`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use leasehold::{Client, ErrorKind};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> leasehold::Result<()> {
    // In earnest: `embedded:` for one machine, `redis://…` for many.
    let client = Client::connect("memory:").await?;
    let mutex = client
        .mutex("reports/daily")
        .ttl(Duration::from_secs(60))
        .metadata("what=the report of yesterday");

    let Some(guard) = mutex.try_lock().await? else {
        println!("another holder has it");
        return Ok(());
    };
    println!("held: {} with fence {}", guard.key(), guard.fence()?);
    println!("for {:.0?} from now, and renewed in the background", guard.remaining());

    // A second contender stops waiting soon, and its error names the holder.
    let error = match mutex.lock_within(Duration::from_millis(50)).await {
        Err(error) if error.kind() == ErrorKind::Timeout => error,
        other => unreachable!("one lock, two holders: {other:?}"),
    };
    println!("refused: {error}");

    // An error here says that the lock was not held to the end.
    guard.release().await?;
    println!("released");

    // Taking, working and releasing in one call: the body is cut short if the lease is lost.
    let pages = mutex
        .run(async |lease| format!("12 pages, under fence {}", lease.fence_even_if_lost()))
        .await?;
    println!("the report has {pages}");

    client.close().await
}
