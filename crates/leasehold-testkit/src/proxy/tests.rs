//! Tests of each fault against a real server, through plain sockets.
//!
//! They check what the client gets, and whether the server executed the request.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::*;
use crate::process::TestProcess;
use crate::resp::{Scanner, encode};
use crate::server::RedisServer;

/// How long a client is watched that should get no data.
const SILENCE: Duration = Duration::from_millis(60);

struct Client(TcpStream);

impl Client {
    async fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    async fn send(&mut self, args: &[&str]) {
        self.0.write_all(&encode(args)).await.unwrap();
    }

    /// Reads one frame.
    async fn receive(&mut self) -> std::io::Result<String> {
        let mut scanner = Scanner::default();
        let mut frame = Vec::new();
        loop {
            let byte = timeout(WAIT_MAX, self.0.read_u8()).await.expect("a reply within bounds")?;
            frame.push(byte);
            if scanner.advance(&[byte]).1 {
                return Ok(String::from_utf8(frame).unwrap());
            }
        }
    }

    async fn call(&mut self, args: &[&str]) -> String {
        self.send(args).await;
        self.receive().await.unwrap()
    }

    async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.0.read_u8()).await.is_err()
    }

    /// The error at the end of the connection.
    async fn ended_with(&mut self) -> ErrorKind {
        self.receive().await.unwrap_err().kind()
    }
}

fn start() -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    (server, proxy)
}

/// Waits until the server has executed `SET key` this many times, by any connection.
async fn executed(server: &RedisServer, times: u64) {
    let deadline = Instant::now() + WAIT_MAX;
    while server.command_calls("set") < times {
        assert!(Instant::now() < deadline, "the server has not executed the request");
        tokio::task::yield_now().await;
    }
    assert_eq!(server.command_calls("set"), times);
}

#[tokio::test]
async fn everything_passes_and_is_counted() {
    let (_server, proxy) = start();
    let mut one = Client::connect(&proxy).await;
    let mut two = Client::connect(&proxy).await;
    assert_eq!(one.call(&["SET", "key", "value"]).await, "+OK\r\n");
    assert_eq!(two.call(&["GET", "key"]).await, "$5\r\nvalue\r\n");
    assert!(two.call(&["HELLO", "3"]).await.starts_with('%'));
    let stats = proxy.stats();
    assert_eq!((stats.connections, stats.requests, stats.requests_forwarded), (2, 3, 3));
    assert_eq!((stats.replies, stats.replies_forwarded, stats.replies_dropped), (3, 3, 0));
    drop(one);
    proxy.wait_for(|stats| stats.connections_ended == 1).await;
    assert_eq!(two.call(&["GET", "key"]).await, "$5\r\nvalue\r\n");
}

