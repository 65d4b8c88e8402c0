//! The statements for PostgreSQL.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Fence;
use leasehold::fencing::passed;
use leasehold::fencing::postgresql::{IN_TRANSACTION, SCHEMA, SEEN, TOUCH, TOUCH_SHARED, timeouts};
use leasehold_testkit::sql::PostgreSql;
use postgres::error::SqlState;
use postgres::{Client, NoTls};

use super::fence;
use super::scenario::{self, Database, Fault, Lease, Session};

static SERVER: LazyLock<PostgreSql> = LazyLock::new(|| {
    let server = PostgreSql::start();
    server.remove_at_exit();
    server
});

const LEVELS: &[&str] = &["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A database of the shared server, for one test.
struct Postgres(String);

impl Postgres {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed));
        connect("postgres").batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        let db = Self(name);
        let mut client = db.client();
        client.batch_execute(SCHEMA).unwrap();
        client.batch_execute(SCHEMA).unwrap();
        client
            .batch_execute(
                "CREATE TABLE work (name text PRIMARY KEY, value bigint);
                 CREATE TABLE log (id bigserial PRIMARY KEY, fence bigint)",
            )
            .unwrap();
        db
    }

    fn client(&self) -> Client {
        connect(&self.0)
    }
}

fn connect(database: &str) -> Client {
    let host = SERVER.socket_dir().to_str().unwrap();
    let mut config = Client::configure();
    config.host(host).port(SERVER.port()).user("leasehold").dbname(database).connect(NoTls).unwrap()
}

fn fault(error: &postgres::Error) -> Fault {
    match error.code() {
        Some(
            &(SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::LOCK_NOT_AVAILABLE),
        ) => Fault::Again,
        _ => Fault::Other(format!("{error:?}")),
    }
}

impl Session for Client {
    fn begin(&mut self, level: &str) -> Result<(), Fault> {
        Session::execute(self, &format!("BEGIN ISOLATION LEVEL {level}"))
    }

    fn execute(&mut self, sql: &str) -> Result<(), Fault> {
        self.batch_execute(sql).map_err(|error| fault(&error))
    }

    fn touch(&mut self, name: &str, fence: Fence, lease: Lease) -> Result<bool, Fault> {
        let touch = match lease {
            Lease::Exclusive => TOUCH,
            Lease::Shared => TOUCH_SHARED,
        };
        let rows = Self::execute(self, touch, &[&name, &fence.as_i64()]);
        Ok(passed(rows.map_err(|error| fault(&error))?, fence).is_ok())
    }

    fn number(&mut self, sql: &str) -> Result<i64, Fault> {
        Ok(self.query_one(sql, &[]).map_err(|error| fault(&error))?.get(0))
    }
}

impl Database for Postgres {
    fn session(&self) -> Box<dyn Session> {
        Box::new(self.client())
    }

    fn somebody_is_blocked(&self) -> bool {
        let sql = "SELECT COUNT(*) FROM pg_stat_activity \
                   WHERE wait_event_type = 'Lock' AND datname = current_database()";
        self.client().number(sql).unwrap() > 0
    }
}

#[test]
fn a_stale_holder_paused_anywhere_is_before_its_successor_or_refused() {
    scenario::a_stale_holder_paused_anywhere_is_before_its_successor_or_refused(
        &Postgres::new(),
        LEVELS,
    );
}

#[test]
fn first_touches_that_race_leave_the_fences_in_order() {
    for level in LEVELS {
        scenario::first_touches_that_race_leave_the_fences_in_order(&Postgres::new(), level);
    }
}

#[test]
fn a_read_that_rolls_back_shuts_out_only_after_a_touch_that_committed() {
    scenario::a_read_that_rolls_back_shuts_out_only_after_a_touch_that_committed(
        &Postgres::new(),
        LEVELS[0],
    );
}

#[test]
fn a_savepoint_older_than_the_touch_takes_it_back() {
    scenario::a_savepoint_older_than_the_touch_takes_it_back(&Postgres::new(), LEVELS[0]);
}

#[test]
fn shared_leases_refuse_only_what_a_writer_has_outlived() {
    scenario::shared_leases_refuse_only_what_a_writer_has_outlived(&Postgres::new(), LEVELS[0]);
}

#[test]
fn outside_a_transaction_the_server_says_so() {
    let mut client = Postgres::new().client();
    let error = client.batch_execute(IN_TRANSACTION).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION));
    client.batch_execute("BEGIN").unwrap();
    client.batch_execute(IN_TRANSACTION).unwrap();
    assert!(client.touch("ledger", fence(1), Lease::Exclusive).unwrap());
    client.batch_execute("COMMIT").unwrap();
}

#[test]
fn a_holder_that_sleeps_in_its_transaction_stops_its_successor_for_the_ttl_at_most() {
    let db = Postgres::new();
    let (mut late, mut later) = (db.client(), db.client());
    let ttl = Duration::from_millis(500);
    late.batch_execute("BEGIN").unwrap();
    assert!(late.touch("ledger", fence(1), Lease::Exclusive).unwrap());
    // Last of all, since a busy machine may take longer than that to send the touch.
    late.batch_execute(&timeouts(ttl)).unwrap();
    // The server ends the sleeper's transaction; no statement of the test does.
    later.batch_execute("BEGIN").unwrap();
    assert!(later.touch("ledger", fence(2), Lease::Exclusive).unwrap());
    later.batch_execute("COMMIT").unwrap();
    assert!(late.batch_execute("COMMIT").is_err());

    // The other half: a touch that waits for too long gets an error, which is not a refusal.
    let mut stuck = db.client();
    stuck.batch_execute("BEGIN").unwrap();
    assert!(stuck.touch("ledger", fence(3), Lease::Exclusive).unwrap());
    later.batch_execute(&timeouts(ttl * 6)).unwrap();
    later.batch_execute("BEGIN").unwrap();
    let told = later.touch("ledger", fence(4), Lease::Exclusive);
    assert!(matches!(told, Err(Fault::Again)), "{told:?}");
}

#[test]
fn names_are_bytes_and_too_long_ones_are_refused() {
    let db = Postgres::new();
    let mut client = db.client();
    for (name, number) in [("café", 5), ("cafe\u{301}", 4), ("CAFÉ", 3)] {
        assert!(client.touch(name, fence(number), Lease::Exclusive).unwrap(), "{name}");
    }
    let mut latin = db.client();
    latin.batch_execute("SET client_encoding = 'UTF8'").unwrap();
    assert!(!latin.touch("café", fence(4), Lease::Exclusive).unwrap());
    for name in ["", &"x".repeat(513)] {
        let refused = client.touch(name, fence(9), Lease::Exclusive);
        assert!(matches!(refused, Err(Fault::Other(_))), "{refused:?}");
    }
    assert!(
        client
            .touch(&"x".repeat(512), Fence::from_value(i64::MAX as u64).unwrap(), Lease::Exclusive)
            .unwrap()
    );
    let seen: i64 = client.query_one(SEEN, &[&"café"]).unwrap().get(0);
    assert_eq!(seen, 5);
}
