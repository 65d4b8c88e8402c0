//! The fence in a read and an `UPDATE`, and a transaction that proves and releases its lock.

use leasehold_testkit::sql::PostgreSql;

use crate::{Service, directory};

#[test]
fn a_stale_holder_writes_nothing_between_the_read_and_the_write_of_the_next() {
    let (_dir, url) = directory();
    let server = PostgreSql::start();
    let socket = server.socket_dir().display();
    let port = server.port();
    let database = format!("postgres://leasehold@localhost:{port}/postgres?host={socket}");
    let lines = Service::start(env!("CARGO_BIN_EXE_sqlx"), &[&url, &database]).end();
    assert!(lines.last().unwrap().starts_with("the stale holder: refused"), "{lines:?}");
}

#[test]
fn work_commits_with_the_release_of_its_lock_and_a_stale_holder_can_not_begin() {
    let server = PostgreSql::start();
    let lines = Service::start(env!("CARGO_BIN_EXE_transaction"), &[&server.tcp_url()]).end();
    assert_eq!(lines.last().unwrap(), "the stale holder: refused with LH001");
}
