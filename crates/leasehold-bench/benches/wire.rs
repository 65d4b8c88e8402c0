//! What the wire coding costs: a request made and written, and its reply read, without a network.
//!
//! `cargo bench -p leasehold-bench --bench wire`. A server answers each request once; afterwards
//! the bytes of that answer are read again and again. Nothing passes or fails on time.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use leasehold::Key;
use leasehold::redis::RedisStore;
use leasehold::store::{
    AcquireRequest, FenceBlock, OwnerName, ReleaseRequest, RenewRequest, Store as _, Token, Ttl,
};
use leasehold_testkit::server::RedisServer;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use tokio::runtime::Runtime;

fn main() {
    divan::main();
}

const WITHIN: Duration = Duration::from_secs(20);

/// The command and the digest of the script, if it is one.
fn name(command: &Cmd) -> Vec<u8> {
    let words: Vec<&[u8]> = command
        .args_iter()
        .take(2)
        .filter_map(|arg| match arg {
            redis::Arg::Simple(bytes) => Some(bytes),
            _ => None,
        })
        .collect();
    words.join(&b' ')
}

fn written(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Nil => bytes.extend_from_slice(b"$-1\r\n"),
        Value::Int(number) => bytes.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::Okay => bytes.extend_from_slice(b"+OK\r\n"),
        Value::SimpleString(text) => bytes.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Value::BulkString(text) => {
            bytes.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::Array(parts) => {
            bytes.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
            parts.iter().for_each(|part| written(part, bytes));
        }
        other => panic!("no answer of a script: {other:?}"),
    }
}

/// Sends each new request to the server, and replays the recorded answer afterwards.
#[derive(Clone)]
struct Replay {
    connection: MultiplexedConnection,
    answers: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>,
}

impl ConnectionLike for Replay {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            black_box(command.get_packed_command());
            let name = name(command);
            if let Some(answer) = self.answers.lock().unwrap().get(&name) {
                return redis::parse_redis_value(answer);
            }
            let value = self.connection.req_packed_command(command).await?;
            // If the server does not know the script yet, the client sends it again.
            if !matches!(value, Value::ServerError(_)) {
                let mut bytes = Vec::new();
                written(&value, &mut bytes);
                self.answers.lock().unwrap().insert(name, bytes);
            }
            Ok(value)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _commands: &'a Pipeline,
        _offset: usize,
        _count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        panic!("one request makes no pipeline")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// The runtime and the server of all benchmarks.
fn place() -> &'static (Runtime, RedisServer) {
    static PLACE: OnceLock<(Runtime, RedisServer)> = OnceLock::new();
    PLACE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        (runtime, RedisServer::start())
    })
}

fn store() -> RedisStore {
    let (runtime, server) = place();
    let client = redis::Client::open(server.url()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let connection = runtime.block_on(connection).unwrap();
    RedisStore::from_connection(Replay { connection, answers: Arc::default() })
}

fn wanted() -> AcquireRequest {
    let key = Key::new(format!("tenants/4711/orders/{}", fastrand::u64(..))).unwrap();
    let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
    let mut request = AcquireRequest::new(key, Token::generate().unwrap(), ttl);
    request.owner = OwnerName::new("web-7_4711").unwrap();
    request
}

fn granted(store: &RedisStore, request: &AcquireRequest) -> FenceBlock {
    let answer = place().0.block_on(store.acquire(request, WITHIN)).unwrap();
    answer.fences().unwrap()
}

#[divan::bench]
fn acquire(bencher: Bencher<'_, '_>) {
    let (store, request) = (store(), wanted());
    bencher.bench_local(|| granted(&store, black_box(&request)));
}

#[divan::bench]
fn release(bencher: Bencher<'_, '_>) {
    let (store, request) = (store(), wanted());
    let fences = granted(&store, &request);
    let mut ending = ReleaseRequest::new(request.key, request.token, fences);
    ending.in_time = true;
    bencher.bench_local(|| place().0.block_on(store.release(black_box(&ending), WITHIN)).unwrap());
}

#[divan::bench(args = [1, 100])]
fn renew(bencher: Bencher<'_, '_>, leases: usize) {
    let store = store();
    let renewals: Vec<_> = (0..leases)
        .map(|_| {
            let request = wanted();
            let fences = granted(&self::store(), &request);
            RenewRequest::new(request.key, request.token, fences, request.ttl)
        })
        .collect();
    bencher.counter(ItemsCount::new(leases)).bench_local(|| {
        let answers = place().0.block_on(store.renew(black_box(&renewals), WITHIN));
        answers.into_iter().for_each(|answer| assert!(answer.unwrap().proves().is_some()));
    });
}

/// The floor: a short script call written, and a reply of one number read.
#[divan::bench]
fn floor_write_and_read(bencher: Bencher<'_, '_>) {
    let mut bytes = Vec::new();
    written(&Value::Int(1), &mut bytes);
    bencher.bench_local(|| {
        let mut command = redis::cmd("EVALSHA");
        command.arg("0123456789012345678901234567890123456789").arg(1).arg("tenants/4711/orders/1");
        black_box(command.arg("4711").get_packed_command());
        redis::parse_redis_value(black_box(&bytes)).unwrap()
    });
}
