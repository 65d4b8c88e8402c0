//! Requests of many callers that share a statement.

use leasehold_core::{
    Acquire, AcquireRequest, ErrorKind, LeaveRequest, Mode, Release, ReleaseRequest, Store as _,
};
use leasehold_postgres::PostgresStore;
use tokio::task::JoinSet;

use crate::common::{SERVER, WITHIN, fresh, key, request, session, store_at, take};

const MANY: usize = 300;

async fn one_connection() -> (PostgresStore, String) {
    let schema = fresh("together");
    (store_at(&format!("{}?create=yes&connections=1&schema={schema}", SERVER.url())).await, schema)
}

#[tokio::test]
async fn each_of_many_callers_has_an_answer_of_its_own() {
    let (store, schema) = one_connection().await;
    let (busy, mut damaged) = (request(&key()), request(&key()));
    take(&store, &busy).await;
    damaged.mode = Mode::Shared;
    take(&store, &damaged).await;
    let damage = format!("UPDATE {schema}.lock SET entry = '\\x' WHERE name = '{}'", damaged.key);
    session(&SERVER).await.batch_execute(&damage).await.unwrap();

    let mut tasks = JoinSet::new();
    for number in 0..MANY {
        let asked = match number {
            100 => request(&busy.key),
            200 => request(&damaged.key),
            _ => request(&key()),
        };
        let store = store.clone();
        tasks.spawn(async move { (number, store.acquire(&asked, WITHIN).await, asked) });
    }
    let mut fences = Vec::new();
    for (number, answer, asked) in tasks.join_all().await {
        match (number, answer) {
            (100, answer) => assert!(matches!(answer.unwrap(), Acquire::Busy(_))),
            (200, answer) => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Corrupt),
            (_, answer) => {
                let granted = answer.unwrap().fences().unwrap();
                fences.push(ReleaseRequest::new(asked.key, asked.token, granted));
            }
        }
    }
    assert_eq!(fences.len(), MANY - 2);
    let mut tasks = JoinSet::new();
    for release in fences {
        let store = store.clone();
        tasks.spawn(async move { store.release(&release, WITHIN).await.unwrap() });
    }
    assert!(tasks.join_all().await.iter().all(|released| *released == Release::Released));
}

#[tokio::test]
async fn leaving_undoes_what_a_dropped_caller_sent_with_others() {
    let (store, _) = one_connection().await;
    take(&store, &request(&key())).await;
    for round in 0..10 {
        let requests: Vec<AcquireRequest> = (0..30).map(|_| request(&key())).collect();
        let mut tasks = JoinSet::new();
        for asked in &requests {
            let (store, asked) = (store.clone(), asked.clone());
            tasks.spawn(async move { drop(store.acquire(&asked, WITHIN).await) });
        }
        // Some have been sent by now, some wait, and some have not begun.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        tasks.shutdown().await;
        for asked in &requests {
            let leave = LeaveRequest::new(asked.key.clone(), asked.token);
            store.leave(&leave, WITHIN).await.unwrap();
            take(&store, &request(&asked.key)).await;
        }
    }
}
