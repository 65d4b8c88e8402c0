//! Visits every run of a few clients on one lock, with the product's own rules.
//!
//! [`LockEntry`] grants, and [`LeaseMachine`] decides what a client believes.
//!
//! Between them is a network that delays, loses and reorders messages, and in some bounds doubles
//! them. Time jumps to just before and just after each instant at which a rule changes its
//! decision. A depth-first search visits each state that can be reached within a bound. It checks
//! three rules: at most one client believes that it holds the lock, fences only grow, and a lost
//! lease stays lost.
//!
//! A bound proves something only about faults that it can express. So each bound has planted faults
//! that the search has to find.
//!
//! A second model has the quorum's decision on one try, [`Ballot`], over three nodes with a
//! [`LockEntry`] each. It also checks that every lease left at a node belongs to a client.
//!
//! The search distinguishes states by 64 bits of a hash. Two of 2 million states share a hash with
//! a probability of about 1 in 10 million; the search then skips one of them.
//!
//! [`LockEntry`]: leasehold_core::table::LockEntry
//! [`LeaseMachine`]: leasehold_core::LeaseMachine
//! [`Ballot`]: leasehold_quorum::ballot::Ballot

mod quorum;
mod search;
mod world;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use quorum::Planted as QuorumPlanted;
use search::search;
use world::{Bound, Planted, World};

use crate::watch::thread_seconds;

/// Two clients with one request and no renewal each. Their clocks are as far apart as the margin
/// allows.
const ONCE: Bound = Bound {
    acquisitions: [1, 1],
    asks: [1, 1],
    renewals: 0,
    copies: 2,
    drift_ppm: 4_900,
    horizon_ms: 1_300,
    planted: Planted::Nothing,
};
const RENEWED: Bound = Bound { renewals: 2, copies: 1, ..ONCE };
const ASKED_TWICE: Bound = Bound { asks: [2, 2], copies: 1, ..ONCE };
const TAKEN_TWICE: Bound = Bound { acquisitions: [2, 1], copies: 1, ..ONCE };
/// The other client queues, sends a heartbeat, and loses the lock to the first again.
const TAKEN_BACK: Bound = Bound { asks: [1, 2], horizon_ms: 900, ..TAKEN_TWICE };

/// Answers are lost or abandoned; time stands still.
const UNANSWERED: quorum::Bound = quorum::Bound {
    tries: [1, 1],
    lost: 1,
    given_up: 1,
    doubled: 0,
    forgets: 0,
    is_cut: false,
    is_slow: [false; 2],
    horizon_ms: 0,
    planted: QuorumPlanted::Nothing,
};
const TRIED_TWICE: quorum::Bound =
    quorum::Bound { tries: [2, 1], lost: 0, given_up: 0, ..UNANSWERED };
/// The request that abandons a token arrives a second time, at any later time.
const GIVEN_UP_TWICE: quorum::Bound = quorum::Bound { doubled: 1, ..TRIED_TWICE };
/// The lease of one client ends during its try, or later.
const SLOW: quorum::Bound =
    quorum::Bound { lost: 0, given_up: 0, is_slow: [true, false], horizon_ms: 1_000, ..UNANSWERED };
/// A node forgets all data, at any time of a try.
const FORGETFUL: quorum::Bound = quorum::Bound { forgets: 1, lost: 0, given_up: 0, ..UNANSWERED };
/// The node counts again later; one client can't reach another node.
const FORGETFUL_LONG: quorum::Bound =
    quorum::Bound { is_cut: true, horizon_ms: 1_100, ..FORGETFUL };

#[derive(Clone, Copy, Debug)]
enum Model {
    Lock(Bound),
    Quorum(quorum::Bound),
}

/// A search and its expected result.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    model: Model,
    /// Whether the search has to find a violation.
    breaks: bool,
}

const fn holds(name: &'static str, bound: Bound) -> Case {
    Case { name, model: Model::Lock(bound), breaks: false }
}

const fn breaks(name: &'static str, planted: Planted, bound: Bound) -> Case {
    Case { name, model: Model::Lock(Bound { planted, ..bound }), breaks: true }
}

const fn quorum_holds(name: &'static str, bound: quorum::Bound) -> Case {
    Case { name, model: Model::Quorum(bound), breaks: false }
}

const fn quorum_breaks(name: &'static str, planted: QuorumPlanted, bound: quorum::Bound) -> Case {
    Case { name, model: Model::Quorum(quorum::Bound { planted, ..bound }), breaks: true }
}

