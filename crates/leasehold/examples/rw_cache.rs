//! A cache that many read, and that a reader fills if it is empty.
//!
//! Readers share it, and the one that fills it turns its read lock into a write lock, in one step.
//!
//! `cargo run -p leasehold --example rw_cache [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::sync::{Arc, Mutex, PoisonError};

use leasehold::{Client, ErrorKind, RwLock};

const READERS: u32 = 6;

/// What the processes share.
type Cache = Arc<Mutex<Option<u32>>>;

fn look(cache: &Cache) -> Option<u32> {
    *cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the value, and computes it if it is missing.
async fn read(reader: u32, lock: &RwLock, cache: &Cache) -> leasehold::Result<u32> {
    loop {
        let guard = lock.read().await?;
        if let Some(value) = look(cache) {
            return Ok(value);
        }
        let writer = match guard.upgrade().await {
            Ok(writer) => writer,
            // Others read too. Two upgrades would wait for each other for ever, so this one
            // releases its read lock, and looks again once it is alone.
            Err(not) if not.error().kind() == ErrorKind::Conflict => {
                drop(not.into_guard());
                lock.write().await?
            }
            Err(not) => return Err(not.into()),
        };
        if look(cache).is_none() {
            println!("reader {reader} fills it, under fence {}", writer.fence()?);
            *cache.lock().unwrap_or_else(PoisonError::into_inner) = Some(42);
        }
        // Goes on reading; no writer comes in between.
        let guard = writer.downgrade().await?;
        if let Some(value) = look(cache) {
            drop(guard);
            return Ok(value);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    let cache = Cache::default();
    let mut readers = Vec::new();
    for reader in 1..=READERS {
        let (lock, cache) = (client.rwlock("example/cache"), Arc::clone(&cache));
        readers.push(tokio::spawn(async move { read(reader, &lock, &cache).await }));
    }
    for reader in readers {
        assert_eq!(reader.await.expect("a task panicked")?, 42);
    }
    client.close().await
}
