//! Locks of other libraries, whose programs are played by single commands.

use std::fs;

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Running, Site, finish, lock, state, until};
use crate::readme::{document, script};

/// A program of another library does something.
fn does(server: &RedisServer, command: &[&str]) {
    drop(server.cli(command));
}

fn started(site: &Site, line: &str) -> Running {
    site.start(line.split(' '))
}

#[test]
fn a_job_and_another_librarys_program_keep_each_other_out() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["SET", "orders", "another's", "PX", "600000"]);
    let busy = site.line("run orders --interop redis-py -n -- true");
    busy.complains(75, "is held by another program, its lease expires in 9m");
    does(&server, &["DEL", "orders"]);

    let job = site.start_script("orders --interop redis-py", "echo held; cat; sleep 600");
    let value = server.cli(&["GET", "orders"]);
    assert!(value.trim().len() == 32, "{value}");
    does(&server, &["SET", "orders", "another's"]);
    let lost = job.finish();
    let why = ["lost \"orders\" at ", "force-released, or the store lost its data"];
    assert!(why.iter().all(|part| lost.stderr.contains(part)), "{lost:?}");
    lost.expect(76);
    assert_eq!(server.cli(&["GET", "orders"]).trim(), "another's");
}

#[test]
fn a_wait_for_several_names_the_one_that_another_program_has() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["SET", "y", "another's", "PX", "600000"]);
    for layout in ["redsync", "plain"] {
        let busy = site.line(&format!("run x y --interop {layout} -w 3s -- true"));
        assert!(busy.stderr.contains("waiting: \"y\" is held by another program"), "{busy:?}");
        assert!(!busy.stderr.contains("\"x\" is held"), "{busy:?}");
        busy.complains(75, "\"y\"");
    }
}

#[test]
fn a_job_gets_no_fence_where_there_is_none() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for (layout, expected) in
        [("redislock", "none"), ("redisson", "none"), ("redisson-fenced", "1")]
    {
        let words = ["run", "a", "--interop", layout, "--", "sh", "-c"];
        let script = ["echo ${LEASEHOLD_FENCE-none}"];
        let mut command = site.command(words.into_iter().chain(script));
        command.env("LEASEHOLD_FENCE", "of a lock around this one");
        let done = finish(&mut command);
        assert_eq!(done.expect(0).stdout, format!("{expected}\n"), "{layout}");
    }
    for (layout, told) in [("plain", false), ("redisson", false), ("redisson-fenced", true)] {
        let done = site.line(&format!("run b --interop {layout} -vv -- true")).expect(0);
        assert!(done.stderr.contains("released"), "{layout}: {done:?}");
        assert_eq!(done.stderr.contains("fence="), told, "{layout}: {done:?}");
        assert_eq!(done.stderr.contains("fence=1 "), told, "{layout}: {done:?}");
    }
    let mut holder = site.start(["hold", "a", "--interop", "symfony", "--ignore-stdin"]);
    assert_eq!(holder.line(), "- a");
    holder.process().signal(Signal::TERM);
    holder.finish().expect(0);
}

#[test]
fn a_lock_of_symfonys_ends_with_its_members_whatever_expiry_its_key_has() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["ZADD", "a", "1000", "member", "1000", "__write__"]);
    let shown = site.line("show a --interop symfony").expect(0).stdout;
    assert!(!shown.contains("held"), "{shown}");
    let seconds: u64 = server.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let ends = format!("{}000", seconds + 3_600);
    does(&server, &["ZADD", "a", &ends, "member", &ends, "__write__"]);
    let shown = site.line("show a --interop symfony").expect(0).stdout;
    assert!(shown.contains("held") && !shown.contains("never"), "{shown}");
}

