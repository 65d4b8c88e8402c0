//! Draws from a seed how many processes and nodes there are, what they do, and what fails.
//!
//! Each seed has its own rates, and most seeds have some at zero. So combinations that are rare
//! over all seeds are common in a few.

use std::fmt;
use std::time::Duration;

/// True time, in microseconds since the beginning of the simulation.
pub(crate) type Us = u64;

/// Less than what the margin covers for both clocks together.
const DRIFT_PPM: i64 = 4_900;
const SECOND: Us = 1_000_000;

/// A kind of fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum What {
    /// A process and a node can't reach each other.
    Cut {
        host: usize,
        node: usize,
    },
    /// A node is cut off.
    Alone {
        node: usize,
    },
    Loss {
        percent: u32,
    },
    Double {
        percent: u32,
    },
    Slow {
        percent: u32,
    },
    /// Messages overtake others.
    Reorder {
        percent: u32,
    },
    /// Requests arrive long after their callers stopped waiting.
    Late {
        percent: u32,
    },
    /// A process is stopped while its clock goes on.
    Pause {
        host: usize,
    },
    /// A process is killed, and another one replaces it.
    Kill {
        host: usize,
    },
    /// A node restarts; it keeps its data unless it `forgets`.
    Restart {
        node: usize,
        forgets: bool,
    },
}

/// A fault, its start and its duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Us,
    pub(crate) lasts: Us,
    pub(crate) what: What,
}

/// How often, in per cent, a process does what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) no_renewal: u32,
    pub(crate) long_hold: u32,
    pub(crate) no_grace: u32,
    pub(crate) stays_when_lost: u32,
    pub(crate) no_pause: u32,
    pub(crate) dropped: u32,
    pub(crate) prolongs: u32,
    pub(crate) detaches: u32,
    pub(crate) unpolled: u32,
    pub(crate) cooldown: u32,
    pub(crate) forces: u32,
    pub(crate) floods: u32,
    pub(crate) closes: u32,
}

/// All that a seed decides before the run.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) seed: u64,
    pub(crate) hosts: usize,
    pub(crate) tasks: usize,
    pub(crate) nodes: usize,
    /// Whether nodes that restart may forget everything.
    pub(crate) forgets: bool,
    pub(crate) ttl: Duration,
    pub(crate) kinds: Kinds,
    /// Whether order is checked: one waiter a process, without hand-off inside it.
    pub(crate) in_order: bool,
    pub(crate) step_max_ms: u64,
    pub(crate) lasts: Us,
    pub(crate) rates: Rates,
    pub(crate) host_ppm: Vec<i64>,
    pub(crate) node_ppm: Vec<i64>,
    pub(crate) faults: Vec<Fault>,
}

/// Which kinds of locks are used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kinds {
    All,
    Plain,
    Readers,
    Permits,
}

/// The focus of a seed: the conditions that one kind of bug needs, drawn often enough to occur.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Focus {
    Nothing,
    /// A slow clock holds to the end what a fast clock counts.
    Clocks,
    /// Waiters die; all else works.
    Deaths,
    /// Leases are made shorter, and the answers get lost.
    Lengths,
    /// Leases are force-released.
    Force,
    /// Many wait for one lock, without faults.
    Order,
    /// Nodes of a quorum forget while others can't be reached.
    Forgetting,
}

/// Which stores a seed may draw.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Stores {
    /// Two seeds of three have one store, the others a quorum.
    #[default]
    Any,
    Memory,
    Quorum,
}

impl fmt::Display for Stores {
    /// The options that repeat the profile, except for the seed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "",
            Self::Memory => " --stores memory",
            Self::Quorum => " --stores quorum",
        })
    }
}

fn drift(rng: &mut fastrand::Rng) -> i64 {
    match rng.u8(0..3) {
        0 => -DRIFT_PPM,
        1 => DRIFT_PPM,
        _ => rng.i64(-DRIFT_PPM..=DRIFT_PPM),
    }
}

