//! `leasehold why`: what an operator learns of a lock.

use std::os::unix::fs::PermissionsExt as _;

use leasehold_testkit::server::RedisServer;
use serde_json::Value;

use crate::harness::{Done, Running, Site, finish, gone, lock, shell, until};

fn document(site: &Site, key: &str) -> Value {
    serde_json::from_str(&site.run(["why", key, "--json"]).expect(0).stdout).unwrap()
}

fn text(site: &Site, key: &str) -> String {
    site.run(["why", key]).expect(0).stdout
}

fn waiters(site: &Site, key: &str) -> usize {
    lock(site, key)["waiters"].as_array().map_or(0, Vec::len)
}

/// Two that take the locks `a` and `b` in opposite orders.
fn two_that_wait_for_each_other_are_reported(site: &Site) {
    let mut holders = Vec::new();
    for (owner, holds) in [("web-1", "a"), ("web-2", "b")] {
        let mut holder = site.start(["hold", holds, "--ignore-stdin", "--owner", owner]);
        holder.line();
        holders.push(holder);
    }
    let _first = site.start(["run", "b", "--owner", "web-1", "--", "true"]);
    until("the first waits", || waiters(site, "b") == 1);
    // All is well yet.
    let open = document(site, "a")["chains"].clone();
    assert_eq!(open[0]["circle"], false);
    assert_eq!(open[0]["steps"][0]["waits_for"], "b");
    assert!(!text(site, "a").contains("circle"));
    let _second = site.start(["run", "a", "--owner", "web-2", "--", "true"]);
    until("the second waits", || waiters(site, "a") == 1);
    let circle = document(site, "a")["chains"].clone();
    assert_eq!(circle[0]["circle"], true, "{circle}");
    assert_eq!(circle[0]["steps"].as_array().unwrap().len(), 2, "{circle}");
    let text = text(site, "a");
    assert!(text.contains("web-1 waits for \"b\", which web-2 holds\n"), "{text}");
    assert!(text.contains("web-2 waits for \"a\", which web-1 holds\n"), "{text}");
    assert!(text.contains("deadlock: they wait for each other"), "{text}");
}

#[test]
fn two_that_wait_for_each_other_are_reported_on_the_embedded_store() {
    two_that_wait_for_each_other_are_reported(&Site::embedded());
}

#[test]
fn two_that_wait_for_each_other_are_reported_on_redis() {
    let server = RedisServer::start();
    two_that_wait_for_each_other_are_reported(&Site::at(server.url()));
}

#[test]
fn for_a_free_lock_it_prints_what_keeps_its_store_from_granting_it() {
    let server = RedisServer::start();
    let site = Site::at(format!("{}?replicas=1&max_ttl=1d", server.url()));
    let told = text(&site, "k");
    assert!(told.starts_with(&format!("\"k\" is free at {}, without", site.store())), "{told}");
    for part in ["uptime: the server was started ", "grants no locks for another ", "=> wait, "] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    let topics = |document: &Value| -> Vec<String> {
        let topics = document["store"].as_array().unwrap().iter();
        topics.map(|finding| finding["topic"].as_str().unwrap().to_owned()).collect()
    };
    assert!(topics(&document(&site, "k")).contains(&"uptime".to_owned()));
    // A holder is the answer, if there is one.
    let plain = Site::at(server.url());
    let mut holder = plain.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    assert_eq!(topics(&document(&site, "k")), [""; 0]);
    assert!(!text(&site, "k").contains("uptime"));
}

