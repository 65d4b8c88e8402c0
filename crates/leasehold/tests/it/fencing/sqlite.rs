//! The statements for SQLite, run by SQLite.

use leasehold::Fence;
use leasehold::fencing::passed;
use leasehold::fencing::sqlite::{SCHEMA, SEEN, TOUCH, TOUCH_SHARED};
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::{fence, pairs};

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(SCHEMA).unwrap();
    db
}

fn touch(db: &Connection, resource: &str, fence: Fence) -> bool {
    match db.execute(TOUCH, (resource, fence.as_i64())).unwrap() {
        0 => false,
        1 => true,
        rows => panic!("one guard was touched, and {rows} rows changed"),
    }
}

#[test]
fn a_lower_fence_is_refused_and_no_other() {
    let db = database();
    for (first, second, passes) in pairs() {
        let resource = format!("{first} {second}");
        assert!(touch(&db, &resource, first));
        assert_eq!(touch(&db, &resource, second), passes, "{second} after {first}");
        let seen: i64 = db.query_row(SEEN, [&resource], |row| row.get(0)).unwrap();
        assert_eq!(seen, first.max(second).as_i64());
    }
}

#[test]
fn a_fence_bound_as_text_counts_as_the_number_it_is() {
    let db = database();
    for (given, passes) in [("9", 1), ("10", 1), ("9", 0)] {
        assert_eq!(db.execute(TOUCH, ("ledger", given)).unwrap(), passes, "{given}");
    }
}

#[test]
fn resources_have_guards_of_their_own() {
    let db = database();
    assert!(touch(&db, "ledger", fence(5)));
    assert!(touch(&db, "archive", fence(4)));
    assert!(!touch(&db, "ledger", fence(4)));
}

#[test]
fn the_schema_can_be_run_again_and_keeps_the_guards() {
    let db = database();
    assert!(touch(&db, "ledger", fence(5)));
    db.execute_batch(SCHEMA).unwrap();
    assert!(!touch(&db, "ledger", fence(4)));
}

#[test]
fn a_guard_is_raised_only_if_its_transaction_is_committed() {
    let mut db = database();
    let work = db.transaction().unwrap();
    assert!(touch(&work, "ledger", fence(5)));
    work.rollback().unwrap();
    assert!(touch(&db, "ledger", fence(4)));
}

#[test]
fn while_one_holder_works_the_next_one_cannot_begin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let open = || Connection::open(&path).unwrap();
    let (mut early, mut later) = (open(), open());
    early.execute_batch(SCHEMA).unwrap();
    later.busy_timeout(std::time::Duration::ZERO).unwrap();

    let work = early.transaction().unwrap();
    assert!(touch(&work, "ledger", fence(1)));
    let busy = later.transaction_with_behavior(TransactionBehavior::Immediate).unwrap_err();
    assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    let busy = later.execute(TOUCH, ("ledger", 2)).unwrap_err();
    assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    work.commit().unwrap();

    assert!(touch(&later, "ledger", fence(2)));
    assert!(!touch(&early, "ledger", fence(1)));
}

#[test]
fn a_dropped_read_shuts_out_only_after_a_touch_that_committed() {
    for opened in [false, true] {
        let mut db = database();
        if opened {
            assert!(touch(&db, "ledger", fence(2)));
        }
        let read = db.transaction().unwrap();
        assert!(touch(&read, "ledger", fence(2)));
        drop(read);
        assert_eq!(touch(&db, "ledger", fence(1)), !opened, "opened by a touch: {opened}");
    }
}

#[test]
fn shared_leases_refuse_only_what_a_writer_has_outlived() {
    let db = database();
    let shared = |number: i64| {
        let rows = db.execute(TOUCH_SHARED, ("ledger", number)).unwrap();
        passed(rows, fence(number.unsigned_abs())).is_ok()
    };
    assert!(shared(2));
    assert!(shared(1), "readers don't refuse each other");
    assert!(!touch(&db, "ledger", fence(1)));
    assert!(touch(&db, "ledger", fence(3)));
    assert!(!shared(2));
    assert!(shared(3), "a writer may read under its own fence");
    let seen: i64 = db.query_row(SEEN, ["ledger"], |row| row.get(0)).unwrap();
    assert_eq!(seen, 3);
}

#[test]
fn names_and_fences_of_another_type_are_refused() {
    let db = database();
    assert!(touch(&db, "ledger", fence(5)));
    let blob = b"ledger".as_slice();
    assert!(db.execute(TOUCH, (blob, 4)).is_err());
    assert!(db.execute(TOUCH, ("ledger", b"9".as_slice())).is_err());
    for name in [String::new(), "x".repeat(513), "é".repeat(257)] {
        assert!(db.execute(TOUCH, (&name, 4)).is_err(), "{} bytes", name.len());
    }
    let rows: i64 =
        db.query_row("SELECT COUNT(*) FROM leasehold_fence", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}
