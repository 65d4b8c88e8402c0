//! `leasehold ui`, as a browser shows it, and as others may not use it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use leasehold_testkit::server::RedisServer;
use serde_json::Value;

use crate::browser::Browser;
use crate::harness::{Running, Site, lock, until};
use crate::watchdog::send;

/// How long a page may be told nothing. Only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(60);
/// A name that does something where it is taken for more than text.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken in'\">";

/// Starts it: where it listens, and what stands behind the address.
fn serve(site: &Site, options: &[&str]) -> (Running, String, String) {
    let words = ["ui", "--listen", "127.0.0.1:0", "--every", "100ms"];
    let mut ui = site.start(words.iter().chain(options));
    let url = ui.line();
    let (address, behind) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    (ui, address.to_owned(), behind.to_owned())
}

/// Sends a request as it stands: the status, and all of the answer.
fn ask(address: &str, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!("{request} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

/// A program that looks as a page does: each picture as it comes.
fn pictures(address: &str) -> impl FnMut() -> Value + use<> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    move || {
        let line = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("data: "));
        serde_json::from_str(line.unwrap().strip_prefix("data: ").unwrap()).unwrap()
    }
}

#[test]
fn a_browser_shows_what_was_before_it_looked_where_the_store_keeps_a_log() {
    let site = Site::embedded();
    let site = Site::at(format!("{}?log=100", site.store()));
    let name = "a=b & ü%";
    site.run(["run", name, "--owner", "web-6", "--", "true"]).expect(0);
    let mut holder = site.start(["hold", name, "--ignore-stdin", "--owner", "web-7"]);
    holder.line();
    let (ui, address, _) = serve(&site, &[]);
    let mut browser = Browser::start();
    browser.open(&format!("http://{address}/"));
    let locks = "document.querySelectorAll('tr.lock').length";
    until("the lock is shown", || browser.ask(locks) == 1);
    let parts = "document.querySelectorAll('tr.lock .time > div').length";
    assert_eq!(browser.ask(parts), 1);
    browser.ask("document.querySelector('tr.lock').click()");
    until("both holds are in the timeline", || browser.ask(parts) == 2);
    let past = browser.ask("document.querySelector('ul.past').innerText");
    for part in ["granted, web-6", "released (exit 0), web-6", "granted, web-7"] {
        assert!(past.as_str().unwrap().contains(part), "{past}");
    }
    let headers = format!("Host: {address}\r\n");
    assert_eq!(ask(&address, "GET /log", &headers, "").0, 400);
    assert_eq!(ask(&address, "GET /log?key=%zz", &headers, "").0, 400);
    drop(ui);
}

