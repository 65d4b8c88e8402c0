//! The statements for MySQL, run by MariaDB.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::fencing::mysql::{
    PASSES, PASSES_SHARED, SCHEMA, SEEN, TOUCH, TOUCH_SHARED, check, timeouts,
};
use leasehold::{ErrorKind, Fence};
use leasehold_testkit::sql::MariaDb;
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};

use super::fence;
use super::scenario::{self, Database, Fault, Lease, Session};

static SERVER: LazyLock<MariaDb> = LazyLock::new(|| {
    let server = MariaDb::start();
    server.remove_at_exit();
    server
});

const LEVELS: &[&str] = &["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

const DEADLOCK: u16 = 1213;
const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// A database of a server, for one test.
pub(crate) struct Maria {
    socket: PathBuf,
    name: String,
}

impl Maria {
    fn new() -> Self {
        Self::on(SERVER.socket())
    }

    /// A new database of the server at the socket, with the tables of the scenarios.
    pub(crate) fn on(socket: PathBuf) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed));
        connect(&socket, None).query_drop(format!("CREATE DATABASE {name}")).unwrap();
        let db = Self { socket, name };
        let mut conn = db.conn();
        for sql in [
            SCHEMA,
            SCHEMA,
            "CREATE TABLE work (name VARCHAR(64) PRIMARY KEY, value BIGINT) ENGINE = InnoDB",
            "CREATE TABLE log (id BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT) ENGINE = InnoDB",
        ] {
            conn.query_drop(sql).unwrap();
        }
        db
    }

    /// The same database, seen through another node.
    pub(crate) fn through(&self, socket: PathBuf) -> Self {
        Self { socket, name: self.name.clone() }
    }

    pub(crate) fn conn(&self) -> Conn {
        connect(&self.socket, Some(&self.name))
    }
}

pub(crate) fn connect(socket: &std::path::Path, database: Option<&str>) -> Conn {
    let options = OptsBuilder::new()
        .socket(socket.to_str())
        .user(Some("root"))
        .db_name(database)
        // One server is spoken to through its socket only.
        .prefer_socket(false);
    Conn::new(options).unwrap()
}

fn fault(error: mysql::Error) -> Fault {
    match error {
        mysql::Error::MySqlError(error) if [DEADLOCK, LOCK_WAIT_TIMEOUT].contains(&error.code) => {
            Fault::Again
        }
        error => Fault::Other(error.to_string()),
    }
}

impl Session for Conn {
    fn begin(&mut self, level: &str) -> Result<(), Fault> {
        self.execute(&format!("SET TRANSACTION ISOLATION LEVEL {level}"))?;
        self.execute("START TRANSACTION")
    }

    fn execute(&mut self, sql: &str) -> Result<(), Fault> {
        self.query_drop(sql).map_err(fault)
    }

    fn touch(&mut self, name: &str, fence: Fence, lease: Lease) -> Result<bool, Fault> {
        let passes = passes(self, name, fence, lease)?;
        // A touch by itself: the scenarios use it to open a lease.
        Ok(passes == Some(-1) || check(passes, fence).is_ok())
    }

    fn number(&mut self, sql: &str) -> Result<i64, Fault> {
        Ok(self.query_first(sql).map_err(fault)?.unwrap())
    }
}

fn passes(conn: &mut Conn, name: &str, fence: Fence, lease: Lease) -> Result<Option<i64>, Fault> {
    let (touch, passes) = match lease {
        Lease::Exclusive => (TOUCH, PASSES),
        Lease::Shared => (TOUCH_SHARED, PASSES_SHARED),
    };
    conn.exec_drop(touch, (name, fence.as_i64())).map_err(fault)?;
    let row: Option<Option<i64>> =
        conn.exec_first(passes, (fence.as_i64(), name)).map_err(fault)?;
    Ok(row.expect("the statement has one row"))
}

impl Database for Maria {
    fn session(&self) -> Box<dyn Session> {
        Box::new(self.conn())
    }

