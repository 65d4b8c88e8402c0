//! The examples in docs/wire.md are what a server really has.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{AskRequest, Bond, ClientId, Cooldown, Metadata, Mode, OwnerName, Store as _};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;

use crate::common::{Caller, WITHIN, key};

fn named(mut caller: Caller, owner: &str, mode: Mode) -> Caller {
    caller.request.owner = OwnerName::new(owner).unwrap();
    caller.request.metadata = Metadata::new("nightly build").unwrap();
    caller.request.fence_block = NonZeroU32::new(17).unwrap();
    caller.request.mode = mode;
    caller
}

/// Secrets and numbers, which differ each time, in a form that does not: what has a fixed width
/// keeps it.
fn shape(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_inclusive([' ', '-', '/', '#', ':']) {
        let (body, end) = match word.strip_suffix([' ', '-', '/', '#', ':']) {
            Some(body) => word.split_at(body.len()),
            None => (word, ""),
        };
        let hex = body.len() == 32 && body.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_digit());
        match (hex, digits) {
            (true, _) => out.push_str("TOKEN"),
            (_, true) if body.len() > 9 => out.push_str(&"9".repeat(body.len())),
            _ => out.push_str(body),
        }
        out.push_str(end);
    }
    out
}

fn shapes<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    let mut shapes: Vec<_> = fields.map(|(name, value)| (shape(name), shape(value))).collect();
    shapes.sort_unstable();
    shapes
}

/// The examples in the document, by what is said above them.
fn documented() -> BTreeMap<String, Vec<(String, String)>> {
    let text = include_str!("../../../../docs/wire.md");
    let mut examples = BTreeMap::new();
    for block in text.split("```hgetall\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        let mut lines = block.lines();
        let title = lines.next().unwrap().trim_start_matches("# ").to_owned();
        examples.insert(title, shapes(lines.map(|line| line.split_once("  ").unwrap())));
    }
    examples
}

#[tokio::test]
async fn the_documented_hashes_are_those_that_a_server_has() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut documented = documented();
    let mut wrong = Vec::new();
    let mut check = |title: &str, caller: &Caller| {
        let text = server.cli(&["HGETALL", &format!("leasehold:{{{}}}", caller.request.key)]);
        let lines: Vec<&str> = text.lines().collect();
        let fields = || lines.chunks(2).map(|pair| (pair[0], pair[1]));
        if documented.remove(title) != Some(shapes(fields())) {
            let text: String = fields().map(|(name, value)| format!("{name}  {value}\n")).collect();
            wrong.push(format!("# {title}\n{text}"));
        }
    };
    let client = ClientId::generate().unwrap();

    let holder = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    let fences = holder.take().await;
    check("a mutex, held", &holder);
    let mut asked = AskRequest::new(holder.request.key.clone(), OwnerName::new("anna").unwrap());
    asked.fence = Some(fences.first());
    store.ask(&asked, WITHIN).await.unwrap();
    let of_line =
        |owner, mode| named(Caller::patient(&store, &holder.request.key, client), owner, mode);
    of_line("web-8_17", Mode::Shared).wait().await;
    let mut preferred = of_line("web-9_5", Mode::Exclusive);
    preferred.request.preferred = true;
    preferred.wait().await;
    check("held and asked to let go; a reader waits, and a writer who goes before it", &holder);

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
    check("held, and two of three that came still wait", &holder);

    let idle = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    let fences = idle.take().await;
    store.release(&idle.ending(fences), WITHIN).await.unwrap();
    check("released, and nobody waits", &idle);
    let mut ending = idle.ending(idle.take().await);
    ending.cooldown = Cooldown::new(Duration::from_secs(60)).unwrap();
    store.release(&ending, WITHIN).await.unwrap();
    check("released with a cool-down", &idle);

    let reader = named(Caller::new(&store, &key()), "web-7_4711", Mode::Shared);
    reader.take().await;
    let other = named(Caller::new(&store, &reader.request.key), "web-8_17", Mode::Shared);
    let fences = other.take().await;
    let mut asked = AskRequest::new(reader.request.key.clone(), OwnerName::new("anna").unwrap());
    asked.fence = Some(fences.first());
    store.ask(&asked, WITHIN).await.unwrap();
    let writer = Caller::patient(&store, &reader.request.key, client);
    named(writer, "web-9_5", Mode::Exclusive).wait().await;
    check("held by two readers, the second of which is asked to let go; a writer waits", &reader);

    let mut closing = named(Caller::new(&store, &key()), "web-7_4711", Mode::Exclusive);
    closing.request.cooldown = Cooldown::new(Duration::from_secs(3_600)).unwrap();
    closing.request.holds = NonZeroU32::new(2).unwrap();
    closing.take().await;
    check("held twice by one holder, with a cool-down of an hour from the grant on", &closing);

    // An owner from a secret, in two processes.
    let joint = Mode::Joint(Bond::new(0x0006_1a2b_3c4d_5e6f));
    let here = named(Caller::new(&store, &key()), "worker-17", joint);
    here.take().await;
    named(Caller::new(&store, &here.request.key), "worker-17", joint).take().await;
    named(Caller::patient(&store, &here.request.key, client), "web-9_5", Mode::Exclusive)
        .wait()
        .await;
    check("held by one owner in two processes, which have a bond; another waits", &here);

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
    check("a semaphore, after the first of two holders released; one waits for four", &first);

    assert!(wrong.is_empty(), "docs/wire.md differs:\n{}", wrong.join("\n"));
    assert!(documented.is_empty(), "nobody made {:?}", documented.keys());
}
