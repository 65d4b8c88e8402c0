//! The watchdog, and groups that don't end when they are told to.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use leasehold_testkit::server::RedisServer;

use crate::harness::{Running, Site, appears, finish, gone, state, until};

pub(crate) fn send(pid: u32, signal: libc::c_int) {
    // SAFETY: `kill` touches no memory of this process.
    let sent = unsafe { libc::kill(libc::pid_t::try_from(pid).unwrap(), signal) };
    assert_eq!(sent, 0, "process {pid}");
}

/// The processes of which this one is the parent, with their names.
fn children(parent: u32) -> Vec<(u32, String)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let child = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let mut fields = tail.split(' ');
        let lives = !matches!(fields.next()?, "Z" | "X");
        let name = head.split_once('(')?.1.to_owned();
        (lives && fields.next()? == parent.to_string()).then_some((pid, name))
    };
    pids.filter_map(child).collect()
}

/// The watchdog of a supervisor.
pub(crate) fn watchdog(supervisor: u32) -> u32 {
    let mut found = None;
    until("the watchdog has started", || {
        let all = children(supervisor);
        found = all.iter().find(|(_, name)| name == "lh-watchdog").map(|(pid, _)| *pid);
        found.is_some()
    });
    found.unwrap()
}

/// A shell and a grandchild, which write their process ids into `pids` and ignore TERM.
const STUBBORN: &str = "trap '' TERM; sh -c 'echo $$ >> pids; while :; do sleep 0.05; done' & \
                        echo $$ >> pids; echo ready; while :; do sleep 0.05; done";

fn pids(site: &Site, count: usize) -> Vec<u32> {
    appears(&site.path("pids"));
    until("all have started", || site.read("pids").lines().count() == count);
    site.read("pids").lines().map(|line| line.parse().unwrap()).collect()
}

fn ends_by_itself() -> &'static str {
    "echo ready; while [ ! -e end ]; do sleep 0.02; done; exit 5"
}

#[test]
fn a_stopped_watchdog_delays_no_command() {
    let site = Site::embedded();
    let running = site.start_script("k", ends_by_itself());
    let watchdog = watchdog(running.pid());
    send(watchdog, libc::SIGSTOP);
    fs::write(site.path("end"), "").unwrap();
    running.finish().expect(5);
    gone(watchdog);
    site.line("run -n k -- true").expect(0);
}

#[test]
fn a_watchdog_that_was_stopped_for_long_knows_the_latest_deadline() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    // The shortest ttl that stands load, and many times that.
    let running = site.start_script("k --ttl 2s", ends_by_itself());
    let watchdog = watchdog(running.pid());
    send(watchdog, libc::SIGSTOP);
    let show = || site.line("show k --json").expect(0).stdout;
    let held_for = || -> u64 {
        let lock: serde_json::Value = serde_json::from_str(&show()).unwrap();
        lock["lock"]["holders"][0]["held_for_ms"].as_u64().unwrap()
    };
    until("the deadline that it knew is long over", || held_for() > 5000);
    send(watchdog, libc::SIGCONT);
    let now = held_for();
    until("it has had time to look", || held_for() > now + 1000);
    fs::write(site.path("end"), "").unwrap();
    running.finish().expect(5);
}

#[test]
fn a_watchdog_that_is_stopped_is_set_going() {
    let site = Site::embedded();
    let running = site.start_script("k --ttl 1h", ends_by_itself());
    let watchdog = watchdog(running.pid());
    for _ in 0..3 {
        send(watchdog, libc::SIGSTOP);
        until("it goes on", || state(watchdog) == Some('S'));
    }
    fs::write(site.path("end"), "").unwrap();
    running.finish().expect(5);
}

#[test]
fn a_watchdog_that_is_killed_takes_the_command_along_before_the_lock_is_free() {
    on_every_store(|site| {
        let running = site.start_script("k --ttl 1h --grace 50ms", STUBBORN);
        let pids = pids(site, 2);
        send(watchdog(running.pid()), libc::SIGKILL);
        site.line("run -w 60 k -- true").expect(0);
        for pid in pids {
            assert_eq!(state(pid), None);
        }
        let done = running.finish().expect(137);
        assert!(
            done.stderr.contains("the watchdog was killed, and so was the command"),
            "{done:?}"
        );
    });
}

