//! Transactions of a lock's holder, which prove and release it, in each isolation level.

use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, ClientId, FenceBlock, QueueRequest, Release,
    ReleaseRequest, Renew, RenewRequest, Store as _,
};
use leasehold_postgres::PostgresStore;
use leasehold_postgres::hold::{HOLD, NOT_HELD, RELEASE, in_schema};
use tokio_postgres::{Client, Error};

use crate::common::{SERVER, WITHIN, key, own_store, request, session, take};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A lock, its holder, and the session in which the holder works.
struct Work {
    store: PostgresStore,
    schema: String,
    held: AcquireRequest,
    fences: FenceBlock,
    session: Client,
}

impl Work {
    async fn start() -> Self {
        let (store, schema) = own_store().await;
        let session = session(&SERVER).await;
        session.batch_execute(&format!("CREATE TABLE {schema}.work (fence bigint)")).await.unwrap();
        let held = request(&key());
        let fences = take(&store, &held).await;
        Self { store, schema, held, fences, session }
    }

    /// Begins a transaction; with `early`, its snapshot is older than the proof.
    async fn begin(&self, level: &str, early: bool) {
        self.session.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        if early {
            self.session
                .batch_execute(&format!("SELECT count(*) FROM {}.work", self.schema))
                .await
                .unwrap();
        }
    }

    async fn call(&self, statement: &str) -> Result<(), Error> {
        let sql = in_schema(statement, &self.schema);
        let fence = self.fences.first().as_i64();
        self.session.execute(&sql, &[&self.held.key.as_str(), &fence]).await.map(drop)
    }

    async fn hold(&self) -> Result<(), Error> {
        self.call(HOLD).await
    }

    async fn write(&self) {
        let sql = format!("INSERT INTO {}.work VALUES ({})", self.schema, self.fences.first());
        self.session.batch_execute(&sql).await.unwrap();
    }

    async fn end(&self, how: &str) -> Result<(), Error> {
        self.session.batch_execute(how).await
    }

    /// Lets the holder's lease expire.
    async fn time_passes(&self) {
        let sql = format!(
            "UPDATE {}.lock SET used_until = clock_timestamp() - interval '1 s' WHERE name = '{}'",
            self.schema, self.held.key
        );
        session(&SERVER).await.batch_execute(&sql).await.unwrap();
    }

    async fn written(&self) -> i64 {
        let sql = format!("SELECT count(*) FROM {}.work", self.schema);
        session(&SERVER).await.query_one(&sql, &[]).await.unwrap().get(0)
    }

    async fn renew(&self) -> Renew {
        let renewal =
            RenewRequest::new(self.held.key.clone(), self.held.token, self.fences, self.held.ttl);
        self.store.renew(&[renewal], WITHIN).await.remove(0).unwrap()
    }

    async fn release(&self) -> Release {
        let release = ReleaseRequest::new(self.held.key.clone(), self.held.token, self.fences);
        self.store.release(&release, WITHIN).await.unwrap()
    }

    async fn other(&self) -> Acquire {
        self.store.acquire(&request(&self.held.key), WITHIN).await.unwrap()
    }
}

fn code(outcome: Result<(), Error>) -> String {
    outcome.unwrap_err().code().unwrap().code().to_owned()
}

#[tokio::test]
async fn a_late_holder_that_proved_the_lock_keeps_others_out_until_its_transaction_ends() {
    for level in LEVELS {
        for early in [false, true] {
            for paused_before in ["proof", "work", "commit"] {
                let case = format!("{level}, early: {early}, paused before its {paused_before}");
                let work = Work::start().await;
                work.begin(level, early).await;
                if paused_before == "proof" {
                    work.time_passes().await;
                    assert!(matches!(work.other().await, Acquire::Granted(_)), "{case}");
                    let code = code(work.hold().await);
                    let old = early && level != "READ COMMITTED";
                    assert_eq!(code, if old { "40001" } else { NOT_HELD }, "{case}");
                    work.end("ROLLBACK").await.unwrap();
                    assert_eq!(work.written().await, 0);
                    continue;
                }
                work.hold().await.unwrap();
                if paused_before == "commit" {
                    work.write().await;
                }
                work.time_passes().await;
                assert!(matches!(work.other().await, Acquire::Busy(_)), "{case}");
                if paused_before == "work" {
                    work.write().await;
                }
                assert!(matches!(work.other().await, Acquire::Busy(_)), "{case}");
                work.end("COMMIT").await.unwrap();
                assert_eq!(work.written().await, 1);
                let next = work.other().await;
                assert!(
                    next.fences().is_some_and(|next| next.first() > work.fences.last()),
                    "{case}: {next:?}"
                );
                work.begin(level, false).await;
                assert_eq!(code(work.hold().await), NOT_HELD, "{case}: again");
            }
        }
    }
}

