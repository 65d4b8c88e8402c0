//! A holder that is paused past its lease comes back and writes. The resource refuses it.
//!
//! `cargo run -p leasehold --example fencing`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use leasehold::embedded::MemoryStore;
use leasehold::fencing::FencedCell;
use leasehold::{Client, Release};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> leasehold::Result<()> {
    // Two clients of one store, as two processes would have.
    let store = MemoryStore::new();
    let first = Client::new(Arc::new(store.clone()))?;
    let second = Client::new(Arc::new(store))?;
    let ledger = Arc::new(FencedCell::new(Vec::new()));

    // A pause stops a process with all of its threads, the renewing one too. Here only one thread
    // stops, so renewals are off.
    let mutex = first.mutex("ledger").ttl(Duration::from_millis(600)).renew(false);
    let early = mutex.lock().await?;
    let early_fence = early.fence()?;
    println!("first holder: fence {early_fence}, a lease of 600 ms");

    let (wake, paused) = mpsc::channel();
    let writer = thread::spawn({
        let (ledger, lease) = (Arc::clone(&ledger), early.lease().clone());
        move || {
            // It looks before it writes, as it should. The pause comes right after the look,
            // where no look can help: a debugger, a page fault, a machine that sleeps.
            let was_held = lease.is_held();
            paused.recv().expect("the main task wakes it");
            (was_held, ledger.update(early_fence, |entries| entries.push("by the first")))
        }
    });

    // Waits until the lease has expired.
    let later = second.mutex("ledger").lock().await?;
    let later_fence = later.fence()?;
    println!("second holder: fence {later_fence}, while the first one is still paused");
    let before = ledger.read(later_fence, Vec::len)?;
    ledger.update(later_fence, |entries| entries.push("by the second"))?;

    wake.send(()).expect("the writer waits");
    let (was_held, late_write) = writer.join().expect("the writer does not panic");
    let stale = late_write.expect_err("BUG: a late write got through");
    println!("first holder wakes, having looked before (held: {was_held}), and writes: {stale}");

    let entries = ledger.read(later_fence, Vec::clone)?;
    println!("in the ledger: {entries:?}");
    assert_eq!((before, entries), (0, vec!["by the second"]));
    assert_eq!((stale.given(), stale.seen()), (early_fence, Some(later_fence)));

    // The stale holder learns it from its own clock and from the store, too.
    assert!(early.fence().is_err());
    assert_eq!(early.release_outcome().await?, Release::NotHeld);
    assert_eq!(later.release_outcome().await?, Release::Released);
    Ok(())
}
