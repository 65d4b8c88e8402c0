//! Jobs under a lock in a PostgreSQL database.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use leasehold_testkit::sql::PostgreSql;

use crate::harness::{Site, finish, lock, until};

#[test]
fn a_job_runs_under_a_lock_in_a_table_that_the_first_use_makes() {
    let server = PostgreSql::start();
    let site = Site::at(server.tcp_url());
    site.line("run k -- true").expect(0);
    let job = site.start(["run", "reports/daily", "--ttl", "10s", "--", "sleep", "600"]);
    until("the job's lock", || site.line("ls --json").expect(0).stdout.contains("reports/daily"));
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

#[test]
fn the_printed_setup_lets_a_role_use_all_kinds_of_locks_and_a_missing_right_is_named() {
    let server = PostgreSql::start();
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE other LOGIN");
    let [app, other, owner] =
        ["app", "other", "leasehold"].map(|user| Site::at(server.tcp_url_of(user)));
    app.line("run k -- true").complains(78, "setup");
    // By the functions alone, and then by rights to the tables.
    for (setup, report) in [("setup --least", "first"), ("setup", "second")] {
        let sql = app.line(setup).expect(0).stdout;
        for _ in 0..2 {
            server.sql(&sql);
        }
        for line in [
            "run k -- true",
            "run k -s -- true",
            "run floor --limit 2 -- true",
            "run a b -- true",
            &format!("run {report} --once-per 1m --ttl 10s -- true"),
            "run k --cooldown 1ms -- true",
            "ls",
            "show k",
            &format!("log {report}"),
            &format!("why {report}"),
        ] {
            app.line(line).expect(0);
        }
    }
    let refused = owner.line("setup --least --run");
    assert!(refused.stderr.contains("name another one by --user"), "{refused:?}");
    owner.line("run k -- true").expect(0);
    let refused = other.line("run k -- true").complains(69, "USAGE ON SCHEMA leasehold");
    assert!(refused.stderr.contains("`leasehold setup` prints the rights"), "{refused:?}");
    owner.line("setup --run --user other").expect(0);
    other.line("run k -- true").expect(0);
    for (table, right) in
        [("lock", "DELETE"), ("meta", "UPDATE"), ("alive", "INSERT"), ("log", "SELECT")]
    {
        server.sql(&format!("REVOKE {right} ON leasehold.{table} FROM other"));
        other.line("run k -- true").complains(69, &format!("{right} ON leasehold.{table}"));
        server.sql(&format!("GRANT {right} ON leasehold.{table} TO other"));
    }
    server.sql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold FROM PUBLIC, other");
    other.line("run k -- true").complains(69, "EXECUTE ON ALL FUNCTIONS");
    app.line("run k -- true").expect(0);
}

#[test]
fn a_setup_leaves_the_tables_of_a_later_version_alone() {
    let server = PostgreSql::start();
    let site = Site::at(format!("{}?schema=locks", server.tcp_url()));
    site.line("setup --run").expect(0);
    site.line("setup --run").expect(0);
    server.sql("UPDATE locks.meta SET format = 2");
    site.line("setup --run").complains(78, "later format");
    site.line("run k -- true").complains(78, "format 2");
    Site::embedded().line("setup").complains(78, "only a PostgreSQL database");
    site.line("doctor --acl").complains(78, "`leasehold setup` prints");
}

/// A server that asks its user `app` for a password.
fn guarded() -> PostgreSql {
    let server = PostgreSql::start();
    server.sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'one'");
    server.admit("host all app all scram-sha-256");
    let stranger = Site::at(server.tcp_url_of("app"));
    until("a password is needed", || stranger.line("ls").status.code() != Some(0));
    server
}

fn secret(site: &Site, name: &str, text: &str) -> String {
    let path = site.path(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

#[test]
fn a_job_keeps_its_lock_while_the_password_in_a_file_changes() {
    let server = guarded();
    let (site, judge) = (Site::at(server.tcp_url_of("app")), Site::at(server.tcp_url()));
    let file = secret(&site, "password", "one\nnot this\n");
    let hold = "echo in; while [ ! -e end ]; do sleep 0.05; done";
    let holder = site.start_script(&format!("k --ttl 3s --password-file {file}"), hold);
    let fence = lock(&judge, "k")["holders"][0]["fence"].clone();
    server.sql("ALTER ROLE app PASSWORD 'two'");
    secret(&site, "password", "two\n");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    let left = || server.sql("SELECT used_until > clock_timestamp() FROM leasehold.lock");
    let clock = || server.sql("SELECT extract(epoch FROM clock_timestamp())::bigint");
    // Twice the ttl.
    let end = clock().parse::<u64>().unwrap() + 6;
    while clock().parse::<u64>().unwrap() <= end {
        assert_eq!(left(), "t", "the lease ended");
    }
    assert_eq!(lock(&judge, "k")["holders"][0]["fence"], fence);
    fs::write(site.path("end"), "").unwrap();
    holder.finish().expect(0);
}

#[test]
fn a_password_comes_from_the_file_that_other_programs_of_postgresql_use() {
    let server = guarded();
    let site = Site::at(server.tcp_url_of("app"));
    let line = format!("127.0.0.1:{}:*:app:one\n", server.port());
    let named = secret(&site, "named", &line);
    finish(site.command(["run", "k", "--", "true"]).env("PGPASSFILE", &named)).expect(0);
    site.line("run k -- true").complains(69, "password");
    let own = secret(&site, ".pgpass", &line);
    site.line("run k -- true").expect(0);
    fs::set_permissions(&own, Permissions::from_mode(0o644)).unwrap();
    site.line("run k -- true").complains(69, "chmod it to 0600");
}

#[test]
fn the_recipe_for_psql_writes_under_the_lock_and_refuses_a_stale_holder() {
    let server = PostgreSql::start();
    server.sql("CREATE DATABASE shop");
    let site = Site::at(format!("postgres://leasehold@127.0.0.1:{}/shop", server.port()));
    let page = crate::readme::document("docs/operations/postgres.md");
    let block = |language: &str, has: &str| {
        let blocks = page.split("```").filter_map(|block| block.strip_prefix(language));
        blocks.map(str::trim_start).find(|block| block.contains(has)).unwrap().to_owned()
    };
    fs::write(site.path("report.sql"), block("sql", "leasehold.hold")).unwrap();
    let leasehold = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!(
        "{}:{}:{}",
        leasehold.display(),
        PostgreSql::programs().display(),
        std::env::var("PATH").unwrap()
    );
    let psql = |script: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).env_clear().current_dir(site.path("")).env("PATH", &path);
        command.env("HOME", site.path("")).env("LEASEHOLD_STORE", site.store());
        command.env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string());
        finish(command.env("PGUSER", "leasehold"))
    };
    psql("psql -c 'CREATE TABLE report (at timestamptz)' shop").expect(0);
    let recipe = block("sh", "report.sql");
    psql(&recipe).expect(0);
    let stale = recipe.replace(
        "'psql",
        "'leasehold force-release reports/daily --fence $LEASEHOLD_FENCE && psql",
    );
    let refused = psql(&stale);
    assert!(!refused.status.success() && refused.stderr.contains("is not held"), "{refused:?}");
    let count = psql("psql -t -A -c 'SELECT count(*) FROM report' shop").expect(0).stdout;
    assert_eq!(count, "1\n");
}
