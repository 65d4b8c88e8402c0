//! Tests of the choice among the addresses of a name.

use std::sync::Arc;

use leasehold_core::ErrorKind;
use leasehold_testkit::server::RedisServer;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::connect::access::{Access, Sources};
use crate::connect::connection::Supervised;
use crate::connect::transport::Transport;
use crate::script::call::Request;
use crate::script::request::Deadline;
use crate::topology::address::Address;

const WITHIN: Duration = Duration::from_secs(60);

fn at(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7000))
}

fn primary(last: u8, id: &str) -> Heard {
    let id = Some(id.to_owned()).filter(|id| !id.is_empty());
    Heard { at: at(last), said: Said::Primary(id) }
}

fn replica(last: u8) -> Heard {
    Heard { at: at(last), said: Said::Other(Verdict::unconnected("it is a replica")) }
}

fn silent(last: u8) -> Heard {
    Heard { at: at(last), said: Said::Silent(Verdict::unconnected("connection refused")) }
}

/// The last number of the chosen address, given the name's addresses and the known one.
fn chosen(
    heard: &[Heard],
    known: Option<(u8, &str)>,
    listed: &[u8],
) -> Result<SocketAddr, Verdict> {
    let of = Endpoint::Tcp { host: "h".into(), port: 7000, tls: None };
    let listed: Vec<_> = listed.iter().map(|last| at(*last)).collect();
    let known = known.map(|(last, id)| (at(last), Some(id).filter(|id| !id.is_empty())));
    choose(&of, heard, known, &listed).map(|one| one.at)
}

#[test]
fn addresses_of_one_server_are_as_good_as_one() {
    let both = [primary(1, "a"), primary(2, "a")];
    assert_eq!(chosen(&both, None, &[1, 2]).unwrap(), at(1));
    assert_eq!(chosen(&both, Some((2, "a")), &[1, 2]).unwrap(), at(2), "as before");
    assert_eq!(chosen(&[silent(1), primary(2, "a")], None, &[1, 2]).unwrap(), at(2));
    let other_way = [silent(1), primary(2, "a")];
    assert_eq!(chosen(&other_way, Some((1, "a")), &[1, 2]).unwrap(), at(2), "the same server");
    let restarted = [primary(1, "b"), silent(2)];
    assert_eq!(chosen(&restarted, Some((1, "a")), &[1, 2]).unwrap(), at(1), "at the same address");
}

#[test]
fn two_primaries_of_one_name_are_refused_and_named() {
    let two = [primary(1, "a"), primary(2, "b")];
    let refused = chosen(&two, None, &[1, 2]).unwrap_err();
    assert_eq!(refused.kind, leasehold_core::ErrorKind::Config);
    for part in ["10.0.0.1:7000", "10.0.0.2:7000", "different servers"] {
        assert!(refused.message().contains(part), "{}", refused.message());
    }
    let later = chosen(&two, Some((1, "a")), &[1, 2]).unwrap_err();
    assert_eq!(later.kind, leasehold_core::ErrorKind::Unavailable, "it may be set right");
    let unsure = chosen(&[primary(1, ""), primary(2, "")], None, &[1, 2]).unwrap_err();
    assert!(unsure.message().contains("Allow this user INFO"), "{}", unsure.message());
    assert!(chosen(&[primary(1, "a"), primary(2, "")], None, &[1, 2]).is_err());
    let stays = chosen(&[primary(1, ""), primary(2, "")], Some((2, "")), &[1, 2]);
    assert_eq!(stays.unwrap(), at(2), "where the locks are");
    // The name leads to another server now, while the first still grants locks.
    assert!(chosen(&[primary(2, "b"), primary(1, "a")], Some((1, "a")), &[2]).is_err());
}

#[test]
fn another_server_replaces_the_known_one_only_when_that_one_gave_way() {
    let away = [silent(1), primary(2, "b")];
    let refused = chosen(&away, Some((1, "a")), &[1, 2]).unwrap_err();
    assert!(refused.message().contains("10.0.0.1:7000, where the locks are"), "{refused:?}");
    assert!(chosen(&[silent(1), primary(2, "")], Some((1, "")), &[1, 2]).is_err(), "not known");
    assert_eq!(chosen(&[replica(1), primary(2, "b")], Some((1, "a")), &[1, 2]).unwrap(), at(2));
    assert_eq!(
        chosen(&[primary(2, "b"), silent(1)], Some((1, "a")), &[2]).unwrap(),
        at(2),
        "moved"
    );
}

