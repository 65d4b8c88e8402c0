//! On a terminal: Ctrl-C, Ctrl-Z, who may read, and who gets the terminal back.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::harness::{Site, gone, state, until};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A program in a session of its own on a terminal of its own.
pub(crate) struct Terminal {
    keyboard: File,
    /// All that was written to it.
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    fn start(command: Command) -> Self {
        let (keyboard, child) = on_a_terminal(command);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 1024];
            // Reading fails when the last process on the terminal is gone.
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                written.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { keyboard, screen, child }
    }

    /// The command itself on a terminal.
    pub(crate) fn leasehold(site: &Site, args: &[&str]) -> Self {
        Self::start(site.command(args))
    }

    /// An interactive shell that knows `leasehold`.
    fn shell(site: &Site, script: &str) -> Self {
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile"]);
        command.args(if script == "-i" { vec!["-i"] } else { vec!["-c", script] });
        let directory = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        command.env_clear().env("PATH", path).env("LEASEHOLD_STORE", site.store());
        command.env("HOME", site.path("")).env("PS1", "% ").current_dir(site.path(""));
        Self::start(command)
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn send(&self, signal: libc::c_int) {
        crate::watchdog::send(self.child.id(), signal);
    }

    /// Gives it another size, in lines and columns, which the program is told by a signal.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Takes nothing more, as after Ctrl-S.
    pub(crate) fn stall(&self) {
        let name = rustix::pty::ptsname(&self.keyboard, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        rustix::termios::tcflow(terminal, rustix::termios::Action::OOff).unwrap();
    }

    /// The screen of a terminal of this size.
    pub(crate) fn looks(&self, rows: u16, columns: u16) -> String {
        let mut screen = vt100::Parser::new(rows, columns, 0);
        screen.process(&self.screen.lock().unwrap());
        screen.screen().contents()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        let mut seen = String::new();
        until(&format!("{text:?} is shown"), || {
            seen = self.text();
            seen.contains(text)
        });
    }

    #[track_caller]
    pub(crate) fn ends(&mut self) -> ExitStatus {
        until("the program ends", || self.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        println!("{}", self.text());
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            println!("the screen: {}", self.text());
        }
    }
}

/// Starts a program on a terminal of its own: its keyboard and screen, and the program.
fn on_a_terminal(mut command: Command) -> (File, Child) {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    // So that only this process keeps the terminal there.
    rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
    let open = || -> OwnedFd {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap()
    };
    command.stdin(open()).stdout(open()).stderr(open());
    // SAFETY: the hook makes system calls only.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    (File::from(master), child)
}

/// How the command ends whose terminal goes away once it shows this.
pub(crate) fn hung_up(site: &Site, args: &[&str], text: &str) -> ExitStatus {
    let (mut screen, mut child) = on_a_terminal(site.command(args));
    let (mut shown, mut buffer) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&shown).contains(text) {
        let count = screen.read(&mut buffer).unwrap();
        shown.extend_from_slice(&buffer[..count]);
    }
    drop(screen);
    until("the program ends", || child.try_wait().unwrap().is_some());
    child.wait().unwrap()
}

fn script(site: &Site, name: &str, text: &str) {
    fs::write(site.path(name), text).unwrap();
}

#[test]
fn ctrl_c_reaches_the_command_alone() {
    let site = Site::embedded();
    let trap = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.02; done";
    let mut terminal = Terminal::leasehold(&site, &["run", "k", "-c", trap]);
    terminal.shows("ready");
    terminal.type_in(CTRL_C);
    terminal.shows("caught");
    assert_eq!(terminal.ends().code(), Some(5));
    site.line("run -n k -- true").expect(0);
}

#[test]
fn ctrl_c_ends_the_script_around_the_command() {
    let site = Site::embedded();
    script(&site, "job", "echo ready; exec sleep 1000");
    let mut terminal = Terminal::shell(&site, "leasehold run k -- sh job; echo not reached");
    terminal.shows("ready");
    terminal.type_in(CTRL_C);
    assert_eq!(terminal.ends().signal(), Some(libc::SIGINT));
    assert!(!terminal.text().contains("not reached"));
    site.line("run -n k -- true").expect(0);
}

#[test]
fn the_rest_of_a_command_that_ctrl_c_has_ended_keeps_the_lock_until_the_next_ctrl_c() {
    let site = Site::embedded();
    script(
        &site,
        "job",
        "sh -c 'trap \"\" TERM INT HUP; echo $$ > rest; while :; do sleep 0.05; done' & \
         while [ ! -s rest ]; do sleep 0.02; done; echo job-is-ready; while :; do sleep 0.05; done",
    );
    let line = "leasehold run k --ttl 1h --grace 0s -- sh job; echo not reached";
    let mut terminal = Terminal::shell(&site, line);
    terminal.shows("job-is-ready");
    terminal.type_in(CTRL_C);
    terminal.shows("a part of it runs on and keeps the lock");
    site.line("run -n k -- true").expect(75);
    let rest: u32 = site.read("rest").trim().parse().unwrap();
    assert!(state(rest).is_some(), "it is waited for");
    terminal.type_in(CTRL_C);
    assert_eq!(terminal.ends().signal(), Some(libc::SIGINT));
    gone(rest);
    assert!(!terminal.text().contains("not reached"));
    site.line("run -n k -- true").expect(0);
}

