//! Every kind of lock from the command line, on one machine and on Redis.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Done, Running, Site, finish, gone, until};

/// Runs the body once on each sort of store.
fn everywhere(body: impl Fn(&Site)) {
    body(&Site::embedded());
    let server = RedisServer::start();
    body(&Site::at(server.url()));
}

fn hold(site: &Site, options: &str) -> Running {
    let mut running = site.start(["hold", "--ignore-stdin"].into_iter().chain(options.split(' ')));
    running.line();
    running
}

fn shown(site: &Site, key: &str) -> Value {
    let text = site.run(["show", key, "--json"]).expect(0).stdout;
    serde_json::from_str::<Value>(&text).unwrap()["lock"].take()
}

fn end(mut running: Running) -> Done {
    running.process().signal(Signal::TERM);
    running.finish()
}

#[test]
fn twenty_hosts_run_a_quick_job_exactly_once_in_a_period() {
    everywhere(|site| {
        let line = "run report --once-per 1h -q -- sh -c";
        let words: Vec<&str> = line.split(' ').chain(["echo ran >> log"]).collect();
        let runs: Vec<Running> = (0..20).map(|_| site.start(&words)).collect();
        let codes = runs.into_iter().map(|run| run.finish().status.code().unwrap());
        let mut codes: Vec<i32> = codes.collect();
        codes.sort_unstable();
        assert_eq!((codes[0], &codes[1..]), (0, &[75; 19][..]));
        assert_eq!(site.read("log"), "ran\n");
        // And no later command, whatever its own period.
        site.line("run report --once-per 1ms -- true")
            .complains(75, "cooling down for another 59m");
        site.line("run report -n -- true").complains(75, "cooling down for another 59m");
        assert!(shown(site, "report")["closed_for_ms"].as_u64().unwrap() > 3_000_000);
    });
}

#[test]
fn a_job_that_fails_keeps_its_period_closed_unless_it_is_to_open_it_again() {
    everywhere(|site| {
        site.line("run a --once-per 1h -- false").expect(1);
        site.line("run a --once-per 1h -- true").expect(75);
        site.line("run b --once-per 1h --reopen-on-failure -- false").expect(1);
        site.line("run b --once-per 1h --reopen-on-failure -- true").expect(0);
        site.line("run b --once-per 1h --reopen-on-failure -- true").expect(75);
        // Nothing has been run here.
        site.line("run c --once-per 1h -- no-such-program").expect(127);
        site.line("run c --once-per 1h -- true").expect(0);
    });
}

