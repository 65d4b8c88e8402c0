//! `leasehold hold`: hold a lock while another program works.

pub(crate) mod background;
mod guard;
pub(crate) mod letting_go;
mod script;

use std::future::pending;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use leasehold::store::LeaseState;
use leasehold::{Client, Release};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::guard::{Guard, Manners};
use self::letting_go::{Asked, Ears, Ended};
use self::script::Script;
use crate::arguments;
use crate::cli::Hold;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::kind::Kind;
use crate::leases::{Cooldown, GivenUp, Held, Leases};
use crate::outer::Name;
use crate::output::{self, JSON_VERSION};
use crate::request::{Manner, Request};
use crate::signals::{self, Signals};
use crate::status;

/// How often to look whether a script that is being ended has.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The guard gets the deadline this often, or ten times in a ttl.
const TELL_EVERY_MAX: Duration = Duration::from_secs(1);
const TELL_EVERY_MIN: Duration = Duration::from_millis(1);

/// Until when the lock is held.
enum Until {
    InputCloses(oneshot::Receiver<()>),
    ScriptEnds,
    Signal,
}

/// Why it is held no longer.
enum End {
    Lost,
    /// Its time has come, by a signal to this process or the end of what it was held for.
    Over,
    /// Who holds other locks asks for it.
    Wanted,
    /// The script lets go, and waits until that is done.
    LetGo(Asked),
    Failed(Failure),
}

/// What a lock is held for.
#[derive(Debug)]
struct Purpose {
    script: Script,
    /// How the script is ended when the lock is lost.
    manners: Option<Manners>,
}

pub(crate) async fn hold(args: &Hold, context: &Context) -> Outcome {
    let kind = Kind::of(&args.kinds, args.keys.len())?;
    kind.judge(args.taking.waiting.wait, false)?;
    let asking = (args.until_asked, "--until-asked", "release requests");
    arguments::refuse_for(context.settings.layout(), &[asking])?;
    let mut request = Request::new(&args.keys, kind, &args.taking, context)?;
    request.ttl = arguments::within(args.max_hold, request.ttl, None)?;
    // Before the lock is taken, so that it is not held in vain.
    if output::is_closed() {
        return Err(Failure::new(
            Exit::Output,
            "standard output is closed, which reports that the lock is held; leave it open, or \
             send it to a file",
        ));
    }
    let purpose = purpose(args, &request)?;
    if let Some(script) = purpose.as_ref().and_then(|it| Name::of(it.script.pid())) {
        request = request.on_behalf_of(script);
    }
    let mut signals = context.catch_signals()?;
    let grace = purpose.as_ref().and_then(|purpose| purpose.manners).map(|manners| manners.grace);
    let manner = Manner { renew: true, grace, max_hold: args.max_hold };
    let ended = |purpose: &Purpose| {
        request.in_vain(&format!(
            "{} is not taken, since process {} of --while-pid has ended",
            request.names(),
            purpose.script.pid().as_raw_nonzero()
        ))
    };
    let ended_meanwhile = async {
        match &purpose {
            Some(purpose) => {
                purpose.script.ended().await;
                ended(purpose)
            }
            None => pending().await,
        }
    };
    let (client, held) = tokio::select! {
        biased;
        taken = request.take(context, &mut signals, manner) => taken?,
        ended = ended_meanwhile => return Err(ended),
        // Without a reader the caller can't learn that it is held.
        () = output::reader_gone(), if args.background => return Err(Failure::silent(Exit::Output)),
    };
    if let Some(purpose) = purpose.as_ref().filter(|purpose| purpose.script.has_ended()) {
        drop(release(held, context).await);
        return Err(ended(purpose));
    }
    status::granted(held.leases().shown());
    let holding = Holding { args, context, request: &request, purpose, client };
    holding.until_the_end(held, &mut signals).await
}

/// What the lock is held for, where that is a process.
fn purpose(args: &Hold, request: &Request) -> Outcome<Option<Purpose>> {
    let Some(pid) = args.while_pid else { return Ok(None) };
    let own = if args.background {
        // The front, which is what was started.
        rustix::process::getppid()
    } else {
        Some(rustix::process::getpid())
    };
    let script = Script::open(pid, own)?;
    let signal = args.on_loss.or_else(|| args.background.then_some(libc::SIGTERM));
    let grace = LeaseState::default_grace(request.ttl);
    let manners = signal.map(|signal| Manners { signal, grace });
    if pid == 1 && manners.is_some_and(Manners::insist) {
        output::message(
            "warning: process 1 of a container ends only by a signal that it catches; trap the \
             signal, or use an init (docker run --init)",
        );
    }
    Ok(Some(Purpose { script, manners }))
}

