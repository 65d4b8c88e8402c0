//! Rows that other transactions keep: they keep grants out, and nothing else.

use std::time::Duration;

use leasehold_core::{
    Acquire, ClientId, Effect, ErrorKind, QueueRequest, Reason, Release, ReleaseRequest, Renew,
    RenewRequest, Store as _,
};

use crate::common::{SERVER, WITHIN, key, own_store, request, session, store_at, take};

#[tokio::test]
async fn a_transaction_that_shares_the_rows_key_keeps_grants_out_until_it_ends() {
    let (store, schema) = own_store().await;
    let held = request(&key());
    let fences = take(&store, &held).await;
    let session = session(&SERVER).await;
    let hold =
        format!("BEGIN; SELECT FROM {schema}.lock WHERE name = '{}' FOR KEY SHARE", held.key);
    session.batch_execute(&hold).await.unwrap();
    let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
    assert_eq!(store.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
    let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
    assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    let other = request(&held.key);
    let Acquire::Busy(busy) = store.acquire(&other, WITHIN).await.unwrap() else {
        panic!("granted")
    };
    assert!(!busy.retry_after.is_zero() && busy.retry_after <= Duration::from_secs(1), "{busy:?}");
    let mut waiter = request(&held.key);
    waiter.queue = Some(QueueRequest::new(ClientId::generate().unwrap(), 1, waiter.ttl));
    let answer = store.acquire(&waiter, WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
    session.batch_execute("COMMIT").await.unwrap();
    let answer = store.acquire(&waiter, WITHIN).await.unwrap();
    assert!(answer.fences().is_some_and(|next| next.first() > fences.last()), "{answer:?}");
}

#[tokio::test]
async fn a_row_that_a_stranger_locks_delays_no_other_lock() {
    let schema = crate::common::fresh("locked");
    let store =
        store_at(&format!("{}?create=yes&connections=1&schema={schema}", SERVER.url())).await;
    let held = request(&key());
    let fences = take(&store, &held).await;
    let session = session(&SERVER).await;
    let lock = format!("BEGIN; SELECT FROM {schema}.lock WHERE name = '{}' FOR UPDATE", held.key);
    session.batch_execute(&lock).await.unwrap();
    let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
    let error = loop {
        let releasing = store.release(&release, Duration::from_secs(3));
        let other = request(&key());
        let (outcome, _) = tokio::join!(releasing, take(&store, &other));
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // On a busy machine the last try may have no answer in time.
        if error.reason() == Some(Reason::Busy) {
            break error;
        }
    };
    assert_eq!(error.effect(), Effect::NotApplied, "{error}");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
}
