//! Watches over a command and its locks until both have ended.
//!
//! The invariant: everything that the command has started is dead before the store could grant the
//! lock to another holder. The times count back from the lease's deadline by the `grace`. At 1
//! grace the loss is known and the command gets TERM. At 1/4 it gets KILL from here. At 1/8 it gets
//! KILL from the watchdog, if this process is stopped or gone.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::duration;
use crate::job::child::{self, Child, Event};
use crate::job::ending::Ending;
use crate::job::terminal::{self, Terminal};
use crate::leases::Leases;
use crate::output;
use crate::pauses::until;
use crate::signals::{self, Signals};

/// A killed process that is still there after this time is waiting for a device that does not
/// answer, or belongs to another user. It is waited for until its lease is over, if that is later.
const DEAD_WITHIN: Duration = Duration::from_secs(10);
/// Pauses between two looks at a command that is to end: the system does not report orphans.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);
/// Pauses for a command that ends by itself: its watchdog reports the end, except for processes
/// under a debugger.
const LOOK_AT_REST: Duration = Duration::from_secs(1);

/// The outcome of the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Verdict {
    /// How its first process ended; `None` when even KILL did not end it.
    pub(crate) ending: Option<Ending>,
    /// Whether a part of it has outlived KILL.
    pub(crate) survived: bool,
    /// Whether the lock was held, for certain, until it ended.
    pub(crate) covered: bool,
    /// The signal that a key sent to it alone, if it died of that.
    pub(crate) keyboard: Option<u8>,
    /// Whether a signal to leasehold asked for the end.
    pub(crate) interrupted: bool,
    /// Whether the lock was held for as long as it may be, and the command ended for that.
    pub(crate) overtime: bool,
}

/// A command that runs, with everything it needs to be watched over.
#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    pub(crate) leases: &'a Leases,
    pub(crate) child: &'a mut Child,
    pub(crate) signals: &'a mut Signals,
    pub(crate) terminal: Option<&'a Terminal>,
    /// Whether the command has the terminal.
    pub(crate) has_terminal: bool,
    /// Whether a signal stops this process, which then stops after the command.
    pub(crate) stop_asked: bool,
    /// Whether the command ends only with the last of what it has started.
    pub(crate) until_all_end: bool,
    /// Whether what can't be killed is waited for, for as long as it takes.
    pub(crate) is_patient: bool,
    pub(crate) stage: Stage,
    /// What the whole command has to end for, while its lock is held.
    pub(crate) end_asked: Option<Cause>,
    /// The signal for orphans, and whether the group gets it too.
    pub(crate) asks: Option<(libc::c_int, bool)>,
    /// A release request, as a sentence.
    pub(crate) asked: oneshot::Receiver<String>,
    /// The signal for the command then.
    pub(crate) on_ask: Option<libc::c_int>,
    /// The loss of the lock, once it was reported.
    pub(crate) loss: Option<Loss>,
    /// The time between the news of a loss and the deadline.
    pub(crate) grace: Duration,
}

/// How far the end of a command is that loses its lock, or does not end when asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Holding,
    Terminated {
        kill_at: Instant,
    },
    /// With a lock that is held there is no reason to give up.
    Killed {
        give_up_at: Option<Instant>,
    },
}

/// Why a command has to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cause {
    /// A signal to leasehold.
    Signal,
    /// A release request.
    Request,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// Whether it is the end of the longest hold.
    overtime: bool,
}