#[test]
fn show_says_what_can_be_known_of_another_librarys_lock() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let shown = |layout: &str| {
        let document = site.run(["show", "a", "--interop", layout, "--json"]).expect(0).stdout;
        serde_json::from_str::<Value>(&document).unwrap()["lock"].take()
    };
    assert_eq!(shown("redislock"), Value::Null);
    does(&server, &["SET", "a", "abcdefghijklmnopqrstuvbilling", "PX", "600000"]);
    let lock = shown("redislock");
    assert_eq!(lock["holders"][0]["metadata"], "billing");
    assert_eq!(lock["holders"][0]["fence"], Value::Null);
    assert!(lock["holders"][0]["remaining_ms"].as_u64().unwrap() > 500_000);
    does(&server, &["PERSIST", "a"]);
    assert_eq!(shown("redislock")["holders"][0]["remaining_ms"], Value::Null);
    let text = site.run(["show", "a", "--interop", "redislock"]).expect(0).stdout;
    assert!(text.contains("never: its key has no expiry") && !text.contains("fence"), "{text}");
    assert!(!text.contains("abcdef"), "the token is a secret: {text}");

    does(&server, &["HSET", "b", "1234abcd-0000:77", "2"]);
    let text = site.run(["show", "b", "--interop", "redisson"]).expect(0).stdout;
    assert!(text.contains("client 1234abcd, thread 77") && text.contains("holds"), "{text}");
    site.run(["show", "b", "--interop", "plain"]).complains(69, "its key holds a hash");

    // What Redisson itself would not have written is shown as it stands.
    for field in ["a:1", ":1", "no-colon", "worker-17:1", "1234abcd-0000:main"] {
        does(&server, &["DEL", "c"]);
        does(&server, &["HSET", "c", field, "1"]);
        let text = site.run(["show", "c", "--interop", "redisson"]).expect(0).stdout;
        let holder = text.lines().find_map(|line| line.strip_prefix("holder")).map(str::trim);
        assert_eq!(holder, Some(field), "{text}");
        let busy = site.run(["run", "c", "--interop", "redisson", "-n", "--", "true"]);
        busy.complains(75, &format!("held by {field}, "));
    }
}

#[test]
fn options_that_mean_nothing_to_a_layout_are_refused_before_anything_is_taken() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for (line, lacks) in [
        ("run a --interop plain --cooldown 1s -- touch never", "cooldown; leave --cooldown out"),
        ("run a --interop redisson --on-ask TERM -- touch never", "leave --on-ask out"),
        ("hold a --interop plain --until-asked", "leave --until-asked out"),
        ("run a --interop plain --shared -- touch never", "leave --shared out"),
        ("run a --interop plain --limit 2 -- touch never", "leave --limit out"),
        ("run a --interop plain --once-per 5s -- touch never", "leave --once-per out"),
        ("run a --interop redisson --meta a=b -- touch never", "leave --meta out"),
        ("hold a --interop shedlock:x --meta a=b", "leave --meta out"),
        ("run a --interop redsync --owner me -- touch never", "leave --owner out"),
        ("hold a --interop redisson --owner me", "leave --owner out"),
        ("acquire a --interop redislock --owner me", "leave --owner out"),
        ("acquire a --interop plain --limit 2", "leave --limit out"),
        ("release --interop plain --cooldown 3s", "leave --cooldown out"),
        ("release --interop plain --all --owner x", "leave --all out"),
        ("release --interop redisson --all --owner x --yes", "leave --all out"),
    ] {
        site.line(line).complains(64, lacks);
    }
    assert!(!site.path("never").exists());
    assert_eq!(server.cli(&["KEYS", "*"]).trim(), "");
    // An owner that others can't see is left out, and so are the variables of a lock around it.
    for (layout, sees) in [("redsync", "-\n"), ("shedlock:x", "me\n")] {
        let told = format!("run a --interop {layout} -- sh -c echo${{IFS}}${{LEASEHOLD_OWNER:--}}");
        let mut run = site.command(told.split(' '));
        std::fs::write(site.path("owner.toml"), "owner = \"me\"\n").unwrap();
        run.env("LEASEHOLD_CONFIG", site.path("owner.toml")).env("LEASEHOLD_OWNER", "outer");
        assert_eq!(crate::harness::finish(&mut run).expect(0).stdout, sees, "{layout}");
    }
}

