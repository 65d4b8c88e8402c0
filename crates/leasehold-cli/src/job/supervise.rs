//! Watching over a command that runs under a lock.
//!
//! The invariant: the command's process group is dead before the store could grant the lock to
//! anybody else. In order of time, counted back from the lease's deadline by the `grace`: at
//! 1 grace the loss is known and the group gets TERM; at 1/4 it gets KILL from here; at 1/8 it
//! gets KILL from the watchdog, should this process be stopped or gone.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::duration;
use crate::job::child::{self, Child, Ending, Event};
use crate::job::terminal::{self, Terminal};
use crate::job::watchdog::Watchdog;
use crate::leases::Leases;
use crate::output;
use crate::pauses::until;
use crate::signals::{self, Signals};

/// A killed process that is still there after this time is waiting for a device that does not
/// answer, or belongs to another user. It is waited for until its lease is over, if that is later.
const DEAD_WITHIN: Duration = Duration::from_secs(10);
/// How often processes that were left to this one are collected.
const REAP_EVERY: Duration = Duration::from_secs(1);
/// Pauses between two looks whether the rest of a group is gone: the system tells nobody.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);

/// What became of the command.
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
    pub(crate) watchdog: &'a Watchdog,
    pub(crate) signals: &'a mut Signals,
    pub(crate) terminal: Option<&'a Terminal>,
    /// Whether the command has the terminal.
    pub(crate) has_terminal: bool,
    /// Whether we were asked to stop, and stop as soon as the command has.
    pub(crate) stop_asked: bool,
    /// Whether the command was asked to end.
    pub(crate) end_asked: bool,
    /// Whether that was by a signal to leasehold.
    pub(crate) interrupted: bool,
    /// Comes when somebody asks for the lock, with a sentence about that.
    pub(crate) asked: oneshot::Receiver<String>,
    /// The signal for the command then.
    pub(crate) on_ask: Option<libc::c_int>,
    /// Whether the loss of the lock was told.
    pub(crate) loss_told: bool,
    /// The time between the news of a loss and the deadline.
    pub(crate) grace: Duration,
    /// Whether the loss is the end of the longest hold.
    pub(crate) overtime: bool,
}

/// How the end of a command whose lock is lost goes on.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Holding,
    Terminated { kill_at: Instant },
    Killed { give_up_at: Instant },
}

