//! A flash sale: a few tills for many buyers, and never more sold than there is.
//!
//! `cargo run -p leasehold --example flash_sale [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::sync::Arc;

use leasehold::Client;
use leasehold::fencing::FencedCell;

const BUYERS: u32 = 20;
const STOCK: u32 = 7;
const TILLS: u32 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    // In earnest a row of a database, which checks the fence in the same statement.
    let stock = Arc::new(FencedCell::new(STOCK));

    let mut buyers = Vec::new();
    for buyer in 1..=BUYERS {
        let (client, stock) = (client.clone(), Arc::clone(&stock));
        buyers.push(tokio::spawn(async move {
            // A limited number at a time, to spare the payment service. A buyer that crashes at the
            // till keeps it only for the rest of the lease.
            let till = client.semaphore("example/sale/tills", TILLS).acquire().await?;
            let item = client.mutex("example/sale/stock").lock().await?;
            // A buyer that was paused past the end of its lease is refused here.
            let sold = stock.update(item.fence()?, |left| {
                let sold = *left > 0;
                *left = left.saturating_sub(1);
                sold
            });
            let sold = sold.unwrap_or(false);
            drop((item, till));
            Ok::<_, leasehold::Error>(sold.then_some(buyer))
        }));
    }
    let mut sold = Vec::new();
    for buyer in buyers {
        sold.extend(buyer.await.expect("a task panicked")?);
    }
    println!("{} of {BUYERS} got one of {STOCK}: buyers {sold:?}", sold.len());
    assert_eq!(sold.len(), 7, "everything was sold, and nothing twice");
    client.close().await
}
