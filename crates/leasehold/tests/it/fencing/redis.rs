//! The script for Redis, run by a real server.

use leasehold::Fence;
use leasehold::fencing::redis::{CALL, CALL_SHARED, FUNCTION};
use leasehold_testkit::server::{RedisServer, Reply, shared};

use super::{fence, pairs};

/// A resource of its own on the shared server: a guard and a key for the work.
struct Resource {
    server: &'static RedisServer,
    guard: String,
    data: String,
}

impl Resource {
    fn new(name: &str) -> Self {
        let server = shared();
        let guard = format!("{{fencing {name}}}:fence");
        let data = format!("{{fencing {name}}}:data");
        Self { server, guard, data }
    }

    fn eval(&self, fence: &str, expiry_ms: &str, command: &[&str]) -> Reply {
        let keys = ["EVAL", CALL, "2", &self.guard, &self.data, fence, expiry_ms];
        self.server.try_cli(&[&keys, command].concat()).unwrap()
    }

    fn call(&self, fence: Fence, command: &[&str]) -> Reply {
        self.eval(&fence.to_string(), "0", command)
    }

    fn set(&self, fence: Fence, value: &str) -> Reply {
        self.call(fence, &["SET", &self.data, value])
    }

    fn get(&self) -> String {
        self.server.cli(&["GET", &self.data])
    }

    fn guard_ttl_ms(&self) -> i64 {
        self.server.cli(&["PTTL", &self.guard]).parse().unwrap()
    }
}

fn passed(reply: Reply) -> Reply {
    Reply::Array(vec![Reply::Integer(1), reply])
}

fn begun() -> Reply {
    Reply::Array(vec![Reply::Integer(1)])
}

fn refused(seen: Fence) -> Reply {
    Reply::Array(vec![Reply::Integer(0), Reply::Bulk(seen.to_string().into_bytes())])
}

fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(error) => error,
        other => panic!("the script took what it should refuse: {other:?}"),
    }
}

#[test]
fn a_lower_fence_is_refused_and_no_other() {
    for (first, second, passes) in pairs() {
        let resource = Resource::new(&format!("{first} {second}"));
        assert_eq!(resource.call(first, &[]), begun());
        let expected = if passes { begun() } else { refused(first) };
        assert_eq!(resource.call(second, &[]), expected, "{second} after {first}");
        let seen = resource.server.cli(&["GET", &resource.guard]);
        assert_eq!(seen, first.max(second).to_string());
    }
}

#[test]
fn a_refused_command_is_not_run_and_a_passed_one_is() {
    let resource = Resource::new("run");
    let ok = || passed(Reply::Status("OK".to_owned()));
    assert_eq!(resource.set(fence(1), "early"), ok());
    assert_eq!(resource.set(fence(2), "later"), ok());
    assert_eq!(resource.set(fence(1), "late"), refused(fence(2)));
    assert_eq!(resource.get(), "later");
}

#[test]
fn a_read_shuts_the_stale_holder_out() {
    let resource = Resource::new("read");
    assert_eq!(resource.call(fence(2), &["GET", &resource.data]), passed(Reply::Nil));
    assert_eq!(resource.set(fence(1), "late"), refused(fence(2)));
    assert_eq!(resource.get(), "");
}

#[test]
fn the_reply_of_the_command_comes_back_as_it_is() {
    let resource = Resource::new("reply");
    let data = resource.data.as_str();
    let call = |command: &[&str]| resource.call(fence(1), command);
    assert_eq!(call(&["RPUSH", data, "a", "b"]), passed(Reply::Integer(2)));
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let both = Reply::Array(vec![bulk("a"), bulk("b")]);
    assert_eq!(call(&["LRANGE", data, "0", "-1"]), passed(both));
}

#[test]
fn a_command_that_fails_says_so_and_leaves_the_guard_raised() {
    let resource = Resource::new("fail");
    assert_eq!(resource.set(fence(1), "no number"), passed(Reply::Status("OK".to_owned())));
    let message = error(resource.call(fence(5), &["INCR", &resource.data]));
    assert!(message.contains("value is not an integer"), "{message}");
    assert_eq!(resource.call(fence(4), &[]), refused(fence(5)));
}

#[test]
fn a_guard_is_kept_for_ever_unless_the_latest_touch_says_otherwise() {
    let resource = Resource::new("expiry");
    resource.eval("1", "0", &[]);
    assert_eq!(resource.guard_ttl_ms(), -1);
    resource.eval("1", "86400000", &[]);
    let left = resource.guard_ttl_ms();
    assert!((1..=86_400_000).contains(&left), "{left}");
    resource.eval("0", "1000", &[]);
    assert!(resource.guard_ttl_ms() > 1_000, "a refused touch cut the guard's life short");
    resource.eval("1", "0", &[]);
    assert_eq!(resource.guard_ttl_ms(), -1);
}