    fn somebody_is_blocked(&self) -> bool {
        // The server refreshes this table only after 100 ms without a reader.
        thread::sleep(Duration::from_millis(120));
        let sql = "SELECT COUNT(*) FROM information_schema.innodb_trx AS trx \
                   JOIN information_schema.processlist AS process \
                   ON process.id = trx.trx_mysql_thread_id \
                   WHERE trx.trx_state = 'LOCK WAIT' AND process.db = DATABASE()";
        self.conn().number(sql).unwrap() > 0
    }
}

#[test]
fn a_stale_holder_paused_anywhere_is_before_its_successor_or_refused() {
    scenario::a_stale_holder_paused_anywhere_is_before_its_successor_or_refused(
        &Maria::new(),
        LEVELS,
    );
}

#[test]
fn first_touches_that_race_leave_the_fences_in_order() {
    for level in LEVELS {
        scenario::first_touches_that_race_leave_the_fences_in_order(&Maria::new(), level);
    }
}

#[test]
fn a_read_that_rolls_back_shuts_out_only_after_a_touch_that_committed() {
    scenario::a_read_that_rolls_back_shuts_out_only_after_a_touch_that_committed(
        &Maria::new(),
        LEVELS[2],
    );
}

#[test]
fn a_savepoint_older_than_the_touch_takes_it_back() {
    scenario::a_savepoint_older_than_the_touch_takes_it_back(&Maria::new(), LEVELS[2]);
}

#[test]
fn shared_leases_refuse_only_what_a_writer_has_outlived() {
    scenario::shared_leases_refuse_only_what_a_writer_has_outlived(&Maria::new(), LEVELS[2]);
}

