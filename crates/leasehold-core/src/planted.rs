//! Planted faults: the simulation turns one on and has to find it.
//!
//! This exists under `--cfg leasehold_planted` alone, which nothing that is published is built with.

use std::sync::atomic::{AtomicU32, Ordering};

static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident,)+) => {
        /// A fault.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[expect(clippy::exhaustive_enums, reason = "for one program, in this workspace")]
        pub enum Fault {
            $($(#[$doc])* $fault,)+
        }

        impl Fault {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$fault,)+];
        }
    };
}

faults! {
    /// A lease counts from its answer.
    DeadlineFromAnswer,
    /// A renewal brings a lost lease back.
    RenewalRevives,
    /// A holder's deadline is the store's.
    NoMargin,
    /// A release ends whatever lease there is.
    ReleaseWithoutToken,
    /// A waiter that leaves stays in line.
    LeaveKeepsPlace,
    /// A lease that is handed over counts from its message.
    HandOverFromArrival,
    /// A renewal that the store refused is told as one that it did.
    RefusedRenewalTold,
    /// An acquisition that is dropped is not given up.
    DroppedNotGivenUp,
    /// A lease goes to a waiter that gave no sign of life.
    DeadIsServed,
    /// A lease that is handed over has the fence of the last one.
    FenceRepeats,
    /// An acquisition that is sent again finds itself in the way.
    AskedTwiceIsBusy,
    /// A lease counts though its answer came when it was over.
    LateGrantCounts,
    /// The end of a lease wakes nobody.
    LossNotTold,
    /// A renewal that failed prolongs the lease.
    FailedRenewalProlongs,
    /// The store ends leases 50 ms early.
    StoreEndsEarly,
    /// A waiter in line never asks again.
    WaiterNeverAsks,
    /// The secret of an adopted lease is not spent.
    AdoptedTwice,
    /// A shortening without an answer is taken for one that was not done.
    ShorteningForgotten,
    /// A lease that is offered to a contender which is not polled is kept for it.
    OfferStays,
    /// A writer comes in beside readers.
    WriterBesideReaders,
    /// A semaphore gives one permit too many.
    PermitTooMany,
    /// A reader becomes a writer beside other readers.
    UpgradeBesideReaders,
    /// A newcomer gets a free lock before those in line.
    NewcomerPassesLine,
    /// A grant closes no period.
    PeriodForgotten,
    /// The next contender of a process gets the last one's fence.
    LocalFenceRepeats,
    /// A release that is dropped is not finished.
    DroppedReleaseForgotten,
    /// The end of an inner hold ends the outer.
    InnerEndsAll,
    /// A node counts right after it forgot everything.
    YoungNodeCounts,
    /// A third of the nodes is enough.
    MinorityIsEnough,
    /// A quorum tells the lowest of its nodes' fences.
    LowestFence,
    /// What a quorum got in vain is not given up.
    VainNotUndone,
    /// A store carries out a request after its time.
    LateIsCarriedOut,
}

/// Chooses one; none is chosen at first.
pub fn choose(fault: Fault) {
    CHOSEN.store(fault as u32, Ordering::Relaxed);
}

/// Whether this one was chosen.
#[must_use]
pub fn is(fault: Fault) -> bool {
    CHOSEN.load(Ordering::Relaxed) == fault as u32
}
