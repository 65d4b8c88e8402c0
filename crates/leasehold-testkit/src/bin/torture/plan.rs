//! Draws commands and their faults from a seed.
//!
//! Clocks and outcomes have no influence here: the same seed gives each worker the same commands
//! with the same faults in the same order.

use std::time::Duration;

use fastrand::Rng;

/// The permits of each semaphore.
pub(crate) const LIMIT: u64 = 3;
/// How long a started report keeps its period closed.
pub(crate) const PERIOD: Duration = ms(700);
/// The longest ttl of a command.
pub(crate) const LONGEST: Duration = ms(10_000);
/// The cooldown of commands that set one.
pub(crate) const COOLDOWN: Duration = ms(150);
/// Exclusive locks, also acquired several at once.
pub(crate) const EXCLUSIVE: [&str; 3] = ["ex/0", "ex/1", "ex/2"];
/// A lock with shared and exclusive holds.
pub(crate) const SHARED: &str = "rw/0";
/// A semaphore.
pub(crate) const PERMITS: &str = "sem/0";
/// A report that starts once in a period.
pub(crate) const REPORT: &str = "report/0";
/// A post for elections.
pub(crate) const POST: &str = "post/0";

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The abilities of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Shared holds, permits, and a queue: all stores but a quorum.
    pub(crate) kinds: bool,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permits(u64),
}

impl Mode {
    /// One word for a log and a command.
    pub(crate) fn word(self) -> String {
        match self {
            Self::Exclusive => "x".to_owned(),
            Self::Shared => "s".to_owned(),
            Self::Permits(count) => format!("p{count}"),
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "x" => Some(Self::Exclusive),
            "s" => Some(Self::Shared),
            _ => word.strip_prefix('p')?.parse().ok().map(Self::Permits),
        }
    }
}

/// How long a command waits for its locks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wait {
    Forever,
    No,
    Within(Duration),
}

/// A command, with its own options.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verb {
    /// `run` with any of its options.
    Run { mode: Mode, once: bool, cooldown: bool, on_ask: bool },
    /// `elect`.
    Elect,
    /// `hold`, which the worker ends in one of several ways after its section.
    Hold { end: End },
    /// `acquire`, `renew`, then a section, then `release`, or nothing.
    Acquire { forget: bool },
    /// `wait`, for a lock that this mode could acquire.
    Wait { mode: Mode },
    /// `ls`, or `show`.
    Look { list: bool },
}

/// How a worker ends a `hold`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Close,
    Terminate,
    Kill,
}

/// A fault of a command's processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Act {
    KillSupervisor,
    TermSupervisor,
    StopSupervisor(Duration),
    KillWatchdog,
    StopWatchdog(Duration),
    KillCommand,
    KillGroup,
    TermGroup,
    StopGroup(Duration),
    /// An operator requests a release.
    Ask,
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum When {
    /// This long after the command was started.
    Started(Duration),
    /// This long after its section began.
    Begun(Duration),
}

/// One command of a worker.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Op {
    pub(crate) id: u64,
    pub(crate) verb: Verb,
    pub(crate) keys: Vec<&'static str>,
    pub(crate) wait: Wait,
    pub(crate) ttl: Duration,
    pub(crate) grace: Option<Duration>,
    /// How long the section works.
    pub(crate) work: Duration,
    /// The section's exit code.
    pub(crate) code: u8,
    /// Whether a shell is between the supervisor and the section.
    pub(crate) shell: bool,
    /// Whether the section ignores TERM.
    pub(crate) stubborn: bool,
    pub(crate) fault: Option<(When, Act)>,
    /// The pause before the worker's next command.
    pub(crate) pause: Duration,
}

impl Op {
    pub(crate) fn mode(&self) -> Mode {
        match self.verb {
            Verb::Run { mode, .. } | Verb::Wait { mode } => mode,
            _ => Mode::Exclusive,
        }
    }

    pub(crate) fn once(&self) -> bool {
        matches!(self.verb, Verb::Run { once: true, .. })
    }

    pub(crate) fn cooldown(&self) -> bool {
        matches!(self.verb, Verb::Run { cooldown: true, .. })
    }

    pub(crate) fn on_ask(&self) -> bool {
        matches!(self.verb, Verb::Run { on_ask: true, .. })
    }