#[test]
fn a_watchdog_that_is_killed_as_soon_as_its_command_begins_takes_all_of_it_along() {
    let site = Site::embedded();
    // That is often before it has had time to say that the command has begun.
    let script = "setsid sleep 1000 & echo $! > pid; kill -9 $PPID; sleep 1000";
    for _ in 0..40 {
        let done =
            site.start(["run", "k", "--ttl", "1h", "--grace", "50ms", "-c", script]).finish();
        let done = done.expect(137);
        assert!(
            done.stderr.contains("the watchdog was killed, and so was the command"),
            "{done:?}"
        );
        assert_eq!(state(site.read("pid").trim().parse().unwrap()), None);
    }
}

#[test]
fn a_leasehold_that_is_killed_as_soon_as_its_command_begins_takes_all_of_it_along() {
    let site = Site::embedded();
    // It has a child as soon as it can be seen.
    let script = "sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; wait";
    for _ in 0..40 {
        fs::write(site.path("pids"), "").unwrap();
        let mut running = site.start(["run", "k", "--ttl", "1h", "-c", script]);
        until("both have started", || site.read("pids").lines().count() == 2);
        running.process().kill();
        for pid in site.read("pids").lines() {
            gone(pid.parse().unwrap());
        }
        site.line("run -w 60 k -- true").expect(0);
    }
}

/// The command's first process, and the other one of [`STUBBORN`].
fn first_and_rest(site: &Site, supervisor: u32) -> (u32, u32) {
    let pids = pids(site, 2);
    let own = children(watchdog(supervisor));
    let is_first = |pid: &&u32| own.iter().any(|(child, _)| child == *pid);
    let first = *pids.iter().find(is_first).unwrap();
    (first, *pids.iter().find(|pid| **pid != first).unwrap())
}

fn on_every_store(test: impl Fn(&Site)) {
    test(&Site::embedded());
    let server = RedisServer::start();
    test(&Site::at(server.url()));
}

#[test]
fn where_supervisor_and_watchdog_are_killed_at_once_only_the_first_process_dies_with_them() {
    on_every_store(|site| {
        let mut running = site.start_script("k --ttl 10s", STUBBORN);
        let (first, rest) = first_and_rest(site, running.pid());
        let watchdog = watchdog(running.pid());
        // For there to be no time in which it could put another in its place.
        send(running.pid(), libc::SIGSTOP);
        send(watchdog, libc::SIGKILL);
        running.process().kill();
        gone(first);
        site.line("run -w 60 k -- true").expect(0);
        assert!(state(rest).is_some(), "this is the gap that the guarantee names");
        send(rest, libc::SIGKILL);
        gone(rest);
    });
}

#[test]
fn where_supervisor_and_watchdog_stand_still_at_once_the_command_lives_until_either_goes_on() {
    on_every_store(|site| {
        let running = site.start_script("k --ttl 2s", STUBBORN);
        let (first, rest) = first_and_rest(site, running.pid());
        let watchdog = watchdog(running.pid());
        send(running.pid(), libc::SIGSTOP);
        send(watchdog, libc::SIGSTOP);
        site.line("run -w 60 k -- true").expect(0);
        assert!(state(first).is_some(), "this is the gap that the guarantee names");
        send(watchdog, libc::SIGCONT);
        gone(first);
        gone(rest);
        send(running.pid(), libc::SIGCONT);
        running.finish().expect(76);
    });
}

#[test]
fn a_watchdog_that_is_killed_at_birth_leaves_nothing_behind() {
    let site = Site::embedded();
    for _ in 0..60 {
        let mut running = site.start(["run", "k", "--ttl", "1h", "--", "true"]);
        let supervisor = running.pid();
        while running.exited().is_none() {
            let all = children(supervisor);
            if let Some((pid, _)) = all.iter().find(|(pid, _)| *pid != supervisor) {
                // SAFETY: `kill` touches no memory of this process; it may be gone already.
                unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
            }
        }
        let done = running.finish();
        // It had ended, was ended, or was never started.
        assert!(matches!(done.status.code(), Some(0 | 137 | 71)), "{done:?}");
        site.line("run -n k -- true").expect(0);
    }
}