/// The longest come first, so that all processors end at about the same time.
const CASES: [Case; 33] = [
    holds("two requests each", ASKED_TWICE),
    quorum_holds("quorum: a slow client", SLOW),
    quorum_holds("quorum: a node that forgets, and counts later", FORGETFUL_LONG),
    quorum_holds("quorum: a node that forgets", FORGETFUL),
    quorum_holds("quorum: answers that are lost or given up", UNANSWERED),
    quorum_holds("quorum: what gives a token up arrives twice", GIVEN_UP_TWICE),
    quorum_holds("quorum: one client tries twice", TRIED_TWICE),
    holds("one client takes the lock twice, the other asks twice", TAKEN_BACK),
    holds("one client takes the lock twice", TAKEN_TWICE),
    holds("one request each, messages doubled", ONCE),
    holds("two renewals each", RENEWED),
    // Shows that the margin is needed for the drift of clocks alone.
    holds(
        "no margin, clocks that agree",
        Bound { drift_ppm: 0, planted: Planted::NoMargin, ..RENEWED },
    ),
    breaks("clocks too far apart", Planted::Nothing, Bound { drift_ppm: 6_500, ..ONCE }),
    breaks("a deadline that counts from the answer", Planted::CountsFromAnswer, ONCE),
    breaks("no margin", Planted::NoMargin, ONCE),
    breaks("no margin, two requests each", Planted::NoMargin, ASKED_TWICE),
    breaks("a store that ends leases 50 ms early", Planted::StoreEndsEarly, ONCE),
    breaks("a store that forgets its last fence", Planted::StoreForgets, ONCE),
    breaks("a hand-over that counts from the last request", Planted::CountsFromLast, TAKEN_BACK),
    breaks("a hand-over that counts from its message", Planted::CountsFromArrival, TAKEN_TWICE),
    breaks("a release without token", Planted::AnyTokenReleases, TAKEN_TWICE),
    breaks("a token that is used again", Planted::TokenUsedAgain, TAKEN_TWICE),
    breaks("a renewal that counts unanswered", Planted::SendingRenews, RENEWED),
    breaks("a renewal that brings a lost lease back", Planted::LostLeaseRenewed, RENEWED),
    quorum_breaks("quorum: a young node counts", QuorumPlanted::YoungCounts, FORGETFUL),
    quorum_breaks("quorum: a node counts too early", QuorumPlanted::CountsEarly, FORGETFUL_LONG),
    quorum_breaks(
        "quorum: a node is asked its age before it grants",
        QuorumPlanted::AgeBeforeGrant,
        FORGETFUL,
    ),
    quorum_breaks("quorum: one node is enough", QuorumPlanted::MinorityIsEnough, UNANSWERED),
    quorum_breaks("quorum: nothing is given up", QuorumPlanted::NotUndone, UNANSWERED),
    quorum_breaks("quorum: the lowest fence is told", QuorumPlanted::LowestFence, TRIED_TWICE),
    quorum_breaks("quorum: a fence is told at once", QuorumPlanted::NotRaised, TRIED_TWICE),
    quorum_breaks(
        "quorum: a token that was given up is asked for again",
        QuorumPlanted::TokenAskedAgain,
        GIVEN_UP_TWICE,
    ),
    quorum_breaks(
        "quorum: a deadline that counts from the answer",
        QuorumPlanted::CountsFromAnswer,
        SLOW,
    ),
];

/// Searches all bounds, in one thread per processor.
pub(crate) fn run() -> ExitCode {
    let next = Mutex::new(CASES.iter());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let wrong = thread::scope(|scope| {
        let work = || {
            let mut wrong = 0;
            loop {
                let case = next.lock().ok().and_then(|mut cases| cases.next().copied());
                let Some(case) = case else { return wrong };
                wrong += usize::from(!look(case));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(1)).sum::<usize>()
    });
    println!("{} bounds and planted faults, {wrong} not as they should be", CASES.len());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn look(case: Case) -> bool {
    let began = thread_seconds();
    let found = match &case.model {
        Model::Lock(bound) => search::<World>(bound),
        Model::Quorum(bound) => search::<quorum::World>(bound),
    };
    let took = thread_seconds() - began;
    println!("{}: {found}, {took:.1} s", case.name);
    let good = match (&found.violation, case.breaks) {
        (Some(_), breaks) => breaks,
        (None, true) => false,
        (None, false) => found.expresses_all(),
    };
    if !good {
        let why = if found.violation.is_some() {
            "must hold"
        } else if case.breaks {
            "has to find a fault"
        } else {
            "expresses too little"
        };
        println!("WRONG: {}: this {why}", case.name);
    }
    good
}

/// Searches the bounds with a fault planted in the product. Returns what it violates, and the
/// seconds needed.
#[cfg(leasehold_planted)]
pub(crate) fn find() -> Option<(&'static str, f64)> {
    let began = thread_seconds();
    [RENEWED, ONCE, TAKEN_TWICE, ASKED_TWICE].into_iter().find_map(|bound| {
        let (rule, _) = search::<World>(&bound).violation?;
        Some((rule, thread_seconds() - began))
    })
}