#[test]
fn what_is_no_fence_is_refused_and_changes_nothing() {
    let resource = Resource::new("malformed");
    let bad =
        ["", "-1", "1.5", "1e9", "0x10", " 1", "+1", "nan", "inf", "9223372036854775807 ", "١"];
    for bad in bad.iter().copied().chain(["1".repeat(20).as_str()]) {
        let message = error(resource.eval(bad, "0", &["SET", &resource.data, "x"]));
        assert!(message.contains("leasehold: the fence given is no decimal"), "{bad:?}: {message}");
    }
    for bad in ["", "-1", "1.5", "soon", "nan"] {
        let message = error(resource.eval("1", bad, &["SET", &resource.data, "x"]));
        assert!(message.contains("leasehold: the expiry given is no whole"), "{bad:?}: {message}");
    }
    assert_eq!(resource.server.cli(&["EXISTS", &resource.guard, &resource.data]), "0");
}

#[test]
fn a_guard_key_that_holds_something_else_is_left_alone() {
    let text = Resource::new("text");
    assert_eq!(text.server.cli(&["SET", &text.guard, "not a fence"]), "OK");
    let message = error(text.set(fence(1), "x"));
    assert!(message.contains("leasehold: the guard key holds something"), "{message}");
    assert_eq!(text.server.cli(&["GET", &text.guard]), "not a fence");

    let list = Resource::new("list");
    assert_eq!(list.server.cli(&["RPUSH", &list.guard, "item"]), "1");
    assert!(error(list.set(fence(1), "x")).contains("WRONGTYPE"));
    assert_eq!(list.server.cli(&["EXISTS", &list.data]), "0");
}

#[test]
fn the_function_serves_in_a_script_of_ones_own() {
    let resource = Resource::new("own");
    let script = format!(
        "{FUNCTION}
         local passes, seen = leasehold_touch(KEYS[1], ARGV[1], '0')
         if not passes then return {{0, seen}} end
         redis.call('INCR', KEYS[2])
         return {{1, redis.call('INCR', KEYS[2])}}"
    );
    let run = |fence: &str| {
        resource
            .server
            .try_cli(&["EVAL", &script, "2", &resource.guard, &resource.data, fence])
            .unwrap()
    };
    assert_eq!(run("7"), passed(Reply::Integer(2)));
    assert_eq!(run("6"), refused(fence(7)));
    assert_eq!(resource.get(), "2");
}

#[test]
fn shared_leases_refuse_only_what_a_writer_has_outlived() {
    let resource = Resource::new("shared");
    let readers = format!("{}:readers", resource.guard);
    let touch = |kind: &str, number: &str, command: &[&str]| {
        let call = [
            "EVAL",
            CALL_SHARED,
            "3",
            &resource.guard,
            &readers,
            &resource.data,
            number,
            "0",
            kind,
        ];
        resource.server.try_cli(&[&call, command].concat()).unwrap()
    };
    assert_eq!(touch("s", "2", &["GET", &resource.data]), passed(Reply::Nil));
    assert_eq!(touch("s", "1", &[]), begun(), "readers don't refuse each other");
    assert_eq!(touch("x", "1", &["SET", &resource.data, "late"]), refused(fence(2)));
    assert_eq!(touch("x", "3", &[]), begun());
    assert_eq!(touch("s", "2", &["GET", &resource.data]), refused(fence(3)));
    assert_eq!(touch("s", "3", &[]), begun(), "a writer may read under its own fence");
    assert_eq!(resource.get(), "");
    let message = error(touch("r", "9", &[]));
    assert!(message.contains("say x for an exclusive lease or s"), "{message}");
}

#[test]
fn a_command_too_long_for_the_script_is_refused_before_the_guard_is_raised() {
    let resource = Resource::new("long");
    let mut command = vec!["RPUSH", resource.data.as_str()];
    command.resize(8_500, "item");
    let message = error(resource.call(fence(5), &command));
    assert!(message.contains("at most 6998 words"), "{message}");
    assert_eq!(resource.call(fence(4), &[]), begun());
    command.truncate(6_998);
    assert_eq!(resource.call(fence(5), &command), passed(Reply::Integer(6_996)));
}

#[test]
fn a_guard_that_expires_needs_a_server_that_evicts_nothing() {
    for policy in ["volatile-lru", "volatile-ttl", "allkeys-lru"] {
        let server = RedisServer::builder().config(format!("maxmemory-policy {policy}")).start();
        let eval =
            |expiry: &str| server.try_cli(&["EVAL", CALL, "1", "guard", "7", expiry]).unwrap();
        let message = error(eval("86400000"));
        assert!(message.contains("needs maxmemory-policy noeviction"), "{message}");
        assert!(message.contains(policy), "{message}");
        assert_eq!(server.cli(&["EXISTS", "guard"]), "0");
        assert_eq!(eval("0"), begun());
    }
}
