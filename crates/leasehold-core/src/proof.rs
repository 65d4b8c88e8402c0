//! The answers that a client takes as proofs, and every way in which one could be untrue.
//!
//! Few answers of a store are proofs to its client; the rest are refusals, or say what to do next.
//! The table here gives the fate of each proof under each doubt. A new answer compiles only with a
//! statement of what it proves, and a new proof only with its row. Stores try every case.

use crate::store::{Acquire, AcquireAll, Convert, Renew, Wake};

/// What an answer proves to the client that gets it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a test that tries them all must not miss one")]
pub enum Proof {
    /// A lease is held from now on.
    Granted,
    /// A lease is held by an earlier request, or because the store handed it to the waiter.
    Already,
    /// Several leases are held, all of them.
    Set,
    /// A lease is held in another mode.
    Converted,
    /// A lease runs on.
    Renewed,
    /// A lease runs on, and there is a release request.
    Asked,
    /// A notification says that the store handed a lease to the waiter.
    Told,
}

impl Proof {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Granted,
        Self::Already,
        Self::Set,
        Self::Converted,
        Self::Renewed,
        Self::Asked,
        Self::Told,
    ];
}

/// A way in which a proof could be untrue.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a test that tries them all must not miss one")]
pub enum Doubt {
    /// Replicas should have it, and do not.
    Unreplicated,
    /// Replicas should have it, and can't be waited for.
    Unconfirmable,
    /// The script or transaction was stopped half-way.
    Aborted,
    /// The answer comes after the caller's time limit.
    Late,
    /// The store is behind: the request names an earlier fail-over epoch than the store has seen.
    Outdated,
    /// The server with the lock is another one.
    Elsewhere,
    /// The server was restarted without its data.
    Forgotten,
    /// The server is a replica.
    Replica,
    /// The store's clock was set back.
    ClockSetBack,
}

impl Doubt {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Unreplicated,
        Self::Unconfirmable,
        Self::Aborted,
        Self::Late,
        Self::Outdated,
        Self::Elsewhere,
        Self::Forgotten,
        Self::Replica,
        Self::ClockSetBack,
    ];
}

/// What a proof becomes under a doubt.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a test that tries them all must not miss one")]
pub enum Standing {
    /// It is still true.
    True,
    /// The caller gets an error instead. What may have been done is not called undone.
    Withdrawn,
    /// The store answers that no such lease is held.
    Denied,
    /// It does not come, or only as a reason to send a request.
    Unsaid,
}

impl Proof {
    /// What this proof must become under this doubt.
    #[must_use]
    pub const fn under(self, doubt: Doubt) -> Standing {
        use Doubt::{
            Aborted, ClockSetBack, Elsewhere, Forgotten, Late, Outdated, Replica, Unconfirmable,
            Unreplicated,
        };
        match (self, doubt) {
            // A lease that was issued later in real time still has the larger fence, and a clock
            // that went back ends no lease early.
            (_, Outdated | ClockSetBack) => Standing::True,
            // A notification is sent only for what the record has. It is not sent if replicas have
            // to confirm the lease first, nor by a script that is stopped, delayed or sent to
            // another server.
            (
                Self::Told,
                Unreplicated | Unconfirmable | Aborted | Late | Elsewhere | Forgotten | Replica,
            ) => Standing::Unsaid,
            // A forgotten lease is not renewed.
            (Self::Renewed | Self::Asked, Forgotten) => Standing::Denied,
            (
                Self::Granted | Self::Already | Self::Set | Self::Converted,
                Unreplicated | Unconfirmable | Aborted | Late | Elsewhere | Forgotten | Replica,
            )
            | (
                Self::Renewed | Self::Asked,
                Unreplicated | Unconfirmable | Aborted | Late | Elsewhere | Replica,
            ) => Standing::Withdrawn,
        }
    }
}

impl Acquire {
    /// What it proves, if it grants a lease.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Granted(_) => Some(Proof::Granted),
            Self::Already(_) => Some(Proof::Already),
            Self::Waiting(_) | Self::Busy(_) | Self::Refused(_) => None,
        }
    }
}

impl AcquireAll {
    /// What it proves, if it grants leases.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Granted(_) => Some(Proof::Set),
            Self::Blocked { .. } => None,
        }
    }
}

impl Convert {
    /// What it proves, if the lease is held in the requested mode.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Converted(_) => Some(Proof::Converted),
            Self::Busy { .. } | Self::Refused(_) | Self::Late | Self::NotHeld => None,
        }
    }
}

impl Renew {
    /// What it proves, if the lease runs on.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Renewed => Some(Proof::Renewed),
            Self::Asked => Some(Proof::Asked),
            Self::Late | Self::NotHeld => None,
        }
    }
}

impl Wake {
    /// What it proves, if a lease was handed to a waiter.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Granted { .. } => Some(Proof::Told),
            Self::First { .. } | Self::Lost { .. } | Self::Resync | Self::Silent => None,
        }
    }
}