#[test]
fn a_period_whose_lock_was_force_released_stays_closed() {
    everywhere(|site| {
        let job =
            site.start("run k --once-per 1h --reopen-on-failure --ttl 5s -- sleep 1000".split(' '));
        until("it is at work", || !shown(site, "k")["holders"][0].is_null());
        let fence = shown(site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned();
        site.run(["force-release", "k", "--fence", &fence]).expect(0);
        job.finish().expect(76);
        site.line("run k --once-per 1h -- true").complains(75, "cooling down for another 59m");
    });
}

#[test]
fn a_start_just_before_the_end_of_a_period_learns_why_it_misses_one() {
    let site = Site::embedded();
    let missed = "Less than 5 % of the period of 1h was left";
    site.line("run a --once-per 1h -- true").expect(0);
    let done = site.line("run a --once-per 1h -- true").expect(75);
    assert!(!done.stderr.contains(missed), "{done:?}");
    // A minute is less than the hour of the first.
    site.line("run b --once-per 1m -- true").expect(0);
    site.line("run b --once-per 1h -- true").complains(75, missed);
    assert_eq!(site.line("run b --once-per 1h -q -- true").expect(75).stderr, "");
}

#[test]
fn a_killed_job_keeps_its_period_closed() {
    let site = Site::embedded();
    let mut run = site.start_script("k --once-per 1h", "echo begun; sleep 600");
    run.process().kill();
    run.finish();
    until("nobody holds it", || shown(&site, "k")["holders"].as_array().is_some_and(Vec::is_empty));
    site.line("run k --once-per 1h -- true").complains(75, "cooling down for another 59m");
}

/// The store keeps the try for as long as its replicas have time to confirm it.
#[test]
fn a_try_that_replicas_do_not_confirm_is_no_wait_for_itself() {
    let server = RedisServer::start();
    let url = server.url();
    let mark = if url.contains('?') { '&' } else { '?' };
    let site = Site::at(format!("{url}{mark}replicas=1&replicate_timeout=1s&keep_leases=yes"));
    for line in ["run a --once-per 1h -- echo never", "run b -n -- echo never"] {
        let done = site.line(line).complains(69, "replica");
        assert!(!done.stderr.contains("waiting: "), "{done:?}");
    }
}

/// A first comer whose own try came to nothing does not take another's for a holder.
#[test]
fn replicas_that_are_away_are_reported_for_each_kind_of_lock() {
    let server = RedisServer::start();
    let url = server.url();
    let site = Site::at(format!("{url}?replicas=1&replicate_timeout=300ms&keep_leases=yes"));
    for kind in ["k", "p --limit 1"] {
        let first = site.start(format!("run {kind} -w 3 -- echo never").split(' '));
        until("it tries", || !shown(&site, &kind[..1]).is_null());
        let second = site.start(format!("run {kind} -w 30 -- echo never").split(' '));
        first.finish().complains(69, "the grant was not confirmed");
        drop(second);
    }
}

#[test]
fn readers_share_and_a_writer_waits_for_all_of_them() {
    everywhere(|site| {
        let readers = [hold(site, "-s k"), hold(site, "--shared k")];
        site.line("run -n k -- true").complains(75, "and 1 other");
        site.line("run -n -s k -- true").expect(0);
        let mut writer = site.start(["run", "k", "--", "sh", "-c", "echo wrote; cat", "-"]);
        until("the writer waits", || shown(site, "k")["waiters"][0]["mode"]["name"] == "exclusive");
        // A writer that waits goes before readers that come after.
        site.line("run -n -s k -- true").expect(75);
        site.line("wait -n -s k").expect(75);
        for reader in readers {
            assert_eq!(writer.exited(), None);
            end(reader).expect(0);
        }
        assert_eq!(writer.line(), "wrote");
        writer.finish().expect(0);
        site.line("wait -n -s k").expect(0);
    });
}

/// Each holder of permits makes as many files while it runs, and the highest count is noted.
fn permits_are_never_exceeded(site: &Site) {
    fs::create_dir_all(site.path("in")).unwrap();
    let script = r#"
        for n in $(seq $LEASEHOLD_PERMITS); do : > in/$LEASEHOLD_FENCE.$n; done
        ls in | wc -l >> counts
        sleep 0.05
        ls in | wc -l >> counts
        rm in/$LEASEHOLD_FENCE.*
    "#;
    let runs: Vec<Running> = (0..12)
        .map(|n| {
            let permits = if n % 3 == 0 { "2" } else { "1" };
            site.start(["run", "floor", "--limit", "3", "--permits", permits, "-c", script])
        })
        .collect();
    for run in runs {
        run.finish().expect(0);
    }
    let counts = site.read("counts");
    let counts: Vec<u32> = counts.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(counts.len(), 24);
    assert!(counts.iter().all(|count| *count <= 3), "{counts:?}");
}

#[test]
fn twelve_processes_never_have_more_than_all_permits() {
    everywhere(permits_are_never_exceeded);
}

#[test]
fn the_permits_of_the_killed_come_back() {
    everywhere(|site| {
        let options = "floor --limit 3 --permits 2 --ttl 2s";
        let mut killed = hold(site, options);
        let mut other = hold(site, "floor --limit 3 --ttl 2s");
        site.line("run -n floor --limit 3 -- true").complains(75, "3 of 3 permits held");
        let before = shown(site, "floor");
        assert_eq!((&before["kind"]["held"], &before["kind"]["free"]), (&3.into(), &0.into()));
        for running in [&mut killed, &mut other] {
            running.process().kill();
        }
        site.line("run floor --limit 3 --permits 3 -- true").expect(0);
    });
}

#[test]
fn another_limit_is_refused_until_it_is_changed() {
    everywhere(|site| {
        let held = hold(site, "floor --limit 2 --permits 2");
        let refused = site.line("run -n floor --limit 3 -- true").complains(69, "limit 2");
        let remedy = "`leasehold set-limit floor LIMIT`";
        assert!(refused.stderr.contains(remedy), "{refused:?}");
        site.line("run -n floor --limit 3 --stored-limit -- true").complains(75, "2 of 2 permits");
        assert!(refused.stderr.contains('3'), "{refused:?}");
        site.line("run -n floor -- true").complains(69, "semaphore with limit 2");
        site.line("wait -n floor").complains(69, "give --permits");
        site.line("wait -n floor --permits 1").expect(75);
        site.line("wait floor --permits 3").complains(
            69,
            "its limit is 2, so 3 permits are never \
                                                           free",
        );
        let done = site.line("set-limit floor 3").expect(0);
        assert!(done.stderr.contains("limit changed from 2 to 3"), "{done:?}");
        site.line("run -n floor --limit 3 -- true").expect(0);
        site.line("run -n floor --limit 2 -- true").complains(69, "limit 3");
        site.line("wait -n floor --permits 1").expect(0);
        let text = site.line("show floor").expect(0).stdout;
        assert!(text.contains("semaphore with limit 3"), "{text}");
        assert!(text.contains("2 held, 1 free"), "{text}");
        assert!(site.line("ls").expect(0).stdout.contains("  2/3  "));
        end(held).expect(0);
        site.line("set-limit floor 3").complains(76, "it is not in use");
        let _mutex = hold(site, "floor");
        site.line("set-limit floor 3").complains(69, "floor");
        site.line("set-limit floor 0").complains(64, "give at least 1");
    });
}

#[test]
fn several_locks_are_held_together_and_the_command_knows_all_fences() {
    everywhere(|site| {
        let script = r#"echo "$LEASEHOLD_KEY"; echo "$LEASEHOLD_FENCE"
            echo "$LEASEHOLD_KEY_1=$LEASEHOLD_FENCE_1 $LEASEHOLD_KEY_2=$LEASEHOLD_FENCE_2"; read end"#;
        let mut command = site.command(["run", "b b", "a", "-c", script, "--"]);
        command.stdin(Stdio::piped());
        let mut both = Running::start(command);
        let lines: Vec<String> = (0..5).map(|_| both.line()).collect();
        assert_eq!(lines[..2], ["b b", "a"], "in the order in which they were given");
        assert_eq!(lines[4], format!("b b={} a={}", lines[2], lines[3]));
        for key in ["a", "b b"] {
            site.run(["run", "-n", key, "--", "true"]).expect(75);
        }
        site.line("run -n a free -- true").complains(75, "\"a\"");
        site.line("run -n free -- true").expect(0);
        both.child().stdin.take().unwrap().write_all(b"\n").unwrap();
        both.finish().expect(0);
        site.run(["run", "-n", "b b", "a", "--", "true"]).expect(0);
    });
}

#[test]
fn a_command_under_one_lock_does_not_see_the_variables_of_several() {
    let site = Site::embedded();
    let inner = format!("{} run c -- env", env!("CARGO_BIN_EXE_leasehold"));
    let env = site.run(["run", "a", "b", "--", "sh", "-c", &inner]).expect(0).stdout;
    assert!(env.contains("LEASEHOLD_KEY=c\n"), "{env}");
    assert!(!env.contains("LEASEHOLD_KEY_") && !env.contains("LEASEHOLD_FENCE_"), "{env}");
    assert!(!env.contains("LEASEHOLD_PERMITS"), "{env}");
}

#[test]
fn sets_of_locks_in_any_order_never_wait_for_each_other_in_a_circle() {
    everywhere(|site| {
        let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["c", "a", "b"]];
        let runs: Vec<Running> = (0..16)
            .map(|n| {
                let [x, y, z] = orders[n % orders.len()];
                let script = "n=$(cat sum 2>/dev/null || echo 0); echo $((n + 1)) > sum";
                site.start(["run", x, y, z, "-c", script, "--"])
            })
            .collect();
        for run in runs {
            run.finish().expect(0);
        }
        assert_eq!(site.read("sum"), "16\n");
    });
}