/// A program that never collects its children, and gets those of others, with leasehold as its
/// child; and the number of that.
fn under_one_that_never_reaps(site: &Site, options: &str, script: &str) -> (Child, u32) {
    let line = format!(
        "\"$0\" run {options} -c \"$1\" < /dev/null > out 2>&1 & echo $! > supervisor; \
         exec sleep 100000"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_leasehold"), script]);
    let template = site.command([] as [&str; 0]);
    command.env_clear().stdin(Stdio::null()).current_dir(site.path(""));
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    // SAFETY: the hook makes system calls only.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
            rustix::process::setsid()?;
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    appears(&site.path("supervisor"));
    until("it is known", || site.read("supervisor").ends_with('\n'));
    let supervisor = site.read("supervisor").trim().parse().unwrap();
    (child, supervisor)
}

/// A group whose first process ends on TERM, and of which a zombie is left that nobody collects.
const LEAVES_A_ZOMBIE: &str = "sh -c 'echo $$ >> pids; while :; do sleep 0.05; done' & \
                               echo $$ >> pids; trap 'exit 3' TERM; while :; do sleep 0.05; done";

#[test]
fn zombies_that_no_process_collects_keep_no_lock() {
    let site = Site::embedded();
    let (mut parent, supervisor) = under_one_that_never_reaps(&site, "k --ttl 1h", LEAVES_A_ZOMBIE);
    let pids = pids(&site, 2);
    send(supervisor, libc::SIGTERM);
    gone(supervisor);
    pids.into_iter().for_each(gone);
    site.line("run -w 30 k -- true").expect(0);
    parent.kill().unwrap();
    parent.wait().unwrap();
}

#[test]
fn zombies_of_a_killed_supervisor_keep_no_lock() {
    let site = Site::embedded();
    let (mut parent, supervisor) = under_one_that_never_reaps(&site, "k --ttl 1h", LEAVES_A_ZOMBIE);
    let pids = pids(&site, 2);
    send(supervisor, libc::SIGKILL);
    pids.into_iter().for_each(gone);
    // An hour's ttl; the watchdog is not to wait for zombies.
    site.line("run -w 30 k -- true").expect(0);
    parent.kill().unwrap();
    parent.wait().unwrap();
}

#[test]
fn the_first_process_of_a_container_ends_at_a_signal_and_collects_what_it_inherits() {
    let site = Site::embedded();
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let try_it = Command::new("unshare").args(unshare).arg("true").output();
    if !try_it.is_ok_and(|tried| tried.status.success()) {
        println!("NOT TRIED: this machine makes no namespaces, so there is no first process");
        return;
    }
    // The middle one ends at once and leaves its child to the first process. The last one ends
    // with TERM, and its parent does not collect it.
    let script = "(sh -c 'while [ ! -e release ]; do sleep 0.02; done' &); \
                  sh -c 'echo $$ >> pids; while :; do sleep 0.05; done' & \
                  echo $$ >> pids; trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let mut command = site.command([] as [&str; 0]);
    let template = command;
    command = Command::new("unshare");
    command.args(unshare).arg(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["run", "k", "--ttl", "1h", "-c", script]);
    command.env_clear().stdin(Stdio::null()).current_dir(site.path(""));
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let mut running = Running::start(command);
    pids(&site, 2);
    let first = children(running.pid())[0].0;
    let watchdog = watchdog(first);
    until("the orphan is left to the watchdog", || children(watchdog).len() == 2);
    fs::write(site.path("release"), "").unwrap();
    let zombies = |of: u32| {
        let stats = fs::read_dir("/proc").unwrap().flatten();
        let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        let of_parent = format!("Z {of} ");
        stats
            .filter(|stat| stat.rsplit_once(") ").is_some_and(|it| it.1.starts_with(&of_parent)))
            .count()
    };
    until("the orphan is collected", || children(watchdog).len() == 1 && zombies(watchdog) == 0);
    send(first, libc::SIGTERM);
    assert_eq!(running.process().wait().code(), Some(3));
    finish(&mut site.command(["run", "-n", "k", "--", "true"])).expect(0);
}

/// A file system on a loop device, which can be frozen: a process that writes to it then can't be
/// killed.
struct Freezer {
    place: PathBuf,
}

impl Freezer {
    fn make(site: &Site) -> Option<Self> {
        let (image, place) = (site.path("image"), site.path("disk"));
        fs::create_dir(&place).unwrap();
        fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let paths = [&image, &place].map(|path| path.to_str().unwrap().to_owned());
            let arguments = arguments.iter().map(|argument| match *argument {
                "IMAGE" => paths[0].clone(),
                "PLACE" => paths[1].clone(),
                other => other.to_owned(),
            });
            Command::new(program).args(arguments).output().is_ok_and(|done| done.status.success())
        };
        let made = run("mkfs.ext4", &["-q", "-F", "IMAGE"])
            && run("mount", &["-o", "loop", "IMAGE", "PLACE"]);
        made.then_some(Self { place })
    }

    fn set(&self, option: &str) {
        let done = Command::new("fsfreeze").arg(option).arg(&self.place).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        Command::new("fsfreeze").arg("-u").arg(&self.place).output().ok();
        Command::new("umount").arg("-l").arg(&self.place).output().ok();
    }
}

