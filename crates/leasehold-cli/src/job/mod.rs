//! Runs a command under a lock: starts it, watches over it, ends it in time.

mod child;
pub(crate) mod clock;
mod conditions;
mod ending;
pub(crate) mod page;
mod start;
#[cfg(target_os = "linux")]
mod stops;
mod supervise;
mod terminal;
mod watchdog;

use std::env;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use leasehold::interop::Layout;
use leasehold::store::{LeaseState, length};
use leasehold::{Client, DetachedLease, ErrorKind, Release};
use tokio::sync::oneshot;

use crate::cli::Job;
use crate::context::{Context, TIDY_LEAST};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::inherited;
use crate::job::child::Child;
use crate::job::conditions::Conditions;
pub(crate) use crate::job::ending::Ending;
use crate::job::page::Page;
use crate::job::start::Plan;
use crate::job::supervise::{Stage, Supervisor, Verdict};
use crate::job::terminal::Terminal;
use crate::job::watchdog::Dismissed;
use crate::lease_file::{self, LEASE_VARIABLE};
use crate::leases::{Cooldown, GivenUp, Held, Leases, Numbers};
use crate::outer::{Name, OUTER_VARIABLE, Outer};
use crate::output;
use crate::request::{Manner, Request};
use crate::settings::Settings;
use crate::signals::{Signals, unless_interrupted};
use crate::status;

/// The watchdog gets the deadline this often, or ten times in a ttl.
const TELL_EVERY_MAX: Duration = Duration::from_secs(1);
const TELL_EVERY_MIN: Duration = Duration::from_millis(1);

const OWNER_VARIABLE: &str = "LEASEHOLD_OWNER";
const FENCE_VARIABLE: &str = "LEASEHOLD_FENCE";
const PERMITS_VARIABLE: &str = "LEASEHOLD_PERMITS";
const KEY_OF_SEVERAL: &str = "LEASEHOLD_KEY_";
const FENCE_OF_SEVERAL: &str = "LEASEHOLD_FENCE_";

/// How to run a command under a lock that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runner<'a> {
    job: &'a Job,
    /// The process that the lock is held for.
    process: Name,
    grace: Duration,
    tell_every: Duration,
    cooldown: Cooldown,
    /// Whether a command that fails opens its period again.
    reopen_on_failure: bool,
    /// The command's time-out.
    max_hold: Option<Duration>,
    /// Whether what can't be killed after a loss is waited for, for as long as it takes.
    is_patient: bool,
}

/// The outcome of the command and of the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) verdict: Verdict,
    /// Whether by the release another holder may have had the lock.
    overlapped: bool,
    /// Whether a signal cut the release short.
    pub(crate) interrupted: bool,
}

impl Done {
    pub(crate) fn exit(self) -> Exit {
        match self.verdict.ending {
            Some(ending) if self.verdict.covered && !self.overlapped => {
                self.verdict.keyboard.map_or_else(|| ending.exit(), Exit::Keyboard)
            }
            // It was dead before another holder could get the lock.
            Some(_) if self.verdict.overtime && !self.verdict.survived => Exit::Overtime,
            _ => Exit::Lost,
        }
    }
}

impl<'a> Runner<'a> {
    pub(crate) fn new(job: &'a Job, request: &Request) -> Outcome<Self> {
        let grace = job.grace.unwrap_or_else(|| LeaseState::default_grace(request.ttl));
        // A renewal is due after a third of the ttl, and needs time for more than one try.
        if grace > request.ttl.duration() / 2 {
            return Err(Failure::usage(format!(
                "a grace of {} is too long for a ttl of {}; give at most half of the ttl",
                length::typed(grace),
                request.ttl
            )));
        }
        let tell_every = (request.ttl.duration() / 10).clamp(TELL_EVERY_MIN, TELL_EVERY_MAX);
        let (cooldown, reopen_on_failure, max_hold) = (Cooldown::AsGranted, false, None);
        Ok(Self {
            job,
            process: request.process(),
            grace,
            tell_every,
            cooldown,
            reopen_on_failure,
            max_hold,
            is_patient: false,
        })
    }

