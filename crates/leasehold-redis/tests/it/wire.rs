//! The examples in docs/wire.md match the data of a real server.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::process::Command;
use std::time::Duration;

use leasehold_core::{
    AskRequest, Bond, ClientId, Cooldown, FenceBlock, Metadata, Mode, OwnerName, RawRequest,
    Store as _,
};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::server::RedisServer;

use crate::common::{Caller, WITHIN, key};

fn named(mut caller: Caller, owner: &str, mode: Mode) -> Caller {
    caller.request.owner = OwnerName::new(owner).unwrap();
    caller.request.metadata = Metadata::new("nightly build").unwrap();
    caller.request.fence_block = NonZeroU32::new(17).unwrap();
    caller.request.mode = mode;
    caller
}

/// A line with its variable parts made uniform: parentheses of `show --raw`, secrets, and numbers.
fn shape(line: &str) -> String {
    let mut text = String::new();
    let mut depth = 0_u32;
    for letter in line.replace(" (", "(").chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    let (mut out, mut after_seconds) = (String::new(), false);
    for part in text.split_inclusive([' ', '-', '>', '=', ':', '#']) {
        let body = part.trim_end_matches([' ', '-', '>', '=', ':', '#']);
        let elided = body == "…" && out.ends_with('=');
        let digits = !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_digit());
        let is_hex = body.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex && out.ends_with('#') {
            out.push_str("TOKEN");
        } else if is_hex && body.len() == 32 {
            out.push_str("CLIENT");
        } else if elided || digits && (body.len() > 9 || after_seconds) {
            out.push('9');
        } else {
            out.push_str(body);
        }
        out.push_str(&part[body.len()..]);
        // The fraction of a second follows the seconds since 1970.
        after_seconds = digits && body.len() == 10;
    }
    out
}

fn shapes<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut shapes: Vec<_> = lines.map(shape).collect();
    shapes.sort_unstable();
    shapes
}

/// Whether a documented line matches a server's; an ellipsis at its end stands for the rest.
fn describes(documented: &str, line: &str) -> bool {
    match documented.strip_suffix('…') {
        Some(begin) => line.starts_with(begin),
        None => documented == line,
    }
}

const WIRE: &str = include_str!("../../../../docs/wire.md");

/// Further examples, which would be too long for the document.
const MORE: &str = include_str!("raw.txt");

/// The examples in the document, by the text above them.
fn documented() -> BTreeMap<String, Vec<String>> {
    let mut examples = BTreeMap::new();
    let (_, rest) = WIRE.split_once("```raw\n").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    for example in block.split("\n\n").chain(MORE.split("\n\n")) {
        let mut lines = example.lines();
        let title = lines.next().unwrap().strip_prefix("# ").unwrap().to_owned();
        examples.insert(title, shapes(lines));
    }
    examples
}

/// The stored data of a caller's lock, in words; without the line about its key.
async fn raw(caller: &Caller) -> Vec<String> {
    let request = RawRequest::new(caller.request.key.clone());
    let mut lines = caller.store.raw(&request, WITHIN).await.unwrap();
    let about = format!("key  leasehold:{{{}}} expires in ", request.key);
    assert!(lines.remove(0).starts_with(&about), "{lines:?}");
    lines
}

