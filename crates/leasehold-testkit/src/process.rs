//! Starts child processes that a test can pause and kill, and leaves no trace of them.
//!
//! The caller decides what runs *in* the process (see [`crate::server`]). The invariant: a
//! [`TestProcess`] never outlives the process that started it, however that process ends.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

type Job = Box<dyn FnOnce() + Send>;

/// The thread that starts every child.
///
/// The kernel delivers the "parent died" signal when the *thread* that forked ends, not the
/// process. Test threads end with their test; this one lives as long as the process.
static SPAWNER: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = mpsc::channel::<Job>();
    thread::Builder::new()
        .name("test-spawner".to_owned())
        .spawn(move || jobs.into_iter().for_each(|job| job()))
        .expect("a test process can start one more thread");
    sender
});

/// A child process in a session of its own, killed when this value is dropped.
///
/// On Linux it is also killed when the test process dies before it drops this value: by Ctrl-C, by
/// a test runner's timeout, or because the value is a `static`.
#[derive(Debug)]
pub struct TestProcess {
    child: Child,
}

impl TestProcess {
    /// Starts `command`.
    ///
    /// # Errors
    ///
    /// As [`Command::spawn`].
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // SAFETY: the hook runs between fork and exec and only makes system calls; it neither
        // allocates nor locks.
        unsafe {
            command.pre_exec(move || detach(parent));
        }
        let (reply, spawned) = mpsc::channel();
        let job: Job = Box::new(move || {
            // The caller waits for the answer below, so it still exists.
            drop(reply.send(command.spawn()));
        });
        SPAWNER.send(job).expect("the spawner thread never ends");
        let child = spawned.recv().expect("the spawner answers every job")?;
        Ok(Self { child })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The standard library's view of the child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends `signal`. A process that has ended already is left alone.
    ///
    /// # Panics
    ///
    /// When the kernel refuses for any other reason.
    pub fn signal(&self, signal: Signal) {
        match rustix::process::kill_process(self.raw_pid(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("cannot send {signal:?} to process {}: {error}", self.pid()),
        }
    }

    /// Stops the process (`SIGSTOP`) and returns once it stands still.
    ///
    /// # Panics
    ///
    /// When the process cannot be signalled or waited for.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        // The signal returns before it takes effect, and a request sent right after might be
        // served. NOWAIT leaves an exit status for `Child::wait` to collect.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(self.raw_pid()), options)
            .expect("a child that was not collected yet can be waited for");
    }

    /// Lets a paused process go on (`SIGCONT`).
    ///
    /// # Panics
    ///
    /// When the process cannot be signalled.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process (`SIGKILL`, which works on a paused one too) and collects it.
    ///
    /// # Panics
    ///
    /// When the process cannot be signalled or waited for.
    pub fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Asks the process to end (`SIGTERM`) and waits until it has.
    ///
    /// # Panics
    ///
    /// When the process cannot be signalled or waited for.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the process to end by itself.
    ///
    /// # Panics
    ///
    /// When the process cannot be waited for.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    /// The exit status, if the process has ended.
    ///
    /// # Panics
    ///
    /// When the process cannot be waited for.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // Killing fails only if the child is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// How a process ended, for a message: `exit code 1`, `signal 9`.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Runs in the child before exec.
fn detach(parent: Pid) -> io::Result<()> {
    // Out of the terminal's foreground group. Ctrl-C must reach the test, which then takes the
    // child with it, and not stop the server under a test that is still running.
    rustix::process::setsid()?;
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the call above, and then no signal will come.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::NotConnected.into());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _: Pid = parent;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::Stdio;

    use super::*;

    fn cat() -> TestProcess {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        TestProcess::spawn(command).unwrap()
    }

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        after_name.chars().next().unwrap()
    }

    #[test]
    fn pause_returns_when_the_process_stands_still() {
        let mut process = cat();
        for _ in 0..20 {
            process.pause();
            assert_eq!(state(process.pid()), 'T');
            process.resume();
        }
        let mut stdin = process.child().stdin.take().unwrap();
        let mut stdout = BufReader::new(process.child().stdout.take().unwrap());
        writeln!(stdin, "still there").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "still there\n");
    }

    #[test]
    fn kill_ends_a_paused_process() {
        let mut process = cat();
        process.pause();
        assert_eq!(process.kill().signal(), Some(9));
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let mut process = thread::spawn(cat).join().unwrap();
        process.pause();
        process.resume();
        assert_eq!(process.exited(), None);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = TestProcess::spawn(Command::new("/nonexistent/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