/// Why a transaction is run again from its beginning: after a deadlock the server has ended it.
#[test]
fn after_a_deadlock_nothing_is_left_of_the_transaction_and_the_check_says_so() {
    let db = Maria::new();
    let (mut one, mut two) = (db.conn(), db.conn());
    for name in ["a", "b"] {
        one.execute(&format!("INSERT INTO work VALUES ('{name}', 0)")).unwrap();
    }
    one.begin(LEVELS[2]).unwrap();
    one.write("a", 1).unwrap();
    two.begin(LEVELS[2]).unwrap();
    two.write("b", 2).unwrap();
    let both = thread::scope(|scope| {
        let first = scope.spawn(|| one.write("b", 1));
        let second = two.write("a", 2);
        [first.join().unwrap(), second]
    });
    let victim = both.iter().position(Result::is_err).expect("one is chosen to fail");
    assert!(matches!(both[victim], Err(Fault::Again)), "{both:?}");
    let victim = [&mut one, &mut two].into_iter().nth(victim).unwrap();
    let said = passes(victim, "ledger", fence(1), Lease::Exclusive).unwrap();
    let error = check(said, fence(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.to_string().contains("outside a transaction"), "{error}");
}

#[test]
fn outside_a_transaction_the_check_says_so() {
    let mut conn = Maria::new().conn();
    let said = passes(&mut conn, "ledger", fence(1), Lease::Shared).unwrap();
    assert_eq!(check(said, fence(1)).unwrap_err().kind(), ErrorKind::Misuse);
    conn.query_drop("SET autocommit = 0").unwrap();
    let said = passes(&mut conn, "ledger", fence(1), Lease::Exclusive).unwrap();
    check(said, fence(1)).unwrap();
}

#[test]
fn a_refused_fence_is_an_error_that_says_lost() {
    let mut conn = Maria::new().conn();
    conn.begin(LEVELS[2]).unwrap();
    let said = passes(&mut conn, "ledger", fence(2), Lease::Exclusive).unwrap();
    check(said, fence(2)).unwrap();
    let said = passes(&mut conn, "ledger", fence(1), Lease::Exclusive).unwrap();
    assert_eq!(check(said, fence(1)).unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn connections_of_different_character_sets_mean_the_same_guard() {
    let db = Maria::new();
    let mut session = db.conn();
    session.begin(LEVELS[2]).unwrap();
    assert!(session.touch("café", fence(2), Lease::Exclusive).unwrap());
    session.execute("COMMIT").unwrap();
    let mut latin = db.conn();
    latin.query_drop("SET NAMES latin1").unwrap();
    latin.begin(LEVELS[2]).unwrap();
    // What a client of that character set sends.
    latin
        .exec_drop(TOUCH, (b"caf\xE9".as_slice(), 1_i64))
        .unwrap_or_else(|error| panic!("{error}"));
    let text = "SET @name = CONVERT(UNHEX('636166E9') USING latin1)";
    latin.query_drop(text).unwrap();
    let passes = PASSES.replacen('?', "1", 1).replacen('?', "@name", 1);
    assert_eq!(latin.query_first::<Option<i64>, _>(passes).unwrap(), Some(Some(0)));
}

#[test]
fn a_name_that_is_too_long_raises_no_other_guard_in_any_sql_mode() {
    let db = Maria::new();
    for mode in ["", "TRADITIONAL"] {
        let mut conn = db.conn();
        conn.query_drop(format!("SET sql_mode = '{mode}'")).unwrap();
        conn.begin(LEVELS[2]).unwrap();
        for name in [String::new(), "x".repeat(513)] {
            let said = passes(&mut conn, &name, fence(9), Lease::Exclusive).unwrap();
            let error = check(said, fence(9)).unwrap_err();
            assert!(error.to_string().contains("1 to 512 bytes"), "{error}");
        }
        let rows: i64 = conn.number("SELECT COUNT(*) FROM leasehold_fence").unwrap();
        assert_eq!(rows, 0, "sql_mode '{mode}'");
        let longest = "x".repeat(512);
        let said = passes(&mut conn, &longest, fence(9), Lease::Exclusive).unwrap();
        check(said, fence(9)).unwrap();
        let seen: Option<i64> = conn.exec_first(SEEN, (&longest,)).unwrap();
        assert_eq!(seen, Some(9));
        conn.execute("ROLLBACK").unwrap();
    }
}

#[test]
fn every_touch_changes_the_row_also_with_an_equal_fence() {
    let db = Maria::new();
    let mut conn = db.conn();
    for _ in 0..3 {
        conn.begin(LEVELS[2]).unwrap();
        assert!(conn.touch("ledger", fence(1), Lease::Exclusive).unwrap());
        conn.execute("COMMIT").unwrap();
    }
    let touched = conn.number("SELECT touched FROM leasehold_fence").unwrap();
    assert_eq!(touched, 3);
}

#[test]
fn a_holder_that_sleeps_in_its_transaction_stops_its_successor_for_the_ttl_at_most() {
    let db = Maria::new();
    let (mut late, mut later) = (db.conn(), db.conn());
    let ttl = Duration::from_secs(1);
    late.begin(LEVELS[2]).unwrap();
    assert!(late.touch("ledger", fence(1), Lease::Exclusive).unwrap());
    // Last of all, since a busy machine may take longer than that to send the touch.
    late.query_drop(timeouts(ttl)).unwrap();
    // The server ends the sleeper's connection; no statement of the test does.
    later.begin(LEVELS[2]).unwrap();
    assert!(later.touch("ledger", fence(2), Lease::Exclusive).unwrap());
    later.execute("COMMIT").unwrap();
    assert!(late.execute("COMMIT").is_err());

    let mut stuck = db.conn();
    stuck.begin(LEVELS[2]).unwrap();
    assert!(stuck.touch("ledger", fence(3), Lease::Exclusive).unwrap());
    later.query_drop(timeouts(ttl * 3)).unwrap();
    later.begin(LEVELS[2]).unwrap();
    let told = later.touch("ledger", fence(4), Lease::Exclusive);
    assert!(matches!(told, Err(Fault::Again)), "{told:?}");
}