#[test]
fn where_no_address_has_a_primary_a_servers_answer_counts_more_than_silence() {
    let refused = chosen(&[silent(1), replica(2)], None, &[1, 2]).unwrap_err();
    assert_eq!(refused.message(), "it is a replica");
}

/// A server, and another one at the same port of another address.
async fn two_servers() -> (RedisServer, RedisServer, [SocketAddr; 2]) {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    let beside = SocketAddr::from(([127, 0, 0, 2], one.port()));
    let door = TcpListener::bind(beside).await.unwrap();
    let behind = other.addr();
    tokio::spawn(async move {
        while let Ok((mut came, _)) = door.accept().await {
            tokio::spawn(async move {
                let mut there = TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut came, &mut there).await
            });
        }
    });
    let both = [one.addr(), beside];
    (one, other, both)
}

fn named(server: &RedisServer, addresses: &[SocketAddr]) -> Supervised {
    let url = format!("redis://store.test:{}", server.port());
    let (address, within) = (Address::parse(&url).unwrap(), Duration::from_secs(5));
    let access = Access::new(&address, within, None, Sources::default()).unwrap();
    *access.addresses.resolved.lock().unwrap() = addresses.to_vec();
    Supervised::new(Arc::new(access))
}

async fn run_id(store: &Supervised, within: Duration) -> Result<String, Verdict> {
    let question = crate::topology::replication::Age::question();
    let answer = store.one(&Request::plain(&question), Deadline::after(within)).await?;
    Ok(crate::wire::reply::run_id(&answer.value).unwrap())
}

#[tokio::test]
async fn a_name_of_two_servers_is_refused_at_connect() {
    let (server, _other, both) = two_servers().await;
    let refused = run_id(&named(&server, &both), WITHIN).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Config, "{refused:?}");
    assert!(refused.message().contains("are different servers"), "{refused:?}");
    let store = named(&server, &both[..1]);
    assert_eq!(run_id(&store, WITHIN).await.unwrap(), server.info("server")["run_id"]);
}

#[tokio::test]
async fn a_reconnect_takes_no_other_server_of_the_same_name() {
    let (server, _other, both) = two_servers().await;
    let store = named(&server, &both[..1]);
    run_id(&store, WITHIN).await.unwrap();
    let addresses = Arc::clone(&store.access().addresses);
    *addresses.resolved.lock().unwrap() = vec![both[1], both[0]];
    server.kill();
    // This request may be the one that finds the connection ended.
    drop(run_id(&store, Duration::from_secs(1)).await);
    let before = run_id(&store, Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(before.kind, ErrorKind::Unavailable, "{before:?}");
    assert!(before.message().contains("where the locks are"), "{before:?}");
    // It also refuses when the name leads only to the other server, while both run.
    server.restart();
    *addresses.resolved.lock().unwrap() = vec![both[1]];
    let refused = run_id(&store, Duration::from_secs(3)).await.unwrap_err();
    assert!(refused.message().contains("are different servers"), "{refused:?}");
    *addresses.resolved.lock().unwrap() = vec![both[0]];
    assert_eq!(run_id(&store, WITHIN).await.unwrap(), server.info("server")["run_id"]);
}

#[tokio::test]
async fn two_addresses_of_one_server_stand_in_for_each_other() {
    let server = RedisServer::start();
    let beside = SocketAddr::from(([127, 0, 0, 2], server.port()));
    let door = TcpListener::bind(beside).await.unwrap();
    let behind = server.addr();
    tokio::spawn(async move {
        while let Ok((mut came, _)) = door.accept().await {
            let mut there = TcpStream::connect(behind).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut came, &mut there).await });
        }
    });
    let store = named(&server, &[beside, server.addr()]);
    run_id(&store, WITHIN).await.unwrap();
    let heard = store.addresses().await.unwrap();
    assert!(apart(&heard).is_none() && heard.len() == 2, "{heard:?}");
}