#[test]
fn a_rest_that_ctrl_c_has_left_and_that_ends_by_itself_frees_the_lock() {
    let site = Site::embedded();
    script(
        &site,
        "job",
        "sh -c 'trap \"\" TERM INT HUP; echo > begun; while [ ! -e go ]; do sleep 0.02; done; \
         echo > tidied' & \
         while [ ! -e begun ]; do sleep 0.02; done; echo job-is-ready; while :; do sleep 0.05; done",
    );
    let mut terminal = Terminal::leasehold(&site, &["run", "k", "--ttl", "1h", "--", "sh", "job"]);
    terminal.shows("job-is-ready");
    terminal.type_in(CTRL_C);
    site.line("wait -w 1 k").complains(75, "held by");
    fs::write(site.path("go"), "").unwrap();
    assert_eq!(terminal.ends().signal(), Some(libc::SIGINT));
    assert!(site.path("tidied").exists());
    site.line("run -n k -- true").expect(0);
}

#[test]
fn ctrl_z_stops_both_and_fg_lets_both_go_on() {
    let site = Site::embedded();
    script(&site, "job", "echo job-is-ready; read word; echo got-$word");
    let mut terminal = Terminal::shell(&site, "-i");
    terminal.type_in("leasehold run k --ttl 1h -- sh job; echo code-$?\n");
    terminal.shows("job-is-ready");
    terminal.type_in(CTRL_Z);
    terminal.shows("leasehold: suspended; \"k\" is lost unless the job continues within");
    terminal.shows("Stopped");
    terminal.type_in("echo shell-$((40+2))\n");
    terminal.shows("shell-42");
    site.run(["run", "-n", "k", "--", "true"]).expect(75);
    terminal.type_in("fg\n");
    terminal.type_in("hello\n");
    terminal.shows("got-hello");
    site.line("run -w 30 k -- true").expect(0);
    terminal.type_in("echo again-$((40+3)); exit\n");
    terminal.shows("again-43");
    terminal.ends();
}

