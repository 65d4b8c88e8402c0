//! `hold --background`: a lock from one line of a script to its end.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use leasehold_testkit::process::TestProcess;
use leasehold_testkit::server::RedisServer;
use rustix::process::{Pid, Signal};

use crate::harness::{Done, Running, Site, appears, finish, gone, killed_by, lock, shell, until};
use crate::watchdog::send;

/// What takes the lock `k`, in a script.
const TAKE: &str = "fence=$(\"$0\" hold k --while-pid $$ --background) || exit";

fn script(site: &Site, text: &str) -> Command {
    shell(site, text)
}

fn run(site: &Site, text: &str) -> Done {
    finish(&mut script(site, text))
}

/// A script that has the lock and has said so.
fn in_section(site: &Site, take: &str, section: &str) -> Running {
    let mut running = Running::start(script(site, &format!("{take}; echo in; {section}")));
    assert_eq!(running.line(), "in");
    running
}

fn fence(site: &Site) -> String {
    lock(site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned()
}

/// The process that holds a lock in the background, and not the one that guards it.
fn holder(site: &Site) -> u32 {
    process(site, "leasehold")
}

fn process(site: &Site, name: &str) -> u32 {
    let is_ours = |path: &Path| {
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        let cwd = fs::read_link(path.join("cwd")).unwrap_or_default();
        read("cmdline").contains("--background")
            && read("comm").trim() == name
            && cwd.join("") == site.path("")
    };
    let mut found = Vec::new();
    until("the guard has its name", || {
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        found = processes.filter(|path| is_ours(path)).collect();
        found.len() == 1
    });
    found[0].file_name().unwrap().to_str().unwrap().parse().unwrap()
}

fn one_line_takes_a_lock_until_the_script_ends(site: &Site) {
    let done = run(site, &format!("{TAKE}; echo $fence; \"$0\" run k -n -q -- true; echo $?"));
    let lines: Vec<_> = done.stdout.lines().collect();
    let [fence, busy] = lines[..] else { panic!("{done:?}") };
    assert!(fence.parse::<u64>().is_ok_and(|fence| fence > 0), "{done:?}");
    assert_eq!(busy, "75", "{done:?}");
    assert_eq!(done.stderr, "");
    // At once, and not after its ttl.
    site.line("run k -w 20 -- true").expect(0);
    let done =
        run(site, "fences=$(\"$0\" hold a b --while-pid $$ --background) && echo \"$fences\"");
    assert_eq!(done.stdout.lines().count(), 2, "{done:?}");
    let done = run(site, "\"$0\" hold a --while-pid $$ --background --json");
    assert!(done.stdout.starts_with('{') && done.stdout.ends_with("}\n"), "{done:?}");
}

#[test]
fn one_line_takes_a_lock_until_the_script_ends_on_the_embedded_store() {
    one_line_takes_a_lock_until_the_script_ends(&Site::embedded());
}

#[test]
fn one_line_takes_a_lock_until_the_script_ends_on_redis() {
    let server = RedisServer::start();
    one_line_takes_a_lock_until_the_script_ends(&Site::at(server.url()));
}

#[test]
fn without_the_lock_the_script_ends_with_the_code_of_hold() {
    let site = Site::embedded();
    let mut other = site.start(["hold", "k", "--ignore-stdin", "--owner", "web-7"]);
    other.line();
    let take = |options: &str| {
        let line = format!(
            "fence=$(\"$0\" hold k --while-pid $$ --background {options}) || exit; echo in"
        );
        run(&site, &line)
    };
    take("-n").complains(75, "held by web-7");
    take("-w 2").complains(75, "held by web-7");
    take("-n -E 9").complains(9, "held by web-7");
    take("--max-hold 1us").complains(64, "give at least");
    take("--store redis://127.0.0.1:1").complains(69, "127.0.0.1:1");
    take("--store nonsense://x").complains(78, "nonsense");
    run(&site, "x=$(\"$0\" hold o --once-per 1h --while-pid $$ --background) || exit").expect(0);
    // It is released a moment after the script has ended.
    until("it is free", || lock(&site, "o")["holders"].get(0).is_none());
    let again = "x=$(\"$0\" hold o --once-per 1h --while-pid $$ --background) || exit; echo in";
    run(&site, again).complains(75, "cooling down");
    run(&site, "\"$0\" hold k --background -n").complains(64, "--while-pid");
    run(&site, "\"$0\" hold k --on-loss TERM -n").complains(64, "--while-pid");
    let closed = "\"$0\" hold free --while-pid $$ --background >&- && echo in";
    run(&site, closed).complains(74, "is closed");
    assert!(lock(&site, "free").is_null());
    let full = "\"$0\" hold free --while-pid $$ --background >/dev/full && echo in >&2";
    run(&site, full).complains(74, "standard output");
    site.line("run free -n -- true").expect(0);
}

#[test]
fn nothing_of_the_script_stays_open() {
    let site = Site::embedded();
    // Its end of input comes when no writer is left: neither the substitution with its errors, nor
    // a file that the shell has open, may have one in the background.
    let line = "got=$( { \"$0\" hold k --while-pid $$ --background; } 2>&1 ) || exit; echo \"$got\" | wc -l
        (\"$0\" hold other --while-pid $$ --background 2>&1 9>&1 || kill $$) | cat | wc -l
        \"$0\" run other -n -q -- true; echo $?";
    let done = run(&site, line).expect(0);
    assert_eq!(done.stdout, "1\n1\n75\n", "{done:?}");
}

#[test]
fn nothing_of_the_script_is_open_once_the_front_can_end() {
    let site = Site::embedded();
    let mut script = site.start(["hold", "other", "--ignore-stdin"]);
    script.line();
    // In a pipe that is full the front is held up just before its end.
    let (_reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while (&writer).write(&[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let script = script.pid().to_string();
    let mut front = site.command(["hold", "k", "--while-pid", &script, "--background"]);
    front.stdout(writer).stderr(Stdio::piped());
    let front = TestProcess::spawn(front).unwrap();
    let pid = front.pid();
    let back = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    until("the front has its back", || !back().is_empty());
    let back = back().trim().to_owned();
    let error = || fs::read_link(format!("/proc/{back}/fd/2")).unwrap_or_default();
    until("its standard error is left", || error() == Path::new("/dev/null"));
}

#[test]
fn a_script_releases_its_lock_earlier_and_learns_whether_it_had_it() {
    let site = Site::embedded();
    let give_back = "\"$0\" release k --fence $fence; echo $?";
    let done =
        run(&site, &format!("{TAKE}; {give_back}; \"$0\" run k -n -- echo free; {give_back}"));
    assert_eq!(done.stdout, "0\nfree\n76\n", "{done:?}");
    assert!(done.stderr.contains("it has ended, or lost the lock"), "{done:?}");
    site.line("release k").complains(64, "--fence");
    site.line("release --fence 3").complains(64, "KEY");
    site.line("release k --fence 3 --cooldown 1s").complains(64, "--cooldown");
    // What any `hold` prints is good for it.
    let mut holder = site.start(["hold", "a", "b", "--ignore-stdin"]);
    let (_, second) = (holder.line(), holder.line());
    let (fence, name) = second.split_once(' ').unwrap();
    site.run(["release", name, "--fence", fence]).expect(0);
    holder.finish().expect(0);
    site.line("run a b -n -- true").expect(0);
}

#[test]
fn a_force_release_ends_the_script_and_what_it_has_started() {
    for (store, how) in [(Site::embedded(), "TERM"), (Site::embedded(), "KILL")] {
        let take = format!(
            "fence=$(\"$0\" hold k --ttl 5s --while-pid $$ --background --on-loss {how}) || exit"
        );
        let section = "setsid sleep 1000 & echo $! > pids; sleep 1000; echo never";
        let script = in_section(&store, &take, section);
        appears(&store.path("pids"));
        store.run(["force-release", "k", "--fence", &fence(&store)]).expect(0);
        let done = script.finish();
        let signal = if how == "TERM" { libc::SIGTERM } else { libc::SIGKILL };
        assert_eq!(killed_by(&done), Some(signal), "{done:?}");
        assert!(done.stderr.contains("lost \"k\""), "{done:?}");
        assert!(done.stderr.contains(&format!("gets {how}")), "{done:?}");
        assert_eq!(done.stdout, "", "{done:?}");
        gone(store.read("pids").trim().parse().unwrap());
    }
}

#[test]
fn a_script_that_does_not_heed_a_loss_is_killed_before_the_lock_is_free() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let take = "trap '' TERM; fence=$(\"$0\" hold k --ttl 1s --while-pid $$ --background) || exit";
    let script = in_section(&site, take, "while :; do date +%s%N > beat; done");
    server.pause();
    let done = script.finish();
    assert_eq!(killed_by(&done), Some(libc::SIGKILL), "{done:?}");
    server.resume();
    site.line("run k -w 20 -- true").expect(0);
}

#[test]
fn a_signal_that_is_no_end_is_the_scripts_own_business() {
    let site = Site::embedded();
    let take = "trap 'echo told' USR1; \
        fence=$(\"$0\" hold k --ttl 5s --while-pid $$ --background --on-loss USR1) || exit";
    let section = "while [ ! -e go ]; do sleep 0.02; done; echo on";
    let mut script = in_section(&site, take, section);
    site.run(["force-release", "k", "--fence", &fence(&site)]).expect(0);
    assert_eq!(script.line(), "told");
    fs::write(site.path("go"), "").unwrap();
    assert_eq!(script.finish().expect(0).stdout, "on\n");
}

#[test]
fn a_holder_that_is_killed_or_stopped_takes_the_script_along() {
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let site = Site::embedded();
        let take = TAKE.replace("hold k", "hold k --ttl 1s");
        let script = in_section(&site, &take, "sleep 1000 & echo $! > pids; wait; echo never");
        appears(&site.path("pids"));
        let holder = holder(&site);
        send(holder, signal);
        let done = script.finish();
        assert_eq!(killed_by(&done), Some(libc::SIGTERM), "{signal}: {done:?}");
        gone(site.read("pids").trim().parse().unwrap());
        send(holder, libc::SIGKILL);
        site.line("run k -w 20 -- true").expect(0);
    }
}

#[test]
fn a_guard_that_is_killed_is_replaced() {
    let site = Site::embedded();
    let script = in_section(&site, TAKE, "sleep 1000; echo never");
    let guard = process(&site, "lh-guard");
    send(guard, libc::SIGKILL);
    gone(guard);
    assert_ne!(process(&site, "lh-guard"), guard);
    send(holder(&site), libc::SIGKILL);
    assert_eq!(killed_by(&script.finish()), Some(libc::SIGTERM));
    site.line("run k -w 20 -- true").expect(0);
}

#[test]
fn a_process_can_not_hold_a_lock_for_itself() {
    let site = Site::embedded();
    // As `$BASHPID` in a subshell of its own.
    let done = run(&site, "exec \"$0\" hold k --while-pid $$ --background");
    done.complains(64, "that is this process");
    site.line("run k -n -- true").expect(0);
}

#[test]
fn of_two_that_give_a_lock_back_at_once_one_has_done_it_and_one_is_late() {
    let site = Site::embedded();
    let release = "\"$0\" release k -q --fence $fence";
    for _ in 0..10 {
        let both = format!("{TAKE}; {release} & {release}; here=$?; wait $!; echo $here $?");
        let done = run(&site, &both);
        assert!(["0 76\n", "76 0\n"].contains(&done.stdout.as_str()), "{done:?}");
    }
}

#[test]
fn a_lock_is_released_from_another_namespace_of_processes() {
    let unshare = "unshare --pid --fork --map-root-user";
    if !shell(&Site::embedded(), &format!("{unshare} true")).status().unwrap().success() {
        println!("NOT TRIED: this user may make no namespace here");
        return;
    }
    let site = Site::embedded();
    let done = run(&site, &format!("{TAKE}; {unshare} \"$0\" release k --fence $fence; echo $?"));
    assert_eq!(done.stdout, "0\n", "{done:?}");
}

#[test]
fn a_release_that_another_network_prevents_is_reported_with_what_to_do() {
    let unshare = "unshare --net --map-root-user";
    if !shell(&Site::embedded(), &format!("{unshare} true")).status().unwrap().success() {
        println!("NOT TRIED: this user may make no namespace here");
        return;
    }
    let site = Site::embedded();
    let release = "\"$0\" release k --fence $fence";
    let there = format!("{unshare} {release} 2>&1; echo $?; {release}; echo $?");
    let done = run(&site, &format!("{TAKE}; {there}"));
    let lines: Vec<_> = done.stdout.lines().collect();
    let [why, code, "0"] = lines[..] else { panic!("{done:?}") };
    assert_eq!(code, "71", "{why}");
    assert!(why.contains("out of reach"), "{why}");
    let (_, advised) = why.split_once("`leasehold force-release ").unwrap();
    assert!(advised.starts_with("--fence ") && advised.trim_end().ends_with(" k`"), "{why}");
}

#[test]
fn a_killed_holders_lock_is_kept_until_its_script_has_ended() {
    let site = Site::embedded();
    let take = format!("trap 'sleep 0.3; touch ended; exit' TERM; {TAKE}");
    let script = in_section(&site, &take, "while :; do sleep 0.02; done");
    let next = site.start(["run", "k", "-c", "test -e ended"]);
    until("the next one waits", || {
        lock(&site, "k")["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    send(holder(&site), libc::SIGKILL);
    script.finish();
    next.finish().expect(0);
}

#[test]
fn signals_to_the_script_and_its_terminal_do_not_free_the_lock() {
    let site = Site::embedded();
    let command = script(
        &site,
        &format!(
            "trap 'echo cleaning up; \"$0\" run k -n -q -- true; echo $?; exit 0' TERM; {TAKE}; \
                  echo in; while :; do sleep 0.02; done"
        ),
    );
    let mut running = Running::start(command);
    assert_eq!(running.line(), "in");
    // As a service that is stopped: all of its processes get the signal.
    let holder = holder(&site);
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        send(holder, signal);
    }
    let group = Pid::from_raw(i32::try_from(running.pid()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::TERM).unwrap();
    assert_eq!(running.finish().expect(0).stdout, "cleaning up\n75\n");
    gone(holder);
    site.line("run k -n -- true").expect(0);
}

#[test]
fn a_wait_ends_with_the_process_that_it_is_for() {
    let site = Site::embedded();
    let mut other = site.start(["hold", "k", "--ignore-stdin"]);
    other.line();
    let waiters = |count: usize| {
        until("so many wait", || lock(&site, "k")["waiters"].as_array().unwrap().len() == count);
    };
    // In the foreground, for a process that ends.
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    let waiter = site.start(["hold", "k", "--while-pid", &process.id().to_string()]);
    waiters(1);
    process.kill().unwrap();
    waiter.finish().complains(75, "has ended");
    process.wait().unwrap();
    waiters(0);
    // In the background, for a script that is killed while it waits, with or without what it waits
    // for.
    for with_front in [false, true] {
        let mut command = script(&site, TAKE);
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        let mut waiting = command.spawn().unwrap();
        waiters(1);
        if with_front {
            let group = Pid::from_child(&waiting);
            rustix::process::kill_process_group(group, Signal::INT).unwrap();
        } else {
            waiting.kill().unwrap();
        }
        waiting.wait().unwrap();
        waiters(0);
    }
    drop(other);
    site.line("run k -w 20 -- true").expect(0);
}

#[test]
fn a_holder_that_is_asked_ends_its_script_and_keeps_the_lock_until_then() {
    let site = Site::embedded();
    let take = TAKE.replace("hold k", "hold k --until-asked");
    let trap = "trap '\"$0\" run k -n -q -- true; echo $?; exit 3' TERM";
    let script = in_section(&site, &format!("{trap}; {take}"), "while :; do sleep 0.02; done");
    site.line("ask k").expect(0);
    let done = script.finish().expect(3);
    assert_eq!(done.stdout, "75\n", "{done:?}");
    assert!(done.stderr.contains("requests the release of"), "{done:?}");
    site.line("run k -w 20 -- true").expect(0);
}

#[test]
fn the_longest_hold_ends_the_script() {
    let site = Site::embedded();
    let take = TAKE.replace("hold k", "hold k --max-hold 3s");
    let done = run(&site, &format!("{take}; sleep 1000; echo never"));
    assert_eq!(killed_by(&done), Some(libc::SIGTERM), "{done:?}");
    assert!(done.stderr.contains("as long as --max-hold allows"), "{done:?}");
    site.line("run k -w 20 -- true").expect(0);
}
