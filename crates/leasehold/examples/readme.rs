//! The first program, as the README shows it.
//!
//! `cargo run -p leasehold --example readme`
#![allow(clippy::print_stdout, clippy::unused_async, reason = "an example shows what happens")]

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let client = leasehold::Client::connect("embedded:").await?; // or redis://…
    client.mutex("reports/daily").run(report).await??; // in the queue; a loss ends the report
    client.close().await
}

async fn report(lease: leasehold::HeldLease) -> leasehold::Result<()> {
    println!("fence {}", lease.fence()?);
    Ok(())
}
