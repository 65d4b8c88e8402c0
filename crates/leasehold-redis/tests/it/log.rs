//! The log of a lock on a server: limited, forgotten in time, and separate from all other keys.

use std::time::Duration;

use leasehold_core::{ErrorKind, Fence, Key, ListRequest, LogEntry, LogId, Store as _};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;

use crate::common::{WITHIN, key};

pub(crate) fn event(key: &Key, number: u64) -> LogEntry {
    let id = LogId { client: 1, number };
    LogEntry::new(key.clone(), id, "granted", Fence::from_value(7).unwrap())
}

fn numbers(entries: &[LogEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.id.number).collect()
}

#[tokio::test]
async fn a_log_keeps_the_last_events_for_a_week() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&format!("{}?log=100", server.url())).await.unwrap();
    let (key, other) = (key(), key());
    let log = store.log().unwrap();
    assert_eq!(log.keeps(), 100);
    let all: Vec<LogEntry> = (0..1_000).map(|number| event(&key, number)).collect();
    log.append(&all, WITHIN).await.unwrap();
    log.append(&[event(&other, 5), event(&key, 1_000)], WITHIN).await.unwrap();
    assert_eq!(numbers(&log.read(&key, 3, WITHIN).await.unwrap()), [998, 999, 1_000]);
    assert_eq!(numbers(&log.read(&other, 3, WITHIN).await.unwrap()), [5]);
    let name = format!("leasehold:{{{key}}}:log");
    let kept: u32 = server.cli(&["XLEN", &name]).trim().parse().unwrap();
    assert!((100..300).contains(&kept), "{kept}");
    let left: u64 = server.cli(&["PTTL", &name]).trim().parse().unwrap();
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    assert!(Duration::from_millis(left) <= week && Duration::from_millis(left) > week / 2);
    // It is not listed as a lock.
    let listing = store.list(&ListRequest::default(), WITHIN).await.unwrap();
    assert!(listing.locks.is_empty() && listing.unreadable.is_empty(), "{listing:?}");
}

#[tokio::test]
async fn foreign_entries_of_a_log_are_left_out_and_another_type_is_reported() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let key = key();
    let name = format!("leasehold:{{{key}}}:log");
    let _id = server.cli(&["XADD", &name, "*", "weather", "rain"]);
    let _id = server.cli(&["XADD", &name, "*", "event", "\u{1b}[2J", "fence", "1", "id", "1-1"]);
    let log = store.log().unwrap();
    log.append(&[event(&key, 3)], WITHIN).await.unwrap();
    assert_eq!(numbers(&log.read(&key, 9, WITHIN).await.unwrap()), [3]);
    assert_eq!(server.cli(&["SET", &name, "7"]), "OK");
    let error = log.append(&[event(&key, 4)], WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
}
