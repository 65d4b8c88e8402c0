//! A password that is used everywhere and shown nowhere.

use std::process::Stdio;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Done, Site, finish};

const SENTINEL: &str = "sentinel-p@ss/w%rd";
/// As it has to be written in a URL.
const ENCODED: &str = "sentinel-p%40ss%2Fw%25rd";

#[track_caller]
fn nothing_shown(done: &Done) {
    let shown = format!("{}{}", done.stdout, done.stderr);
    for secret in [SENTINEL, ENCODED, "ss/w", "ss%2Fw"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

const LINES: [&str; 8] = [
    "ls",
    "show k",
    "run -n k -- env",
    "acquire -n other --json",
    "wait -n k",
    "hold k",
    "force-release k --fence 1",
    "run k -w nonsense -- true",
];

#[test]
fn a_password_is_shown_nowhere_at_any_verbosity_whether_right_or_wrong() {
    let right = RedisServer::builder().password(SENTINEL).start();
    let wrong = RedisServer::builder().password("something-else").start();
    let deaf = "127.0.0.1:1".to_owned();
    for address in [right.addr().to_string(), wrong.addr().to_string(), deaf] {
        let site = Site::at(format!("redis://:{ENCODED}@{address}"));
        for line in LINES {
            for verbosity in ["-q", "-vv", "-vvv"] {
                let mut command = site.command([verbosity].into_iter().chain(line.split(' ')));
                let done = finish(command.stdin(Stdio::piped()));
                nothing_shown(&done);
            }
        }
    }
}

#[test]
fn the_password_reaches_the_server_by_every_way_it_can_be_given() {
    let server = RedisServer::builder().password(SENTINEL).start();
    let address = server.addr();
    let site = Site::at(format!("redis://{address}"));
    std::fs::write(site.path("p"), format!("{SENTINEL}\n")).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(site.path("p"), private).unwrap();

    let without = site.line("run -n k -- true").complains(69, &address.to_string());
    nothing_shown(&without);
    site.line("--password-file p run -n k -- true").expect(0);
    let done = finish(site.command(["run", "k", "--", "env"]).env("LEASEHOLD_PASSWORD", SENTINEL));
    nothing_shown(&done.expect(0));
    // The file comes first, by whichever way it is named.
    let both = |file: &str| {
        let mut command = site.command(["run", "k", "--", "true"]);
        finish(command.env("LEASEHOLD_PASSWORD", "wrong").env("LEASEHOLD_PASSWORD_FILE", file))
    };
    nothing_shown(&both("p").expect(0));
    both("").complains(78, "LEASEHOLD_PASSWORD_FILE is set and empty");
    let full = format!("redis://:{ENCODED}@{address}");
    let done = finish(site.command(["run", "k", "--", "env"]).env("LEASEHOLD_STORE", &full));
    assert!(done.stdout.contains(&format!("LEASEHOLD_STORE=redis://{address}\n")), "{done:?}");
    nothing_shown(&done.expect(0));
    let done = site.run(["--store", &full, "run", "k", "--", "true"]).expect(0);
    assert!(done.stderr.contains("warning: other users of this machine can read"), "{done:?}");
    nothing_shown(&done);
}

#[test]
fn a_wrong_password_is_reported_with_the_server_and_without_the_password() {
    let server = RedisServer::builder().password("right").start();
    let address = server.addr().to_string();
    let site = Site::at(format!("redis://:{ENCODED}@{address}"));
    let done = site.line("run -n k -- echo never").complains(69, &address);
    nothing_shown(&done);
}

#[test]
fn a_wrong_password_with_an_invisible_end_is_reported_with_it() {
    let server = RedisServer::builder().password(SENTINEL).start();
    let site = Site::at(format!("redis://{}", server.addr()));
    let with = |password: &str| {
        let mut command = site.command(["run", "-n", "k", "--", "echo", "never"]);
        finish(command.env("LEASEHOLD_PASSWORD", password))
    };
    for (end, what) in [("\n", "a line break"), ("\r\n", "a line break"), (" ", "a blank")] {
        let done = with(&format!("{SENTINEL}{end}"));
        nothing_shown(&done);
        done.complains(69, &format!("the password ends with {what}"));
    }
    let done = with("wrong").expect(69);
    assert!(!done.stderr.contains("ends with"), "{done:?}");
}

#[test]
fn a_url_in_the_wrong_place_is_not_repeated() {
    let site = Site::embedded();
    let url = format!("redis://user:{ENCODED}@db:6379");
    let raw = format!("redis://user:{SENTINEL}@db:6379");
    for url in [url.as_str(), raw.as_str()] {
        for args in [
            vec![url],
            vec!["ls", "a", url],
            vec!["--frobnicate", url],
            vec!["run", "k", "--ttl", url, "--", "true"],
            vec!["completions", url],
            vec!["--config", url, "ls"],
            vec!["--store", &url[3..], "ls"],
        ] {
            let done = site.run(&args);
            assert_ne!(done.status.code(), Some(0), "{args:?}");
            nothing_shown(&done);
        }
    }
}
