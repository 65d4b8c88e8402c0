//! A command under a lock finds the store of that lock again, or is told that it can't.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Done, Site, finish};

const COMMAND: &str = env!("CARGO_BIN_EXE_leasehold");
/// What is run under the lock `n`: it must not get that lock as well.
const INNER: [&str; 8] = [COMMAND, "run", "n", "-n", "-q", "--", "echo", "IN"];
const PASSWORD: &str = "s3same-open";

/// Runs the inner command under the lock, as `outer` says; no variable names a store.
fn nest(site: &Site, outer: &[&str], variables: &[(&str, &str)]) -> Done {
    let mut command = site.command(outer.iter().copied().chain(INNER));
    command.env_remove("LEASEHOLD_STORE").envs(variables.iter().copied());
    finish(&mut command)
}

/// Writes a file that only its owner can read.
fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[track_caller]
fn kept_out(done: Done) {
    assert_eq!(done.stdout, "", "{done:?}");
    done.expect(75);
}

#[test]
fn a_command_under_a_lock_is_kept_out_by_it_however_its_store_was_named() {
    let (site, server) = (Site::embedded(), RedisServer::start());
    fs::create_dir_all(site.path(".config/leasehold")).unwrap();
    for url in [site.store().to_owned(), format!("{}?prefix=lock@", server.url())] {
        kept_out(nest(&site, &["--store", &url, "run", "n", "--"], &[]));
        kept_out(nest(&site, &["--store", &url, "elect", "n", "--"], &[]));
        kept_out(nest(&site, &["run", "n", "--"], &[("LEASEHOLD_STORE", &url)]));
        let config = format!("store = '{url}'\n");
        fs::write(site.path("named.toml"), &config).unwrap();
        kept_out(nest(&site, &["--config", "named.toml", "run", "n", "--"], &[]));
        fs::write(site.path(".config/leasehold/config.toml"), &config).unwrap();
        kept_out(nest(&site, &["run", "n", "--"], &[]));
    }
}

#[test]
fn a_command_under_a_lock_has_the_password_from_where_it_is_kept_and_not_from_its_environment() {
    let (site, server) = (Site::embedded(), RedisServer::builder().password(PASSWORD).start());
    let bare = format!("redis://{}", server.addr());
    let full = format!("redis://:{PASSWORD}@{}", server.addr());
    private(&site.path("p"), PASSWORD);
    private(&site.path("url.toml"), &format!("store = '{full}'\n"));
    private(&site.path("file.toml"), &format!("store = '{bare}'\npassword_file = 'p'\n"));
    // Elsewhere a relative path leads nowhere.
    let away = |words: &[&str]| {
        let script = r#"cd / && exec "$0" "$@""#;
        let words = [words, &["sh", "-c", script]].concat();
        nest(&site, &words, &[])
    };
    kept_out(away(&["--store", &bare, "--password-file", "p", "run", "n", "--"]));
    kept_out(away(&["--config", "url.toml", "run", "n", "--"]));
    kept_out(away(&["--config", "file.toml", "run", "n", "--"]));
    kept_out(nest(
        &site,
        &["run", "n", "--"],
        &[
            ("LEASEHOLD_STORE", &bare),
            ("LEASEHOLD_PASSWORD_FILE", &site.path("p").display().to_string()),
        ],
    ));
}

#[test]
fn a_command_under_a_lock_whose_password_it_can_not_have_fails_and_says_so() {
    let (site, server) = (Site::embedded(), RedisServer::builder().password(PASSWORD).start());
    let bare = format!("redis://{}", server.addr());
    let full = format!("redis://:{PASSWORD}@{}", server.addr());
    let run = ["run", "n", "--"];
    for done in [
        nest(&site, &["--store", &full, "run", "n", "--"], &[]),
        nest(&site, &run, &[("LEASEHOLD_STORE", &full)]),
        nest(&site, &run, &[("LEASEHOLD_STORE", &bare), ("LEASEHOLD_PASSWORD", PASSWORD)]),
    ] {
        assert!(done.stderr.contains("password") && !done.stderr.contains(PASSWORD), "{done:?}");
        assert_eq!(done.stdout, "", "{done:?}");
        done.expect(69);
    }
}

#[test]
fn no_password_of_a_store_is_in_the_environment_of_a_command() {
    let (site, server) = (Site::embedded(), RedisServer::builder().password(PASSWORD).start());
    private(&site.path("p"), PASSWORD);
    let bare = format!("redis://app@{}?prefix=x", server.addr());
    let full = format!("redis://app:{PASSWORD}@{}?prefix=x", server.addr());
    let _made =
        server.cli(&["ACL", "SETUSER", "app", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
    for (variables, file) in [
        (vec![("LEASEHOLD_STORE", full.as_str())], false),
        (vec![("LEASEHOLD_STORE", &bare), ("LEASEHOLD_PASSWORD", PASSWORD)], false),
        (vec![("LEASEHOLD_STORE", &bare), ("LEASEHOLD_PASSWORD_FILE", "p")], true),
    ] {
        let mut command = site.command(["run", "k", "--", "env"]);
        let done = finish(command.envs(variables)).expect(0);
        assert!(!done.stdout.contains(PASSWORD), "{done:?}");
        assert!(done.stdout.contains(&format!("LEASEHOLD_STORE={bare}\n")), "{done:?}");
        let path = format!("LEASEHOLD_PASSWORD_FILE={}\n", site.path("p").display());
        assert_eq!(done.stdout.contains(&path), file, "{done:?}");
    }
}
