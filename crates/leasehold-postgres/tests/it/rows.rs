//! The rows: what people read in them, damage, late writes, and when they are forgotten.

use std::time::Duration;

use leasehold_core::{
    Acquire, ErrorKind, Fence, ListRequest, Mode, OwnerName, Reason, ReleaseRequest, RenewRequest,
    Store as _,
};

use crate::common::{LEASE, SERVER, WITHIN, key, own_store, request, session, store_at, take};

#[tokio::test]
async fn people_read_who_holds_a_lock_and_until_when() {
    let (store, schema) = own_store().await;
    let session = session(&SERVER).await;
    let sql = format!(
        "SELECT holders, waiters, owner, last_fence, entry IS NULL, \
         extract(epoch FROM used_until - clock_timestamp())::float8 FROM {schema}.lock WHERE name = $1"
    );
    for (mode, is_plain) in [(Mode::Exclusive, true), (Mode::Shared, false)] {
        let mut held = request(&key());
        (held.mode, held.owner) = (mode, OwnerName::new("web-1").unwrap());
        let fences = take(&store, &held).await;
        let row = session.query_one(&sql, &[&held.key.as_str()]).await.unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (1, 0));
        assert_eq!(row.get::<_, &str>(2), "web-1");
        assert_eq!(row.get::<_, i64>(3), fences.last().as_i64());
        assert_eq!(row.get::<_, bool>(4), is_plain);
        let left: f64 = row.get(5);
        assert!(left > 0.0 && left <= LEASE.as_secs_f64(), "{left}");
    }
}

#[tokio::test]
async fn a_damaged_row_is_reported_for_its_lock_alone() {
    let (store, schema) = own_store().await;
    let session = session(&SERVER).await;
    let (mut damaged, whole) = (request(&key()), request(&key()));
    damaged.mode = Mode::Shared;
    take(&store, &damaged).await;
    take(&store, &whole).await;
    let damage =
        |what: &str| format!("UPDATE {schema}.lock SET {what} WHERE name = '{}'", damaged.key);
    for (what, reason) in [
        ("entry = set_byte(entry, 20, get_byte(entry, 20) # 1)", Reason::Damaged),
        ("entry = '\\x'", Reason::Damaged),
        ("entry = '\\x02'", Reason::OtherVersion),
        ("entry = NULL, token = gen_random_uuid()", Reason::Damaged),
        ("ended = '\\x00'", Reason::Damaged),
        ("ended = NULL, token = NULL, granted_at = used_until", Reason::Damaged),
        ("last_fence = 9223372036854775807, granted_at = NULL", Reason::Damaged),
    ] {
        session.batch_execute(&damage(what)).await.unwrap();
        let error = store.acquire(&request(&damaged.key), WITHIN).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Corrupt, Some(reason)),
            "{what}: {error}"
        );
        let listing = store.list(&ListRequest::default(), WITHIN).await.unwrap();
        assert_eq!(listing.locks.len(), 1);
        assert_eq!(listing.unreadable[0].key(), Some(&damaged.key));
    }
}

#[tokio::test]
async fn a_held_lock_whose_token_was_removed_is_granted_to_no_other() {
    let (store, schema) = own_store().await;
    let held = request(&key());
    take(&store, &held).await;
    let damage = format!("UPDATE {schema}.lock SET token = NULL WHERE name = '{}'", held.key);
    session(&SERVER).await.batch_execute(&damage).await.unwrap();
    let error = store.acquire(&request(&held.key), WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Damaged), "{error}");
    assert!(error.to_string().contains("then delete the row"), "{error}");
}

#[tokio::test]
async fn what_a_trigger_keeps_from_being_written_is_not_confirmed() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (store, schema) = own_store().await;
        let mut held = request(&key());
        held.mode = mode;
        let fences = take(&store, &held).await;
        let keeps = format!(
            "CREATE FUNCTION {schema}.keeps() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN RETURN NULL; END'; CREATE TRIGGER keeps BEFORE UPDATE ON {schema}.lock \
             FOR EACH ROW EXECUTE FUNCTION {schema}.keeps()"
        );
        session(&SERVER).await.batch_execute(&keeps).await.unwrap();
        let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
        let renewed = store.renew(&[renewal], WITHIN).await.remove(0);
        assert!(renewed.is_err(), "{renewed:?}");
        let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
        let released = store.release(&release, WITHIN).await;
        assert!(released.is_err(), "{released:?}");
    }
}

#[tokio::test]
async fn a_write_that_comes_too_late_is_refused_by_the_servers_clock() {
    let (store, schema) = own_store().await;
    take(&store, &request(&key())).await;
    let nothing = "'{}', ".repeat(17) + "'{}'";
    let session = session(&SERVER).await;
    for (when, expected) in [("- interval '1 ms'", 2), ("+ interval '1 minute'", 1)] {
        let sql =
            format!("SELECT {schema}.write_1(1, clock_timestamp() {when}, NULL, {nothing}, 0)");
        assert_eq!(session.query_one(&sql, &[]).await.unwrap().get::<_, i32>(0), expected);
    }
    let sql = format!("SELECT {schema}.write_1(2, NULL, NULL, {nothing}, 0)");
    let of_another_epoch = session.query_one(&sql, &[]).await.unwrap().get::<_, i32>(0);
    assert_eq!(of_another_epoch, 0);
}

#[tokio::test]
async fn an_idle_lock_is_forgotten_and_its_next_fence_is_higher() {
    let (store, schema) = own_store().await;
    let session = session(&SERVER).await;
    let (idle, held) = (request(&key()), request(&key()));
    let fences = take(&store, &idle).await;
    let release = ReleaseRequest::new(idle.key.clone(), idle.token, fences);
    store.release(&release, WITHIN).await.unwrap();
    take(&store, &held).await;
    let old = format!(
        "UPDATE {schema}.lock SET used_until = clock_timestamp() - interval '1 hour' WHERE token IS NULL"
    );
    session.batch_execute(&old).await.unwrap();
    let count = format!("SELECT count(*) FROM {schema}.lock WHERE name = '{}'", idle.key);
    // By processes that each write once.
    let url = format!("{}?schema={schema}&listen=none", SERVER.url());
    let mut writes = 0;
    while session.query_one(&count, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        assert!(writes < 2_000, "the idle lock stays");
        take(&store_at(&url).await, &request(&key())).await;
        writes += 1;
    }
    let forgotten = format!("SELECT forgotten FROM {schema}.meta");
    let forgotten: i64 = session.query_one(&forgotten, &[]).await.unwrap().get(0);
    assert_eq!(forgotten, fences.last().as_i64());
    assert!(matches!(store.acquire(&request(&held.key), WITHIN).await.unwrap(), Acquire::Busy(_)));
    // Even if the server's clock had gone back since.
    let later = Fence::new(0, fences.last().sequence() + 3_600_000_000).unwrap();
    let ahead = format!("UPDATE {schema}.meta SET forgotten = {later}");
    session.batch_execute(&ahead).await.unwrap();
    assert!(take(&store, &idle).await.first() > later);
}

#[tokio::test]
async fn the_longest_lease_is_noted_before_it_is_granted() {
    let (store, schema) = own_store().await;
    let mut long = request(&key());
    long.ttl = crate::common::ttl(Duration::from_secs(3_600));
    take(&store, &long).await;
    take(&store, &request(&key())).await;
    let sql = format!("SELECT longest_ttl FROM {schema}.meta");
    let noted: i64 = session(&SERVER).await.query_one(&sql, &[]).await.unwrap().get(0);
    assert_eq!(noted, 3_600_000_000);
}
