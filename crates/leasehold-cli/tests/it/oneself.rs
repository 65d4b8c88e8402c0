//! A command that would wait for a command around it, and owners that have one name.

use leasehold_testkit::server::RedisServer;

use crate::harness::{Done, Running, Site, finish, lock, shell, until};

/// On both kinds of stores.
fn everywhere(test: impl Fn(&Site)) {
    test(&Site::embedded());
    let server = RedisServer::start();
    test(&Site::at(server.url()));
}

/// Runs a line of a shell in which `$0` is the command.
fn script(site: &Site, line: &str) -> Done {
    finish(&mut shell(site, line))
}

#[test]
fn what_would_wait_for_a_command_around_it_says_so_and_ends() {
    everywhere(|site| {
        for inner in [
            "run k -- true",
            "run k -n -- true",
            "run other k -- true",
            "hold k --ignore-stdin",
            "acquire k",
            "elect k -- true",
            "wait k",
            "run -s k -- true",
        ] {
            let outer = format!("\"$0\" run k -- \"$0\" {inner}");
            let done =
                script(site, &outer).complains(75, "\"k\" is held by a command around this one");
            assert!(done.stderr.contains("--wait-for-outer"), "{inner}: {done:?}");
        }
        // Whatever stands between them.
        let far = "\"$0\" run k -- sh -c '\"$0\" run other -- \"$0\" run k -- true' \"$0\"";
        script(site, far).complains(75, "by a command around this one");
        let first = "\"$0\" run a -- \"$0\" run b -- \"$0\" run a -- true";
        script(site, first).complains(75, "\"a\" is held by a command around this one");
        script(site, "\"$0\" run k -- \"$0\" run k -q -E 9 -- true").expect(9);
        // A script's own lease.
        let own = "LEASEHOLD_LEASE=$(\"$0\" acquire k); export LEASEHOLD_LEASE; \"$0\" run k -- true; \
                   code=$?; \"$0\" release && exit $code";
        script(site, own).complains(75, "by a command around this one");
    });
}

/// What takes the variables of a command's environment away, and maybe its user, session or
/// terminal.
const TOOLS: [(&str, bool, &str); 9] = [
    ("env", false, "env -i PATH=\"$PATH\" INNER"),
    ("setsid", false, "setsid -w env -i INNER"),
    ("timeout", false, "timeout 600 env -i INNER"),
    ("sh", false, "env -i sh -c 'INNER; exit $?'"),
    ("bash", false, "env -i bash -c 'set -m; INNER & wait $!'"),
    ("sudo", true, "sudo -u nobody INNER"),
    ("su", true, "su nobody -s /bin/sh -c 'INNER'"),
    ("su", true, "su - nobody -s /bin/sh -c 'INNER'"),
    ("runuser", true, "runuser -u nobody -- env -i INNER"),
];

/// A place of which all users can use the command `./leasehold`, the directory and the store.
fn for_all_users(site: &Site) {
    let make = "cp \"$0\" leasehold && chmod 755 leasehold && chmod 777 .";
    script(site, make).expect(0);
}

#[test]
fn a_command_around_it_is_known_whatever_takes_the_environment_away() {
    let server = RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        for_all_users(&site);
        // The directory of an embedded store is its owner's.
        let may_be_another = rustix::process::geteuid().is_root() && site.store().contains("redis");
        let command = format!("'{}/leasehold' --store {}", site.path("").display(), site.store());
        let mut tried = 0;
        for (tool, as_another, line) in TOOLS {
            let there = format!("command -v {tool} >/dev/null");
            if (as_another && !may_be_another) || script(&site, &there).status.code() != Some(0) {
                continue;
            }
            tried += 1;
            for inner in
                ["run k -- true", "run other k -- true", "hold k", "elect k -- true", "wait k"]
            {
                let inner =
                    line.replace("INNER", &format!("{} {inner}", command.replace('\'', "")));
                let line = format!("{command} run k -- {inner}");
                let done = script(&site, &line);
                assert!(
                    done.stderr.contains("\"k\" is held by a command around this one"),
                    "{line}: {done:?}"
                );
                assert_eq!(done.status.code(), Some(75), "{line}: {done:?}");
            }
        }
        assert!(tried >= 4, "{tried}");
        // Two locks, the environment gone between all of them.
        let line =
            format!("{command} run a -- env -i {command} run b -- env -i {command} run a -- true");
        script(&site, &line).complains(75, "\"a\" is held by a command around this one");
        let line = format!("{command} run k -- env -i {command} run k -q -E 9 -- true");
        script(&site, &line).expect(9);
    }
}

