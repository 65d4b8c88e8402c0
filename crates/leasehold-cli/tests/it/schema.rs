//! What `--json` prints is what docs/documents.schema.json says, word by word.

use leasehold_testkit::server::RedisServer;
use serde_json::{Value, json};

use crate::harness::{Site, finish, lock, shell, until};

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../docs/documents.schema.json")).unwrap()
}

/// Why a value is not as its schema says, if it is not. Knows the words that the schema has, and no
/// others.
fn wrong(schema: &Value, root: &Value, value: &Value, at: &str) -> Option<String> {
    for (word, says) in schema.as_object().unwrap() {
        let found = match word.as_str() {
            "$schema" | "title" | "$defs" | "description" | "additionalProperties" => None,
            "$ref" => {
                let name = says.as_str().unwrap().strip_prefix("#").unwrap();
                wrong(root.pointer(name).unwrap(), root, value, at)
            }
            "anyOf" => {
                let each = says.as_array().unwrap().iter();
                let all: Option<Vec<_>> = each.map(|one| wrong(one, root, value, at)).collect();
                all.map(|all| all.join(" / "))
            }
            "enum" => (!says.as_array().unwrap().contains(value))
                .then(|| format!("{at}: {value} is none of {says}")),
            "type" => {
                let fits = match says.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("{other}"),
                };
                (!fits).then(|| format!("{at}: {value} is no {says}"))
            }
            "minimum" => {
                (value.as_i64() < says.as_i64()).then(|| format!("{at}: {value} < {says}"))
            }
            "pattern" => {
                let text = value.as_str().unwrap_or_default();
                let fits = match says.as_str().unwrap() {
                    "^[0-9]+$" => text.parse::<u64>().is_ok(),
                    pattern if pattern.starts_with("^[0-9]{4}-") => {
                        text.len() >= 20 && text.ends_with('Z') && text.contains('T')
                    }
                    other => panic!("{other}"),
                };
                (!fits).then(|| format!("{at}: {value} is not {says}"))
            }
            "required" => says.as_array().unwrap().iter().find_map(|name| {
                let name = name.as_str().unwrap();
                value.get(name).is_none().then(|| format!("{at}: {name} is missing"))
            }),
            "properties" => {
                assert_eq!(schema["additionalProperties"], false, "{at}");
                value.as_object().into_iter().flatten().find_map(|(name, part)| {
                    match says.get(name) {
                        Some(says) => wrong(says, root, part, &format!("{at}.{name}")),
                        None => Some(format!("{at}: {name} is not in the schema")),
                    }
                })
            }
            "items" => value
                .as_array()
                .into_iter()
                .flatten()
                .enumerate()
                .find_map(|(n, item)| wrong(says, root, item, &format!("{at}[{n}]"))),
            other => panic!("the check does not know {other}"),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Checks each document that a command prints.
#[track_caller]
fn is(kind: &str, printed: &str) {
    assert!(!printed.is_empty(), "{kind}");
    let root = schema();
    for line in printed.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if let Some(why) = wrong(&root["$defs"][kind], &root, &value, kind) {
            panic!("{why} in {line}");
        }
        // The whole has it as one of its kinds.
        assert_eq!(wrong(&root, &root, &value, kind), None, "{line}");
    }
}

fn every_document_is_as_documented(site: &Site) {
    let json = |line: &str| site.line(&format!("{line} --json"));
    is("acquire", &json("acquire a b --ttl 1h --meta job=x").expect(0).stdout);
    is("show", &json("show nobody").expect(0).stdout);
    is("why", &json("why nobody").expect(0).stdout);
    let mut holders: Vec<_> = [
        "hold k --ignore-stdin --json --meta by=me",
        "hold s --limit 3 --permits 2 --ignore-stdin --json",
        "hold r --shared --ignore-stdin --json",
    ]
    .map(|line| site.start(line.split(' ')))
    .into();
    for holder in &mut holders {
        is("hold", &holder.line());
    }
    site.line("ask k").expect(0);
    let _waiter = site.start(["run", "k", "--", "true"]);
    until("it waits", || !lock(site, "k")["waiters"].as_array().unwrap().is_empty());
    site.line("run --once-per 1h job -- true").expect(0);
    for key in ["k", "s", "r", "job"] {
        is("show", &json(&format!("show {key}")).expect(0).stdout);
        is("why", &json(&format!("why {key}")).expect(0).stdout);
        is("log", &json(&format!("log {key}")).expect(0).stdout);
    }
    is("ls", &json("ls").expect(0).stdout);
    is("doctor", &json("doctor").stdout);
    is("error", &json("acquire k -n").expect(75).stdout);
    let mut observer = site.start(["observe", "post", "--json"]);
    is("observe", &observer.line());
    let _leader = site.start(["elect", "post", "--", "sleep", "100"]);
    is("observe", &observer.line());
}

#[test]
fn every_document_is_as_documented_on_the_embedded_store() {
    let site = Site::embedded();
    every_document_is_as_documented(&Site::at(format!("{}?log=100", site.store())));
}

#[test]
fn every_document_is_as_documented_on_redis() {
    let server = RedisServer::start();
    every_document_is_as_documented(&Site::at(format!("{}?log=100", server.url())));
    let _new = server.cli(&["HSET", "leasehold:{bad}", "state", "\u{f1} another version"]);
    let site = Site::at(server.url());
    is("ls", site.line("ls --json").expect(69).stdout.lines().next().unwrap());
    site.line("acquire theirs --interop redsync --ttl 1h --json").expect(0);
    is("show", &site.line("show theirs --interop redsync --json").expect(0).stdout);
    server.kill();
    is("error", &site.line("ls --json").expect(69).stdout);
}

#[test]
fn the_check_finds_what_is_missing_added_or_of_another_type() {
    let root = schema();
    let good = json!({ "version": 1, "key": "k", "fence": "7" });
    let hold = &root["$defs"]["hold"];
    assert_eq!(wrong(hold, &root, &good, ""), None);
    for (name, value) in [("fence", json!(7)), ("version", json!(2)), ("more", json!(0))] {
        let mut bad = good.clone();
        bad[name] = value;
        assert!(wrong(hold, &root, &bad, "").is_some(), "{bad}");
    }
    let less = json!({ "version": 1, "key": "k" });
    assert!(wrong(hold, &root, &less, "").is_some());
}

#[test]
fn what_became_of_a_lock_is_written_apart_from_the_exit_code() {
    let site = Site::embedded();
    let told = || -> Value {
        is("status", &site.read("outcome"));
        serde_json::from_str(&site.read("outcome")).unwrap()
    };
    let run = |line: &str| site.line(&format!("run k --status outcome {line}"));
    // The command's own 75 does not mean a busy lock.
    site.run(["run", "k", "--status", "outcome", "--", "sh", "-c", "exit 75"]).expect(75);
    let it = told();
    assert_eq!((&it["granted"], &it["result"]["exit_code"]), (&json!(true), &json!(75)), "{it}");
    assert_eq!(
        (&it["leases"][0]["release"], &it["exit"]["kind"]),
        (&json!("released"), &json!("command"))
    );
    assert!(it["leases"][0]["fence"].is_string(), "{it}");
    site.run(["run", "k", "--status", "outcome", "-c", "kill -9 $$"]).expect(137);
    assert_eq!(told()["result"]["signal"], 9);
    run("-- no-such-command-anywhere").expect(127);
    let it = told();
    assert_eq!((&it["result"], &it["exit"]["code"]), (&Value::Null, &json!(127)), "{it}");
    let mut other = site.start(["hold", "k", "--ignore-stdin", "--owner", "web-7"]);
    other.line();
    run("-n -- true").expect(75);
    let it = told();
    assert_eq!((&it["granted"], &it["exit"]["kind"]), (&json!(false), &json!("busy")), "{it}");
    assert_eq!(
        it["leases"][0],
        json!({
            "key": "k", "fence": null, "lost": null, "release": null, "late_by_ms": null,
        })
    );
    assert!(it["exit"]["message"].as_str().unwrap().contains("held by web-7"), "{it}");
    drop(other);
    run("--store redis://:sesame@127.0.0.1:1 -- true").expect(69);
    assert_eq!(told()["exit"]["kind"], "store");
    assert!(!site.read("outcome").contains("sesame"));
    run("--store nonsense://x -- true").expect(78);
    assert_eq!(told()["exit"]["code"], 78);
    site.line("elect k --status outcome -- true").expect(0);
    assert_eq!(told()["command"], "elect");
    let mut holder = site.start(["hold", "k", "--ignore-stdin", "--status", "outcome"]);
    holder.line();
    let it = told();
    assert_eq!((&it["granted"], &it["exit"]), (&json!(true), &Value::Null), "under way: {it}");
    holder.process().signal(rustix::process::Signal::TERM);
    holder.finish().expect(0);
    assert_eq!(told()["leases"][0]["release"], "released");
    // Before anything is taken.
    site.line("run k --status no/such/place -- touch ran").complains(74, "--status no/such/place");
    site.line("run k --status . -- touch ran").complains(64, "not a regular file");
    assert!(!site.path("ran").exists());
    let left = std::fs::read_dir(site.path("")).unwrap();
    let left = left
        .filter(|it| it.as_ref().unwrap().file_name().to_str().unwrap().starts_with("outcome."));
    assert_eq!(left.count(), 0, "nothing is left beside it");
}

#[test]
fn what_a_killed_command_has_left_beside_the_file_blocks_no_command() {
    let site = Site::embedded();
    // Its number is given again, in another container at the same time.
    let line = ": > outcome.$$; exec \"$0\" run k --status outcome -- true";
    let done = finish(&mut shell(&site, line)).expect(0);
    assert_eq!(done.stderr, "");
    is("status", &site.read("outcome"));
    let line = ": > lease.$$; exec \"$0\" acquire k --lease-file lease";
    assert_eq!(finish(&mut shell(&site, line)).expect(0).stderr, "");
}

#[test]
fn a_loss_is_written_with_its_reason() {
    let site = Site::embedded();
    let told = || -> Value { serde_json::from_str(&site.read("outcome")).unwrap() };
    let job = site.start("run k --ttl 5s --status outcome -- sleep 1000".split(' '));
    until("it is held", || !lock(&site, "k").is_null() && told()["granted"] == true);
    let fence = told()["leases"][0]["fence"].as_str().unwrap().to_owned();
    site.run(["force-release", "k", "--fence", &fence]).expect(0);
    job.finish().expect(76);
    is("status", &site.read("outcome"));
    let it = told();
    assert_eq!(it["leases"][0]["lost"]["reason"], "refuted", "{it}");
    assert_eq!(
        (&it["leases"][0]["release"], &it["exit"]["code"]),
        (&json!("not_held"), &json!(76))
    );
    assert_eq!(it["result"]["signal"], 15, "{it}");
    site.line("run k --max-hold 300ms --status outcome -- sleep 1000").expect(80);
    is("status", &site.read("outcome"));
    assert_eq!(told()["leases"][0]["lost"]["reason"], "max_hold");
    // Suspended for longer than its ttl: no other holder has had it.
    let mut holder = site.start("hold late --ttl 300ms --ignore-stdin --status outcome".split(' '));
    holder.line();
    holder.process().signal(rustix::process::Signal::STOP);
    until("its lease is over", || lock(&site, "late").is_null());
    holder.process().signal(rustix::process::Signal::CONT);
    holder.finish().expect(76);
    is("status", &site.read("outcome"));
    assert_eq!(told()["leases"][0]["lost"]["reason"], "expired");
}

/// Suspended for longer than its ttl, its connections have requests that nobody answered in time.
#[test]
fn a_release_that_comes_after_the_lease_expired_says_how_late_it_was() {
    let server = RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        for (command, rest) in [("run", "-- sleep 1000"), ("hold", "--ignore-stdin")] {
            let line = format!("{command} k --ttl 500ms --status outcome {rest}");
            let mut holder = site.start(line.split(' '));
            let told = || -> Value { serde_json::from_str(&site.read("outcome")).unwrap() };
            let is_held =
                || lock(&site, "k")["holders"].as_array().is_some_and(|it| !it.is_empty());
            until("it is held", || is_held() && told()["granted"] == true);
            holder.process().signal(rustix::process::Signal::STOP);
            until("its lease is over", || !is_held());
            holder.process().signal(rustix::process::Signal::CONT);
            holder.finish().expect(76);
            is("status", &site.read("outcome"));
            let lease = &told()["leases"][0];
            assert_eq!(lease["release"], "late", "{line}: {lease}");
            assert!(lease["late_by_ms"].is_u64(), "{line}: {lease}");
        }
    }
}