#[test]
fn a_command_under_several_locks_ends_when_one_is_force_released() {
    everywhere(|site| {
        let options = "a b --ttl 5s -- sh -c";
        let script = "trap 'exit 9' TERM; echo $LEASEHOLD_FENCE_2; while :; do sleep 0.02; done";
        let mut run = site.start(["run"].into_iter().chain(options.split(' ')).chain([script]));
        let fence = run.line();
        site.run(["force-release", "b", "--fence", &fence]).expect(0);
        let done = run.finish().expect(76);
        assert!(done.stderr.contains(&format!("(fence {fence}): force-released")), "{done:?}");
        assert!(!done.stderr.contains("lost \"a\""), "{done:?}");
        site.line("run -n a b -- true").expect(0);
    });
}

#[test]
fn a_command_under_several_locks_ends_when_their_store_goes_away() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut run = site.start(["run", "a", "b", "--ttl", "1s", "--", "sh", "-c", script]);
    let pid = run.line().parse().unwrap();
    server.pause();
    let done = run.finish().expect(76);
    for key in ["a", "b"] {
        assert!(done.stderr.contains(&format!("lost \"{key}\" at ")), "{done:?}");
    }
    gone(pid);
    server.resume();
    site.line("run -w 30 a b -- true").expect(0);
}

