//! Notifying waiters in other processes, and leftover sockets.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use leasehold_core::{Acquire, ClientId, Listener, QueueRequest, ReleaseRequest, Store, Wake};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, request, ttl};
use crate::child::Child;
use crate::place;

async fn wakes_another_process(path: &Path) {
    let store = EmbeddedStore::open(path).unwrap();
    assert!(store.capability().wake);
    let mine = request("k");
    let fences = granted(store.acquire(&mine, WITHIN).await.unwrap());
    let mut waiter = Child::that_says(path, "wait k", "waiting");
    let ending = ReleaseRequest::new(mine.key, mine.token, fences);
    store.release(&ending, WITHIN).await.unwrap();
    waiter.wait_for("woken");
    waiter.wait_for("held");
    waiter.end();
}

#[tokio::test]
async fn a_waiter_in_another_process_is_woken() {
    let (path, _keep) = place();
    wakes_another_process(&path).await;
    assert_eq!(sockets(&path), 0);
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_path_longer_than_a_sockets_address_wakes_too() {
    let (path, _keep) = place();
    wakes_another_process(&path.join("x".repeat(100)).join("y".repeat(100))).await;
}

/// Leaves the socket of a dead client.
fn leave_socket(path: &Path, name: &str) {
    let place = path.join("wake").join(name);
    drop(UnixDatagram::bind(&place).unwrap());
    // A process that another test starts at this moment has it open until it runs its program.
    let sender = UnixDatagram::unbound().unwrap();
    while sender.send_to(&[], &place).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sockets(path: &Path) -> usize {
    std::fs::read_dir(path.join("wake")).unwrap().count()
}

#[tokio::test]
async fn the_socket_of_a_dead_waiter_is_cleared_away_when_it_is_written_to() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mine = request("k");
    let fences = granted(store.acquire(&mine, WITHIN).await.unwrap());
    // A client that is gone. Its queue position belongs to no session, and has not expired.
    let gone = ClientId::generate().unwrap();
    leave_socket(&path, &gone.to_string());
    let detached = EmbeddedStore::options().detached(true).open(&path).unwrap();
    let mut asked = request("k");
    asked.queue = Some(QueueRequest::new(gone, 1, ttl(20_000)));
    let answer = detached.acquire(&asked, WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
    assert_eq!(sockets(&path), 1);
    let ending = ReleaseRequest::new(mine.key, mine.token, fences);
    store.release(&ending, WITHIN).await.unwrap();
    assert_eq!(sockets(&path), 0);
}

#[tokio::test]
async fn sockets_of_the_dead_are_cleared_away_by_the_next_process() {
    let (path, _keep) = place();
    drop(EmbeddedStore::open(&path).unwrap());
    let client = ClientId::generate().unwrap().to_string();
    leave_socket(&path, &client);
    leave_socket(&path, "theirs");
    drop(EmbeddedStore::open(&path).unwrap());
    assert_eq!(sockets(&path), 1);
}

#[tokio::test]
async fn rubbish_on_the_socket_is_a_reason_to_look_and_nothing_more() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let client = ClientId::generate().unwrap();
    let mut channel: Box<dyn Listener> = store.listen(client, WITHIN).await.unwrap();
    let socket = path.join("wake").join(client.to_string());
    let stranger = UnixDatagram::unbound().unwrap();
    for rubbish in [&b"hello"[..], &[], &[1, 255, 255], &[9; 4096]] {
        stranger.send_to(rubbish, &socket).unwrap();
        assert_eq!(channel.next().await, Wake::Resync);
    }
}

#[tokio::test]
async fn a_second_listener_of_a_client_takes_over_from_the_first() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let client = ClientId::generate().unwrap();
    let first = store.listen(client, WITHIN).await.unwrap();
    let mut second = store.listen(client, WITHIN).await.unwrap();
    drop(first);
    let socket = path.join("wake").join(client.to_string());
    UnixDatagram::unbound().unwrap().send_to(&[0], &socket).unwrap();
    assert_eq!(second.next().await, Wake::Resync);
    drop(second);
    assert_eq!(sockets(&path), 0);
}
