//! The statements for MySQL on two nodes of a Galera cluster, which see none of each other's locks.

use std::thread;
use std::time::{Duration, Instant};

use leasehold_testkit::sql::{GaleraPort, MariaDb};
use mysql::prelude::Queryable;

use super::fence;
use super::mariadb::{Maria, connect};
use super::scenario::{Fault, Lease, Session};

const LEVEL: &str = "REPEATABLE READ";

const PATIENCE: Duration = Duration::from_secs(60);

fn status(conn: &mut mysql::Conn, name: &str) -> String {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    conn.query_first::<(String, String), _>(sql)
        .unwrap()
        .map(|(_, value)| value)
        .unwrap_or_default()
}

/// Two nodes that stand at the same write set.
fn pair() -> (MariaDb, MariaDb) {
    let (port, second_port) = (GaleraPort::new(), GaleraPort::new());
    let first = MariaDb::first_node(&port);
    let mut conn = connect(&first.socket(), None);
    let (group, last) =
        (status(&mut conn, "wsrep_cluster_state_uuid"), status(&mut conn, "wsrep_last_committed"));
    let second = MariaDb::second_node(&second_port, &port, &format!("{group}:{last}"));
    let deadline = Instant::now() + PATIENCE;
    while status(&mut conn, "wsrep_cluster_size") != "2"
        || status(&mut connect(&second.socket(), None), "wsrep_ready") != "ON"
    {
        assert!(Instant::now() < deadline, "the nodes have not found each other");
        thread::sleep(Duration::from_millis(20));
    }
    (first, second)
}

/// The stale holder's transaction is open on one node while its successor does its work on the
/// other. Without a row that every touch changes, both would commit.
#[test]
fn a_stale_holder_on_another_node_is_refused_when_it_commits() {
    let (first, second) = pair();
    let db = Maria::on(first.socket());
    let other = db.through(second.socket());
    let mut late = db.conn();
    late.execute("INSERT INTO work VALUES ('ledger', 0), ('archive', 0)").unwrap();

    // The record knows the stale holder already, so its next touch raises nothing.
    late.begin(LEVEL).unwrap();
    assert!(late.touch("ledger", fence(1), Lease::Exclusive).unwrap());
    late.execute("COMMIT").unwrap();

    late.begin(LEVEL).unwrap();
    assert!(late.touch("ledger", fence(1), Lease::Exclusive).unwrap());
    late.write("ledger", 99).unwrap();

    let mut later = other.conn();
    later.execute("SET SESSION wsrep_sync_wait = 15").unwrap();
    later.begin(LEVEL).unwrap();
    assert!(later.touch("ledger", fence(2), Lease::Exclusive).unwrap());
    let read = later.read("ledger").unwrap();
    assert_eq!(read, 0, "the late write is not committed");
    // Another row than the stale holder's, so that only the record can collide.
    later.write("archive", read + 1).unwrap();
    later.execute("COMMIT").unwrap();

    let told = late.execute("COMMIT");
    assert!(matches!(told, Err(Fault::Again)), "both committed: {told:?}");
    late.give_up();
    late.execute("SET SESSION wsrep_sync_wait = 15").unwrap();
    assert_eq!(late.read("ledger").unwrap(), 0);
    // Run again from its beginning, as the documentation says, the stale holder is refused.
    late.begin(LEVEL).unwrap();
    assert!(!late.touch("ledger", fence(1), Lease::Exclusive).unwrap());
    late.give_up();
}