    /// The cooldown after the command, and whether a failed command opens its period again.
    pub(crate) const fn cooldown(mut self, cooldown: Cooldown, reopen_on_failure: bool) -> Self {
        (self.cooldown, self.reopen_on_failure) = (cooldown, reopen_on_failure);
        self
    }

    /// How long the lock is held at most; the command is dead by then.
    pub(crate) const fn max_hold(mut self, longest: Option<Duration>) -> Self {
        self.max_hold = longest;
        self
    }

    /// After a loss nothing goes on until all of the command has ended.
    pub(crate) const fn patient(mut self) -> Self {
        self.is_patient = true;
        self
    }

    /// How the lock is held for it.
    pub(crate) const fn manner(&self) -> Manner {
        Manner { renew: true, grace: Some(self.grace), max_hold: self.max_hold }
    }

    /// Runs the command and ends the leases.
    pub(crate) async fn run(
        &self,
        held: Held,
        context: &Context,
        client: &Client,
        signals: &mut Signals,
    ) -> Outcome<Done> {
        status::granted(held.leases().shown());
        let last = self.last(held.leases(), context);
        let terminal = Terminal::open();
        let result = match self.plan(client, held.leases(), &context.settings) {
            Ok(plan) => {
                let (plan, terminal) = ((&plan, last.as_ref()), terminal.as_ref());
                self.supervised(plan, held.leases(), context, client, signals, terminal).await
            }
            Err(failure) => Err(failure),
        };
        // Whatever follows concerns the lock alone, and an impatient Ctrl-C may cut it short.
        let (verdict, watchdog) = match result {
            Ok(ended) => ended,
            Err(failure) => {
                // Nothing has been run, so nothing closes the lock to those who can run it.
                let released = release(held, Cooldown::Reopen, self.max_hold, context);
                drop(unless_interrupted(signals, released).await);
                return Err(failure);
            }
        };
        if verdict.survived {
            output::message(
                "a part of the command could not be killed (it belongs to another user, or waits \
                 for a device) and may run on without the lock",
            );
        }
        if let Some(ending) = verdict.ending {
            status::ended(ending.exit());
            held.leases().iter().for_each(|lease| lease.note_result(&ending.words()));
        }
        let failed = verdict.ending.is_none_or(|ending| ending.exit() != Exit::Success);
        let cooldown =
            if self.reopen_on_failure && failed { Cooldown::Reopen } else { self.cooldown };
        let limit = (!verdict.covered).then(|| context.give_up_by(held.leases()));
        let released = release(held, cooldown, self.max_hold, context);
        let released = unless_interrupted(signals, async {
            match limit {
                Some(limit) => tokio::time::timeout_at(limit, released).await.unwrap_or(false),
                None => released.await,
            }
        });
        let released = released.await;
        drop(watchdog);
        let interrupted = verdict.interrupted || released.is_err();
        let overlapped = released.unwrap_or(false);
        Ok(Done { verdict, overlapped, interrupted })
    }

