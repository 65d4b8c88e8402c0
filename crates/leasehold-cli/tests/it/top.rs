//! `leasehold top` and `ls --watch`, on a real terminal and a store with many locks.

use leasehold_testkit::server::RedisServer;

use crate::harness::{Running, Site, lock, until};
use crate::terminal::{Terminal, hung_up};

const LOCKS: usize = 1000;
const ROWS: u16 = 20;

/// Locks `many/000` and on in a server, held for an hour.
fn many_locks() -> (Site, RedisServer) {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let names: Vec<String> = (0..LOCKS).map(|n| format!("many/{n:03}")).collect();
    let taken =
        site.run(["acquire", "--ttl", "1h"].into_iter().chain(names.iter().map(String::as_str)));
    assert_eq!(taken.expect(0).stdout.lines().count(), LOCKS);
    (site, server)
}

/// The program on a terminal of this width, once it shows this.
fn watch(site: &Site, columns: u16, args: &[&str], text: &str) -> Terminal {
    let terminal = Terminal::leasehold(site, args);
    terminal.resize(ROWS, columns);
    shows(&terminal, columns, text);
    terminal
}

#[track_caller]
fn shows(terminal: &Terminal, columns: u16, text: &str) {
    until(&format!("{text:?} is on the screen"), || terminal.looks(ROWS, columns).contains(text));
}

#[test]
fn a_thousand_locks_are_watched_filtered_examined_and_one_is_force_released() {
    let (site, _server) = many_locks();
    let mut terminal =
        watch(&site, 100, &["top", "--sort", "name", "--every", "100ms"], "> many/000");
    // The last line, for they come one after the other.
    shows(&terminal, 100, "  many/016");
    let screen = terminal.looks(ROWS, 100);
    assert!(screen.contains(": 1000 in use, by name"), "{screen}");
    assert!(screen.contains("##########"), "{screen}");
    assert!(!screen.contains("many/100"), "{screen}");
    // End, then a filter.
    terminal.type_in("G");
    shows(&terminal, 100, "> many/999");
    terminal.type_in("/many/42\r");
    shows(&terminal, 100, ": 10 of 1000 in use");
    shows(&terminal, 100, "> many/429");
    terminal.type_in("g");
    shows(&terminal, 100, "> many/420");
    // Another command uses one of the locks on the screen.
    let _waiter = site.start(["run", "many/421", "--", "true"]);
    until("it is in the queue", || {
        !lock(&site, "many/421")["waiters"].as_array().unwrap().is_empty()
    });
    until("the line is shown", || {
        let screen = terminal.looks(ROWS, 100);
        screen.lines().any(|line| line.contains("many/421") && line.trim_end().ends_with(" 1"))
    });
    terminal.type_in("\r");
    shows(&terminal, 100, "lease ends");
    let fence = lock(&site, "many/420")["holders"][0]["fence"].as_str().unwrap().to_owned();
    shows(&terminal, 100, &fence);
    // Not without its fence.
    terminal.type_in("x\r");
    shows(&terminal, 100, "more digits");
    terminal.type_in(&format!("x{}\r", &fence[fence.len() - 6..]));
    until("it is taken away", || site.run(["show", "many/420"]).stdout.contains("free"));
    shows(&terminal, 100, ": 9 of 999 in use");
    terminal.type_in("q");
    assert_eq!(terminal.ends().code(), Some(0));
    until("the screen of before is back", || !terminal.looks(ROWS, 100).contains("many/"));
}

#[test]
fn a_store_that_is_away_is_reported_also_without_locks() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("acquire k --ttl 1h").expect(0);
    let mut terminal = watch(&site, 120, &["top", "--every", "100ms"], "> k");
    // None is on the screen, so only listings ask.
    terminal.type_in("/nothing\r");
    shows(&terminal, 120, ": 0 of 1 in use");
    server.pause();
    shows(&terminal, 120, ": no answer within 2s; trying again");
    server.resume();
    terminal.type_in("\x1b");
    shows(&terminal, 120, "> k");
}

