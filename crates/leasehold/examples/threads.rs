//! Threads that take a lock alternately, without a runtime.
//!
//! `cargo run -p leasehold --example threads`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use leasehold::{Client, Wait as _};

pub(crate) fn main() -> leasehold::Result<()> {
    // In earnest: `embedded:` for one machine, `redis://…` for many.
    let client = Client::connect("memory:").wait()?;
    let stock = AtomicU32::new(3);

    let sold = thread::scope(|scope| {
        let buy = |buyer: u32| {
            let mutex = client.mutex("stock/umbrella").owner(format!("buyer {buyer}"));
            let stock = &stock;
            scope.spawn(move || {
                let sale = mutex.run(async |lease| {
                    // Looking and taking are two steps; the lock makes them one.
                    let left = stock.load(Ordering::Relaxed);
                    if left == 0 || lease.check().is_err() {
                        return false;
                    }
                    thread::yield_now();
                    stock.store(left - 1, Ordering::Relaxed);
                    println!("buyer {buyer} takes one of {left}");
                    true
                });
                sale.wait()
            })
        };
        let buyers: Vec<_> = (1..=5).map(buy).collect();
        let bought = buyers.into_iter().map(|buyer| buyer.join().expect("no buyer panics"));
        bought.collect::<Result<Vec<_>, _>>()
    })?;

    let sold = sold.into_iter().filter(|sold| *sold).count();
    assert_eq!((sold, stock.into_inner()), (3, 0));
    println!("{sold} sold, none twice");
    client.close().wait()
}