#[test]
fn a_wait_for_another_librarys_lock_says_no_more_than_is_known() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["SET", "a", "another's"]);
    let done = site.line("run a --interop plain -w 1s -- true");
    let done =
        done.complains(75, "held by another program, lease without end: its key has no expiry");
    assert!(!done.stderr.contains("position") && !done.stderr.contains(" for 1"), "{done:?}");
    does(&server, &["PEXPIRE", "a", "600000"]);
    let done = site.line("run a --interop plain -w 1s -- true");
    done.complains(75, "held by another program, lease expires in ");
}

#[test]
fn a_leftover_is_given_an_expiry_and_taken_after_it_where_that_is_asked_for() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["SET", "a", "left over"]);
    site.line("run a --interop redis-py -w 1s -- true").expect(75);
    assert_eq!(server.cli(&["PTTL", "a"]).trim(), "-1");
    let done = site.line("run a --interop redis-py --expire-leftovers 300ms -v -- true").expect(0);
    for step in
        ["a lock without an expiry got one", "a leftover lock without an expiry was acquired"]
    {
        let told = done.stderr.lines().filter(|line| line.contains(step) && line.contains("key=a"));
        assert_eq!(told.count(), 1, "{step}: {done:?}");
    }
    assert!(done.stderr.contains(" expiry=300ms"), "{done:?}");
    for (line, why) in [
        ("run a --expire-leftovers 1s -- true", "--interop"),
        ("run a --interop symfony --expire-leftovers 1s -- true", "leave --expire-leftovers out"),
        ("run a --interop plain --expire-leftovers 90d -- true", "30 days"),
        ("run a --interop plain --expire-leftovers 0 -- true", "--expire-leftovers"),
    ] {
        site.line(line).complains(64, why);
    }
}

/// A user of just the rights that the command prints locks, waits, renews, looks and releases.
#[test]
fn the_rule_for_a_layout_is_all_that_its_locks_need() {
    let server = RedisServer::start();
    let admin = Site::at(server.url());
    for layout in [
        "plain",
        "redis-py",
        "python-redis-lock",
        "node-redlock",
        "redis-semaphore",
        "redislock",
        "redsync",
        "symfony",
        "spring:reg",
        "shedlock:prod",
        "redisson",
        "redisson-fenced",
    ] {
        let rule =
            admin.line(&format!("doctor --acl --user u --interop {layout}")).expect(0).stdout;
        let rule = rule.trim().replace("PASSWORD", "x");
        does(&server, &rule.split(' ').collect::<Vec<_>>());
        does(&server, &["ACL", "LOG", "RESET"]);
        let site = Site::at(server.url_for("u", "x"));
        let work = "echo ready; while [ ! -e end ]; do sleep 0.02; done";
        let job = site.start_script(&format!("a --interop {layout} --ttl 3s"), work);
        let waiting = started(&site, &format!("run a --interop {layout} -v -- true"));
        let remaining = || {
            let shown = site.line(&format!("show a --json --interop {layout}")).expect(0).stdout;
            let document: Value = serde_json::from_str(&shown).unwrap();
            document["lock"]["holders"][0]["remaining_ms"].as_u64().unwrap()
        };
        let mut before = remaining();
        until("it is renewed", || {
            let now = remaining();
            now > std::mem::replace(&mut before, now)
        });
        fs::write(site.path("end"), "").unwrap();
        job.finish().expect(0);
        let done = waiting.finish();
        assert!(!done.stderr.contains("WARN"), "{layout}: {done:?}");
        done.expect(0);
        let log = server.cli(&["ACL", "LOG"]);
        let words: Vec<_> = log.lines().map(|line| line.trim_matches('"')).collect();
        // Those it does without. Redis 6.2 leaves out which `CLIENT` it was.
        let spare = ["role", "client|setinfo", "client", "delifeq", "delex"];
        let refused = words.windows(2).filter(|pair| pair[0] == "object");
        let refused: Vec<_> =
            refused.map(|pair| pair[1]).filter(|it| !spare.contains(it)).collect();
        assert!(refused.is_empty(), "{layout}: {log}");
    }
}