#[test]
fn a_lease_that_has_another_holder_by_now_is_reported_as_such() {
    let site = Site::embedded();
    let acquired = || {
        site.line("acquire k --ttl 1h").expect(0);
        lock(&site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned()
    };
    let seen = acquired();
    // So rarely that it shows what was.
    let mut terminal = watch(&site, 120, &["top", "--every", "1h"], "> k");
    shows(&terminal, 120, &seen);
    site.line(&format!("force-release k --fence {seen}")).expect(0);
    let fence = acquired();
    terminal.type_in(&format!("x{}\r", &seen[seen.len() - 6..]));
    shows(&terminal, 120, &format!("it is held with another fence ({fence}); look again"));
    assert_eq!(lock(&site, "k")["holders"][0]["fence"], fence);
}

#[test]
fn a_narrow_terminal_shows_names_and_a_wider_one_more() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "--ignore-stdin", "reports/daily", "--owner", "web-7"]);
    holder.line();
    let mut terminal = watch(&site, 28, &["top", "--every", "100ms"], "> reports/daily");
    shows(&terminal, 28, "q quit");
    assert!(!terminal.looks(ROWS, 28).contains("web-7"));
    terminal.resize(ROWS, 120);
    shows(&terminal, 120, "exclusive");
    shows(&terminal, 120, "web-7");
    terminal.type_in("\x03");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let site = Site::embedded();
    site.line("acquire k --ttl 1h").expect(0);
    let mut terminal = watch(&site, 80, &["top"], "> k");
    terminal.send(libc::SIGTERM);
    assert_eq!(terminal.ends().code(), Some(128 + libc::SIGTERM));
    until("the screen of before is back", || !terminal.looks(ROWS, 80).contains("> k"));
}

#[test]
fn a_signal_ends_what_a_stalled_terminal_keeps_waiting() {
    let site = Site::embedded();
    site.line("acquire k --ttl 1h").expect(0);
    let mut terminal = watch(&site, 80, &["top"], "> k");
    terminal.stall();
    terminal.resize(ROWS, 100);
    terminal.send(libc::SIGTERM);
    assert_eq!(terminal.ends().code(), Some(128 + libc::SIGTERM));
}

#[test]
fn a_terminal_that_goes_away_is_no_fault() {
    let site = Site::embedded();
    let held = Running::start(site.command(["hold", "on-the-screen", "--ignore-stdin"]));
    until("it is held", || site.line("show on-the-screen").expect(0).stdout.contains("held"));
    let status = hung_up(&site, &["top"], "on-the-screen");
    // What reports it first: the end of input, a write, or the signal.
    assert!(matches!(status.code(), Some(0 | 74 | 129)), "{status:?}");
    drop(held);
}

#[test]
fn once_is_a_table_of_all() {
    let site = Site::embedded();
    let empty = site.line("top --once").expect(0);
    assert_eq!(empty.stdout, "LOCK  HOLDER  MODE  HELD  LEFT  FENCE  LINE\n");
    let told = format!("no lock is in use at {}", site.store());
    assert!(empty.stderr.contains(&told), "{empty:?}");
    site.line("acquire b a --ttl 1h --owner web-7").expect(0);
    let table = site.line("top --once --sort name").expect(0).stdout;
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!(rows[1][..3], ["a", "web-7", "exclusive"], "{table}");
    site.line("top").complains(64, "--once");
}

#[test]
fn a_list_is_printed_again_until_its_reader_is_gone() {
    let site = Site::embedded();
    let mut listing: Running = site.start(["ls", "--watch=100ms", "--json"]);
    assert!(listing.line().contains("\"locks\":[]"));
    site.line("acquire k --ttl 1h").expect(0);
    until("the lock is in the list", || listing.line().contains("\"key\":\"k\""));
    listing.process().signal(rustix::process::Signal::TERM);
    let last = listing.finish().expect(143).stdout;
    let last: serde_json::Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert_eq!(last["error"]["message"], "ended by SIGTERM", "{last}");
    let done = site.command(["ls", "--watch=100ms"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$0\" ls --watch=100ms | head -n 2"]).arg(done.get_program());
    shell.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    shell.env("LEASEHOLD_STORE", site.store()).current_dir(site.path(""));
    assert!(crate::harness::finish(&mut shell).expect(0).stdout.contains("k "));
}