#[test]
fn a_lock_is_explained_with_its_holder_and_its_queue() {
    let site = Site::embedded();
    let free = format!("\"k\" is free at {}, without holders and waiters\n", site.store());
    assert_eq!(text(&site, "k"), free);
    assert_eq!(document(&site, "k")["lock"], Value::Null);
    let mut holder = site.start(["hold", "k", "--ignore-stdin", "--meta", "job=report"]);
    holder.line();
    let _waiters: Vec<Running> = ["first", "second"]
        .into_iter()
        .zip(1..)
        .map(|(owner, place)| {
            let waiter = site.start(["run", "k", "--owner", owner, "--", "true"]);
            until("it waits", || waiters(&site, "k") == place);
            waiter
        })
        .collect();
    let text = text(&site, "k");
    let fence = lock(&site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned();
    for part in [
        "notes: job=report\n",
        "the store does not know whether its work makes progress",
        "2 in the queue:\n  1. first, exclusive, for ",
        "\n  2. second, exclusive, for ",
        "leasehold ask k ",
        &format!("leasehold force-release --fence {fence} "),
        // This machine's: what it runs is no secret to who asks.
        &format!("process {} of host ", holder.pid()),
        " (this host): running ",
        "hold k --ignore-stdin",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let document = document(&site, "k");
    assert_eq!(document["processes"][0]["id"], holder.pid());
    assert_eq!(document["lock"]["waiters"][1]["owner"], "second");
    assert_eq!(document["chains"], Value::Array(Vec::new()));
}

#[test]
fn a_wait_that_timed_out_names_the_command_that_explains() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "two words", "--ignore-stdin"]);
    holder.line();
    let done = site.run(["run", "-w", "1", "two words", "--", "true"]);
    done.complains(75, "See `leasehold why 'two words'`");
}

/// Locks `a` and `b` as above, where the second wait runs out.
fn a_wait_that_timed_out_names_the_circle(site: &Site) {
    let mut holders = Vec::new();
    for (owner, holds) in [("web-1", "a"), ("web-2", "b")] {
        let mut holder = site.start(["hold", holds, "--ignore-stdin", "--owner", owner]);
        holder.line();
        holders.push(holder);
    }
    let _first = site.start(["run", "b", "--owner", "web-1", "--", "true"]);
    until("the first waits", || waiters(site, "b") == 1);
    let done = site.line("run -w 1 a --owner web-2 -- true").complains(75, "held by web-1");
    for part in [
        ". Deadlock: ",
        "web-1 waits for \"b\", which web-2 holds",
        "web-2 waits for \"a\", which web-1 holds",
    ] {
        assert!(done.stderr.contains(part), "{part:?} is not in {done:?}");
    }
    let done = site.line("run -q -w 1 a --owner web-2 -- true").expect(75);
    assert_eq!(done.stderr, "");
    // One that waits for a holder in nobody's way.
    let done = site.line("run -w 1 b --owner web-3 -- true").complains(75, "held by web-2");
    assert!(done.stderr.contains(". 1 other waits: web-1. See "), "{done:?}");
    assert!(!done.stderr.contains("Deadlock"), "{done:?}");
}

#[test]
fn a_wait_that_timed_out_names_the_circle_on_the_embedded_store() {
    a_wait_that_timed_out_names_the_circle(&Site::embedded());
}

#[test]
fn a_wait_that_timed_out_names_the_circle_on_redis() {
    let server = RedisServer::start();
    a_wait_that_timed_out_names_the_circle(&Site::at(server.url()));
}

#[test]
fn a_wait_that_timed_out_says_how_many_others_wait_and_names_the_first() {
    let site = Site::embedded();
    let notes = ["--meta", "job=report", "--meta", "by=cron"];
    let mut holder = site.start(["hold", "k", "--ignore-stdin"].iter().chain(&notes));
    holder.line();
    let names = ["one", "two", "three", "four"];
    let _waiters: Vec<Running> = (1..)
        .zip(names)
        .map(|(place, owner)| {
            let waiter = site.start(["run", "k", "--owner", owner, "--", "true"]);
            until("it waits", || waiters(&site, "k") == place);
            waiter
        })
        .collect();
    let done = site.line("run -w 1 k -- true");
    assert!(done.stderr.contains(" (job=report, by=cron), lease expires"), "{done:?}");
    done.complains(75, ". 4 others wait: one, two, three, and more. See `leasehold why k`");
}

