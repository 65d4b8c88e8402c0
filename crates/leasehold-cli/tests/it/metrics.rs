//! `leasehold metrics`, read as Prometheus reads it.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use leasehold_testkit::server::RedisServer;
use prometheus_parse::{Scrape, Value};

use crate::harness::{Site, lock, until};
use crate::watchdog::send;

fn numbers(text: &str) -> HashMap<String, f64> {
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let number = |sample: prometheus_parse::Sample| {
        let labels: Vec<String> = sample.labels.values().cloned().collect();
        match sample.value {
            Value::Gauge(number) => (format!("{} {}", sample.metric, labels.join(" ")), number),
            other => panic!("{} is {other:?}", sample.metric),
        }
    };
    scrape.samples.into_iter().map(number).collect()
}

/// Asks the server for a page: its first line and what follows its head.
fn get(url: &str, request: &str) -> (String, String) {
    get_as(url, request, &format!("Host: {}", address(url)))
}

fn address(url: &str) -> &str {
    url.trim().strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap()
}

/// The same with these headers.
fn get_as(url: &str, request: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address(url)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn a_scrape_finds_the_locks_in_use_and_a_store_that_goes_away() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let mut holder = site.start(["hold", "a \"quoted\" one", "--ignore-stdin"]);
    holder.line();
    site.line("acquire b c --ttl 1h").expect(0);
    site.line("run --once-per 1h closed -- true").expect(0);
    let _waiter = site.start(["run", "b", "--", "true"]);
    until("it waits", || !lock(&site, "b")["waiters"].as_array().unwrap().is_empty());
    let mut metrics = site.start(["metrics", "--listen", "127.0.0.1:0", "--per-lock"]);
    let url = metrics.line();
    let (status, body) = get(&url, "GET /metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let found = numbers(&body);
    for (name, number) in [
        ("leasehold_store_up ", 1.0),
        ("leasehold_locks held", 3.0),
        ("leasehold_locks closed", 1.0),
        ("leasehold_locks free", 0.0),
        ("leasehold_holders ", 3.0),
        ("leasehold_waiters ", 1.0),
        ("leasehold_locks_unreadable ", 0.0),
        ("leasehold_lock_waiters b", 1.0),
        ("leasehold_lock_waiters closed", 0.0),
    ] {
        assert_eq!(found.get(name), Some(&number), "{name} in {body}");
    }
    assert!(found.keys().any(|name| name.contains("quoted")), "{body}");
    // A free lock has no age.
    assert!(found.contains_key("leasehold_lock_hold_age_seconds b"), "{body}");
    assert!(!found.contains_key("leasehold_lock_hold_age_seconds closed"), "{body}");
    assert!(get(&url, "GET /").0.contains("404"));
    let (status, body) = get(&url, "HEAD /metrics");
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", ""));
    assert!(get(&url, "PUT /metrics").0.contains("405"));
    assert!(get(&url, "POST /metrics").0.contains("405"));
    server.kill();
    until("the store is down", || {
        numbers(&get(&url, "GET /metrics").1).get("leasehold_store_up ") == Some(&0.0)
    });
    send(metrics.pid(), libc::SIGTERM);
    metrics.finish().expect(128 + libc::SIGTERM);
}

#[test]
fn connections_that_say_nothing_hold_up_no_scrape() {
    let site = Site::embedded();
    let mut metrics = site.start(["metrics", "--listen", "127.0.0.1:0"]);
    let url = metrics.line();
    let address = url.trim().strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(get(&url, "GET /metrics").0, "HTTP/1.1 200 OK");
    // Those that came first made room, and the last ones are still there: no reader waited for
    // time.
    let ended = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!((&mut &*stream).read(&mut [0]), Ok(0))
    };
    assert!(!ended(idle.last().unwrap()), "it was waited for");
}

#[test]
fn without_an_address_the_numbers_are_printed_once() {
    let site = Site::embedded();
    site.line("acquire k --ttl 1h").expect(0);
    let found = numbers(&site.line("metrics").expect(0).stdout);
    assert_eq!(found["leasehold_locks held"], 1.0);
    assert!(!found.keys().any(|name| name.starts_with("leasehold_lock_")));
    site.line("metrics --listen nowhere").complains(64, "nowhere");
}

#[test]
fn a_store_that_is_away_is_a_number_too_for_a_collector_of_text_files() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    assert_eq!(numbers(&site.line("metrics").expect(0).stdout)["leasehold_store_up "], 1.0);
    server.kill();
    let done = site.line("metrics --per-lock").expect(69);
    let found = numbers(&done.stdout);
    assert_eq!(found.get("leasehold_store_up "), Some(&0.0), "{done:?}");
    assert!(found.contains_key("leasehold_store_list_seconds "), "{done:?}");
    assert_eq!(found.len(), 2, "nothing is known of the locks: {done:?}");
    assert!(done.stderr.starts_with("leasehold: ") && done.stderr.contains("connect"), "{done:?}");
}

#[test]
fn no_page_of_another_site_reads_the_numbers() {
    let site = Site::embedded();
    let mut metrics =
        site.start(["metrics", "--listen", "127.0.0.1:0", "--host", "numbers.example"]);
    let url = metrics.line();
    let own = format!("Host: {}", address(&url));
    for (headers, status) in [
        ("Host: evil.example", "421"),
        (&*format!("{own}\r\nOrigin: http://evil.example"), "403"),
        (&*format!("{own}\r\nSec-Fetch-Site: cross-site"), "403"),
        ("Accept: text/plain", "400"),
        ("Host: numbers.example:9464", "200"),
        (&own, "200"),
    ] {
        let (line, body) = get_as(&url, "GET /metrics", headers);
        assert!(line.contains(status), "{headers}: {line}");
        assert_eq!(body.contains("leasehold_store_up"), status == "200", "{headers}: {body}");
    }
}