#[test]
fn several_locks_of_a_cluster_are_held_together_whatever_their_slots() {
    let cluster = Cluster::start();
    assert_ne!(cluster.slot_of("a"), cluster.slot_of("b"));
    let site = Site::at(cluster.url());
    let held = hold(&site, "a b");
    for line in ["run -n a -- true", "run -n free b -- true"] {
        site.line(line).expect(75);
    }
    site.line("run -n free -- true").expect(0);
    end(held).expect(0);
    site.line("run -n b a -- true").expect(0);
}

#[test]
fn thousands_of_leases_that_were_taken_together_are_released_together() {
    let site = Site::embedded();
    let names: Vec<String> = (0..2_000).map(|n| format!("{n}")).collect();
    site.line(&format!("acquire {} --lease-file all", names.join(" "))).expect(0);
    site.line("release --lease-file all").expect(0);
    site.line("run -n 0 1999 -- true").expect(0);
}

#[test]
fn leases_that_were_taken_together_are_renewed_and_released_together() {
    let site = Site::embedded();
    site.line("acquire a b --lease-file both").expect(0);
    // Two leases, and where they were taken.
    assert_eq!(site.read("both").lines().count(), 3);
    site.line("run -n b -- true").expect(75);
    site.line("renew --lease-file both --ttl 2h").expect(0);
    assert_eq!(site.read("both").matches(" 7200000 ").count(), 2);
    site.line("release --lease-file both").expect(0);
    assert!(!site.path("both").exists());
    site.line("run -n a b -- true").expect(0);
    let lease = site.line("acquire floor --limit 2").expect(0).stdout;
    site.line("run -n floor --limit 2 -- true").expect(0);
    site.line("run -n floor --limit 2 --permits 2 -- true").expect(75);
    finish(site.command(["release"]).env("LEASEHOLD_LEASE", &lease)).expect(0);
    site.line("run -n floor --limit 2 --permits 2 -- true").expect(0);
}

#[test]
fn a_command_that_wants_to_be_asked_ends_when_it_is() {
    everywhere(|site| {
        let script = "trap 'echo asked; exit 7' USR1; echo up; while :; do sleep 0.02; done";
        let mut run = site.start_script("k --on-ask USR1", script);
        site.line("ask k --fence 7").complains(76, "it has no holder with fence 7");
        let done = site.line("ask k --owner dba").expect(0);
        assert!(done.stderr.contains("requested the release of \"k\""), "{done:?}");
        assert_eq!(run.line(), "asked");
        let done = run.finish().expect(7);
        let told = "dba requests the release of \"k\" (fence ";
        assert!(done.stderr.contains(told), "{done:?}");
        assert!(done.stderr.contains("the command gets USR1"), "{done:?}");
        site.line("ask k").complains(76, "it has no holder");
        // TERM ends the whole group, as it would from elsewhere.
        let run = site.start_script("k --on-ask sigterm", "echo up; sleep 600 & sleep 600");
        site.line("ask k").expect(0);
        run.finish().expect(143);
        site.line("run -n k -- true").expect(0);
    });
}