/// Takes the right to a command that not all servers have.
fn forbid(server: &RedisServer, user: &str, command: &str) {
    let known = server.cli(&["COMMAND", "INFO", command]).contains(command);
    if known {
        does(server, &["ACL", "SETUSER", user, &format!("-{command}")]);
    }
}

/// Redisson's waiters are told by a message, and Spring's.
#[test]
fn a_missing_right_to_publish_is_reported() {
    let server = RedisServer::builder().acl_user("mute on >x ~* &* +@all -publish").start();
    forbid(&server, "mute", "spublish");
    let site = Site::at(server.url_for("mute", "x"));
    for layout in ["redisson", "spring:reg"] {
        let done = site.line(&format!("run a --interop {layout} -v -- true")).expect(0);
        assert!(done.stderr.contains("lets no script send notifications"), "{layout}: {done:?}");
        assert_eq!(server.cli(&["KEYS", "*"]).trim(), "", "{layout}");
    }
}

#[test]
fn what_a_layout_lacks_and_where_it_is_not_is_said() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("run a --interop nothing -- true").complains(64, "unknown layout");
    Site::embedded().line("run a --interop plain -- true").complains(78, "in a Redis server");
    let logged = Site::at(format!("{}?log=10", server.url()));
    logged.line("show a --interop plain").complains(78, "leave log= out of the store's URL");
}

/// A release that the server refuses was answered: the job says with what.
#[test]
fn a_release_that_the_server_refuses_is_reported_as_refused() {
    let server = RedisServer::builder().acl_user("kept on >x ~* &* +@all -del -zrem").start();
    forbid(&server, "kept", "delifeq");
    let site = Site::at(server.url_for("kept", "x"));
    for layout in ["plain", "redisson", "python-redis-lock", "spring:reg", "symfony"] {
        let key = layout.replace(':', "-");
        let done = site.line(&format!("run {key} --interop {layout} -- true")).expect(0);
        assert!(done.stderr.contains("the server's ACL"), "{layout}: {done:?}");
        assert!(!done.stderr.contains("no answer"), "{layout}: {done:?}");
        assert_eq!(done.stderr.matches("release").count(), 1, "{layout}: {done:?}");
    }
}

#[test]
fn what_is_no_lease_is_not_called_one_of_leaseholds_own() {
    let site = Site::at("redis://127.0.0.1:1");
    for (lease, why) in [("garbage", "lease"), ("interop=plain garbage", "lease")] {
        let mut command = site.command(["renew", "--interop", "plain"]);
        let done = finish(command.env("LEASEHOLD_LEASE", lease));
        let done = done.complains(64, why);
        assert!(!done.stderr.contains("leave --interop out"), "{done:?}");
    }
}