    /// The arguments of the command.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut push = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
        match self.verb {
            Verb::Run { mode, once, cooldown, on_ask } => {
                push(&["run"]);
                push(&self.keys);
                match mode {
                    Mode::Exclusive => {}
                    Mode::Shared => push(&["-s"]),
                    Mode::Permits(count) => {
                        push(&["--limit", &LIMIT.to_string(), "--permits", &count.to_string()]);
                    }
                }
                if once {
                    push(&["--once-per", &length(PERIOD)]);
                }
                if cooldown {
                    push(&["--cooldown", &length(COOLDOWN)]);
                }
                if on_ask {
                    push(&["--on-ask", "TERM"]);
                }
            }
            Verb::Elect => push(&["elect", POST]),
            Verb::Hold { .. } => {
                push(&["hold"]);
                push(&self.keys);
            }
            Verb::Acquire { .. } => {
                push(&["acquire", "--json", "--lease-file", &format!("ops/{}.lease", self.id)]);
                push(&self.keys);
            }
            Verb::Wait { mode } => {
                push(&["wait"]);
                push(&self.keys);
                match mode {
                    Mode::Exclusive => {}
                    Mode::Shared => push(&["-s"]),
                    Mode::Permits(count) => push(&["--permits", &count.to_string()]),
                }
            }
            Verb::Look { list: true } => push(&["ls", "--json"]),
            Verb::Look { list: false } => {
                push(&["show", "--json"]);
                push(&self.keys);
            }
        }
        if matches!(self.verb, Verb::Look { .. }) {
            return words;
        }
        let mut push = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
        if !matches!(self.verb, Verb::Wait { .. }) {
            push(&["--ttl", &length(self.ttl)]);
        }
        if let Some(grace) = self.grace {
            push(&["--grace", &length(grace)]);
        }
        match self.wait {
            Wait::Forever => {}
            Wait::No => push(&["-n"]),
            Wait::Within(time) => push(&["-w", &length(time)]),
        }
        words
    }
}

pub(crate) fn length(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// Draws the commands of one worker.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: Rng,
    abilities: Abilities,
    next: u64,
}

