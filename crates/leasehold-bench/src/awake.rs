//! Keeps the processors from going to sleep while something is measured.
//!
//! Between a request and its answer a processor has nothing to do, and sleeps. In a virtual machine
//! the host may give it to others then, and to have it back can take longer than the whole request,
//! by as much as the host sees fit at the time: rounds of the same lie far apart, and what costs more
//! work looks cheap beside it. So, if asked to, a loop on each processor runs while nothing else wants
//! to (`SCHED_IDLE`); what is measured takes the place of such a loop at once.

use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// Ends when nobody is left that it runs for.
const LOOP: &str = "while kill -0 $PPID; do i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; done";

/// The loops, until they are dropped.
#[derive(Debug)]
pub(crate) struct Awake(Vec<Child>);

impl Awake {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut awake = Self(Vec::new());
        for _ in 0..std::thread::available_parallelism()?.get() {
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", LOOP]).stdin(Stdio::null()).stderr(Stdio::null());
            awake.0.push(shell.spawn().context("cannot keep a processor awake")?);
            let pid = awake.0.last().map_or(0, Child::id);
            run_while_idle(pid).context("cannot run a loop below everything else")?;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for shell in &mut self.0 {
            drop(shell.kill());
            drop(shell.wait());
        }
    }
}

#[cfg(target_os = "linux")]
fn run_while_idle(pid: u32) -> std::io::Result<()> {
    let pid = pid.try_into().unwrap_or(libc::pid_t::MAX);
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the system reads the parameters during the call.
    match unsafe { libc::sched_setscheduler(pid, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn run_while_idle(_: u32) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