    /// Starts the command and stays with it to its end.
    async fn supervised(
        &self,
        (plan, last): (&Plan, Option<&Plan>),
        leases: &Leases,
        context: &Context,
        client: &Client,
        signals: &mut Signals,
        terminal: Option<&Terminal>,
    ) -> Outcome<(Verdict, Dismissed)> {
        let system = |error| Failure::system("start the command", &error);
        signals.catch_all().map_err(system)?;
        inherited::close_on_exec_except(&context.files).map_err(system)?;
        let page = Arc::new(Page::new().map_err(system)?);
        page.tell(leases, self.grace);
        let given = terminal.filter(|terminal| terminal.is_for_the_command());
        let modes = given.and_then(Terminal::modes);
        let conditions = Conditions {
            page: Arc::clone(&page),
            inherited: context.inherited,
            caught: signals.caught().to_vec(),
            tty: given.map(Terminal::raw),
            files: context.files.clone(),
        };
        let child = Child::start(plan, &conditions, last);
        let verdict = match child {
            Ok(mut child) => {
                let watchdog = Arc::clone(child.watchdog());
                let (tell, asked) = oneshot::channel();
                let renewals = client.renewing_runtime().clone();
                let (client, of, at_once) =
                    (client.clone(), leases.clone(), self.job.on_ask.is_some());
                let asking = tokio::spawn(async move {
                    // Once the command has ended there is no receiver.
                    tell.send(of.asked(&client, at_once).await).ok();
                });
                let supervisor = Supervisor {
                    leases,
                    child: &mut child,
                    signals,
                    terminal,
                    has_terminal: given.is_some(),
                    stop_asked: false,
                    until_all_end: self.job.until_all_end,
                    is_patient: self.is_patient,
                    stage: Stage::Holding,
                    end_asked: None,
                    asks: None,
                    asked,
                    on_ask: self.job.on_ask,
                    loss: None,
                    grace: self.grace,
                };
                // Where the renewals are: this thread may be held up by a terminal.
                let (teller, told) = (watchdog, leases.clone());
                let (grace, every) = (self.grace, self.tell_every);
                let teller = renewals.spawn(async move {
                    teller.keep_telling(&told, grace, every).await;
                });
                let verdict = supervisor.watch().await;
                teller.abort();
                asking.abort();
                if let Some(terminal) = terminal {
                    terminal.take_back(Some(child.pid()));
                }
                if let (Some(terminal), Some(modes)) = (given, modes)
                    && !matches!(verdict.ending, Some(Ending::Exited(_)))
                {
                    terminal.reset(&modes);
                }
                (verdict, child.dismiss())
            }
            Err(failure) => {
                if let Some(terminal) = given {
                    terminal.take_back(None);
                }
                if page.may_have_killed() {
                    let lost = leases.told_of_delay("the command was not started");
                    return Err(Failure::new(Exit::Lost, lost));
                }
                return Err(failure);
            }
        };
        Ok(verdict)
    }
}

impl Runner<'_> {
    fn plan(&self, client: &Client, leases: &Leases, settings: &Settings) -> Outcome<Plan> {
        let mut words = self.job.cmd.iter().cloned();
        let (program, arguments) = match (&self.job.shell, words.next()) {
            (Some(line), _) => {
                let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
                let shell = shell.unwrap_or_else(|| OsString::from("/bin/sh"));
                (shell, vec![OsString::from("-c"), line.clone()])
            }
            (None, Some(program)) => (program, words.collect()),
            (None, None) => return Err(Failure::usage("no command is given; write it after --")),
        };
        let (mut variables, mut hidden) = (variables(client, leases, settings.layout())?, hidden());
        if leases.numbers() == Numbers::Fences {
            variables.push((OUTER_VARIABLE.to_owned(), Outer::of_environment().with(self.process)));
        }
        for (name, value) in settings.told() {
            match value {
                Some(value) => variables.push((name.to_owned(), value)),
                None => hidden.push(name.into()),
            }
        }
        Ok(Plan { program, arguments, variables, hidden })
    }

    /// What gives back leases in a server where this process is killed. Elsewhere they end with it.
    fn last(&self, leases: &Leases, context: &Context) -> Option<Plan> {
        if !cfg!(target_os = "linux") || !context.settings.is_on_a_server() {
            return None;
        }
        let layout = context.settings.layout();
        let copies: Vec<_> = leases.iter().map(DetachedLease::copy_of).collect();
        let mut words = vec!["release".to_owned(), "--quiet".to_owned()];
        if let Some(layout) = layout {
            words.extend(["--interop".to_owned(), layout.to_string()]);
        }
        if let Cooldown::For(length) = self.cooldown {
            words.extend(["--cooldown".to_owned(), format!("{}ms", length.duration().as_millis())]);
        }
        let mut variables = context.settings.variables();
        variables.push((LEASE_VARIABLE.to_owned(), lease_file::lines(&copies, layout)));
        Some(Plan {
            // Also where another version has been put in this one's place.
            program: "/proc/self/exe".into(),
            arguments: words.into_iter().map(OsString::from).collect(),
            variables,
            hidden: Vec::new(),
        })
    }
}