impl Supervisor<'_> {
    /// Returns when the command has ended, by itself or because its lock was lost.
    ///
    /// Normally that is when its first process has exited: what it leaves running was meant to live
    /// on. If a signal ended the command, the rest of it may still work under the lock. So the lock
    /// is kept, and renewed, until the rest has ended. If that takes longer than the grace, a
    /// message says so, and a second signal kills it. After a signal from elsewhere the rest is
    /// killed then. After a loss all of it is dead first.
    pub(crate) async fn watch(mut self) -> Verdict {
        let mut ended = None;
        let mut keyboard = None;
        let mut tell_of_rest_at = None;
        let mut kill_rest_at = None;
        let mut may_be_asked = true;
        let mut look = LOOK_FIRST;
        loop {
            let is_ending = self.asks.is_some() || !self.is_holding();
            let is_left_alone = !is_ending && !self.until_all_end;
            if ended.is_some() && (is_left_alone || self.child.is_all_gone()) {
                return self.verdict(ended, keyboard, false);
            }
            let leases = self.leases;
            let next = match self.stage {
                Stage::Holding => None,
                Stage::Terminated { kill_at } => Some(kill_at),
                Stage::Killed { give_up_at } => give_up_at,
            };
            tokio::select! {
                biased;
                () = leases.lost(), if next.is_none() && self.loss.is_none() => {
                    self.lost();
                    look = LOOK_FIRST;
                }
                () = until(next) => match self.stage {
                    Stage::Killed { .. } if self.is_patient => {
                        output::message(
                            "a part of the command can't be killed (it belongs to another user, or \
                             waits for a device); nothing is started until it ends",
                        );
                        self.stage = Stage::Killed { give_up_at: None };
                    }
                    Stage::Killed { .. } => return self.verdict(ended, keyboard, true),
                    Stage::Holding | Stage::Terminated { .. } => self.kill(),
                },
                () = until(kill_rest_at), if kill_rest_at.is_some() => {
                    kill_rest_at = None;
                    if self.is_holding() {
                        self.kill();
                    }
                }
                event = self.child.event() => match event {
                    Event::Ended(ending) => {
                        ended = Some(ending);
                        keyboard = self.keyboard(ending);
                        look = LOOK_FIRST;
                        tell_of_rest_at = Some(Instant::now() + self.grace);
                        if let Some(signal) = keyboard {
                            self.asks = Some((signal.into(), false));
                            if let Some(terminal) = self.terminal {
                                // For the next key to reach this process.
                                terminal.take_back(Some(self.child.pid()));
                                self.has_terminal = false;
                            }
                        } else if let (Ending::Killed(signal), Stage::Holding, None) =
                            (ending, self.stage, self.end_asked)
                        {
                            self.cut_off(signal);
                            tell_of_rest_at = None;
                            kill_rest_at = Some(Instant::now() + self.patience());
                        }
                    }
                    Event::Stopped(signal) => self.stopped(signal),
                },
                () = until(tell_of_rest_at), if tell_of_rest_at.is_some() => {
                    tell_of_rest_at = None;
                    if self.is_holding() && self.asks.is_some() {
                        self.tell_of_rest();
                    }
                }
                signal = self.signals.next() => {
                    let again = ended.is_some() && self.is_holding() && self.asks.is_some();
                    if again && signals::is_fatal(signal) {
                        self.kill();
                    } else {
                        self.forward(signal);
                    }
                }
                asked = &mut self.asked, if may_be_asked => {
                    may_be_asked = false;
                    if let (Ok(asked), Stage::Holding) = (asked, self.stage) {
                        self.let_go(&asked);
                    }
                },
                () = tokio::time::sleep(look), if ended.is_some() || is_ending => {
                    let last = if is_ending { LOOK_LAST } else { LOOK_AT_REST };
                    look = look.saturating_mul(2).min(last);
                    if let Some((signal, group)) = self.asks {
                        self.child.ask_the_parentless(signal, group);
                    }
                    if ended.is_some() || self.was_killed() {
                        self.child.look_for_rest(self.was_killed());
                    }
                }
            }
        }
    }

    const fn is_holding(&self) -> bool {
        matches!(self.stage, Stage::Holding)
    }

    const fn was_killed(&self) -> bool {
        matches!(self.stage, Stage::Killed { .. })
    }

    /// A signal from elsewhere has ended the first process.
    fn cut_off(&mut self, signal: libc::c_int) {
        self.asks = Some((libc::SIGTERM, true));
        let rest = if self.child.is_all_gone() {
            ""
        } else {
            "; the rest is stopped, and keeps the lock until then"
        };
        let whole = if rest.is_empty() { "" } else { "'s main process" };
        output::message(&format!(
            "the command{whole} was ended by {}{rest}",
            signals::name(signal)
        ));
    }

    /// What is left takes its time.
    fn tell_of_rest(&self) {
        let refused = if self.child.is_refused { ", which belongs to another user," } else { "" };
        output::message(&format!(
            "the command has ended, but a part of it{refused} runs on and keeps the lock; the \
             same signal again kills it",
        ));
    }

    /// How long what gets TERM has until it gets KILL.
    fn patience(&self) -> Duration {
        let patience = self.leases.until_deadline().min(self.grace);
        patience.saturating_sub(patience / 4)
    }

    /// The lock is lost.
    fn lost(&mut self) {
        if self.was_killed() {
            self.stage = Stage::Killed { give_up_at: Some(self.dead_by()) };
            self.tell_of_loss("");
            return;
        }
        self.ask_to_end(libc::SIGTERM);
        self.stage = Stage::Terminated { kill_at: Instant::now() + self.patience() };
        self.tell_of_loss("; the command is stopped");
    }

    /// When the wait for what has survived KILL ends.
    fn dead_by(&self) -> Instant {
        Instant::now() + self.leases.until_deadline().max(DEAD_WITHIN)
    }

    /// The signal of which the command died, if a key sent it to it alone. Had it come from
    /// elsewhere, it would have been passed on from here.
    fn keyboard(&self, ending: Ending) -> Option<u8> {
        match ending {
            Ending::Killed(signal @ (libc::SIGINT | libc::SIGQUIT))
                if self.has_terminal && self.end_asked.is_none() =>
            {
                Some(signals::number(signal))
            }
            _ => None,
        }
    }

    fn verdict(&mut self, ending: Option<Ending>, keyboard: Option<u8>, survived: bool) -> Verdict {
        let late = ending == Some(Ending::Killed(libc::SIGKILL))
            && self.child.watchdog().may_have_killed();
        let covered = ending.is_some() && !survived && self.leases.is_held() && !late;
        if !covered && self.loss.is_none() {
            self.tell_of_loss("");
        }
        if self.was_killed() && !survived {
            output::message(
                "the command did not end in time and was killed; check its last writes",
            );
        }
        Verdict {
            ending,
            survived,
            covered,
            keyboard,
            interrupted: self.end_asked == Some(Cause::Signal),
            overtime: self.loss.is_some_and(|loss| loss.overtime),
        }
    }

    /// Tells of the loss, and of what follows.
    fn tell_of_loss(&mut self, then: &str) {
        if self.leases.is_held() {
            output::message(&self.leases.told_of_delay("the command is stopped"));
        }
        self.loss = Some(Loss { overtime: self.leases.tell_of_losses(then) });
    }

    /// Handles a release request.
    fn let_go(&mut self, asked: &str) {
        let Some(signal) = self.on_ask else {
            output::message(asked);
            return;
        };
        output::message(&format!("{asked}; the command gets {}", signals::name(signal)));
        if signals::is_fatal(signal) || signal == libc::SIGKILL {
            self.ask_to_end(signal);
            self.end_asked.get_or_insert(Cause::Request);
        } else {
            self.signal(signal);
        }
    }

    /// Asks everything that the command has started to end.
    fn ask_to_end(&mut self, signal: libc::c_int) {
        self.signal(signal);
        // A stopped process can't heed it.
        self.signal(libc::SIGCONT);
        // Children of the first process get their signal when that has ended.
        let group = self.child.has_ended();
        self.asks = Some((signal, group));
        self.child.ask_the_parentless(signal, group);
    }

    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.look_for_rest(true);
        let is_held = self.leases.is_held();
        self.stage = Stage::Killed { give_up_at: (!is_held).then(|| self.dead_by()) };
        if is_held && self.child.is_refused {
            output::message(
                "a part of the command belongs to another user and can't be stopped; the lock is \
                 kept until it ends",
            );
        }
    }

    fn signal(&self, signal: libc::c_int) {
        if let Err(error) = self.child.signal(signal) {
            output::message(&format!("can't send signal {signal} to the command: {error}"));
        }
    }

    fn forward(&mut self, signal: libc::c_int) {
        match signal {
            libc::SIGTSTP => {
                self.stop_asked = true;
                self.signal(signal);
            }
            libc::SIGCONT => self.go_on(None),
            // What has become of the command is looked at by itself.
            libc::SIGCHLD => child::reap_orphans(self.child),
            _ if signals::is_own(signal) => {}
            _ if signals::is_fatal(signal) => {
                self.end_asked = Some(Cause::Signal);
                self.ask_to_end(signal);
            }
            _ => self.signal(signal),
        }
    }

    /// The command was stopped: by itself, by a signal, by Ctrl-Z, or without the terminal.
    fn stopped(&mut self, signal: libc::c_int) {
        // Without a terminal the signal came from another process, and is not about a terminal.
        let asked_for_terminal = self.terminal.is_some() && terminal::is_a_request(signal);
        if asked_for_terminal && self.terminal.is_some_and(Terminal::is_ours) {
            self.go_on(Some(signal));
            return;
        }
        // Stopped in the background by something that is no business of the shell's: the command
        // is merely slow, and its lock is renewed.
        if !(self.has_terminal || self.stop_asked || asked_for_terminal) {
            return;
        }
        if let Some(terminal) = self.terminal {
            terminal.take_back(Some(self.child.pid()));
            if self.has_terminal {
                output::message(&format!(
                    "suspended; {} is lost unless the job continues within {}",
                    self.leases.names(),
                    duration::show(self.leases.remaining()),
                ));
            }
        }
        self.has_terminal = false;
        self.stop_asked = false;
        // Stopped itself, this process prints nothing.
        output::flush();
        signals::suspend();
        self.go_on(Some(signal));
    }

    /// Lets the command go on, if the lock is still held. `stopped_by` says by what it was stopped,
    /// where it was.
    fn go_on(&mut self, stopped_by: Option<libc::c_int>) {
        self.stop_asked = false;
        // First of all: the stop may have been of any length.
        if !self.leases.is_held() {
            return;
        }
        self.child.watchdog().tell(self.leases, self.grace);
        let in_front = self.terminal.filter(|terminal| terminal.is_ours());
        match (in_front, stopped_by) {
            (Some(terminal), Some(_)) => {
                self.has_terminal = terminal.give(self.child.pid()).is_ok();
            }
            // No shell has put us in front: the command would request the terminal again at once,
            // for ever.
            (None, Some(signal)) if terminal::is_a_request(signal) => return,
            _ => {}
        }
        terminal::wake(self.child.pid());
    }
}