#[tokio::test]
async fn a_push_is_no_reply() {
    let (server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    client.call(&["HELLO", "3"]).await;
    assert!(client.call(&["SUBSCRIBE", "news"]).await.starts_with(">3"));
    assert_eq!(server.cli(&["PUBLISH", "news", "hello"]), "1");
    assert!(client.receive().await.unwrap().contains("hello"));
    assert_eq!(proxy.stats().replies, 1);
}

#[tokio::test]
async fn a_black_hole_executes_nothing_and_closes_nothing() {
    let (server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
    proxy.set(Fault::BlackHole);
    client.send(&["SET", "key", "value"]).await;
    assert!(client.is_silent().await);
    let mut late = Client::connect(&proxy).await;
    late.send(&["SET", "key", "value"]).await;
    assert!(late.is_silent().await);
    server.kill();
    assert!(client.is_silent().await, "the end of the server does not get out");
    assert!(Client::connect(&proxy).await.is_silent().await);
    proxy.wait_for(|stats| stats.requests == 3).await;

    server.restart();
    proxy.set(Fault::Pass);
    client.send(&["PING"]).await;
    assert!(client.is_silent().await, "a stream never loses its middle");
    assert_eq!(server.command_calls("set"), 0);
    assert_eq!(Client::connect(&proxy).await.call(&["PING"]).await, "+PONG\r\n");
}

#[tokio::test]
async fn a_dropped_request_is_not_executed() {
    let (server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    proxy.set(Fault::DropRequests);
    client.send(&["SET", "key", "value"]).await;
    assert!(client.is_silent().await);
    assert_eq!(server.command_calls("set"), 0);
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.requests_forwarded, stats.replies), (1, 0, 0));
}

#[tokio::test]
async fn a_request_whose_reply_is_dropped_is_executed() {
    let (server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    proxy.set(Fault::DropReplies(AfterLoss::Silence));
    client.send(&["SET", "key", "value"]).await;
    proxy.wait_for(|stats| stats.replies_dropped == 1).await;
    executed(&server, 1).await;
    proxy.set(Fault::Pass);
    client.send(&["SET", "key", "value"]).await;
    proxy.wait_for(|stats| stats.replies_dropped == 2).await;
    assert!(client.is_silent().await, "a stream never loses its middle");
    drop(client);
    proxy.wait_for(|stats| stats.connections_ended == 1).await;
}

#[tokio::test]
async fn a_connection_can_be_closed_after_a_lost_reply() {
    let (server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    proxy.set(Fault::DropReplies(AfterLoss::Close));
    client.send(&["SET", "key", "value"]).await;
    assert_eq!(client.ended_with().await, ErrorKind::UnexpectedEof);
    executed(&server, 1).await;
}

#[tokio::test]
async fn a_request_is_executed_before_the_reset() {
    let (server, proxy) = start();
    for round in 1..=20 {
        proxy.set(Fault::Pass);
        let mut client = Client::connect(&proxy).await;
        assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
        proxy.set(Fault::ResetAfterRequest);
        let request = encode(&["SET", "key", "value"]);
        let (first, second) = request.split_at(7);
        client.0.write_all(first).await.unwrap();
        client.0.write_all(second).await.unwrap();
        assert_eq!(client.ended_with().await, ErrorKind::ConnectionReset);
        executed(&server, round).await;
    }
}

#[tokio::test]
async fn refused_connections_are_refused_by_the_kernel() {
    let (_server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
    for _ in 0..20 {
        proxy.set(Fault::Refuse);
        let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
        proxy.set(Fault::Pass);
        assert_eq!(Client::connect(&proxy).await.call(&["PING"]).await, "+PONG\r\n");
    }
}

#[tokio::test]
async fn connections_are_refused_while_children_are_started() {
    let (_server, proxy) = start();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                TestProcess::spawn(Command::new("true")).unwrap().wait();
            }
        });
        let accepted = (0..300)
            .filter(|_| {
                proxy.set(Fault::Refuse);
                let accepted = std::net::TcpStream::connect(proxy.addr()).is_ok();
                proxy.set(Fault::Pass);
                accepted
            })
            .count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(accepted, 0);
    });
}