#[test]
fn a_script_that_runs_itself_under_its_lock_ends_in_the_second_round() {
    everywhere(|site| {
        for_all_users(site);
        let store = site.store();
        let again =
            format!("exec env -i PATH=\"$PATH\" ./leasehold --store {store} run k -- ./job");
        let make = format!(
            "printf '%s\\n' '#!/bin/sh' 'echo round >>rounds' '{again}' >job && chmod 755 job"
        );
        script(site, &make).expect(0);
        script(site, "./job").complains(75, "\"k\" is held by a command around this one");
        assert_eq!(site.read("rounds"), "round\nround\n");
    });
}

/// The first process of a new namespace finds nobody around it, so the variable alone tells.
#[test]
fn a_command_around_it_is_known_by_the_environment_where_no_process_is_shown() {
    let site = Site::embedded();
    let there = "unshare -rpf --mount-proc true 2>/dev/null";
    if script(&site, there).status.code() != Some(0) {
        return;
    }
    let line = "\"$0\" run k -- unshare -rpf --mount-proc \"$0\" run k -- true";
    script(&site, line).complains(75, "\"k\" is held by a command around this one");
}

#[test]
fn what_would_wait_for_the_script_around_it_says_so_and_ends() {
    everywhere(|site| {
        let take = "fence=$(\"$0\" hold k --while-pid $$ --background) || exit 1; ";
        for inner in [
            "run k -- true",
            "run k -n -- true",
            "run other k -- true",
            "hold k --while-pid $$ --background",
            "acquire k",
            "elect k -- true",
            "wait k",
            "run -s k -- true",
        ] {
            // Whatever stands between them.
            for line in [
                format!("\"$0\" {inner}"),
                format!("setsid -w sh -c '\"$0\" {inner}; exit $?' \"$0\""),
            ] {
                let done = script(site, &format!("{take}{line}"))
                    .complains(75, "\"k\" is held by a command around this one");
                assert!(done.stderr.contains("--wait-for-outer"), "{line}: {done:?}");
            }
        }
        script(site, &format!("{take}\"$0\" run k -q -E 9 -- true")).expect(9);
        let line = "\"$0\" run other -- true && \"$0\" run k --wait-for-outer -w 2 -- true";
        let done = script(site, &format!("{take}{line}")).complains(75, "timed out");
        assert!(!done.stderr.contains("around this one"), "{done:?}");
        // One that is held for another script is nobody's own.
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let line = format!("hold k --background --while-pid {}", process.id());
        site.line(&line).expect(0);
        let done = script(site, "\"$0\" run k -w 2 -- true").complains(75, "timed out");
        assert!(!done.stderr.contains("around this one"), "{done:?}");
        process.kill().unwrap();
        process.wait().unwrap();
    });
}

#[test]
fn a_command_behind_a_waiter_for_a_command_around_it_ends_too() {
    everywhere(|site| {
        for (beside, alone) in [("-s", ""), ("--limit 2", "--limit 2 --permits 2")] {
            let inner =
                format!("while [ ! -e go ]; do sleep 0.02; done; \"$0\" run {beside} k -- true");
            let outer = format!("\"$0\" run {beside} k -- sh -c '{inner}' \"$0\"");
            let outer = Running::start(shell(site, &outer));
            let some =
                |what: &str| lock(site, "k")[what].as_array().is_some_and(|list| !list.is_empty());
            until("it has the lock", || some("holders"));
            let line = format!("run {alone} k -- true");
            let writer = site.start(line.split_whitespace());
            until("one waits", || some("waiters"));
            std::fs::write(site.path("go"), "").unwrap();
            outer.finish().complains(75, "by a command around this one");
            writer.finish().expect(0);
            std::fs::remove_file(site.path("go")).unwrap();
        }
    });
}

#[test]
fn what_can_be_had_beside_a_command_around_it_is_taken() {
    everywhere(|site| {
        for line in [
            "\"$0\" run k -- \"$0\" run other -- true",
            "\"$0\" run -s k -- \"$0\" run -s k -- true",
            "\"$0\" run --limit 2 k -- \"$0\" run --limit 2 k -- true",
            // A command that has ended is around no other.
            "held=$(\"$0\" run k -- sh -c 'echo \"$LEASEHOLD_OUTER\"'); \
             LEASEHOLD_OUTER=$held \"$0\" run k -- true",
            "LEASEHOLD_OUTER='nonsense' \"$0\" run k -- true",
        ] {
            let done = script(site, line).expect(0);
            assert_eq!(done.stderr, "", "{line}");
        }
        let all = "\"$0\" run --limit 2 k -- \"$0\" run --limit 2 --permits 2 k -- true";
        script(site, all).complains(75, "by a command around this one");
    });
}

#[test]
fn a_command_that_waits_for_itself_is_reported_as_a_circle_of_one() {
    let site = Site::embedded();
    let _outer = site.start([
        "run",
        "k",
        "--",
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "k",
        "--wait-for-outer",
        "--",
        "true",
    ]);
    until("it waits", || lock(&site, "k")["waiters"].as_array().is_some_and(|all| all.len() == 1));
    let told = site.run(["why", "k"]).expect(0).stdout;
    assert!(told.contains("it waits for itself"), "{told}");
}