#[tokio::test]
async fn meanwhile_the_holder_renews_and_releases_and_no_call_grants_the_lock() {
    for level in LEVELS {
        let work = Work::start().await;
        work.begin(level, true).await;
        assert_eq!(work.renew().await, Renew::Renewed);
        work.hold().await.unwrap();
        assert_eq!(work.renew().await, Renew::Renewed);
        let mut waiter = request(&work.held.key);
        waiter.queue = Some(QueueRequest::new(ClientId::generate().unwrap(), 1, waiter.ttl));
        assert!(matches!(work.store.acquire(&waiter, WITHIN).await.unwrap(), Acquire::Waiting(_)));
        assert_eq!(work.release().await, Release::Released);
        assert!(matches!(work.store.acquire(&waiter, WITHIN).await.unwrap(), Acquire::Waiting(_)));
        let free = request(&key());
        let all = [free.clone(), request(&work.held.key)];
        let answer = work.store.acquire_all(&all, WITHIN).await.unwrap();
        assert!(matches!(answer, AcquireAll::Blocked { .. }), "{answer:?}");
        take(&work.store, &request(&free.key)).await;
        work.end("COMMIT").await.unwrap();
        let answer = work.store.acquire(&waiter, WITHIN).await.unwrap();
        assert!(answer.fences().is_some(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_release_takes_effect_with_the_work_or_not_at_all() {
    for level in LEVELS {
        for has_waiter in [false, true] {
            let work = Work::start().await;
            let mut waiter = request(&work.held.key);
            waiter.queue = Some(QueueRequest::new(ClientId::generate().unwrap(), 1, waiter.ttl));
            if has_waiter {
                let answer = work.store.acquire(&waiter, WITHIN).await.unwrap();
                assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
            }
            for end in ["ROLLBACK", "COMMIT"] {
                work.begin(level, false).await;
                work.hold().await.unwrap();
                work.write().await;
                work.call(RELEASE).await.unwrap();
                assert_eq!(code(work.call(RELEASE).await), NOT_HELD, "a second time");
                work.end("ROLLBACK").await.unwrap();
                work.begin(level, false).await;
                work.hold().await.unwrap();
                work.write().await;
                work.call(RELEASE).await.unwrap();
                work.end(end).await.unwrap();
                if end == "ROLLBACK" {
                    assert_eq!(work.renew().await, Renew::Renewed, "{level}");
                }
            }
            assert_eq!(work.written().await, 1);
            assert_eq!(work.release().await, Release::Released, "{level}, waiter: {has_waiter}");
            let next = if has_waiter {
                work.store.acquire(&waiter, WITHIN).await.unwrap()
            } else {
                work.other().await
            };
            assert!(
                next.fences().is_some_and(|next| next.first() > work.fences.last()),
                "{next:?}"
            );
            work.begin(level, false).await;
            assert_eq!(code(work.hold().await), NOT_HELD);
        }
    }
}

#[tokio::test]
async fn a_released_lock_goes_to_the_next_waiter_without_its_holder() {
    let work = Work::start().await;
    let mut waiter = request(&work.held.key);
    waiter.queue = Some(QueueRequest::new(ClientId::generate().unwrap(), 1, waiter.ttl));
    work.store.acquire(&waiter, WITHIN).await.unwrap();
    work.begin("READ COMMITTED", false).await;
    work.hold().await.unwrap();
    work.call(RELEASE).await.unwrap();
    work.end("COMMIT").await.unwrap();
    let info = work.store.inspect(&work.held.key, WITHIN).await.unwrap().unwrap();
    assert_eq!((info.holders.len(), info.waiters.len()), (0, 1));
    let answer = work.store.acquire(&waiter, WITHIN).await.unwrap();
    assert!(answer.fences().is_some(), "{answer:?}");
    assert_eq!(work.renew().await, Renew::NotHeld);
}