#[test]
fn a_job_that_is_suspended_for_longer_than_its_lease_is_ended() {
    let site = Site::embedded();
    script(&site, "job", "echo $$ > pid; echo job-is-ready; read word; echo got-$word");
    let mut terminal = Terminal::shell(&site, "-i");
    terminal.type_in("leasehold run k --ttl 1s -- sh job\n");
    terminal.shows("job-is-ready");
    terminal.type_in(CTRL_Z);
    terminal.shows("Stopped");
    gone(site.read("pid").trim().parse().unwrap());
    site.line("run -w 30 k -- true").expect(0);
    terminal.type_in("fg; echo code-$?\n");
    terminal.shows("lost \"k\"");
    terminal.shows("code-76");
    terminal.type_in("exit\n");
    terminal.ends();
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal_when_it_asks_for_it() {
    let site = Site::embedded();
    script(&site, "job", "echo job-is-ready; read word < /dev/tty; echo got-$word");
    let mut terminal = Terminal::shell(&site, "-i");
    terminal.type_in("leasehold run k -- sh job | cat; echo code-${PIPESTATUS[0]}\n");
    terminal.shows("job-is-ready");
    terminal.type_in("hello\n");
    terminal.shows("got-hello");
    terminal.shows("code-0");
    terminal.type_in("exit\n");
    terminal.ends();
}

#[test]
fn a_background_job_that_wants_to_read_is_stopped_until_it_is_in_front() {
    let site = Site::embedded();
    script(&site, "job", "echo job-is-ready; read word; echo got-$word");
    let mut terminal = Terminal::shell(&site, "-i");
    terminal.type_in("leasehold run k --ttl 1h -- sh job &\n");
    terminal.shows("job-is-ready");
    assert!(site.line("show k --json").expect(0).stdout.contains("\"holders\":[{"));
    terminal.type_in("until jobs | grep -q Stopped; do sleep 0.05; done; echo is-$((40+2))\n");
    terminal.shows("is-42");
    terminal.type_in("fg\n");
    terminal.type_in("hello\n");
    terminal.shows("got-hello");
    terminal.type_in("exit\n");
    terminal.ends();
}

#[test]
fn a_background_job_says_what_it_has_to_on_a_terminal_that_stops_writers_and_keeps_its_lock() {
    let site = Site::embedded();
    script(&site, "job", "echo $$ > pid; exec sleep 600");
    let mut terminal = Terminal::shell(&site, "-i");
    terminal.type_in("stty tostop; leasehold run k --ttl 1s -- sh job &\n");
    crate::harness::appears(&site.path("pid"));
    site.line("ask k").expect(0);
    terminal.shows("leasehold: ");
    terminal.shows("requests the release");
    site.run(["run", "-n", "k", "--", "true"]).expect(75);
    terminal.type_in("kill %1; wait; echo code-$?; exit\n");
    terminal.ends();
    site.line("run -w 30 k -- true").expect(0);
}

#[test]
fn the_terminal_comes_back_to_a_script() {
    let site = Site::embedded();
    let line = "leasehold run k -c 'echo first'; read word; echo got-$word; \
                leasehold run k -- /no/such/program; read word; echo then-$word";
    let mut terminal = Terminal::shell(&site, line);
    terminal.shows("first");
    terminal.type_in("one\n");
    terminal.shows("got-one");
    terminal.shows("can't run /no/such/program");
    terminal.type_in("two\n");
    terminal.shows("then-two");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_command_that_is_killed_leaves_the_terminal_as_it_found_it() {
    let site = Site::embedded();
    script(&site, "job", "stty -icanon -echo; kill -9 $$");
    let says = "stty -a | tr ' ;' '\\n\\n' | grep -x -e -icanon -e icanon | sed 's/^/mode:/'";
    let mut terminal =
        Terminal::shell(&site, &format!("leasehold run k -- sh job; echo code-$?; {says}"));
    terminal.shows("code-137");
    terminal.shows("mode:icanon");
    terminal.ends();
}

#[test]
fn where_no_shell_could_continue_it_a_stop_is_not_obeyed() {
    let site = Site::embedded();
    // No shell is in charge of this terminal, so the system does not stop leasehold; the command
    // must not stay stopped either.
    script(&site, "job", "echo job-is-ready; read word; echo got-$word");
    let mut terminal = Terminal::leasehold(&site, &["run", "k", "--", "sh", "job"]);
    terminal.shows("job-is-ready");
    terminal.type_in(CTRL_Z);
    terminal.shows("suspended");
    terminal.type_in("hello\n");
    terminal.shows("got-hello");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_stubborn_shell_and_its_child_on_a_terminal_die_when_the_lock_is_lost() {
    let site = Site::embedded();
    script(
        &site,
        "job",
        "trap '' TERM INT HUP; sh -c 'echo $$ >> pids; while :; do sleep 0.05; done' & \
         echo $$ >> pids; while :; do sleep 0.05; done",
    );
    let mut terminal = Terminal::leasehold(&site, &["run", "k", "--ttl", "5s", "--", "sh", "job"]);
    let pids = || fs::read_to_string(site.path("pids")).unwrap_or_default();
    until("both have started", || pids().lines().count() == 2);
    let list = site.line("ls").expect(0).stdout;
    let fence = list.lines().nth(1).unwrap().split_whitespace().nth(2).unwrap().to_owned();
    site.run(["force-release", "k", "--fence", &fence]).expect(0);
    assert_eq!(terminal.ends().code(), Some(76));
    pids().lines().for_each(|pid| gone(pid.parse().unwrap()));
}

#[test]
fn a_long_wait_on_a_terminal_is_explained() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "k", "--ignore-stdin", "--owner", "web-7"]);
    holder.line();
    let mut terminal = Terminal::leasehold(&site, &["run", "k", "--", "echo", "done"]);
    terminal.shows("leasehold: waiting: \"k\" is held by web-7");
    terminal.shows("this one at position 1");
    drop(holder);
    terminal.shows("done");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_wait_is_explained_to_a_file_too_unless_it_is_to_be_quiet() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    site.line("run shut --cooldown 1h -- true").expect(0);
    for (key, command, says) in [
        ("k", "run -w 1.5", "waiting: \"k\" is held by"),
        ("k", "run -w 1.5", "this one at position 1"),
        ("k", "wait -w 1.5", "waiting: \"k\" is held by"),
        ("k", "wait -w 1.5", "unless renewed. See `leasehold why k`"),
        ("shut", "run -w 1.5", "waiting: \"shut\" is cooling down for another"),
        ("shut", "acquire -w 1.5", "waiting: \"shut\" is cooling down for another"),
    ] {
        let tail = if command.starts_with("run") { " -- true" } else { "" };
        let done = site.line(&format!("{command} {key}{tail}")).expect(75);
        assert!(done.stderr.contains(says), "{}", done.stderr);
        let done = site.line(&format!("-q {command} {key}{tail}")).expect(75);
        assert_eq!(done.stderr, "");
    }
}
