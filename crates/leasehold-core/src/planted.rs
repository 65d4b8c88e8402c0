//! Planted faults: the simulation turns one on and has to find it.
//!
//! This exists under `--cfg leasehold_planted` alone, and in no published build.

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
            /// All faults.
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
    /// A waiter that leaves stays in the queue.
    LeaveKeepsPlace,
    /// A lease that is granted to a waiter counts from its notification.
    HandOverFromArrival,
    /// A refused renewal is reported as done.
    RefusedRenewalTold,
    /// A dropped acquisition is not abandoned.
    DroppedNotGivenUp,
    /// A lease goes to a waiter without heartbeats.
    DeadIsServed,
    /// A lease that is granted to a waiter has the fence of the last one.
    FenceRepeats,
    /// A repeated acquisition competes with its first copy.
    AskedTwiceIsBusy,
    /// A lease counts though its answer came after its end.
    LateGrantCounts,
    /// The end of a lease wakes no task.
    LossNotTold,
    /// A renewal that failed prolongs the lease.
    FailedRenewalProlongs,
    /// The store ends leases 50 ms early.
    StoreEndsEarly,
    /// A waiter in the queue never sends a heartbeat.
    WaiterNeverAsks,
    /// The secret of an adopted lease is not spent.
    AdoptedTwice,
    /// An unanswered shortening counts as not done.
    ShorteningForgotten,
    /// A lease that is offered to an unpolled contender is kept for it.
    OfferStays,
    /// A writer gets the lock together with readers.
    WriterBesideReaders,
    /// A semaphore gives one permit too many.
    PermitTooMany,
    /// A reader becomes a writer together with other readers.
    UpgradeBesideReaders,
    /// A newcomer gets a free lock before the waiters.
    NewcomerPassesLine,
    /// A grant starts no cooldown.
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
    /// A quorum reports the lowest of its nodes' fences.
    LowestFence,
    /// A quorum does not release what it got in vain.
    VainNotUndone,
    /// A store carries out a request after its time.
    LateIsCarriedOut,
}

/// Chooses one; at first there is none.
pub fn choose(fault: Fault) {
    CHOSEN.store(fault as u32, Ordering::Relaxed);
}

/// Whether this one was chosen.
#[must_use]
pub fn is(fault: Fault) -> bool {
    CHOSEN.load(Ordering::Relaxed) == fault as u32
}