impl Plan {
    pub(crate) fn new(seed: u64, worker: u64, abilities: Abilities) -> Self {
        let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(worker));
        Self { rng, abilities, next: worker * 1_000_000 }
    }

    pub(crate) fn op(&mut self) -> Op {
        self.next += 1;
        let id = self.next;
        let (verb, keys) = self.verb();
        let wait = match (verb, self.rng.u8(..10)) {
            // A busy lock may never be free at the moment of a look.
            (Verb::Wait { .. }, 0..=4) => Wait::Within(ms(self.rng.u64(20..2_000))),
            (Verb::Run { once: true, .. } | Verb::Elect, _) | (_, 0..=4) => Wait::Forever,
            (_, 5..=6) => Wait::No,
            _ => Wait::Within(ms(self.rng.u64(20..2_000))),
        };
        let supervised = matches!(verb, Verb::Run { .. } | Verb::Elect);
        let fault = if supervised && self.rng.u8(..10) < 4 { Some(self.fault(verb)) } else { None };
        let mut ttl = match verb {
            Verb::Run { .. } | Verb::Elect => ms(*self.pick(&[1_000, 1_500, 3_000])),
            // A forgotten lease excludes all others until its end.
            Verb::Acquire { forget: true } => ms(4_000),
            // Unsupervised sections are short compared with their leases.
            _ => LONGEST,
        };
        let mut work = ms(self.rng.u64(1..120));
        match fault {
            Some((_, Act::StopSupervisor(_))) if self.rng.bool() => work = ttl + ms(700),
            // Renewals have to continue while a process is stopped.
            Some((_, Act::StopGroup(_) | Act::StopWatchdog(_))) => work = ms(600),
            _ if supervised && self.rng.u8(..20) == 0 => {
                ttl = ms(1_000);
                work = ms(1_600);
            }
            _ => {}
        }
        let (mut shell, mut stubborn) = (self.rng.bool(), self.rng.u8(..4) == 0);
        match fault {
            // Processes that outlive the command's first one run without the lock.
            Some((_, Act::KillCommand)) => shell = false,
            Some((_, Act::TermGroup)) => stubborn = false,
            _ => {}
        }
        let grace = if supervised && self.rng.bool() { Some(ttl.mul_f64(0.4)) } else { None };
        Op {
            id,
            verb,
            keys,
            wait,
            ttl,
            grace,
            work,
            code: *self.pick(&[0, 0, 0, 3, 7]),
            shell,
            stubborn,
            fault,
            pause: ms(self.rng.u64(..40)),
        }
    }

    fn verb(&mut self) -> (Verb, Vec<&'static str>) {
        let run = |mode| Verb::Run { mode, once: false, cooldown: false, on_ask: false };
        let exclusive = vec![*self.pick(&EXCLUSIVE)];
        let kinds = self.abilities.kinds;
        match self.rng.u8(..32) {
            0..=7 => (run(Mode::Exclusive), exclusive),
            8..=10 if kinds => (run(Mode::Shared), vec![SHARED]),
            11 if kinds => (run(Mode::Exclusive), vec![SHARED]),
            12..=14 if kinds => (run(Mode::Permits(self.rng.u64(1..=LIMIT))), vec![PERMITS]),
            8..=17 => {
                let mut keys = EXCLUSIVE.to_vec();
                self.rng.shuffle(&mut keys);
                keys.truncate(self.rng.usize(2..=3));
                (run(Mode::Exclusive), keys)
            }
            18..=19 => {
                let (mode, cooldown, on_ask) = (Mode::Exclusive, false, false);
                (Verb::Run { mode, once: true, cooldown, on_ask }, vec![REPORT])
            }
            20..=21 => (Verb::Elect, vec![POST]),
            22..=23 => {
                let end = *self.pick(&[End::Close, End::Terminate, End::Kill]);
                (Verb::Hold { end }, exclusive)
            }
            24..=25 => (Verb::Acquire { forget: self.rng.u8(..8) == 0 }, exclusive),
            26 => {
                let (mode, once, on_ask) = (Mode::Exclusive, false, false);
                (Verb::Run { mode, once, cooldown: true, on_ask }, exclusive)
            }
            27..=28 => {
                let (mode, once, cooldown) = (Mode::Exclusive, false, false);
                (Verb::Run { mode, once, cooldown, on_ask: true }, exclusive)
            }
            29 => (Verb::Look { list: self.rng.bool() }, exclusive),
            _ => self.waiting(exclusive),
        }
    }

    fn waiting(&mut self, exclusive: Vec<&'static str>) -> (Verb, Vec<&'static str>) {
        let (mode, keys) = match self.rng.u8(..6) {
            0 if self.abilities.kinds => (Mode::Shared, vec![SHARED]),
            1 if self.abilities.kinds => (Mode::Exclusive, vec![SHARED]),
            2 if self.abilities.kinds => (Mode::Permits(self.rng.u64(1..=LIMIT)), vec![PERMITS]),
            3 => (Mode::Exclusive, EXCLUSIVE.to_vec()),
            _ => (Mode::Exclusive, exclusive),
        };
        (Verb::Wait { mode }, keys)
    }

    fn fault(&mut self, verb: Verb) -> (When, Act) {
        let when = if self.rng.u8(..10) < 3 {
            When::Started(ms(self.rng.u64(..150)))
        } else {
            When::Begun(ms(self.rng.u64(..60)))
        };
        if matches!(verb, Verb::Run { on_ask: true, .. }) {
            return (When::Begun(ms(self.rng.u64(..20))), Act::Ask);
        }
        let short = ms(self.rng.u64(5..400));
        let long = ms(self.rng.u64(500..4_000));
        let act = match self.rng.u8(..16) {
            0..=4 => Act::KillSupervisor,
            5..=6 => Act::TermSupervisor,
            7..=8 => Act::StopSupervisor(long),
            9 => Act::StopSupervisor(short),
            10 => Act::KillWatchdog,
            11 => Act::StopWatchdog(short),
            12 => Act::KillCommand,
            13 => Act::KillGroup,
            14 => Act::TermGroup,
            _ => Act::StopGroup(short),
        };
        (when, act)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(..of.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Abilities = Abilities { kinds: true };

    fn drawn(seed: u64, worker: u64, abilities: Abilities) -> Vec<Op> {
        let mut plan = Plan::new(seed, worker, abilities);
        (0..2_000).map(|_| plan.op()).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_commands_and_faults() {
        assert_eq!(drawn(7, 1, ALL), drawn(7, 1, ALL));
        assert_ne!(drawn(7, 1, ALL), drawn(8, 1, ALL));
        assert_ne!(drawn(7, 1, ALL)[0].work, drawn(7, 2, ALL)[0].work);
    }

    #[test]
    fn a_store_without_kinds_is_asked_for_exclusive_locks_only() {
        let plain = drawn(7, 1, Abilities { kinds: false });
        assert!(plain.iter().all(|op| op.mode() == Mode::Exclusive));
        assert!(drawn(7, 1, ALL).iter().any(|op| op.mode() == Mode::Shared));
    }

    #[test]
    fn a_mode_is_read_as_it_was_written() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(3)] {
            assert_eq!(Mode::parse(&mode.word()), Some(mode));
        }
        assert_eq!(Mode::parse("q"), None);
    }
}