#[tokio::test]
async fn a_stalled_stream_arrives_late_and_whole() {
    let (server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    proxy.set(Fault::Stall);
    client.send(&["SET", "key", "1"]).await;
    client.send(&["SET", "key", "2"]).await;
    assert!(client.is_silent().await);
    assert_eq!(server.command_calls("set"), 0);
    proxy.set(Fault::Pass);
    assert_eq!(client.receive().await.unwrap(), "+OK\r\n");
    assert_eq!(client.receive().await.unwrap(), "+OK\r\n");
    assert_eq!(server.cli(&["GET", "key"]), "2");
}

#[tokio::test]
async fn latency_delays_a_burst_once() {
    let (_server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    let (there, back) = (Duration::from_millis(80), Duration::from_millis(40));
    proxy.set_latency(there, back);
    let begin = Instant::now();
    for _ in 0..50 {
        client.send(&["PING"]).await;
        // Makes each request a chunk of its own.
        tokio::task::yield_now().await;
    }
    for _ in 0..50 {
        assert_eq!(client.receive().await.unwrap(), "+PONG\r\n");
    }
    let elapsed = begin.elapsed();
    assert!(elapsed >= there + back, "{elapsed:?}");
    assert!(elapsed < (there + back) * 10, "{elapsed:?}, so the chunks were delayed one by one");
    proxy.set_latency(Duration::ZERO, Duration::ZERO);
    assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
}

#[tokio::test]
async fn slices_change_nothing_but_the_packets() {
    let (_server, proxy) = start();
    let mut client = Client::connect(&proxy).await;
    proxy.set_slice_max(NonZeroUsize::MIN);
    let value = "x\r\n".repeat(200);
    assert_eq!(client.call(&["SET", "key", &value]).await, "+OK\r\n");
    // A client that is not scheduled meanwhile may find all packets at once, but hardly every time.
    let mut most = 0;
    for _ in 0..1_000 {
        client.send(&["GET", "key"]).await;
        let (mut reads, mut reply) = (0, Vec::new());
        let mut buffer = [0; 4096];
        let mut scanner = Scanner::default();
        loop {
            let length = client.0.read(&mut buffer).await.unwrap();
            assert!(length > 0, "the connection lives");
            reads += 1;
            reply.extend_from_slice(&buffer[..length]);
            if scanner.count(&buffer[..length]) == 1 {
                break;
            }
        }
        assert_eq!(String::from_utf8(reply).unwrap(), format!("$600\r\n{value}\r\n"));
        most = most.max(reads);
        if most > 1 {
            break;
        }
    }
    assert!(most > 1, "600 packets were always seen as one");
    proxy.set_slice_max(None);
    assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
}

#[tokio::test]
async fn exactly_the_chosen_reply_is_lost() {
    for k in 1..=4 {
        let (server, proxy) = start();
        let mut client = Client::connect(&proxy).await;
        assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
        proxy.drop_reply(k, AfterLoss::Close);
        // All in one packet, so that the boundary is inside a chunk.
        let burst: Vec<u8> = (0..4).flat_map(|i| encode(&["SET", "key", &i.to_string()])).collect();
        client.0.write_all(&burst).await.unwrap();
        for _ in 1..k {
            assert_eq!(client.receive().await.unwrap(), "+OK\r\n");
        }
        assert_eq!(client.ended_with().await, ErrorKind::UnexpectedEof);
        executed(&server, 4).await;
        let stats = proxy.stats();
        assert_eq!((stats.replies_forwarded, stats.replies_dropped), (k, 1));
        let mut next = Client::connect(&proxy).await;
        assert_eq!(next.call(&["GET", "key"]).await, "$1\r\n3\r\n", "it happens once");
    }
}

#[tokio::test]
async fn the_chosen_reply_is_counted_over_all_connections() {
    let (_server, proxy) = start();
    let mut one = Client::connect(&proxy).await;
    let mut two = Client::connect(&proxy).await;
    proxy.set_slice_max(NonZeroUsize::MIN);
    proxy.drop_reply(3, AfterLoss::Silence);
    assert_eq!(one.call(&["PING"]).await, "+PONG\r\n");
    assert_eq!(two.call(&["PING"]).await, "+PONG\r\n");
    one.send(&["PING"]).await;
    assert!(one.is_silent().await);
    one.send(&["PING"]).await;
    assert!(one.is_silent().await);
    assert_eq!(two.call(&["PING"]).await, "+PONG\r\n");
    let stats = proxy.stats();
    assert_eq!((stats.replies_forwarded, stats.replies_dropped), (3, 2));
}

#[tokio::test]
async fn killed_connections_are_reset_and_gone() {
    let (server, proxy) = start();
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = Client::connect(&proxy).await;
        assert_eq!(client.call(&["PING"]).await, "+PONG\r\n");
        clients.push(client);
    }
    proxy.set(Fault::BlackHole);
    clients[0].send(&["PING"]).await;
    proxy.kill_connections();
    assert_eq!(proxy.stats().connections_ended, 5);
    for client in &mut clients {
        assert_eq!(client.ended_with().await, ErrorKind::ConnectionReset);
    }
    proxy.set(Fault::Pass);
    assert_eq!(Client::connect(&proxy).await.call(&["PING"]).await, "+PONG\r\n");
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[tokio::test]
async fn a_missing_server_resets_and_a_new_one_is_found() {
    let (server, proxy) = start();
    server.kill();
    // The reset may be faster than the client's look at its new connection.
    let reset = match TcpStream::connect(proxy.addr()).await {
        Ok(stream) => Client(stream).ended_with().await,
        Err(error) => error.kind(),
    };
    assert_eq!(reset, ErrorKind::ConnectionReset);
    server.restart();
    assert_eq!(Client::connect(&proxy).await.call(&["PING"]).await, "+PONG\r\n");
}

#[test]
fn the_handle_needs_no_runtime() {
    let (_server, proxy) = start();
    let client = std::net::TcpStream::connect(proxy.addr()).unwrap();
    proxy.set(Fault::Refuse);
    proxy.kill_connections();
    drop(client);
    drop(proxy);
}
