//! Jobs under a lock in a PostgreSQL database.

use leasehold_testkit::sql::PostgreSql;

use crate::harness::{Site, lock};

#[test]
fn a_job_runs_under_a_lock_in_a_table_that_the_first_use_makes() {
    let server = PostgreSql::start();
    let site = Site::at(server.tcp_url());
    site.line("run k -- true").expect(0);
    let job = site.start(["run", "reports/daily", "--ttl", "10s", "--", "sleep", "600"]);
    crate::harness::until("the job's lock", || {
        site.line("ls --json").expect(0).stdout.contains("reports/daily")
    });
    assert_eq!(lock(&site, "reports/daily")["holders"].as_array().unwrap().len(), 1);
    site.line("run reports/daily -n -- true").expect(75);
    let report = site.line("doctor").expect(79).stdout;
    assert!(report.contains("fsync"), "the test's server does not write through: {report}");
    for topic in ["version", "wake", "epoch", "identity", "tls"] {
        assert!(report.contains(&format!(" {topic} ")), "{topic}: {report}");
    }
    drop(job);
}

#[test]
fn a_database_without_tables_is_refused_if_the_url_says_so() {
    let server = PostgreSql::start();
    let site = Site::at(format!("{}?create=no", server.tcp_url()));
    let done = site.line("run k -- true");
    assert!(done.stderr.contains("create=yes"), "{done:?}");
}