impl Supervisor<'_> {
    /// Returns when the command has ended, by itself or because its lock was lost.
    ///
    /// Normally that is when its first process has ended: what it leaves running was meant to
    /// live on. Where the whole group was asked to end, the rest of it is busy with that, perhaps
    /// with what the lock is held for, so the lock is kept, and renewed, until it is done; if that
    /// takes longer than the grace, a message says so, and a second signal kills it. After a loss
    /// all of it is dead first.
    pub(crate) async fn watch(mut self) -> Verdict {
        let mut stage = Stage::Holding;
        let mut ended = None;
        let mut keyboard = None;
        let mut tell_of_rest_at = None;
        let mut may_be_asked = true;
        let mut look = LOOK_FIRST;
        let takes_orphans_in = child::takes_orphans_in();
        loop {
            let on_purpose =
                matches!(stage, Stage::Holding) && !self.end_asked && keyboard.is_none();
            if ended.is_some() && (on_purpose || self.child.group_is_gone()) {
                return self.verdict(ended, keyboard, false);
            }
            let leases = self.leases;
            let next = match stage {
                Stage::Holding => None,
                Stage::Terminated { kill_at } => Some(kill_at),
                Stage::Killed { give_up_at } => Some(give_up_at),
            };
            tokio::select! {
                biased;
                () = leases.lost(), if next.is_none() => stage = self.terminate(),
                () = until(next) => match stage {
                    Stage::Killed { .. } => return self.verdict(ended, keyboard, true),
                    Stage::Holding | Stage::Terminated { .. } => stage = self.kill(),
                },
                event = self.child.event() => match event {
                    Event::Ended(ending) => {
                        ended = Some(ending);
                        keyboard = self.keyboard(ending);
                        tell_of_rest_at = Some(Instant::now() + self.grace);
                        if let (Some(_), Some(terminal)) = (keyboard, self.terminal) {
                            // For the next key to reach this process.
                            terminal.take_back(Some(self.child.pid()));
                            self.has_terminal = false;
                        }
                    }
                    Event::Stopped(signal) => self.stopped(signal),
                },
                () = until(tell_of_rest_at), if tell_of_rest_at.is_some() => {
                    tell_of_rest_at = None;
                    output::message(
                        "the command has ended as it was asked to, but a part of it has not; the \
                         lock is kept for it. The same signal again kills it",
                    );
                }
                signal = self.signals.next() => match stage {
                    Stage::Holding if ended.is_some() && signals::is_fatal(signal) => {
                        stage = self.kill();
                    }
                    _ => self.forward(signal),
                },
                asked = &mut self.asked, if may_be_asked => {
                    may_be_asked = false;
                    if let (Ok(asked), Stage::Holding) = (asked, stage) {
                        self.let_go(&asked);
                    }
                },
                () = tokio::time::sleep(look), if ended.is_some() => {
                    look = look.saturating_mul(2).min(LOOK_LAST);
                }
                () = tokio::time::sleep(REAP_EVERY), if takes_orphans_in => {
                    child::reap_orphans(self.child, self.watchdog);
                }
            }
        }
    }

    /// The signal of which the command died, if a key sent it to it alone. Had it come from
    /// elsewhere, it would have been passed on from here.
    fn keyboard(&self, ending: Ending) -> Option<u8> {
        match ending {
            Ending::Killed(signal @ (libc::SIGINT | libc::SIGQUIT))
                if self.has_terminal && !self.end_asked =>
            {
                Some(signals::number(signal))
            }
            _ => None,
        }
    }

    fn verdict(&mut self, ending: Option<Ending>, keyboard: Option<u8>, survived: bool) -> Verdict {
        let late = ending == Some(Ending::Killed(libc::SIGKILL)) && self.watchdog.may_have_killed();
        let covered = ending.is_some() && !survived && self.leases.is_held() && !late;
        if !covered && !self.loss_told {
            self.tell_of_loss();
        }
        Verdict {
            ending,
            survived,
            covered,
            keyboard,
            interrupted: self.interrupted,
            overtime: self.overtime,
        }
    }

    fn tell_of_loss(&mut self) {
        self.loss_told = true;
        let mut lost = self.leases.iter().filter(|lease| !lease.is_held()).peekable();
        if lost.peek().is_none() {
            output::message(&format!(
                "lost {}: leasehold was held up for so long that the command had to be ended",
                self.leases.names()
            ));
        }
        self.overtime = self.leases.iter().any(|lease| !lease.is_held());
        for lease in lost {
            let why = if lease.until_deadline() > self.grace {
                "it was taken away, or the store has forgotten it"
            } else if lease.is_max_hold_over() {
                output::message(&format!(
                    "\"{}\" has been held for as long as --max-hold allows; the command is ended",
                    lease.key()
                ));
                continue;
            } else {
                "it could not be renewed in time"
            };
            self.overtime = false;
            let fence = self.leases.numbers().text(lease.fence_even_if_lost());
            let fence = fence.map_or_else(String::new, |fence| format!(" (fence {fence})"));
            output::message(&format!("lost \"{}\"{fence}: {why}", lease.key()));
        }
    }

    /// Somebody asks for the lock.
    fn let_go(&mut self, asked: &str) {
        let Some(signal) = self.on_ask else {
            output::message(asked);
            return;
        };
        self.signal(signal);
        output::message(&format!("{asked}; the command gets {}", signals::name(signal)));
        if signals::is_fatal(signal) || signal == libc::SIGKILL {
            // As with a signal from elsewhere: a stopped process can't heed it.
            self.signal(libc::SIGCONT);
            self.end_asked = true;
        }
    }

    /// The lock is lost: asks the group to end.
    fn terminate(&mut self) -> Stage {
        self.signal(libc::SIGTERM);
        // A stopped process can't heed TERM.
        self.signal(libc::SIGCONT);
        let patience = self.leases.until_deadline().min(self.grace);
        let kill_at = Instant::now() + patience.saturating_sub(patience / 4);
        self.tell_of_loss();
        Stage::Terminated { kill_at }
    }

    fn kill(&self) -> Stage {
        self.signal(libc::SIGKILL);
        let patience = self.leases.until_deadline().max(DEAD_WITHIN);
        Stage::Killed { give_up_at: Instant::now() + patience }
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
            libc::SIGCHLD => {}
            _ if signals::is_own(signal) => {}
            _ => {
                self.signal(signal);
                // A job that was stopped would only learn of it when somebody continues it.
                if signals::is_fatal(signal) {
                    self.end_asked = true;
                    self.interrupted = true;
                    self.signal(libc::SIGCONT);
                }
            }
        }
    }

    /// The command was stopped: by itself, by somebody, by Ctrl-Z, or for want of the terminal.
    fn stopped(&mut self, signal: libc::c_int) {
        // Without a terminal it is a signal that somebody has sent, and says nothing of one.
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
                    "suspended; {} is lost unless the job goes on within {}",
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
        // First of all: nobody knows for how long we stood still.
        if !self.leases.is_held() {
            return;
        }
        self.watchdog.tell(self.leases, self.grace);
        let in_front = self.terminal.filter(|terminal| terminal.is_ours());
        match (in_front, stopped_by) {
            (Some(terminal), Some(_)) => {
                self.has_terminal = terminal.give(self.child.pid()).is_ok();
            }
            // Nobody has put us in front: it would ask again at once, for ever.
            (None, Some(signal)) if terminal::is_a_request(signal) => return,
            _ => {}
        }
        terminal::wake(self.child.pid());
    }
}
