//! One row that many processes change at once.

use std::sync::Arc;

use leasehold_core::{Acquire, Mode, Release, ReleaseRequest, Store as _};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::PgBouncer;
use tokio::task::JoinSet;

use crate::common::{SERVER, WITHIN, fresh, key, request, store_at};

const STORES: usize = 4;
const TASKS: usize = 4;
const CYCLES: usize = 25;

/// Readers of all stores come and go.
async fn crowd(stores: Vec<PostgresStore>) {
    let key = key();
    let mut tasks = JoinSet::new();
    for store in stores.into_iter().map(Arc::new) {
        for _ in 0..TASKS {
            let (store, key) = (Arc::clone(&store), key.clone());
            tasks.spawn(async move {
                for _ in 0..CYCLES {
                    // A busy machine may keep it from the row for a second.
                    let mut tries = 0;
                    let (reader, fences) = loop {
                        assert!(tries < 100, "it is never granted");
                        tries += 1;
                        let mut reader = request(&key);
                        reader.mode = Mode::Shared;
                        match store.acquire(&reader, WITHIN).await.unwrap() {
                            Acquire::Granted(granted) => break (reader, granted.fences),
                            Acquire::Busy(_) => {}
                            other => panic!("not granted: {other:?}"),
                        }
                    };
                    let release = ReleaseRequest::new(reader.key, reader.token, fences);
                    let released = store.release(&release, WITHIN).await.unwrap();
                    assert_eq!(released, Release::Released);
                }
            });
        }
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn each_change_of_a_row_that_many_change_takes_effect_once() {
    let url = format!("{}?create=yes&schema={}", SERVER.url(), fresh("hot"));
    let mut stores = Vec::new();
    for _ in 0..STORES {
        stores.push(store_at(&url).await);
    }
    crowd(stores).await;
}

#[tokio::test]
async fn a_pooler_that_refuses_transactions_is_used_without_them() {
    let pooler = PgBouncer::start(&SERVER, "statement");
    let url = format!("{}?create=yes&listen=none&schema={}", pooler.url(), fresh("hot"));
    let mut stores = Vec::new();
    for _ in 0..STORES {
        stores.push(store_at(&url).await);
    }
    crowd(stores).await;
}
