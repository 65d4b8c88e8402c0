//! The first program, as the README shows it.
//!
//! `cargo run -p leasehold --example readme`
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what happens")]

use std::time::Duration;

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let client = leasehold::Client::connect("embedded:").await?; // or redis://…
    let mutex = client.mutex("reports/daily").ttl(Duration::from_secs(60));
    let guard = mutex.lock_within(Duration::from_secs(5)).await?; // in the queue
    tokio::select! {
        () = guard.lost() => eprintln!("stop: another holder may get the lock soon"),
        () = report(guard.fence()?) => {}
    }
    guard.release().await?; // an error if the lock was not held to its end
    client.close().await
}

async fn report(fence: leasehold::Fence) {
    println!("fence {fence}");
}
