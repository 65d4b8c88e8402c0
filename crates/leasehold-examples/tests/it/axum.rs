//! The web service.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use leasehold::Client;
use prometheus_parse::{Scrape, Value};
use rustix::process::Signal;

use crate::{Service, assert_nothing_in_use, directory};

fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[tokio::test]
async fn a_request_waits_for_the_one_before_it_and_for_no_other() {
    let (_dir, url) = directory();
    let mut service = Service::start(env!("CARGO_BIN_EXE_axum"), &[&url, "127.0.0.1:0"]);
    let address = service.line("listening on http://");
    let client = Client::connect(&url).await.unwrap();

    let other = client.mutex("report/7").lock().await.unwrap();
    let waits = thread::spawn({
        let address = address.clone();
        move || ask(&address, "GET", "/reports/7")
    });
    while client.inspect("report/7").await.unwrap().is_none_or(|lock| lock.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&address, "GET", "/reports/8"), (200, "report 8\n".to_owned()));
    assert!(!waits.is_finished());
    other.release().await.unwrap();
    assert_eq!(waits.join().unwrap(), (200, "report 7\n".to_owned()));

    let bookings = (0..5).map(|_| {
        let address = address.clone();
        thread::spawn(move || ask(&address, "POST", "/accounts/ann/30").0)
    });
    for booking in bookings.collect::<Vec<_>>() {
        assert_eq!(booking.join().unwrap(), 200);
    }
    assert_eq!(ask(&address, "POST", "/accounts/ann/0"), (200, "150\n".to_owned()));
    let (status, why) = ask(&address, "POST", "/accounts/an%0An/0");
    assert_eq!(status, 400, "{why}");

    // Two reports and six bookings; the name that was refused took no lock.
    let (status, page) = ask(&address, "GET", "/metrics");
    assert_eq!(status, 200, "{page}");
    let scrape = Scrape::parse(page.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let counted = |metric: &str| -> f64 {
        let samples = scrape.samples.iter().filter(|sample| sample.metric == metric);
        let number = |sample: &prometheus_parse::Sample| match sample.value {
            Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => number,
            _ => 0.0,
        };
        samples.map(number).sum()
    };
    assert!((counted("leasehold_lock_hold_duration_count") - 8.0).abs() < 0.5, "{page}");
    assert!(counted("leasehold_lock_waiting").abs() < 0.5, "{page}");

    service.process.signal(Signal::TERM);
    service.end();
    assert_nothing_in_use(&client).await;
    client.close().await.unwrap();
}
