//! `leasehold hold`: have a lock while somebody else works.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use leasehold::Release;
use rustix::process::Pid;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::arguments;
use crate::cli::Hold;
use crate::context::Context;
use crate::describe;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::kind::Kind;
use crate::leases::{Cooldown, Held, Leases};
use crate::output::{self, JSON_VERSION};
use crate::request::{Manner, Request};

/// How often to look whether the process of `--while-pid` has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Until when the lock is held.
enum Until {
    InputCloses(oneshot::Receiver<()>),
    ProcessEnds(Watched),
    Signal,
}

/// Why it is held no longer.
enum End {
    Lost,
    /// It was asked to let go, in one way or another.
    Asked,
    Failed(Failure),
}

pub(crate) async fn hold(args: &Hold, context: &Context) -> Outcome {
    let kind = Kind::of(&args.kinds, args.keys.len())?;
    kind.judge(args.taking.waiting.wait, false)?;
    let asking = (args.until_asked, "--until-asked", "way to be asked for");
    arguments::refuse_for(context.settings.layout(), &[asking])?;
    let mut request = Request::new(&args.keys, kind, &args.taking, context)?;
    request.ttl = arguments::within(args.max_hold, request.ttl, None)?;
    // Before the lock is taken, so that it is not held in vain.
    if output::is_closed() {
        return Err(Failure::new(
            Exit::Output,
            "standard output is closed, so nobody would learn that the lock is held; leave it open, \
             or send it to a file",
        ));
    }
    let process = args.while_pid.map(Watched::open).transpose()?;
    let mut signals = context.catch_signals()?;
    let manner = Manner { renew: true, grace: None, max_hold: args.max_hold };
    let (client, held) = request.take(context, &mut signals, manner).await?;
    let until = match process {
        Some(process) => Until::ProcessEnds(process),
        None if args.ignore_stdin => Until::Signal,
        None if output::is_null(io::stdin().as_fd()) => {
            // A shell gives that to what runs in the background of a script.
            if !context.quiet {
                output::message(&format!(
                    "standard input is /dev/null or closed, and ends at once, so {} is held until a \
                     signal comes; --while-pid PID (in a script, $$) holds it while that process \
                     lives",
                    request.names()
                ));
            }
            Until::Signal
        }
        None => Until::InputCloses(input_closed()?),
    };
    let leases = held.leases();
    let over = async {
        if let Err(failure) = announce(leases, args.json).await {
            return End::Failed(failure);
        }
        match until {
            // A sender that is gone means that reading failed, which is as good as closed.
            Until::InputCloses(closed) => drop(closed.await),
            Until::ProcessEnds(process) => process.ended().await,
            Until::Signal => std::future::pending().await,
        }
        End::Asked
    };
    let asked = async {
        output::message(leases.asked(&client, args.until_asked).await.as_str());
        if !args.until_asked {
            std::future::pending::<()>().await;
        }
    };
    let end = tokio::select! {
        biased;
        () = leases.lost() => End::Lost,
        _ = signals.next_fatal() => End::Asked,
        end = over => end,
        () = asked => End::Asked,
    };
    match end {
        End::Lost => Ok(give_up(held, context).await),
        End::Asked => Ok(release(held).await),
        End::Failed(failure) => {
            drop(held.release(Cooldown::AsGranted).await);
            Err(failure)
        }
    }
}

/// Tells of the loss and lets go, as far as that can be done before somebody else may hold it.
async fn give_up(held: Held, context: &Context) -> Exit {
    let leases = held.leases();
    if leases.tell_of_losses("") {
        // The store has let go by itself, but for those of several that were taken a moment later.
        drop(held.release(Cooldown::AsGranted).await);
        return Exit::Overtime;
    }
    let until = Instant::now() + leases.until_deadline();
    drop(tokio::time::timeout_at(until, held.release(Cooldown::AsGranted)).await);
    context.tidy_within(until.saturating_duration_since(Instant::now()));
    Exit::Lost
}

async fn release(held: Held) -> Exit {
    let mut exit = Exit::Success;
    for (key, released) in held.release(Cooldown::AsGranted).await {
        let why = match released {
            Ok(Release::Released) => continue,
            Ok(Release::NotHeld) => "somebody else may have held it meanwhile".to_owned(),
            Ok(Release::Late { by }) => format!(
                "it ran out {}, though nobody else has held it since",
                describe::before(by, "the release"),
            ),
            Ok(_) => {
                output::message(&format!(
                    "warning: release \"{key}\": the store did not answer; the lock may stay held \
                     until its ttl runs out"
                ));
                continue;
            }
            Err(error) => {
                output::message(&chain(&error));
                exit = Exit::Store;
                continue;
            }
        };
        output::message(&format!("lost \"{key}\": {why}"));
        exit = Exit::Lost;
    }
    exit
}

/// Says what is held.
async fn announce(leases: &Leases, as_json: bool) -> Outcome<()> {
    let mut text = String::new();
    for lease in leases.iter() {
        let (key, fence) = (lease.key().as_str(), leases.numbers().text(lease.fence()?));
        text.push_str(&if as_json {
            output::json_line(&json!({ "version": JSON_VERSION, "key": key, "fence": fence }))
        } else {
            format!("{} {key}\n", fence.as_deref().unwrap_or("-"))
        });
    }
    match output::data_patiently(&text).await {
        // Nobody learns that it is held, so nobody relies on it either.
        Err(failure) if failure.exit == Exit::Success => Err(Failure::new(
            Exit::Output,
            "nobody reads standard output, where it says that the lock is held; it is given back",
        )),
        other => other,
    }
}

/// A process that is not ours.
#[derive(Debug)]
struct Watched {
    pid: Pid,
    /// Knows it for sure, where the system has such a thing; a number may be given again.
    #[cfg(target_os = "linux")]
    handle: Option<OwnedFd>,
}

impl Watched {
    fn open(typed: u32) -> Outcome<Self> {
        let refuse = |why: String| Failure::usage(format!("--while-pid {typed}: {why}"));
        let pid = i32::try_from(typed).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| refuse("that is no number of a process".to_owned()))?;
        #[cfg(target_os = "linux")]
        let handle = {
            use rustix::io::Errno;
            use rustix::process::{PidfdFlags, pidfd_open};
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => Some(handle),
                // Before Linux 5.3, and where a container forbids it.
                Err(Errno::NOSYS | Errno::PERM) => None,
                Err(Errno::SRCH) => return Err(refuse("there is no such process".to_owned())),
                Err(error) => return Err(refuse(error.to_string())),
            }
        };
        let watched = Self {
            pid,
            #[cfg(target_os = "linux")]
            handle,
        };
        if watched.has_ended() {
            return Err(refuse("there is no such process".to_owned()));
        }
        Ok(watched)
    }

    fn has_ended(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(handle) = &self.handle {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let ended = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&at_once));
            return ended.is_ok_and(|ready| ready > 0);
        }
        rustix::process::test_kill_process(self.pid) == Err(rustix::io::Errno::SRCH)
    }

    async fn ended(&self) {
        while !self.has_ended() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Reads standard input to its end, on a thread of its own: a read can't be cut short.
fn input_closed() -> Outcome<oneshot::Receiver<()>> {
    let (sender, closed) = oneshot::channel();
    let reader = move || {
        let mut buffer = [0; 4096];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        // Nobody waits any more if the lock was lost meanwhile.
        sender.send(()).ok();
    };
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(reader)
        .map_err(|error| Failure::system("watch standard input", &error))?;
    Ok(closed)
}