#[test]
fn a_browser_shows_who_holds_and_waits_and_takes_a_lease_away() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "reports/daily", "--ignore-stdin", "--owner", "web-7"]);
    let fence = holder.line().split_whitespace().next().unwrap().to_owned();
    let mut hostile = site.start(["hold", HOSTILE, "--ignore-stdin", "--owner", HOSTILE]);
    hostile.line();
    let options = ["hold", "reports/daily", "--ignore-stdin", "--owner", "web-8"];
    let mut waiter = site.start(options);
    until("it waits", || !lock(&site, "reports/daily")["waiters"].as_array().unwrap().is_empty());

    let (ui, address, behind) = serve(&site, &["--allow-release"]);
    let mut browser = Browser::start();
    browser.open(&format!("http://{address}/{behind}"));
    let row = "[...document.querySelectorAll('tr.lock')].find((it) => it.dataset.key === \
               'reports/daily')";
    let row_says = |browser: &mut Browser, text: &str| {
        let said = browser.ask(&format!("{row}?.innerText ?? ''"));
        said.as_str().unwrap().contains(text)
    };
    until("the lock is shown", || row_says(&mut browser, "web-7"));
    assert!(row_says(&mut browser, &fence));
    assert_eq!(browser.ask("location.hash"), "");
    let names =
        browser.ask("[...document.querySelectorAll('td.name')].map((it) => it.textContent)");
    assert!(names.as_array().unwrap().contains(&Value::from(HOSTILE)), "{names}");
    assert_eq!(browser.ask("document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.ask("document.title"), "leasehold");

    // Details stay open from one picture to the next, and so does what is typed.
    browser.ask(&format!("{row}.click()"));
    let more = browser.ask("document.querySelector('tr.more').innerText");
    assert!(more.as_str().unwrap().contains("web-8"), "{more}");
    browser.ask("document.querySelector('tr.more input').focus()");
    browser.press("000");
    browser.keep_picture("ui");
    assert_eq!(browser.ask("document.querySelector('tr.more button').disabled"), true);
    browser.ask("document.querySelector('tr.more input').select()");
    browser.press(&fence[fence.len() - 4..]);
    let next = "new Promise((done) => source.addEventListener('message', () => done(1)))";
    browser.ask(next);
    assert_eq!(browser.ask("document.querySelector('tr.more button').disabled"), false);
    browser.ask("document.querySelector('tr.more button').click()");
    waiter.line();
    until("its successor is shown", || row_says(&mut browser, "web-8"));
    let holds = format!("{row}.querySelectorAll('.time div').length");
    assert_eq!(browser.ask(&holds), 2, "the timeline has both holds");

    // What comes free stays in sight for its timeline.
    send(waiter.pid(), libc::SIGTERM);
    until("it is free", || row_says(&mut browser, "(free)"));
    browser.ask(
        "$('filter').value = 'nothing has this'; $('filter').dispatchEvent(new Event('input'))",
    );
    assert_eq!(browser.ask("document.querySelectorAll('tr.lock').length"), 0);
    browser.keep_picture("ui-empty");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    send(ui.pid(), libc::SIGTERM);
    ui.finish().expect(128 + libc::SIGTERM);
}

#[test]
fn another_sites_page_and_a_name_that_points_here_get_nothing() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    let fence = holder.line().split_whitespace().next().unwrap().to_owned();
    let (_ui, address, behind) = serve(&site, &["--allow-release"]);
    let port = address.rsplit_once(':').unwrap().1;

    // Another site, whose page a browser shows.
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = elsewhere.local_addr().unwrap().port();
    thread::spawn(move || {
        // A browser also makes connections that it may need later, and never uses or breaks them.
        for mut stream in elsewhere.incoming().map(Result::unwrap) {
            thread::spawn(move || {
                let mut line = String::new();
                drop(BufReader::new(&stream).read_line(&mut line));
                let page =
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\nother";
                drop(stream.write_all(page.as_bytes()));
            });
        }
    });
    let mut browser = Browser::start();
    browser.open(&format!("http://other.example:{other}/"));
    assert_eq!(browser.ask("document.body.innerText"), "other");
    let token = behind.strip_prefix("#release=").unwrap();
    // Even one that has got the token somehow.
    let order = format!("JSON.stringify({{key: 'k', fence: '{fence}'}})");
    for (mode, host) in
        [("cors", "127.0.0.1"), ("no-cors", "127.0.0.1"), ("no-cors", "evil.example")]
    {
        let headers = if mode == "cors" {
            format!("{{'x-leasehold-token': '{token}'}}")
        } else {
            "{}".into()
        };
        browser.ask(&format!(
            "fetch('http://{host}:{port}/release', {{method: 'POST', mode: '{mode}', body: {order}, \
             headers: {headers}}}).then((it) => it.status, () => 'failed')"
        ));
        let read =
            format!("fetch('http://{host}:{port}/events').then(() => 'read', () => 'failed')");
        assert_eq!(browser.ask(&read), "failed");
    }
    let framed = format!(
        "new Promise((done) => {{ const it = document.createElement('iframe'); \
         it.src = 'http://127.0.0.1:{port}/'; it.onload = () => done(it.contentDocument === null); \
         document.body.append(it); }})"
    );
    assert_eq!(browser.ask(&framed), true);

    // Another site's name that points here: the page would be of that site for the browser.
    browser.open(&format!("http://evil.example:{port}/"));
    let text = browser.ask("document.body.innerText");
    assert!(text.as_str().unwrap().contains("does not know that name"), "{text}");
    assert_eq!(lock(&site, "k")["holders"][0]["fence"], Value::from(fence));
}