#[test]
fn a_lease_is_acquired_in_one_process_and_released_in_another() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for (layout, key) in
        [("redislock", "a"), ("python-redis-lock", "lock:a"), ("symfony", "a"), ("redisson", "a")]
    {
        let line = format!("acquire a --interop {layout} --lease-file lease --ttl 10m");
        site.line(&line).expect(0);
        let left = || server.cli(&["PTTL", key]).trim().parse::<i64>().unwrap();
        assert!(left() > 500_000, "{layout}");
        site.line(&format!("run a --interop {layout} -n -- true")).expect(75);
        // The lease says of which library it is, so no command renews or ends another lock by
        // mistake.
        for forgotten in ["renew --lease-file lease", "release --lease-file lease"] {
            site.line(forgotten).complains(64, &format!("give --interop {layout}"));
        }
        site.line(&format!("renew --interop {layout} --lease-file lease --ttl 1h")).expect(0);
        assert!(left() > 3_000_000, "{layout}");
        site.line(&format!("release --interop {layout} --lease-file lease")).expect(0);
        assert_eq!(server.cli(&["EXISTS", key]).trim(), "0", "{layout}");
    }
    let done = site.line("acquire b --interop redislock --json").expect(0);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["fence"], Value::Null);
    assert!(document["lease"].as_str().unwrap().starts_with("interop=redislock "));
    let done = site.line("acquire c --interop redisson-fenced --json").expect(0);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["fence"], "1");
    // As others see it.
    let shown = site.line("show c --interop redisson-fenced").expect(0).stdout;
    let fence = shown.lines().find(|line| line.starts_with("  fence"));
    assert_eq!(fence.and_then(|line| line.split_whitespace().last()), Some("1"), "{shown}");
    let shown = site.line("show c --interop redisson-fenced --json").expect(0).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["lock"]["holders"][0]["fence"], "1", "{shown}");
    assert!(!site.line("show c --interop redisson").expect(0).stdout.contains("fence"));
}

/// A job that is moved from the locks of a library to leasehold's own.
struct Moving {
    server: RedisServer,
    site: Site,
    /// What it says before, in the first deployment, and in the second.
    lines: [String; 3],
}

impl Moving {
    /// With this as its work.
    fn new(work: &str) -> Self {
        let server = RedisServer::start();
        let site = Site::at(server.url());
        std::fs::write(site.path("work"), format!("#!/bin/sh\n{work}\n")).unwrap();
        let text = document("docs/interop.md");
        let both = script(&text, "leasehold run orders --interop redsync -- ").trim().to_owned();
        let (old, new) = both.split_once(" -- leasehold ").unwrap();
        let new = format!("leasehold {new}");
        assert!(text.contains(&format!("`{new}` for the second")), "{new}");
        Self { server, site, lines: [format!("{old} -- ./work"), both, new] }
    }

    fn command(&self, line: &str) -> std::process::Command {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("exec {}", line.replace("./work", "sh ./work"))]);
        command.env("PATH", path).env("LEASEHOLD_STORE", self.site.store());
        command.current_dir(self.site.path(""));
        command
    }
}

#[test]
fn moving_a_job_by_way_of_both_locks_loses_no_update() {
    // No step of it is atomic, so two at once lose an update.
    let moving = Moving::new("n=$(cat count)\necho $((n + 1)) > next.$$\nmv next.$$ count");
    std::fs::write(moving.site.path("count"), "0\n").unwrap();
    let [old, both, new] = &moving.lines;
    for deployment in [[old, both], [both, new]] {
        let jobs = deployment.into_iter().cycle().take(10);
        let jobs: Vec<_> = jobs.map(|line| Running::start(moving.command(line))).collect();
        for job in jobs {
            job.finish().expect(0);
        }
    }
    assert_eq!(moving.site.read("count"), "20\n");
}

#[test]
fn a_job_under_both_locks_ends_with_either() {
    let moving = Moving::new("echo $$\nread -r line\n");
    let both = &moving.lines[1];
    for own in [false, true] {
        let mut command = moving.command(both);
        command.stdin(std::process::Stdio::piped());
        let mut job = Running::start(command);
        let work = job.line().parse().unwrap();
        if own {
            let fence = lock(&moving.site, "orders")["holders"][0]["fence"].clone();
            let fence = fence.as_str().unwrap();
            moving.site.run(["force-release", "orders", "--fence", fence]).expect(0);
        } else {
            does(&moving.server, &["DEL", "orders"]);
        }
        job.finish().expect(76);
        assert_eq!(state(work), None, "the work has ended");
    }
}