#[tokio::test]
async fn the_documented_hashes_are_those_that_a_server_has() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut documented = documented();
    let mut wrong = Vec::new();
    let mut check = |title: &str, lines: Vec<String>| {
        assert!(lines.iter().all(|line| !line.contains("unreadable")), "{lines:?}");
        let is = documented.remove(title).unwrap_or_default();
        let has = shapes(lines.iter().map(String::as_str));
        if is.len() != has.len() || is.iter().zip(&has).any(|(is, has)| !describes(is, has)) {
            wrong.push(format!("# {title}\n{}\n", lines.join("\n")));
        }
    };
    let client = ClientId::generate().unwrap();

    let holder = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    let fences = holder.take().await;
    check("a mutex, held", raw(&holder).await);
    let mut asked = AskRequest::new(holder.request.key.clone(), OwnerName::new("anna").unwrap());
    asked.fence = Some(fences.first());
    store.ask(&asked, WITHIN).await.unwrap();
    let of_line =
        |owner, mode| named(Caller::patient(&store, &holder.request.key, client), owner, mode);
    of_line("web-8_17", Mode::Shared).wait().await;
    let mut preferred = of_line("web-9_5", Mode::Exclusive);
    preferred.request.preferred = true;
    preferred.wait().await;
    check(
        "held and asked to let go; a reader waits, and a writer who goes before it",
        raw(&holder).await,
    );

    let holder = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    holder.take().await;
    let mut leaving = None;
    for owner in ["web-8_17", "web-9_5", "web-9_6"] {
        let waiter = Caller::patient(&store, &holder.request.key, client);
        let waiter = named(waiter, owner, Mode::Exclusive);
        waiter.wait().await;
        if owner == "web-9_5" {
            leaving = Some(waiter);
        }
    }
    store.leave(&leaving.unwrap().leaving(), WITHIN).await.unwrap();
    check("held, and two of three that came still wait", raw(&holder).await);

    let idle = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    let fences = idle.take().await;
    store.release(&idle.ending(fences), WITHIN).await.unwrap();
    check("released, and nobody waits", raw(&idle).await);
    let mut ending = idle.ending(idle.take().await);
    ending.cooldown = Cooldown::new(Duration::from_secs(60)).unwrap();
    store.release(&ending, WITHIN).await.unwrap();
    check("released with a cooldown", raw(&idle).await);

    let reader = named(Caller::new(&store, &key()), "web-7_4711", Mode::Shared);
    reader.take().await;
    let other = named(Caller::new(&store, &reader.request.key), "web-8_17", Mode::Shared);
    let fences = other.take().await;
    let mut asked = AskRequest::new(reader.request.key.clone(), OwnerName::new("anna").unwrap());
    asked.fence = Some(fences.first());
    store.ask(&asked, WITHIN).await.unwrap();
    let writer = Caller::patient(&store, &reader.request.key, client);
    named(writer, "web-9_5", Mode::Exclusive).wait().await;
    check(
        "held by two readers, the second of which is asked to let go; a writer waits",
        raw(&reader).await,
    );

    let mut closing = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    closing.request.cooldown = Cooldown::new(Duration::from_secs(3_600)).unwrap();
    closing.request.holds = NonZeroU32::new(2).unwrap();
    closing.take().await;
    check(
        "held twice by one holder, with a cooldown of an hour from the grant on",
        raw(&closing).await,
    );

    // An owner from a secret, in two processes.
    let joint = Mode::Joint(Bond::new(0x0006_1a2b_3c4d_5e6f));
    let here = named(Caller::new(&store, &key()), "worker-17", joint);
    here.take().await;
    named(Caller::new(&store, &here.request.key), "worker-17", joint).take().await;
    named(Caller::patient(&store, &here.request.key, client), "web-9_5", Mode::Exclusive)
        .wait()
        .await;
    check("held by one owner in two processes, which have a bond; another waits", raw(&here).await);

    let permits = |count| Mode::Permits {
        count: NonZeroU32::new(count).unwrap(),
        limit: NonZeroU32::new(5).unwrap(),
    };
    let first = named(Caller::new(&store, &key()), "job_1", permits(3));
    let fences = first.take().await;
    named(Caller::new(&store, &first.request.key), "job_2", permits(2)).take().await;
    let last = Caller::patient(&store, &first.request.key, client);
    named(last, "job_3", permits(4)).wait().await;
    store.release(&first.ending(fences), WITHIN).await.unwrap();
    check(
        "a semaphore, after the first of two holders released; one waits for four",
        raw(&first).await,
    );

    assert!(wrong.is_empty(), "docs/wire.md differs:\n{}", wrong.join("\n"));
    assert!(documented.is_empty(), "nobody made {:?}", documented.keys());
}

/// The documented reader's description of a lock.
fn read_in_python(server: &RedisServer, caller: &Caller) -> String {
    let (_, rest) = WIRE.split_once("```python\n").unwrap();
    let (reader, _) = rest.split_once("```").unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let key = format!("leasehold:{{{}}}", caller.request.key);
    let fields: BTreeMap<Vec<u8>, Vec<u8>> =
        redis::cmd("HGETALL").arg(key).query(&mut connection).unwrap();
    let literal = |bytes: &[u8]| format!("b\"{}\"", bytes.escape_ascii());
    let pairs =
        fields.iter().map(|(name, value)| format!("{}: {},", literal(name), literal(value)));
    let program = format!("{reader}\nshow({{{}}})\n", pairs.collect::<String>());
    let output = Command::new("python3").arg("-c").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_documented_reader_says_who_holds_a_lock() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let says =
        |fence: FenceBlock, owner: &str| format!("{owner} holds it with fence {}", fence.first());
    let alone = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    let fences = alone.take().await;
    let told = read_in_python(&server, &alone);
    assert!(told.starts_with(&says(fences, "web-7_4711")) && told.lines().count() == 1, "{told}");
    // Also from a longer state.
    let client = ClientId::generate().unwrap();
    Caller::patient(&store, &alone.request.key, client).wait().await;
    assert!(read_in_python(&server, &alone).starts_with(&says(fences, "web-7_4711")), "{told}");

    let reader = named(Caller::new(&store, &key()), "web-7_4711", Mode::Shared);
    let first = reader.take().await;
    let second = named(Caller::new(&store, &reader.request.key), "web-8_17", Mode::Shared);
    let fences = second.take().await;
    let told = read_in_python(&server, &reader);
    assert_eq!(told.lines().count(), 2, "{told}");
    for says in [says(first, "web-7_4711"), says(fences, "web-8_17")] {
        assert!(told.lines().any(|line| line.starts_with(&says)), "{told}");
    }

    let idle = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    let fences = idle.take().await;
    store.release(&idle.ending(fences), WITHIN).await.unwrap();
    assert_eq!(read_in_python(&server, &idle), "");
}
