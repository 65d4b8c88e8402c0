//! A service whose locks are counted, scraped as Prometheus would.
//!
//! One test in a program of its own, since a process has one recorder of metrics.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test"
)]

use std::collections::HashMap;
use std::time::Duration;

use leasehold::{Client, ErrorKind, ForceRelease, Mutex};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use prometheus_parse::{Scrape, Value};
use tokio::task::JoinSet;

/// What a scrape finds: a number for each metric with its labels; of a histogram how many there
/// were.
struct Scraped(HashMap<String, f64>);

impl Scraped {
    fn new(handle: &PrometheusHandle) -> Self {
        let text = handle.render();
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        let scrape = Scrape::parse(lines).unwrap();
        let samples = scrape.samples.into_iter().filter_map(|sample| {
            let mut labels: Vec<String> =
                sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            labels.sort();
            let number = match sample.value {
                Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => number,
                _ => return None,
            };
            Some((format!("{} {}", sample.metric, labels.join(",")), number))
        });
        Self(samples.collect())
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    #[track_caller]
    fn are(&self, expected: &[(&str, f64)]) {
        for (name, number) in expected {
            let seen = self.get(name);
            assert!((seen - number).abs() < 0.5, "{name} is {seen}, not {number}: {:?}", self.0);
        }
    }
}

async fn until(handle: &PrometheusHandle, name: &str, number: f64) {
    let reached = async {
        while (Scraped::new(handle).get(name) - number).abs() > 0.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(60);
    let reached = tokio::time::timeout(patience, reached).await;
    reached.unwrap_or_else(|_| panic!("{name} is never {number}"));
}

fn lock(client: &Client, key: &str) -> Mutex {
    client.mutex(key).ttl(Duration::from_secs(3600))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_each_lock_are_counted() {
    let handle = PrometheusBuilder::new().install_recorder().unwrap();
    let client = Client::connect("memory:").await.unwrap();

    // Held, found busy, waited for in vain, and by one that goes.
    let held = lock(&client, "a").try_lock().await.unwrap().unwrap();
    assert!(lock(&client, "a").try_lock().await.unwrap().is_none());
    let error = lock(&client, "a").lock_within(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let gone = tokio::spawn({
        let lock = lock(&client, "a");
        async move { drop(lock.lock().await) }
    });
    until(&handle, "leasehold_lock_waiting ", 1.0).await;
    Scraped::new(&handle).are(&[("leasehold_lock_held ", 1.0)]);
    gone.abort();
    until(&handle, "leasehold_lock_waiting ", 0.0).await;
    until(&handle, "leasehold_lease_orphans ", 2.0).await;

    // Handed from one task to another, until that was without the store, which it is for a short
    // time.
    held.release().await.unwrap();
    let mut acquired = 1.0;
    while Scraped::new(&handle).get("leasehold_lock_handoffs path=process") < 1.0 {
        let mut tasks = JoinSet::new();
        for _ in 0..20 {
            let lock = lock(&client, "a");
            tasks.spawn(async move { lock.lock().await.unwrap().release().await.unwrap() });
            acquired += 1.0;
        }
        tasks.join_all().await;
    }
    let handed_on = Scraped::new(&handle).get("leasehold_lock_handoffs path=process");

    // Force-released by an operator.
    let lost = lock(&client, "b").lock().await.unwrap();
    let fence = lost.fence_even_if_lost();
    assert_eq!(client.force_release("b", fence).await.unwrap(), ForceRelease::Released);
    // The next renewal is far away.
    assert!(!lost.is_held_by_store().await.unwrap());
    lost.lost().await;
    until(&handle, "leasehold_lock_held ", 0.0).await;
    drop(lost);

    // Held for as long as it may be.
    let longest = Duration::from_millis(300);
    let longest = client.mutex("c").max_hold(longest).lock().await.unwrap();
    longest.lost().await;
    drop(longest);
    until(&handle, "leasehold_lock_held ", 0.0).await;

    Scraped::new(&handle).are(&[
        ("leasehold_lock_wait_duration_count outcome=acquired", acquired + 2.0),
        ("leasehold_lock_wait_duration_count outcome=busy", 1.0),
        ("leasehold_lock_wait_duration_count outcome=timeout", 1.0),
        ("leasehold_lock_wait_duration_count outcome=dropped", 1.0),
        ("leasehold_lock_hold_duration_count outcome=handed_on", handed_on),
        ("leasehold_lock_hold_duration_count outcome=ended", acquired - handed_on),
        ("leasehold_lock_hold_duration_count outcome=lost", 2.0),
        ("leasehold_lease_lost reason=refuted", 1.0),
        ("leasehold_lease_lost reason=max_hold", 1.0),
        ("leasehold_lease_renewal_failures ", 0.0),
        ("leasehold_lock_waiting ", 0.0),
    ]);
    #[cfg(feature = "redis")]
    messages_that_no_user_may_publish_are_counted(&handle).await;

    // Neither a token nor a name, of which there may be any number.
    let text = handle.render();
    assert!(!text.contains("key=") && !text.contains("token"), "{text}");
}

/// The holder's user has no right to the channel on which a waiter is notified.
#[cfg(feature = "redis")]
async fn messages_that_no_user_may_publish_are_counted(handle: &PrometheusHandle) {
    let server = leasehold_testkit::server::RedisServer::start();
    let rule = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "resetchannels", "+@all"];
    assert_eq!(server.cli(&rule), "OK");
    let mute = Client::connect(server.url_for("mute", "secret")).await.unwrap();
    let client = Client::connect(server.url()).await.unwrap();
    let guard = lock(&mute, "d").lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = lock(&client, "d");
        async move { drop(lock.lock().await) }
    });
    while client.inspect("d").await.unwrap().unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.unwrap();
    until(handle, "leasehold_store_messages_lost ", 1.0).await;
    waiter.abort();
}
