//! The log of a lock: limited, in order, and readable as JSON.

use leasehold_core::{Fence, Key, LogEntry, LogId, OwnerName, Store as _};

use crate::common::{SERVER, WITHIN, fresh, key, session, store_at};

fn event(key: &Key, number: u64) -> LogEntry {
    let mut entry = LogEntry::new(
        key.clone(),
        LogId { client: 1, number },
        "granted",
        Fence::from_value(7).unwrap(),
    );
    entry.owner = OwnerName::new("web \"1\" {}").unwrap();
    entry
}

#[tokio::test]
async fn a_log_keeps_the_last_events_of_each_lock() {
    let schema = fresh("logged");
    let store = store_at(&format!("{}?create=yes&log=10&schema={schema}", SERVER.url())).await;
    let (name, other) = (key(), key());
    let log = store.log().unwrap();
    assert_eq!(log.keeps(), 10);
    let all: Vec<LogEntry> = (0..50).map(|number| event(&name, number)).collect();
    log.append(&all, WITHIN).await.unwrap();
    log.append(&[event(&other, 5), event(&name, 50)], WITHIN).await.unwrap();
    let read = log.read(&name, 3, WITHIN).await.unwrap();
    let numbers: Vec<u64> = read.iter().map(|entry| entry.id.number).collect();
    assert_eq!(numbers, [48, 49, 50]);
    assert_eq!(read[0].owner.as_str(), "web \"1\" {}");
    assert_eq!(log.read(&name, 100, WITHIN).await.unwrap().len(), 10);
    assert_eq!(log.read(&other, 3, WITHIN).await.unwrap().len(), 1);
    let sql = format!("SELECT body->>'event' FROM {schema}.log WHERE name = '{other}'");
    let row = session(&SERVER).await.query_one(&sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "granted");
}
