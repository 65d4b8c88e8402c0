//! The table of situations and exit codes.

use crate::harness::{Site, killed_by};

#[test]
fn the_commands_own_code_is_passed_on() {
    let site = Site::embedded();
    for code in [0, 1, 2, 64, 75, 76, 127, 255] {
        let done = site.run(["run", "k", "--", "sh", "-c", &format!("exit {code}")]).expect(code);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    }
}

#[test]
fn death_by_a_signal_has_the_exit_code_that_a_shell_shows() {
    let site = Site::embedded();
    for signal in [1, 2, 6, 9, 15] {
        let done = site.run(["run", "k", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(killed_by(&done), None);
        done.expect(128 + signal);
    }
}

#[test]
fn a_missing_command_is_127_and_one_that_can_not_be_executed_126() {
    let site = Site::embedded();
    site.line("run k -- no-such-command-anywhere").complains(127, "can't run no-such-command");
    std::fs::write(site.path("data"), "").unwrap();
    site.line("run k -- ./data").complains(126, "can't run ./data: Permission denied");
    site.line("run -n k -- true").expect(0);
}

#[test]
fn a_busy_lock_is_75_or_what_is_asked_for_and_says_who_holds_it() {
    let site = Site::embedded();
    let mut holder =
        site.start(["hold", "k", "--ignore-stdin", "--owner", "web-7", "--meta", "job=report"]);
    holder.line();
    let done = site.line("run -n k -- echo never").complains(75, "\"k\"");
    assert!(done.stderr.contains("held by web-7 (job=report)"), "{done:?}");
    site.line("run k -w 2 -- echo never").complains(75, "held by web-7");
    site.line("run k -w 0 -- echo never").complains(75, "held by web-7");
    site.line("run -n -E 9 k -- echo never").complains(9, "held by web-7");
    site.line("run k -w 2s -E 0 -- echo never").complains(0, "held by web-7");
    site.line("acquire -n k").complains(75, "held by web-7");
    site.line("hold -n k").complains(75, "held by web-7");
    site.line("wait -n k").complains(75, "held by web-7");
    site.line("wait -w 2 -E 3 k").complains(3, "held by web-7");
    let done = site.line("-q run -n k -- echo never").expect(75);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    site.line("run -n other -- true").expect(0);
}

#[test]
fn bad_usage_is_64() {
    let site = Site::embedded();
    for line in
        ["", "run", "run k", "frobnicate", "run k -n -w 1 -- true", "run k --limits 3 -- true"]
    {
        let args: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let done = site.run(args).expect(64);
        assert!(done.stderr.starts_with("leasehold: ") || line.is_empty(), "{done:?}");
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn a_store_that_can_not_be_reached_is_69_and_named() {
    let site = Site::at("redis://127.0.0.1:1");
    for line in ["run -n k -- echo never", "run k -- echo never", "ls", "show k", "acquire k"] {
        site.line(line).complains(69, "127.0.0.1:1");
    }
}

#[test]
fn bad_configuration_is_78() {
    let site = Site::embedded();
    site.line("--store nonsense://x run k -- true").complains(78, "\"nonsense\"");
    site.line("--store no-scheme run k -- true").complains(78, "scheme");
    site.line("--store memory: run k -- true").complains(78, "memory:");
    site.line("--config /no/such/file ls").complains(78, "/no/such/file");
    site.line("--password-file /no/such/file ls").complains(78, "/no/such/file");
}
