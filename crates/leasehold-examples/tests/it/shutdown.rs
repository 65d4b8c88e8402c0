//! The worker that has to end.

use leasehold::Client;
use leasehold_testkit::server;
use rustix::process::Signal;

use crate::{Service, assert_nothing_in_use, directory};

/// Leases are 30 s long, so what is gone at once has been released.
async fn gives_all_back(url: &str, signal: Signal) {
    let mut worker = Service::start(env!("CARGO_BIN_EXE_shutdown"), &[url]);
    worker.line("working, with fence ");
    let client = Client::connect(url).await.unwrap();
    assert!(client.inspect("worker").await.unwrap().is_some_and(|lock| !lock.holders.is_empty()));
    worker.process.signal(signal);
    assert_eq!(worker.end().last().unwrap(), "nothing is left");
    assert_nothing_in_use(&client).await;
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_a_signal_ends_leaves_nothing_in_a_directory() {
    let (_dir, url) = directory();
    for signal in [Signal::TERM, Signal::INT] {
        gives_all_back(&url, signal).await;
    }
}

#[tokio::test]
async fn a_worker_that_a_signal_ends_leaves_nothing_on_a_server() {
    let server = server::RedisServer::start();
    for signal in [Signal::TERM, Signal::INT] {
        gives_all_back(&server.url(), signal).await;
    }
}
