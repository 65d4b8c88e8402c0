//! The fence in an `UPDATE`.

use leasehold_testkit::sql::PostgreSql;

use crate::{Service, directory};

#[test]
fn a_late_holder_writes_nothing() {
    let (_dir, url) = directory();
    let server = PostgreSql::start();
    let socket = server.socket_dir().display();
    let port = server.port();
    let database = format!("postgres://leasehold@localhost:{port}/postgres?host={socket}");
    let lines = Service::start(env!("CARGO_BIN_EXE_sqlx"), &[&url, &database]).end();
    assert!(lines.last().unwrap().starts_with("the late holder: refused"), "{lines:?}");
}