fn one_of<T: Copy>(rng: &mut fastrand::Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

impl Profile {
    pub(crate) fn draw(seed: u64, stores: Stores) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed_0000_0000);
        let quorum = match stores {
            Stores::Any => rng.u8(0..3) == 0,
            Stores::Memory => false,
            Stores::Quorum => true,
        };
        let nodes = if quorum { one_of(&mut rng, &[3, 3, 5]) } else { 1 };
        let forgets = quorum && rng.bool();
        let hosts = rng.usize(2..=5);
        let ttls: &[u64] =
            if quorum { &[1_000, 3_000] } else { &[200, 1_000, 3_000, 3_000, 20_000] };
        let ttl = Duration::from_millis(one_of(&mut rng, ttls));
        let some = |rng: &mut fastrand::Rng| one_of(rng, &[0, 5, 30, 90]);
        let few = |rng: &mut fastrand::Rng| one_of(rng, &[0, 0, 2, 15]);
        let rates = Rates {
            no_renewal: some(&mut rng),
            long_hold: some(&mut rng),
            no_grace: one_of(&mut rng, &[0, 50, 100, 100]),
            stays_when_lost: some(&mut rng),
            no_pause: some(&mut rng),
            dropped: one_of(&mut rng, &[0, 10, 40]),
            prolongs: few(&mut rng),
            detaches: few(&mut rng),
            unpolled: few(&mut rng),
            cooldown: few(&mut rng),
            forces: one_of(&mut rng, &[0, 0, 0, 0, 0, 1]),
            floods: u32::from(rng.u8(..16) < 2),
            closes: one_of(&mut rng, &[0, 0, 1]),
        };
        let lasts = rng.u64(30..=90) * SECOND;
        let mut profile = Self {
            seed,
            hosts,
            tasks: rng.usize(1..=3),
            nodes,
            forgets,
            ttl,
            kinds: if rng.u8(0..3) == 0 { Kinds::Plain } else { Kinds::All },
            in_order: false,
            step_max_ms: one_of(&mut rng, &[3, 10, 10]),
            lasts,
            rates,
            host_ppm: (0..hosts).map(|_| drift(&mut rng)).collect(),
            node_ppm: (0..nodes).map(|_| drift(&mut rng)).collect(),
            faults: Vec::new(),
        };
        if !quorum && rng.u8(0..5) == 0 {
            profile.is_in_order(one_of(&mut rng, &[Kinds::Plain, Kinds::Readers, Kinds::Permits]));
        }
        let focus = match (quorum, forgets) {
            (false, _) => one_of(
                &mut rng,
                &[
                    Focus::Nothing,
                    Focus::Nothing,
                    Focus::Nothing,
                    Focus::Nothing,
                    Focus::Nothing,
                    Focus::Clocks,
                    Focus::Deaths,
                    Focus::Lengths,
                    Focus::Force,
                    Focus::Order,
                ],
            ),
            (true, true) => one_of(&mut rng, &[Focus::Nothing, Focus::Forgetting]),
            (true, false) => Focus::Nothing,
        };
        let (kinds, most) = profile.focus(focus, &mut rng);
        profile.faults = profile.draw_faults(&kinds, most, &mut rng);
        profile
    }

    /// One waiter a process, so that order can be judged.
    const fn is_in_order(&mut self, kinds: Kinds) {
        (self.in_order, self.tasks, self.kinds) = (true, 1, kinds);
    }

    /// Adapts the profile to the seed's focus. Returns the kinds of faults, and how many at most.
    fn focus(&mut self, focus: Focus, rng: &mut fastrand::Rng) -> (Vec<u8>, u64) {
        let seconds = self.lasts / SECOND;
        let rates = &mut self.rates;
        if focus != Focus::Nothing {
            self.kinds = Kinds::Plain;
            (rates.no_grace, rates.dropped, rates.prolongs) = (100, 0, 0);
            (rates.detaches, rates.unpolled, rates.floods, rates.closes) = (0, 0, 0, 0);
            (rates.no_renewal, rates.long_hold) = (one_of(rng, &[0, 90]), one_of(rng, &[30, 90]));
        }
        match focus {
            // Leaves out every second kind of fault, so that the effect of the others shows.
            Focus::Nothing if rng.u8(0..8) > 0 => {
                return ((0..11).filter(|_| rng.bool()).collect(), seconds);
            }
            Focus::Nothing => {}
            Focus::Clocks => {
                self.ttl = Duration::from_secs(one_of(rng, &[3, 20]));
                (rates.no_renewal, rates.long_hold) = (90, 90);
                self.host_ppm.fill(-DRIFT_PPM);
                self.node_ppm.fill(DRIFT_PPM);
            }
            Focus::Deaths => {
                self.ttl = Duration::from_secs(20);
                (rates.no_renewal, self.lasts) = (0, 90 * SECOND);
                return (vec![7], 6);
            }
            Focus::Lengths => {
                self.ttl = Duration::from_secs(3);
                (rates.prolongs, rates.no_renewal, rates.long_hold) = (90, 100, 50);
                return (vec![2, 2, 6], seconds);
            }
            Focus::Force => {
                self.ttl = Duration::from_secs(one_of(rng, &[1, 3]));
                (rates.forces, rates.no_renewal, rates.long_hold) = (30, 0, 90);
            }
            Focus::Order => {
                self.ttl = Duration::from_secs(1);
                (rates.no_renewal, rates.long_hold, rates.no_pause) = (0, 90, 90);
                self.is_in_order(one_of(rng, &[Kinds::Readers, Kinds::Permits]));
            }
            Focus::Forgetting => {
                self.ttl = Duration::from_secs(3);
                return (vec![0, 0, 0, 2, 4, 8, 8], 2 * seconds);
            }
        }
        (Vec::new(), 0)
    }

    fn draw_faults(&self, kinds: &[u8], most: u64, rng: &mut fastrand::Rng) -> Vec<Fault> {
        let count = if kinds.is_empty() { 0 } else { rng.u64(3..=most) };
        let mut faults = Vec::new();
        let mut restarts: Vec<(Us, usize)> = Vec::new();
        for _ in 0..count {
            let at = rng.u64(..self.lasts);
            let (host, node) = (rng.usize(..self.hosts), rng.usize(..self.nodes));
            let percent = one_of(rng, &[2, 10, 25, 60]);
            let mut lasts = rng.u64(50_000..8_000_000);
            let what = match one_of(rng, kinds) {
                0 => What::Cut { host, node },
                1 => What::Alone { node },
                2 => What::Loss { percent },
                3 => What::Double { percent },
                4 => What::Slow { percent },
                5 => What::Reorder { percent },
                6 => What::Late { percent },
                7 => What::Kill { host },
                8 => {
                    let most = one_of(rng, &[200_000, 3_000_000]);
                    lasts = rng.u64(1_000..most);
                    // In a quorum, only a minority may be away, or have forgotten, within the
                    // longest ttl.
                    let near = 8 * SECOND;
                    let others = restarts
                        .iter()
                        .filter(|(then, of)| *of != node && then.abs_diff(at) < near);
                    if self.nodes > 1 && others.count() >= self.nodes / 2 {
                        continue;
                    }
                    restarts.push((at, node));
                    What::Restart { node, forgets: self.forgets }
                }
                _ => {
                    let short = rng.bool();
                    lasts =
                        if short { rng.u64(1_000..400_000) } else { rng.u64(400_000..12_000_000) };
                    What::Pause { host }
                }
            };
            faults.push(Fault { at, lasts, what });
        }
        faults.sort_by_key(|fault| fault.at);
        faults
    }
}