#[test]
fn the_process_of_a_holder_with_a_name_of_its_own_is_found_by_the_log() {
    let server = RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        let site = Site::at(format!("{}?log=100", site.store()));
        let mut holder = site.start(["hold", "k", "--ignore-stdin", "--owner", "web-1"]);
        holder.line();
        // It is written after the fact.
        until("its process is told", || document(&site, "k")["processes"][0]["id"] == holder.pid());
        let text = text(&site, "k");
        let part = format!("  by its log entry: process {} of host ", holder.pid());
        assert!(text.contains("is held by web-1 for ") && text.contains(&part), "{text}");
    }
}

#[test]
fn for_a_holder_that_has_ended_it_prints_what_helps_then() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let mut holder = site.start(["hold", "k", "--ignore-stdin", "--ttl", "1h"]);
    holder.line();
    let fence = lock(&site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned();
    assert!(
        text(&site, "k")
            .contains(&format!("  kill {}    # ends the holder on this host\n", holder.pid()))
    );
    // Killed, and seen by its parent or not yet.
    holder.child().kill().unwrap();
    let pid = holder.pid();
    until("it is a zombie", || text(&site, "k").contains(" (this host): ended\n"));
    let text_of_zombie = text(&site, "k");
    drop(holder);
    gone(pid);
    for (text, can_ask) in [(text_of_zombie, false), (text(&site, "k"), true)] {
        assert!(!text.contains("end the process") && !text.contains("kill "), "{text}");
        assert!(text.contains("\n  wait: its lease expires in "), "{text}");
        assert_eq!(text.contains("leasehold ask k    # if its process is in a container"), can_ask);
        assert!(
            text.contains(&format!("\n  leasehold force-release --fence {fence} k ")),
            "{text}"
        );
    }
}

/// What holds the lock for a script heeds no signal before that has ended.
#[test]
fn of_a_hold_for_a_script_the_script_is_named_to_be_ended() {
    let site = Site::embedded();
    let mut script = Running::start(shell(
        &site,
        "fence=$(\"$0\" hold k --while-pid $$ --background) || exit; echo in; sleep 1000",
    ));
    assert_eq!(script.line(), "in");
    let advised = format!("  kill {}    # ends the holder on this host\n", script.pid());
    let text = text(&site, "k");
    assert!(text.contains(&advised), "{text}");
}