async fn script_ends(purpose: Option<&Purpose>) {
    match purpose {
        Some(purpose) => purpose.script.ended().await,
        None => pending().await,
    }
}

/// What ends the script if this process can't, and what tells it.
struct Guarded {
    guard: Guard,
    teller: AbortHandle,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.teller.abort();
    }
}

/// A lock that is held for a script, or until a signal.
struct Holding<'a> {
    args: &'a Hold,
    context: &'a Context,
    request: &'a Request,
    purpose: Option<Purpose>,
    client: Client,
}

impl Holding<'_> {
    async fn until_the_end(&self, held: Held, signals: &mut Signals) -> Outcome {
        let mut guarded = match self.guarded(held.leases()) {
            Ok(guarded) => guarded,
            Err(failure) => {
                drop(release(held, self.context).await);
                return Err(failure);
            }
        };
        let end = {
            let mut over = pin!(self.over(held.leases(), signals));
            loop {
                let guard_ended = async {
                    match &guarded {
                        Some(guarded) => guarded.guard.ended().await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    end = &mut over => break end,
                    () = guard_ended => {}
                }
                // It was killed, and this process may be killed next.
                guarded = self.guarded(held.leases()).unwrap_or_else(|failure| {
                    self.say(&format!(
                        "warning: nothing ends the script if this process is killed: {}",
                        failure.message
                    ));
                    None
                });
            }
        };
        let guard = guarded.as_ref().map(|guarded| &guarded.guard);
        let ending = match end {
            End::Lost => self.end_lost(held, guard).await,
            End::Over => release(held, self.context).await,
            End::Wanted => {
                match &self.purpose {
                    Some(Purpose { script, manners: Some(manners) }) => {
                        // The lock is kept until it has ended, however long that takes.
                        script.send(&mut script.follow(), manners.signal);
                        tokio::select! {
                            biased;
                            () = held.leases().lost() => self.end_lost(held, guard).await,
                            () = script.ended() => release(held, self.context).await,
                        }
                    }
                    _ => release(held, self.context).await,
                }
            }
            End::LetGo(asked) => {
                let ended = release(held, self.context).await;
                asked.answer(&ended);
                ended
            }
            End::Failed(failure) => {
                drop(release(held, self.context).await);
                return Err(failure);
            }
        };
        ending.said.iter().for_each(|text| self.say(text));
        Ok(ending.exit)
    }

    /// Prints the fences, and returns at the end of the hold.
    async fn over(&self, leases: &Leases, signals: &mut Signals) -> End {
        let until = match self.until() {
            Ok(until) => until,
            Err(failure) => return End::Failed(failure),
        };
        let numbered = leases.iter().filter_map(|lease| {
            let number = leases.numbers().text(lease.fence_even_if_lost())?;
            Some((lease.key(), number.parse().ok()?))
        });
        let ears = Ears::new(numbered, &self.context.settings.place());
        let mut ears = match ears {
            Ok(ears) => ears,
            Err(error) => return End::Failed(Failure::system("listen for `release`", &error)),
        };
        let over = async {
            if let Err(failure) = announce(leases, self.args).await {
                return End::Failed(failure);
            }
            match until {
                // A sender that is gone means that reading failed, which is as good as closed.
                Until::InputCloses(closed) => drop(closed.await),
                Until::ScriptEnds => script_ends(self.purpose.as_ref()).await,
                Until::Signal => pending().await,
            }
            End::Over
        };
        let asked = async {
            self.say(leases.asked(&self.client, self.args.until_asked).await.as_str());
            if !self.args.until_asked {
                pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = leases.lost() => End::Lost,
            // In the background it is held for the script, which a signal to all of its group, or
            // of its service, may ask to end in its own time.
            _ = signals.next_fatal(), if !self.args.background => End::Over,
            end = over => end,
            asked = ears.asked() => End::LetGo(asked),
            () = asked => End::Wanted,
        }
    }

    fn until(&self) -> Outcome<Until> {
        if self.purpose.is_some() {
            Ok(Until::ScriptEnds)
        } else if self.args.ignore_stdin {
            Ok(Until::Signal)
        } else if output::is_null(io::stdin().as_fd()) {
            // A shell gives that to what runs in the background of a script.
            if !self.context.quiet {
                output::message(&format!(
                    "standard input is empty, so {} is held until a signal comes; --while-pid $$ \
                     holds it while the script lives",
                    self.request.names()
                ));
            }
            Ok(Until::Signal)
        } else {
            Ok(Until::InputCloses(input_closed()?))
        }
    }

    fn guarded(&self, leases: &Leases) -> Outcome<Option<Guarded>> {
        let Some(Purpose { script, manners: Some(manners) }) = &self.purpose else {
            return Ok(None);
        };
        let guard = Guard::start(script, *manners, leases)
            .map_err(|error| Failure::system("guard the script", &error))?;
        let every = (self.request.ttl.duration() / 10).clamp(TELL_EVERY_MIN, TELL_EVERY_MAX);
        // Where the renewals are, whatever holds this thread up.
        let teller = self.client.renewing_runtime().spawn(guard.teller(leases.clone(), every));
        Ok(Some(Guarded { guard, teller: teller.abort_handle() }))
    }

    /// Prints a message where the user of the lock sees it.
    fn say(&self, text: &str) {
        match &self.purpose {
            Some(purpose) if self.args.background => background::tell(purpose.script.pid(), text),
            _ => output::message(text),
        }
    }

    /// Ends the process that the lock was held for, and releases, before another holder may have
    /// the lock.
    async fn end_lost(&self, held: Held, guard: Option<&Guard>) -> Ended {
        let leases = held.leases();
        let mut said = Vec::new();
        let doomed = self.purpose.as_ref().and_then(|Purpose { script, manners }| {
            Some((script.pid().as_raw_nonzero(), signals::name(manners.as_ref()?.signal)))
        });
        let then =
            doomed.map_or_else(String::new, |(pid, name)| format!("; process {pid} gets {name}"));
        // Before the signal, because the message goes to the script's own standard error.
        let overtime = leases.losses(&then, |text| self.say(text));
        if let Some(Purpose { script, manners: Some(manners) }) = &self.purpose {
            let pid = script.pid().as_raw_nonzero();
            if let Some(guard) = guard {
                guard.script_knows();
            }
            if !end_script(script, *manners, leases).await && manners.insist() {
                said.push(format!(
                    "process {pid} could not be ended, and runs on without the lock; \
                                   end it"
                ));
            }
        }
        let until = self.context.give_up_by(leases);
        if overtime {
            // Others of several, which were taken a moment later.
            drop(release(held, self.context).await);
            return Ended { exit: Exit::Overtime, said };
        }
        drop(tokio::time::timeout_at(until, release(held, self.context)).await);
        Ended { exit: Exit::Lost, said }
    }
}

/// Ends a script with what it has started, before another holder may have the lock. Whether all of
/// that has ended then.
async fn end_script(script: &Script, manners: Manners, leases: &Leases) -> bool {
    let mut descent = script.follow();
    let begun = Instant::now();
    let left = leases.until_deadline();
    let (kill_at, give_up_at) = (begun + manners.patience(left), begun + left);
    script.send(&mut descent, manners.signal);
    if manners.insist() {
        // A stopped process can't heed it.
        script.send(&mut descent, libc::SIGCONT);
    }
    loop {
        let now = Instant::now();
        // First of all: whatever takes its time here, it comes before the end.
        if manners.insist() && now >= kill_at {
            script.send(&mut descent, libc::SIGKILL);
        }
        if script.is_gone(&mut descent) {
            return true;
        }
        if now >= give_up_at {
            return false;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn release(held: Held, context: &Context) -> Ended {
    let mut ended = Ended { exit: Exit::Success, said: Vec::new() };
    for GivenUp { released, said, .. } in
        held.give_up(Cooldown::AsGranted, false, || context.tidy_by()).await
    {
        ended.said.extend(said);
        match released {
            Ok(Release::NotHeld | Release::Late { .. }) => ended.exit = Exit::Lost,
            Ok(Release::Unknown) => context.has_tidied(),
            Ok(_) => {}
            Err(_) => ended.exit = Exit::Store,
        }
    }
    ended
}

/// Says what is held, and in the background returns once that was passed on.
async fn announce(leases: &Leases, args: &Hold) -> Outcome<()> {
    let mut text = String::new();
    for lease in leases.iter() {
        let (key, fence) = (lease.key().as_str(), leases.number_to_use(lease)?);
        let shown = fence.as_deref().unwrap_or("-");
        text.push_str(&if args.json {
            output::json_line(&json!({ "version": JSON_VERSION, "key": key, "fence": fence }))
        } else if args.background {
            format!("{shown}\n")
        } else {
            format!("{shown} {key}\n")
        });
    }
    match output::data_patiently(&text).await {
        // Its reader is gone, so no work relies on the lock.
        Err(failure) if failure.exit == Exit::Success => return Err(background::not_read()),
        other => other?,
    }
    if args.background {
        background::passed_on().await?;
    }
    Ok(())
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
        // The receiver is gone if the lock was lost meanwhile.
        sender.send(()).ok();
    };
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(reader)
        .map_err(|error| Failure::system("watch standard input", &error))?;
    Ok(closed)
}