/// What the command learns of its locks.
fn variables(
    client: &Client,
    leases: &Leases,
    layout: Option<&Layout>,
) -> Outcome<Vec<(String, String)>> {
    let deadline = clock::now().saturating_add(leases.remaining());
    let (mut keys, mut fences, mut permits) = (Vec::new(), Vec::new(), None);
    for lease in leases.iter() {
        keys.push(lease.key().as_str().to_owned());
        fences.extend(leases.number_to_use(lease)?);
        permits = permits.or_else(|| lease.permits());
    }
    let mut variables = vec![
        ("LEASEHOLD_KEY".to_owned(), keys.join("\n")),
        ("LEASEHOLD_DEADLINE_MS".to_owned(), deadline.as_millis().to_string()),
    ];
    // Where others see it.
    if layout.is_none_or(Layout::has_owner) {
        variables.push((OWNER_VARIABLE.to_owned(), client.owner().as_str().to_owned()));
    }
    if !fences.is_empty() {
        variables.push((FENCE_VARIABLE.to_owned(), fences.join("\n")));
    }
    variables.extend(permits.map(|n| (PERMITS_VARIABLE.to_owned(), n.to_string())));
    if keys.len() > 1 {
        let numbered = |of: &'static str, texts: Vec<String>| {
            texts.into_iter().zip(1_usize..).map(move |(text, n)| (format!("{of}{n}"), text))
        };
        variables.extend(numbered(KEY_OF_SEVERAL, keys));
        variables.extend(numbered(FENCE_OF_SEVERAL, fences));
    }
    Ok(variables)
}

/// What the command must not see: a lease, and what a lock around this one would have told it.
fn hidden() -> Vec<OsString> {
    let mut hidden: Vec<OsString> =
        [LEASE_VARIABLE, PERMITS_VARIABLE, FENCE_VARIABLE, OWNER_VARIABLE].map(Into::into).into();
    hidden.extend(env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.as_encoded_bytes();
        [KEY_OF_SEVERAL, FENCE_OF_SEVERAL].iter().any(|of| name.starts_with(of.as_bytes()))
    }));
    hidden
}

/// Releases the locks. Whether by an answer another holder may have had one meanwhile.
async fn release(
    held: Held,
    cooldown: Cooldown,
    max_hold: Option<Duration>,
    context: &Context,
) -> bool {
    let (mut overlapped, mut denied, mut unanswered) = (false, false, false);
    let given_up = held.give_up(cooldown, max_hold.is_some(), || context.tidy_by()).await;
    for GivenUp { key, released, said } in given_up {
        let how = match &released {
            Ok(Release::Released) => "released",
            Ok(Release::Late { .. }) => "late",
            Ok(Release::NotHeld) => "not_held",
            Ok(_) => "unknown",
            Err(_) => "failed",
        };
        tracing::info!(target: "leasehold", %key, release = how, "the lock was released");
        match &released {
            Ok(Release::Released | Release::Late { .. }) => {}
            Ok(Release::NotHeld) => overlapped = true,
            Ok(_) => {
                unanswered = true;
                context.has_tidied();
            }
            Err(error) => {
                denied |= error.kind() == ErrorKind::Denied;
                unanswered |= error.kind() != ErrorKind::Denied;
            }
        }
        if let Some(said) = said {
            output::message(&said);
        }
    }
    if denied && !unanswered {
        // The store has said what it will say again.
        context.tidy_within(TIDY_LEAST);
    }
    overlapped
}