#[test]
fn a_command_that_does_not_is_left_alone_and_a_message_names_who_asks() {
    everywhere(|site| {
        let run = site.start_script("k --ttl 5s", "echo up; until [ -e end ]; do sleep 0.02; done");
        site.line("ask k --owner dba").expect(0);
        assert_eq!(shown(site, "k")["holders"][0]["asked_by"], "dba");
        assert!(site.line("show k").expect(0).stdout.contains("  asked by    dba\n"));
        let list = site.line("ls").expect(0).stdout;
        assert!(list.contains("ASKED") && list.contains("  dba  "), "{list}");
        let mut run = run;
        let told = run.message();
        assert!(told.starts_with("leasehold: dba requests the release of \"k\""), "{told}");
        assert_eq!(run.exited(), None);
        fs::write(site.path("end"), "").unwrap();
        run.finish().expect(0);
        fs::remove_file(site.path("end")).unwrap();
    });
}

#[test]
fn a_hold_with_on_ask_ends_at_a_release_request() {
    everywhere(|site| {
        let held = hold(site, "k --until-asked");
        let next = site.start(["run", "k", "--", "true"]);
        site.line("ask k").expect(0);
        held.finish().expect(0);
        next.finish().expect(0);
    });
}

#[test]
fn only_the_leases_of_the_named_owner_are_force_released() {
    everywhere(|site| {
        let _theirs = [hold(site, "a --owner gone"), hold(site, "b --limit 3 --owner gone")];
        let _ours = hold(site, "b --limit 3 --owner here");
        site.line("release --all").complains(64, "give --owner NAME");
        let named = site.line("release --all --owner gone").expect(0);
        assert!(named.stderr.contains("nothing was released; add --yes"), "{named:?}");
        let rows: Vec<_> = named.stdout.lines().map(|row| row.split_whitespace()).collect();
        let names: Vec<_> = rows.into_iter().map(|mut row| (row.next(), row.last())).collect();
        assert_eq!(names, [(Some("a"), Some("held")), (Some("b"), Some("held"))]);
        site.line("run -n a -- true").expect(75);
        let done = site.line("release --all --owner gone --yes").expect(0);
        let rows: Vec<Vec<&str>> =
            done.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0][0], rows[0][2]), ("a", "released"));
        assert_eq!((rows[1][0], rows[1][2]), ("b", "released"));
        site.line("run -n a -- true").expect(0);
        let left = shown(site, "b");
        assert_eq!(left["holders"].as_array().unwrap().len(), 1);
        assert_eq!(left["holders"][0]["owner"], "here");
        let done = site.line("release --all --owner gone --yes").expect(0);
        assert!(done.stderr.contains("gone has no leases"), "{done:?}");
    });
}

#[test]
fn what_can_not_go_together_is_refused_with_what_to_do() {
    // No store gets a request.
    let site = Site::at("redis://127.0.0.1:1");
    for (options, advice) in [
        ("k -s -x", "give one"),
        ("k -s --limit 3", "give one"),
        ("k -x --limit 3", "give one"),
        ("k -s --once-per 1h", "give one"),
        ("k --limit 3 --once-per 1h", "give one"),
        ("a b -s", "--shared takes one lock"),
        ("a b --limit 3", "--limit takes one lock"),
        ("a b --once-per 1h", "--once-per takes one lock"),
        ("a b a", "name each lock once"),
        ("k --permits 2", "needs --limit N"),
        ("k --limit 0", "give at least 1"),
        ("k --limit 3 --permits 0", "give at least 1"),
        ("k --limit 3 --permits 4", "give fewer"),
        ("k --limit -3", "give a whole number"),
        ("k --once-per 0", "give 1 ms to 365 days"),
        ("k --once-per 1h -w 5", "leave --wait out"),
        ("k --once-per 366days", "give 1 ms to 365 days"),
    ] {
        for command in ["run", "hold", "acquire"] {
            let job = if command == "run" { " -- true" } else { "" };
            site.line(&format!("{command} {options}{job}")).complains(64, advice);
        }
    }
    for (line, advice) in [
        ("run k -s --cooldown 1m -- true", "leave --cooldown out"),
        ("run k --limit 2 --cooldown 1m -- true", "leave --cooldown out"),
        ("run k --once-per 1h --cooldown 1m -- true", "leave --cooldown out"),
        ("run k --reopen-on-failure -- true", "--once-per again; give that too"),
        ("run k --on-ask FLY -- true", "give one of HUP"),
        ("elect k --on-ask 0 -- true", "a number from 1 to 64"),
        ("release --all --cooldown 1m", "--cooldown"),
    ] {
        site.line(line).complains(64, advice);
    }
}