#[test]
fn a_cooldown_is_reported_with_the_last_grant() {
    let site = Site::embedded();
    site.line("run --cooldown 1h report -- true").expect(0);
    let text = text(&site, "report");
    assert!(text.contains("is cooling down for another 5"), "{text}");
    assert!(text.contains("it was taken last at about 20"), "{text}");
    assert!(document(&site, "report")["granted_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn what_is_advised_can_be_typed_for_any_name() {
    let site = Site::embedded();
    for name in ["-dash", "--two", "it's $(here)"] {
        let _holder = site.start(["hold", "--while-pid", "1", "--", name]);
        until("it is held", || text_of(&site, name).contains("force-release"));
        let advice = text_of(&site, name);
        let line = advice.lines().find(|line| line.contains("force-release")).unwrap();
        let line = line.trim_start().replacen("leasehold", "\"$0\"", 1);
        finish(&mut shell(&site, &line)).expect(0);
        assert!(text_of(&site, name).contains("without holders"), "{name}");
    }
}

/// Through a shell, from the text of a message on.
fn typed(site: &Site, command: &str) -> Done {
    let words = command.strip_prefix("leasehold ").unwrap();
    finish(&mut shell(site, &format!("\"$0\" {words}")))
}

#[test]
fn what_is_advised_goes_to_the_store_that_was_typed() {
    let (site, other) = (Site::embedded(), Site::embedded());
    let store = format!("{}?log=9", site.store());
    let held = site.start(["hold", "k", "--ignore-stdin"]);
    until("it is held", || text_of(&site, "k").contains("force-release"));
    // Where the environment names another store.
    let text = other.run(["why", "--store", &store, "k"]).expect(0).stdout;
    for word in ["leasehold ask ", "leasehold force-release "] {
        let line = text.lines().find(|line| line.contains(word)).unwrap();
        let command = line.trim().split("    #").next().unwrap();
        assert!(command.contains(&format!("--store '{store}'")), "{command}");
        typed(&other, command).expect(0);
    }
    drop(held);
    let mut held = site.start(["hold", "k", "--ignore-stdin"]);
    held.line();
    let said =
        other.run(["run", "-w", "2", "--store", &store, "k", "--", "true"]).expect(75).stderr;
    let command = said.split('`').nth(1).unwrap();
    assert!(typed(&other, command).expect(0).stdout.contains("is held by"), "{said}");
    // The environment's needs no words.
    assert!(!text_of(&site, "k").contains("--store"));
}

#[test]
fn what_is_advised_is_let_in_as_the_command_was() {
    let server = RedisServer::builder().password("sesame").start();
    let site = Site::at(server.url());
    let secret = |file: &str, text: &str| {
        std::fs::write(site.path(file), text).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(site.path(file), mode).unwrap();
    };
    let (url, file) = (format!("redis://{}", server.addr()), "it's a password");
    secret(file, "sesame\n");
    let password = site.path(file);
    secret("c.toml", &format!("store = '{url}'\npassword_file = {password:?}\n"));
    let elsewhere = Site::embedded();
    for options in
        [&["--store", &url, "--password-file", "it's a password"][..], &["--config", "c.toml"][..]]
    {
        for key in ["k", "-k"] {
            let _held = site.start(["hold", "--ignore-stdin", "--", key]);
            until("it is held", || text_of(&site, key).contains("is held by"));
            let mut why = site.command(["why"].iter().chain(options).chain(&["--", key]));
            let text = finish(why.env_remove("LEASEHOLD_STORE")).expect(0).stdout;
            for word in ["leasehold ask ", "leasehold force-release "] {
                let line = text.lines().find(|line| line.contains(word)).unwrap().trim();
                let line = line.split("    #").next().unwrap().replacen("leasehold", "\"$0\"", 1);
                finish(shell(&elsewhere, &line).env_remove("LEASEHOLD_STORE")).expect(0);
            }
        }
    }
}

fn text_of(site: &Site, name: &str) -> String {
    site.run(["why", "--", name]).expect(0).stdout
}

/// Names that a terminal would show as others, or that a shell would take for something else.
const NASTY: [&str; 12] = [
    "bidi\u{202e}txt",
    "bidi\\u{202e}txt",
    "it's\u{200b}7 \\ here",
    "it's 'quoted'",
    "$HOME `id` $(id)",
    "two  words",
    "-n",
    "--",
    "~/*?[a]",
    "\"!\\",
    "\u{e0041}\u{feff}é7",
    "$'a'",
];

#[test]
fn a_printed_command_names_the_same_lock_and_no_two_names_look_alike() {
    let site = Site::embedded();
    for name in NASTY {
        let mut holder = site.start(["hold", "--ignore-stdin", "--", name]);
        holder.line();
        let told = site.run(["why", "--", name]).expect(0).stdout;
        let command = told.lines().find(|line| line.starts_with("  leasehold ask")).unwrap();
        let command = command.split("    #").next().unwrap().trim();
        let mut bash = std::process::Command::new("bash");
        let leasehold = "leasehold() { \"$EXE\" \"$@\"; }";
        bash.args(["-c", &format!("{leasehold}; {command} --owner asker")]);
        if command.contains(" -- ") {
            let command = command.replacen("ask", "ask --owner asker", 1);
            bash = std::process::Command::new("bash");
            bash.args(["-c", &format!("{leasehold}; {command}")]);
        }
        let template = site.command(["ask"]);
        bash.env_clear().env("EXE", template.get_program());
        for (variable, value) in template.get_envs() {
            bash.env(variable, value.unwrap_or_default());
        }
        finish(&mut bash).expect(0);
        let shown = site.run(["show", "--json", "--", name]).expect(0).stdout;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let asked_by = shown["lock"]["holders"][0]["asked_by"].clone();
        assert_eq!(asked_by, "asker", "{command}");
        drop(holder);
    }
    let mut holders = Vec::new();
    for name in NASTY {
        let mut holder = site.start(["hold", "--ignore-stdin", "--", name]);
        holder.line();
        holders.push(holder);
    }
    let listed = site.run(["ls"]).expect(0).stdout;
    let names = listed.lines().skip(1).map(|line| line.split("  exclusive").next().unwrap());
    let names: std::collections::BTreeSet<_> = names.collect();
    assert_eq!(names.len(), NASTY.len(), "{listed}");
}

/// A process that has the number which a holder's name tells, as the first one of a container does.
#[test]
fn a_process_that_only_has_the_number_is_not_pointed_at() {
    let site = Site::embedded();
    let mut innocent = site.start(["hold", "other", "--ignore-stdin"]);
    innocent.line();
    let name = lock(&site, "other")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let (number, _) = name.rsplit_once('_').unwrap();
    for (owner, told) in [
        (format!("{number}_zzzz"), " (this host): ended, or in a container\n"),
        (number.to_owned(), "\n"),
    ] {
        let mut holder = site.start(["hold", "k", "--ignore-stdin", "--owner", &owner]);
        holder.line();
        let text = text(&site, "k");
        let process =
            text.lines().position(|line| line.starts_with("  by its name: process ")).unwrap();
        let line = format!("{}\n", text.lines().nth(process).unwrap());
        assert!(line.ends_with(told), "{line}");
        assert!(!text.contains("running ") && !text.contains("kill "), "{text}");
        let pid = holder.pid();
        drop(holder);
        gone(pid);
    }
    let text = text(&site, "other");
    assert!(text.contains("running ") && text.contains("kill "), "{text}");
}

#[test]
fn nested_commands_that_wait_for_each_other_are_reported_as_a_circle() {
    let site = Site::embedded();
    let outer = |key: &str, inner: &str| {
        let script = format!(
            "touch {key}; until [ -e a ] && [ -e b ]; do sleep 0.02; done; \
             exec \"$0\" run {inner} -- true"
        );
        site.start(["run", key, "--", "sh", "-c", &script, env!("CARGO_BIN_EXE_leasehold")])
    };
    let _both = [outer("a", "b"), outer("b", "a")];
    until("both wait", || {
        [("a", 1), ("b", 1)].iter().all(|(key, n)| {
            lock(&site, key)["waiters"].as_array().is_some_and(|all| all.len() == *n)
        })
    });
    let told = text(&site, "a");
    assert!(told.contains(", run under a lock of ") && told.contains("deadlock: "), "{told}");
    assert_eq!(document(&site, "b")["chains"][0]["circle"], true);
}

/// Each script takes a lock, and then wants the other one's.
#[test]
fn scripts_that_hold_locks_and_wait_for_each_other_are_reported_as_a_circle() {
    let site = Site::embedded();
    for (first, last) in [("a", "b"), ("c", "d")] {
        // Whether by a hold of the script's own or by a command that it runs.
        let wants =
            if first == "a" { "hold KEY --background --while-pid $$" } else { "run KEY -- true" };
        let script = |key: &str, other: &str| {
            let wants = wants.replace("KEY", other);
            let line = format!(
                "\"$0\" hold {key} --while-pid $$ --background >/dev/null && touch {key}; \
                 until [ -e {first} ] && [ -e {last} ]; do sleep 0.02; done; env -i \"$0\" --store {} {wants}; :",
                site.store()
            );
            Running::start(shell(&site, &line))
        };
        let _both = [script(first, last), script(last, first)];
        until("both wait", || {
            [first, last]
                .iter()
                .all(|key| lock(&site, key)["waiters"].as_array().is_some_and(|all| all.len() == 1))
        });
        let told = text(&site, first);
        assert!(told.contains("run under a lock of ") && told.contains("deadlock: "), "{told}");
        assert_eq!(document(&site, last)["chains"][0]["circle"], true);
    }
}
