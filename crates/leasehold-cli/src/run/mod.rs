//! `leasehold run`: take a lock, run a command, release the lock.

mod child;
mod clock;
mod supervise;
mod terminal;
mod watchdog;

use std::env;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use leasehold::core::LeaseState;
use leasehold::{Client, Guard, Release};

use crate::cli::Run;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::inherited;
use crate::output;
use crate::run::child::{Child, Plan};
use crate::run::supervise::{Supervisor, Verdict};
use crate::run::terminal::Terminal;
use crate::run::watchdog::Watchdog;
use crate::secret;
use crate::settings::{PASSWORD_VARIABLE, STORE_VARIABLE};
use crate::signals::{self, Signals};
use crate::take::{self, Request, unless_interrupted};

/// The watchdog is told of the deadline this often, or ten times in a ttl.
const TELL_EVERY_MAX: Duration = Duration::from_secs(1);
const TELL_EVERY_MIN: Duration = Duration::from_millis(1);

pub(crate) async fn run(run: &Run, context: &Context) -> Outcome {
    let request = Request::new(&run.key, &run.taking, context)?;
    let cooldown = take::cooldown(run.cooldown)?;
    let grace = run.grace.unwrap_or_else(|| LeaseState::default_grace(request.ttl));
    // A renewal is due after a third of the ttl, and needs time for more than one try.
    if grace > request.ttl.duration() / 2 {
        return Err(Failure::usage(format!(
            "a grace of {grace:?} is too long for a ttl of {}; give at most half of the ttl",
            request.ttl
        )));
    }
    let mut signals = context.catch_signals()?;
    let client = context.settings.connect(request.owner(), false).await?;
    let guard = request.take(&client, &mut signals, |mutex| mutex.stop_grace(grace)).await?;

    let plan = plan(run, &client, &guard)?;
    let tell_every = (request.ttl.duration() / 10).clamp(TELL_EVERY_MIN, TELL_EVERY_MAX);
    let terminal = Terminal::open();
    let result = supervised(
        &plan,
        &guard,
        context,
        &mut signals,
        terminal.as_ref(),
        Timing { grace, tell_every },
    );
    let result = result.await;
    // Whatever follows concerns the lock alone, and an impatient Ctrl-C may cut it short.
    let verdict = match result {
        Ok(verdict) => verdict,
        Err(failure) => {
            drop(unless_interrupted(&client, &mut signals, release(guard, None, &client)).await);
            return Err(failure);
        }
    };
    if verdict.ending.is_none() {
        output::message(
            "the command could not be killed: it belongs to another user, or waits for a device; \
             it may run on without the lock",
        );
    }
    let released = unless_interrupted(&client, &mut signals, release(guard, cooldown, &client));
    let overlapped = released.await.unwrap_or(false);
    Ok(exit(verdict, overlapped))
}

fn exit(verdict: Verdict, overlapped: bool) -> Exit {
    match verdict.ending {
        Some(ending) if verdict.covered && !overlapped => {
            verdict.keyboard.map_or_else(|| ending.exit(), Exit::Keyboard)
        }
        _ => Exit::Lost,
    }
}

#[derive(Clone, Copy, Debug)]
struct Timing {
    grace: Duration,
    tell_every: Duration,
}

