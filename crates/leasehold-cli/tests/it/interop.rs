//! Locks of other libraries, whose programs are played by single commands.

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::Site;

/// A program of another library does something.
fn does(server: &RedisServer, command: &[&str]) {
    drop(server.cli(command));
}

#[test]
fn a_job_and_another_librarys_program_keep_each_other_out() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["SET", "orders", "another's", "PX", "600000"]);
    let busy = site.line("run orders --interop redis-py -n -- true");
    busy.complains(75, "is held by another program, its lease ends in 9m");
    does(&server, &["DEL", "orders"]);

    let job = site.start_script("orders --interop redis-py", "echo held; cat; sleep 600");
    let value = server.cli(&["GET", "orders"]);
    assert!(value.trim().len() == 32, "{value}");
    does(&server, &["SET", "orders", "another's"]);
    let lost = job.finish();
    assert!(lost.stderr.contains("lost \"orders\": it was taken away"), "{lost:?}");
    lost.expect(76);
    assert_eq!(server.cli(&["GET", "orders"]).trim(), "another's");
}

#[test]
fn a_job_is_told_of_no_fence_where_there_is_none() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for (layout, expected) in
        [("redislock", "none"), ("redisson", "none"), ("redisson-fenced", "1")]
    {
        let words = ["run", "a", "--interop", layout, "--", "sh", "-c"];
        let script = ["echo ${LEASEHOLD_FENCE-none}"];
        let mut command = site.command(words.into_iter().chain(script));
        command.env("LEASEHOLD_FENCE", "of a lock around this one");
        let done = crate::harness::finish(&mut command);
        assert_eq!(done.expect(0).stdout, format!("{expected}\n"), "{layout}");
    }
    let mut holder = site.start(["hold", "a", "--interop", "symfony", "--ignore-stdin"]);
    assert_eq!(holder.line(), "- a");
    holder.process().signal(Signal::TERM);
    holder.finish().expect(0);
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
    assert!(text.contains("never: it has no expiry") && !text.contains("fence"), "{text}");
    assert!(!text.contains("abcdef"), "the token is a secret: {text}");

    does(&server, &["HSET", "b", "1234abcd-0000:77", "2"]);
    let text = site.run(["show", "b", "--interop", "redisson"]).expect(0).stdout;
    assert!(text.contains("client 1234abcd, thread 77") && text.contains("holds"), "{text}");
    site.run(["show", "b", "--interop", "plain"]).complains(69, "a hash stands at its key");
}

#[test]
fn options_that_mean_nothing_to_a_layout_are_refused_before_anything_is_taken() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for (line, lacks) in [
        ("run a --interop plain --cooldown 1s -- touch never", "cool-down; leave --cooldown out"),
        ("run a --interop redisson --on-ask TERM -- touch never", "leave --on-ask out"),
        ("hold a --interop plain --until-asked", "leave --until-asked out"),
    ] {
        site.line(line).complains(64, lacks);
    }
    assert!(!site.path("never").exists());
    assert_eq!(server.cli(&["KEYS", "*"]).trim(), "");
}

#[test]
fn a_wait_for_another_librarys_lock_says_no_more_than_is_known() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    does(&server, &["SET", "a", "another's"]);
    let done = site.line("run a --interop plain -w 300ms -- true");
    let done = done.complains(
        75,
        "held by another program; its lease has no end, since its key has no expiry",
    );
    assert!(!done.stderr.contains("in line") && !done.stderr.contains(" for 1"), "{done:?}");
    does(&server, &["PEXPIRE", "a", "600000"]);
    let done = site.line("run a --interop plain -w 300ms -- true");
    done.complains(75, "held by another program; its lease ends in ");
}

#[test]
fn what_a_layout_lacks_and_where_it_is_not_is_said() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("run a --interop nothing -- true").complains(64, "no layout is called that");
    site.line("run a --interop plain --shared -- true").complains(69, "beside each other");
    site.line("run a --interop redisson --meta a=b -- true").complains(69, "room for metadata");
    Site::embedded().line("run a --interop plain -- true").complains(78, "in a Redis server");
}

#[test]
fn a_lease_is_taken_in_one_process_and_given_back_in_another() {
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
        // The lease says of which library it is, so nobody renews or ends another lock by mistake.
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
}
