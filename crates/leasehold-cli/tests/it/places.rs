//! Which store is meant, and by which settings: the same wherever a command is started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use crate::harness::{Site, finish};

const SECRET: &str = "s3same-open";

#[test]
fn a_directory_that_depends_on_the_place_is_refused_where_many_share_it() {
    let site = Site::embedded();
    for url in ["embedded:locks", "embedded:./locks", "quorum:embedded:a,embedded:b,embedded:c"] {
        let mut command = site.command(["ls"]);
        finish(command.env("LEASEHOLD_STORE", url)).complains(78, "not absolute");
    }
    fs::write(site.path("config.toml"), "store = 'embedded:locks'\n").unwrap();
    let mut command = site.command(["--config", "config.toml", "ls"]);
    finish(command.env_remove("LEASEHOLD_STORE")).complains(78, "not absolute");
    let mut command = site.command(["ls"]);
    finish(command.env("LEASEHOLD_STORE", "embedded:~/locks"))
        .complains(78, "~ stands for nothing");
    assert!(!site.path("locks").exists());
}

#[test]
fn a_directory_that_was_typed_is_made_absolute_aloud() {
    let site = Site::embedded();
    let done = site.line("--store embedded:here run k -- true").expect(0);
    let shown = site.path("here").canonicalize().unwrap();
    assert!(
        done.stderr.contains(&format!("the store is embedded:{}", shown.display())),
        "{done:?}"
    );
    let typed = format!("embedded:{}", shown.display());
    assert_eq!(site.run(["--store", &typed, "ls"]).expect(0).stderr, "");
}

#[test]
fn what_is_no_store_is_met_with_what_may_be_meant() {
    let site = Site::embedded();
    for (url, meant) in [
        ("localhost", "redis://localhost?"),
        ("db.example.com:6379", "redis://db.example.com:6379?"),
        ("/tmp/foo", "embedded:/tmp/foo?"),
    ] {
        site.run(["--store", url, "ls"]).complains(78, meant);
        finish(site.command(["ls"]).env("LEASEHOLD_STORE", url)).complains(78, meant);
    }
}

#[test]
fn variables_that_are_empty_say_nothing() {
    let site = Site::embedded();
    fs::create_dir_all(site.path(".config/leasehold")).unwrap();
    let config = format!("store = '{}'\n", site.store());
    fs::write(site.path(".config/leasehold/config.toml"), config).unwrap();
    let mut command = site.command(["run", "k", "--", "true"]);
    let empty = ["LEASEHOLD_STORE", "LEASEHOLD_CONFIG", "LEASEHOLD_PASSWORD", "XDG_CONFIG_HOME"];
    finish(command.envs(empty.map(|name| (name, "")))).expect(0);
    assert!(site.path("locks").exists(), "the config file's store");
}

#[test]
fn a_home_that_is_empty_relative_or_anothers_has_no_settings_of_ours() {
    let site = Site::embedded();
    fs::create_dir_all(site.path(".config/leasehold")).unwrap();
    fs::write(site.path(".config/leasehold/config.toml"), "ttl = 'never'\n").unwrap();
    finish(site.command(["ls"]).env("HOME", "")).expect(0);
    finish(site.command(["ls"]).env("HOME", ".")).expect(0);
    site.line("ls").complains(78, "`ttl`");
    if !rustix::process::geteuid().is_root() {
        println!("NOT TRIED: this user can't become another, whose home would be closed");
        return;
    }
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o700)).unwrap();
    let store = tempfile::tempdir().unwrap();
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = site.command(["ls"]);
    command.env("LEASEHOLD_STORE", format!("embedded:{}/s", store.path().display()));
    finish(command.current_dir("/").uid(61_236).gid(61_236)).expect(0);
}

/// Every way in which a URL can hold a password.
const SECRETIVE: [&str; 4] = [
    "redis+unix:///nowhere/r.sock?pass=SECRET",
    "redis+sentinel://127.0.0.1:1/m?sentinel_password=SECRET",
    "quorum:redis://127.0.0.1:1,redis+unix:///nowhere?pass=SECRET,redis://127.0.0.1:2",
    "redis://:SECRET@127.0.0.1:1",
];

#[test]
fn a_password_is_one_wherever_it_stands_in_a_url() {
    let site = Site::embedded();
    for url in SECRETIVE.map(|url| url.replace("SECRET", SECRET)) {
        let done = site.run(["--store", &url, "ls"]);
        assert!(done.stderr.contains("warning: every user of this machine"), "{done:?}");
        assert!(!done.stderr.contains(SECRET), "{done:?}");
        let done = finish(site.command(["-vv", "ls"]).env("LEASEHOLD_STORE", &url));
        assert!(!done.stderr.contains(SECRET), "{done:?}");
        fs::write(site.path("config.toml"), format!("store = '{url}'\n")).unwrap();
        fs::set_permissions(site.path("config.toml"), fs::Permissions::from_mode(0o644)).unwrap();
        let done = site.line("--config config.toml ls").complains(78, "everybody can get at");
        assert!(!done.stderr.contains(SECRET), "{done:?}");
        // The command runs under another store, and sees nothing of this one.
        let store = site.store().to_owned();
        let mut command = site.command(["--store", &store, "run", "k", "--", "env"]);
        let done = finish(command.env("LEASEHOLD_STORE", &url)).expect(0);
        assert!(
            !done.stdout.contains(SECRET) && !done.stdout.contains("LEASEHOLD_STORE"),
            "{done:?}"
        );
    }
}

#[test]
fn a_lease_in_the_environment_does_not_reach_the_command() {
    let site = Site::embedded();
    let lease = site.line("acquire other --ttl 1h").expect(0).stdout;
    let mut command = site.command(["run", "k", "--", "env"]);
    let done = finish(command.env("LEASEHOLD_LEASE", lease.trim())).expect(0);
    assert!(!done.stdout.contains("LEASEHOLD_LEASE"), "{done:?}");
}