#[test]
fn of_waiters_with_one_name_each_learns_its_own_position() {
    everywhere(|site| {
        let mut holder = site.start(["hold", "k", "--ignore-stdin", "--owner", "app_1"]);
        holder.line();
        let mut first = site.start(["run", "k", "--owner", "app_1", "--", "true"]);
        let waiting =
            |n| until("it waits", || lock(site, "k")["waiters"].as_array().unwrap().len() == n);
        waiting(1);
        let mut second = site.start(["run", "k", "--owner", "app_1", "--", "true"]);
        waiting(2);
        for (waiter, place) in [(&mut first, 1), (&mut second, 2)] {
            let told = waiter.message();
            assert!(told.contains("\"k\" is held by app_1 "), "{told}");
            assert!(told.ends_with(&format!(", this one at position {place}")), "{told}");
        }
        let done = site.line("run k -n --owner app_1 -- true").expect(75);
        assert!(done.stderr.contains("is held by app_1"), "{done:?}");
    });
}

/// The store has the grant, and its replicas, which are away, do not confirm it.
#[test]
fn a_grant_that_is_not_confirmed_is_reported_as_that_with_one_time() {
    let server = RedisServer::start();
    let store = format!("{}?replicas=1&replicate_timeout=1s&keep_leases=yes", server.url());
    let mut command = Site::at(store).start(["run", "k", "--", "true"]);
    let told = command.message();
    let (granted, rest) = told.split_once(" ago, ").unwrap_or_default();
    assert!(granted.contains("waiting: \"k\" was granted to this command "), "{told}");
    assert_eq!(rest, "and is not confirmed yet", "{told}");
}

#[test]
fn two_processes_with_one_number_have_owners_of_their_own() {
    let site = Site::embedded();
    // Each is the first process of a PID namespace, where that can be had, and both live.
    let line = "unshare -rfp true 2>/dev/null && inside='unshare -rfp --kill-child'; \
                exec $inside \"$0\" hold KEY --ignore-stdin";
    let start = |key: &str| {
        let mut holder = Running::start(shell(&site, &line.replace("KEY", key)));
        holder.line();
        holder
    };
    let _holders = [start("a"), start("b")];
    let owner = |key| lock(&site, key)["holders"][0]["owner"].as_str().unwrap().to_owned();
    let (a, b) = (owner("a"), owner("b"));
    let tag = |name: &str| name.rsplit_once('_').unwrap().1.to_owned();
    assert_eq!(tag(&a).len(), 4, "{a}");
    assert_ne!(tag(&a), tag(&b), "{a} {b}");
}

#[test]
fn the_owner_whose_leases_are_force_released_is_named_exactly() {
    let site = Site::embedded();
    for key in ["a", "b"] {
        site.line(&format!("acquire {key} --ttl 1h")).expect(0);
    }
    let owner = |key| lock(&site, key)["holders"][0]["owner"].as_str().unwrap().to_owned();
    let (a, b) = (owner("a"), owner("b"));
    assert_ne!(a, b);
    let (host, _) = a.rsplit_once('_').unwrap();
    let done = site.run(["release", "--all", "--yes", "--owner", host]).expect(0);
    assert!(done.stderr.contains(&format!("{host} has no leases")), "{done:?}");
    assert!(done.stderr.contains(&a), "{done:?}");
    site.run(["release", "--all", "--yes", "--owner", &a]).expect(0);
    assert_eq!(owner("b"), b);
    // What all of a machine may have is nobody's own name.
    std::fs::write(site.path("c.toml"), "owner = 'app_1'\n").unwrap();
    site.line("acquire c --ttl 1h --owner app_1").expect(0);
    site.line("--config c.toml release --all --yes").complains(64, "give --owner NAME");
    assert_eq!(owner("c"), "app_1");
}

#[test]
fn what_other_tools_call_a_command_leads_to_ours() {
    let site = Site::embedded();
    for (typed, hint) in [
        ("lock k", "`leasehold run` runs a command"),
        ("unlock k", "`leasehold release` ends"),
        ("list", "`leasehold ls` lists"),
        ("status", "`leasehold show KEY`"),
        ("hold -k", "stands behind `--`"),
        ("run -k true", "stands behind `--`"),
    ] {
        let done = site.line(typed).complains(64, hint);
        assert!(!done.stderr.contains("similar"), "{done:?}");
    }
    let done = site.line("run --lock x -- true").expect(64);
    assert!(!done.stderr.contains("--nonblocking"), "{done:?}");
    site.line("run -- -k -- true").expect(0);
    site.line("run -- -k true").expect(0);
}