/// Starts a command that hangs on a frozen disk, where even KILL does not reach it. Its number,
/// or `None` where there is no such disk.
fn hanging(site: &Site, freezer: &Freezer, options: &str) -> (Running, u32) {
    freezer.set("-f");
    let script = "echo $$; echo first > disk/file; echo done >> log; sleep 1000";
    let mut running =
        site.start(["run"].into_iter().chain(options.split(' ')).chain(["-c", script]));
    let pid = running.line().parse().unwrap();
    until("it hangs", || state(pid) == Some('D'));
    (running, pid)
}

#[test]
fn a_command_that_can_not_be_killed_yet_keeps_its_lock_until_it_is_dead() {
    let site = Site::embedded();
    let Some(freezer) = Freezer::make(&site) else {
        println!(
            "NOT TRIED: this machine mounts no loop device, so no process can be made to hang"
        );
        return;
    };
    let (mut running, pid) = hanging(&site, &freezer, "k --ttl 1h");
    running.process().kill();
    // The old watchdog ended after two seconds.
    site.line("run k -w 3 -- true").complains(75, "held by");
    assert_eq!(state(pid), Some('D'));
    freezer.set("-u");
    site.line("run k -w 30 -- true").expect(0);
    assert_eq!(state(pid), None);
    assert!(!site.path("log").exists(), "it did nothing more");
}

#[test]
fn a_command_that_can_not_be_killed_keeps_its_lock_no_longer_than_its_lease() {
    let site = Site::embedded();
    let Some(freezer) = Freezer::make(&site) else {
        println!(
            "NOT TRIED: this machine mounts no loop device, so no process can be made to hang"
        );
        return;
    };
    let (mut running, pid) = hanging(&site, &freezer, "k --ttl 3s");
    running.process().kill();
    site.line("run k -w 30 -- true").expect(0);
    assert_eq!(state(pid), Some('D'));
}

#[test]
fn a_lost_lock_is_not_released_while_a_killed_command_hangs() {
    let site = Site::embedded();
    let Some(freezer) = Freezer::make(&site) else {
        println!(
            "NOT TRIED: this machine mounts no loop device, so no process can be made to hang"
        );
        return;
    };
    // TERM ends the first process; the hanging one is the rest of its group.
    let (running, pid) = hanging(&site, &freezer, "k --ttl 1h");
    send(running.pid(), libc::SIGTERM);
    site.line("run k -w 3 -- true").complains(75, "held by");
    assert_eq!(state(pid), Some('D'));
    freezer.set("-u");
    running.finish().expect(143);
    site.line("run k -n -- true").expect(0);
}