/// Starts the command and stays with it to its end.
async fn supervised(
    plan: &Plan,
    guard: &Guard,
    context: &Context,
    signals: &mut Signals,
    terminal: Option<&Terminal>,
    timing: Timing,
) -> Outcome<Verdict> {
    let system = |error| Failure::system("start the command", &error);
    signals.catch_all().map_err(system)?;
    // Where it was ignored, the system would collect the command before its end could be seen.
    signals::reset(libc::SIGCHLD).map_err(system)?;
    inherited::close_on_exec_except(&context.files).map_err(system)?;
    let watchdog = Arc::new(Watchdog::start().map_err(system)?);
    watchdog.tell(guard.lease(), timing.grace).map_err(system)?;
    let given = terminal.filter(|terminal| terminal.is_for_the_command());
    let child = Child::start(plan, context.inherited, signals.caught(), &watchdog, given);
    let verdict = match child {
        Ok(mut child) => {
            let supervisor = Supervisor {
                lease: guard.lease(),
                child: &mut child,
                watchdog: &watchdog,
                signals,
                terminal,
                has_terminal: given.is_some(),
                stop_asked: false,
                end_asked: false,
                loss_told: false,
                grace: timing.grace,
            };
            // On the worker, where the renewals are: this thread may be held up by a terminal.
            let (teller, lease) = (Arc::clone(&watchdog), guard.lease().clone());
            let teller = tokio::spawn(async move {
                teller.keep_telling(&lease, timing.grace, timing.tell_every).await;
            });
            let verdict = supervisor.watch().await;
            teller.abort();
            if let Some(terminal) = terminal {
                terminal.take_back(Some(child.pid()));
            }
            watchdog.dismiss();
            if verdict.ending.is_some() {
                child.collect();
            }
            verdict
        }
        Err(error) => {
            watchdog.dismiss();
            if let Some(terminal) = given {
                terminal.take_back(None);
            }
            let (exit, message) = child::not_started(&plan.program, &error);
            return Err(Failure::new(exit, message));
        }
    };
    Ok(verdict)
}

fn plan(run: &Run, client: &Client, guard: &Guard) -> Outcome<Plan> {
    let mut words = run.cmd.iter().cloned();
    let (program, arguments) = match (&run.shell, words.next()) {
        (Some(line), _) => {
            let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| OsString::from("/bin/sh"));
            (shell, vec![OsString::from("-c"), line.clone()])
        }
        (None, Some(program)) => (program, words.collect()),
        (None, None) => return Err(Failure::usage("there is no command to run")),
    };
    let deadline = clock::now().saturating_add(guard.remaining());
    let variables = vec![
        ("LEASEHOLD_KEY", guard.key().as_str().to_owned()),
        ("LEASEHOLD_FENCE", guard.fence()?.to_string()),
        ("LEASEHOLD_OWNER", client.owner().as_str().to_owned()),
        ("LEASEHOLD_DEADLINE_MS", deadline.as_millis().to_string()),
    ];
    let mut hidden = vec![PASSWORD_VARIABLE];
    let store = env::var_os(STORE_VARIABLE).unwrap_or_default();
    if secret::password_of(&store.to_string_lossy()).is_some() {
        hidden.push(STORE_VARIABLE);
    }
    Ok(Plan { program, arguments, variables, hidden })
}

/// Releases the lock. Whether the answer says that somebody else may have held it meanwhile.
async fn release(guard: Guard, cooldown: Option<Duration>, client: &Client) -> bool {
    let key = guard.key().clone();
    // When the loss is known already, it has been told.
    let known = !guard.is_held();
    let released = match cooldown {
        Some(cooldown) => guard.release_with_cooldown(cooldown).await,
        None => guard.release().await,
    };
    let problem = match released {
        Ok(Release::Released) => return false,
        Ok(Release::Late) => {
            "its lease ran out before the release; nobody else has held it since, but the ttl is \
             too short"
                .to_owned()
        }
        Ok(Release::NotHeld) => {
            if !known {
                output::message(&format!(
                    "lost \"{key}\": it was taken away, or the store has forgotten it, before the \
                     release; somebody else may have held it while the command ran"
                ));
            }
            return true;
        }
        Ok(_) => {
            take::tidy(client).await;
            "the store did not answer the release; the lock may stay held until its ttl runs out"
                .to_owned()
        }
        Err(error) => {
            take::tidy(client).await;
            crate::failure::chain(&error)
        }
    };
    if !known {
        output::message(&format!("warning: release \"{key}\": {problem}"));
    }
    false
}
