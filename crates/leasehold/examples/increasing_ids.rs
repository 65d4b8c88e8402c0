//! Ids that grow by one, without gaps or doubles, from any of several processes.
//!
//! `cargo run -p leasehold --example increasing_ids [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::sync::Arc;

use leasehold::Client;
use leasehold::fencing::FencedCell;

const SERVERS: u32 = 4;
const IDS_EACH: u32 = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    // Where the last id is kept: a table, a file, another service. It checks the fence.
    let last_id = Arc::new(FencedCell::new(0_u64));

    let mut servers = Vec::new();
    for server in 1..=SERVERS {
        let (mutex, last_id) = (client.mutex("example/ids"), Arc::clone(&last_id));
        servers.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..IDS_EACH {
                let guard = mutex.lock().await?;
                let next = last_id.update(guard.fence()?, |last| {
                    *last += 1;
                    *last
                });
                ids.extend(next);
                // To know that the lock was held to the end, release it and look.
                guard.release().await?;
            }
            println!("server {server}: {ids:?}");
            Ok::<_, leasehold::Error>(ids)
        }));
    }
    let mut ids = Vec::new();
    for server in servers {
        ids.extend(server.await.expect("a task panicked")?);
    }
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(1..=u64::from(SERVERS * IDS_EACH)), "no gaps and no doubles");

    // Ids that only have to grow need no work under the lock: a fencing token is such a number.
    let one = client.mutex("example/ids").lock().await?.fence()?;
    let two = client.mutex("example/ids").lock().await?.fence()?;
    assert!(two > one);
    client.close().await
}