#[test]
fn requests_that_no_page_of_its_own_sends_are_refused() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    let fence = holder.line().split_whitespace().next().unwrap().to_owned();
    let order = format!("{{\"key\": \"k\", \"fence\": \"{fence}\"}}");

    let (_shows, address, behind) = serve(&site, &[]);
    assert_eq!(behind, "");
    let own = format!("Host: {address}\r\nOrigin: http://{address}\r\n");
    let status = |request: &str, headers: &str, body: &str| ask(&address, request, headers, body).0;
    assert_eq!(status("POST /release", &own, &order), 403);
    assert_eq!(status("GET /", &own, ""), 200);
    assert_eq!(status("HEAD /", &own, ""), 200);
    assert_eq!(status("GET /other", &own, ""), 404);
    assert_eq!(status("GET /", "Host: evil.example\r\n", ""), 421);
    let (_, page) = ask(&address, "GET /", &own, "");
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'nonce-"));
    assert!(page.contains("frame-ancestors 'none'"));

    let (mut takes, address, behind) =
        serve(&site, &["--allow-release", "--host", "locks.example"]);
    let token = behind.strip_prefix("#release=").unwrap();
    let of = |host: &str, token: &str| {
        format!("Host: {host}\r\nOrigin: http://{host}\r\nX-Leasehold-Token: {token}\r\n")
    };
    let status = |request: &str, headers: &str, body: &str| ask(&address, request, headers, body).0;
    assert_eq!(status("POST /release", &of(&address, "guessed"), &order), 403);
    assert_eq!(status("POST /release", &of("evil.example", token), &order), 421);
    assert_eq!(status("PUT /release", &of(&address, token), &order), 405);
    for wrong in ["", "{}", "{\"key\": \"k\", \"fence\": 7}", &"x".repeat(9_000)] {
        assert_eq!(status("POST /release", &of(&address, token), wrong), 400);
    }
    let other = "{\"key\": \"k\", \"fence\": \"7\"}";
    assert_eq!(status("POST /release", &of(&address, token), other), 409);
    assert_eq!(lock(&site, "k")["holders"][0]["fence"], Value::from(fence.as_str()));
    assert_eq!(status("POST /release", &of("locks.example", token), &order), 200);
    assert_eq!(lock(&site, "k"), Value::Null);
    assert!(takes.exited().is_none());
}

#[test]
fn a_refused_force_release_is_reported_in_the_words_of_the_command() {
    let site = Site::embedded();
    let (_ui, address, behind) = serve(&site, &["--allow-release"]);
    let token = behind.strip_prefix("#release=").unwrap();
    let headers =
        format!("Host: {address}\r\nOrigin: http://{address}\r\nX-Leasehold-Token: {token}\r\n");
    let refused = |words: &str| {
        let order = "{\"key\": \"k\", \"fence\": \"7\"}";
        let (status, answer) = ask(&address, "POST /release", &headers, order);
        assert_eq!(status, 409);
        assert!(answer.ends_with(&format!("\r\n\"k\": {words}")), "{answer}");
        site.line("force-release k --fence 7").complains(76, words);
    };
    // Before there is a store, and in one.
    refused("it has no holder");
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    let fence = holder.line().split_whitespace().next().unwrap().to_owned();
    refused(&format!("it is held with another fence ({fence}); look again"));
    send(holder.pid(), libc::SIGTERM);
    until("it is free", || lock(&site, "k") == Value::Null);
    refused("it has no holder");
}

#[test]
fn a_page_reports_a_store_that_goes_away_and_comes_back() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("acquire k --ttl 1h").expect(0);
    let (_ui, address, _) = serve(&site, &[]);
    let (mut one, mut two) = (pictures(&address), pictures(&address));
    for next in [&mut one as &mut dyn FnMut() -> Value, &mut two] {
        let picture = next();
        assert_eq!(picture["version"], 1);
        assert_eq!(picture["locks"][0]["key"], "k", "{picture}");
        assert_eq!((&picture["problem"], &picture["left_off"]), (&Value::Null, &Value::from(0)));
    }
    server.pause();
    let mut problem = Value::Null;
    until("it is told", || {
        problem = one()["problem"].take();
        problem.is_string()
    });
    // As soon as after a single request, and not only when all of a listing's time is over.
    assert!(problem.as_str().unwrap().ends_with(": no answer within 2s"), "{problem}");
    let mut late = pictures(&address);
    let told = late();
    assert!(told["problem"].is_string(), "one who comes meanwhile is told as well: {told}");
    server.resume();
    until("it is back", || two()["locks"][0]["key"] == "k");
}

#[test]
fn a_page_is_there_and_reports_a_store_that_was_never_reached_and_is_tried_again() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("acquire k --ttl 1h").expect(0);
    server.pause();
    let (_ui, address, _) = serve(&site, &["--retry-store", "1h"]);
    let mut next = pictures(&address);
    assert!(next()["problem"].is_string());
    let (status, _) = ask(&address, "GET /", &format!("Host: {address}\r\n"), "");
    assert_eq!(status, 200);
    server.resume();
    until("it is back", || next()["locks"][0]["key"] == "k");
}

#[test]
fn a_store_that_does_not_exist_yet_is_shown_as_empty() {
    let site = Site::embedded();
    let (_ui, address, _) = serve(&site, &[]);
    let mut next = pictures(&address);
    assert_eq!(next()["locks"], Value::Array(Vec::new()));
    site.line("acquire k --ttl 1h").expect(0);
    until("it is shown", || next()["locks"][0]["key"] == "k");
}
