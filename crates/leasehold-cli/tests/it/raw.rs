//! `show --raw`: what a server has stored for a lock, in words.

use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;

use crate::harness::{Site, lock, until};

/// The names of the fields in this order, each with what is said of it.
fn fields(shown: &str) -> Vec<(&str, &str)> {
    shown.lines().map(|line| line.split_once("  ").unwrap()).collect()
}

#[test]
fn a_held_lock_is_shown_field_by_field_and_its_token_by_the_fingerprint() {
    let server = RedisServer::start();
    let single = Site::at(server.url());
    let cluster = Cluster::start();
    let set = SentinelSet::builder().replicas(0).start();
    for site in [&single, &Site::at(cluster.url()), &Site::at(set.url())] {
        site.line("acquire k --owner web-7 --meta run=1 --ttl 1h").expect(0);
        let shown = site.line("show k --raw").expect(0);
        assert_eq!(shown.stderr, "");
        let [("key", key), ("state", state), ("about", about)] = fields(&shown.stdout)[..] else {
            panic!("{shown:?}");
        };
        assert!(key.starts_with("leasehold:{k} expires in 4"), "{key}");
        assert!(state.starts_with("plain kept="), "{state}");
        let [_, _, count, holds, owner, _] = about.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{about}");
        };
        assert_eq!((holds, owner), ("1", "web-7"));
        let fence: u64 = lock(site, "k")["holders"][0]["fence"].as_str().unwrap().parse().unwrap();
        let last = fence + ((count.parse::<u64>().unwrap() - 1) << 12);
        assert!(state.contains(&format!("(last fence {last})")), "{state}");
        let (_, token) = state.split_once(" token=#").unwrap();
        let (fingerprint, _) = token.split_once(' ').unwrap();
        assert!(fingerprint.len() == 8 && u32::from_str_radix(fingerprint, 16).is_ok(), "{state}");
    }

    let _waiter = single.start(["run", "k", "--owner", "web-8", "--", "true"]);
    until("it waits", || {
        single.line("ls").stdout.contains("web-7")
            && lock(&single, "k")["waiters"][0]["owner"] == "web-8"
    });
    let shown = single.line("show k --raw").expect(0).stdout;
    let all = fields(&shown);
    assert!(all[1].1.starts_with("line kept=") && all[1].1.contains(" waiters=1 "), "{shown}");
    let (place, token) = all.iter().find(|(name, _)| name.starts_with('>')).unwrap();
    let (_, record) = all.iter().find(|(name, _)| name == token).unwrap();
    assert!(record.starts_with(&format!("waiter mode=x place={}", &place[1..])), "{record}");
    assert!(record.contains(" 1 web-8 "), "{record}");

    single.line("acquire kept --ttl 1h").expect(0);
    drop(server.cli(&["PERSIST", "leasehold:{kept}"]));
    let shown = single.line("show kept --raw").expect(0).stdout;
    assert!(shown.starts_with("key  leasehold:{kept} never expires\n"), "{shown}");
}

#[test]
fn what_can_not_be_read_is_shown_with_the_reason_and_nothing_is_said_to_be_nothing() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let shown = site.line("show k --raw").expect(0);
    assert_eq!(shown.stdout, "");
    assert!(shown.stderr.contains("nothing is stored for \"k\" at redis://"), "{shown:?}");
    site.line("acquire k --ttl 1h").expect(0);
    for (field, value, why) in [
        ("note", "\x1b[2J", r#"b"note"  unreadable, no field of a lock: b"\x1b[2J""#),
        ("about", "who", "about  unreadable, not SECONDS MICROS COUNT HOLDS OWNER METADATA"),
        ("state", "\x11x", "state  unreadable, damaged: 2 bytes, the first is"),
        ("state", "garbage", "state  unreadable, of version 6: 7 bytes"),
    ] {
        drop(server.cli(&["HSET", "leasehold:{k}", field, value]));
        let shown = site.line("show k --raw").expect(0).stdout;
        assert!(shown.contains(why), "{shown}");
        assert!(!shown.contains('\x1b'), "{shown:?}");
    }
    drop(server.cli(&["DEL", "leasehold:{k}"]));
    drop(server.cli(&["SET", "leasehold:{k}", "mine"]));
    site.line("show k --raw").complains(69, "its key holds");
}

#[test]
fn a_quorum_prints_it_for_each_node() {
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::builder().appendonly().start()).collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let site = Site::at(format!("quorum:keep_leases=yes,{}", urls.join(",")));
    // Held by a process that stays, since a node that is slower than the others has it later.
    let mut holder = site.start("hold k --ignore-stdin --owner web-7 --ttl 1h".split(' '));
    holder.line();
    until("all have it", || {
        site.line("show k --raw").expect(0).stdout.matches("  about  ").count() == 3
    });
    drop(servers[1].cli(&["DEL", "leasehold:{k}"]));
    drop(servers.pop());
    let shown = site.line("show k --raw").expect(0).stdout;
    let (first, rest) = shown.split_once(&urls[1]).unwrap();
    assert!(
        first.starts_with(&format!("{}\n  key  leasehold:{{k}} expires in ", urls[0])),
        "{shown}"
    );
    assert!(rest.starts_with("\n  nothing is stored\n"), "{shown}");
    let (_, last) = rest.split_once(&urls[2]).unwrap();
    assert!(last.starts_with("\n  show \"k\" at redis:"), "{shown}");
}

#[test]
fn a_lock_without_a_record_on_a_server_is_a_matter_of_usage() {
    let embedded = Site::embedded();
    let none = "--raw needs a lock in a Redis server, not one at embedded:";
    embedded.line("show k --raw").complains(64, none);
    embedded.line("acquire k").expect(0);
    embedded.line("show k --raw").complains(64, none);
    let server = Site::at(RedisServer::start().url());
    server.line("show k --raw --interop plain").complains(64, "leave --raw out");
    server.line("show k --raw --json").expect(64);
}
