//! The answers that a client believes, and every way in which one could be untrue.
//!
//! A client takes an answer of its store for proof in few cases; the rest are refusals, or say what
//! is to be done next. The table here says what has to become of each proof under each doubt. A new
//! answer does not compile before it has said what it proves, nor a new proof before it has its row;
//! stores try every cell.

use crate::store::{Acquire, AcquireAll, Convert, Renew, Wake};

/// What an answer proves to the client that gets it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a test that tries them all must not miss one")]
pub enum Proof {
    /// A lease is held from now on.
    Granted,
    /// A lease is held by an earlier request, or because the line handed it over.
    Already,
    /// Several leases are held, all of them.
    Set,
    /// A lease is held in another mode.
    Converted,
    /// A lease runs on.
    Renewed,
    /// A lease runs on, and somebody asks for the lock.
    Asked,
    /// A message says that the line handed a lease over.
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
    /// Replicas were to have it, and do not.
    Unreplicated,
    /// Replicas were to have it, and they can't be waited for.
    Unconfirmable,
    /// What carried it out was stopped half-way.
    Aborted,
    /// The answer comes after the time that the caller gave.
    Late,
    /// The store is behind: it was asked in an earlier fail-over epoch than it has seen.
    Outdated,
    /// The server that was asked is not the one that has the lock.
    Elsewhere,
    /// The server was restarted without its data.
    Forgotten,
    /// The server that was asked is a replica.
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

/// What becomes of a proof under a doubt.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a test that tries them all must not miss one")]
pub enum Standing {
    /// It is true all the same.
    True,
    /// The caller gets an error in its place. What may have been done is not called undone.
    Withdrawn,
    /// The store answers that nothing of the kind is held.
    Denied,
    /// It does not come, or as a reason to ask only.
    Unsaid,
}

impl Proof {
    /// What has to become of this proof under this doubt.
    #[must_use]
    pub const fn under(self, doubt: Doubt) -> Standing {
        use Doubt::{
            Aborted, ClockSetBack, Elsewhere, Forgotten, Late, Outdated, Replica, Unconfirmable,
            Unreplicated,
        };
        match (self, doubt) {
            // A lease that was issued later in real time has the larger fence all the same, and a
            // clock that went back ends no lease before its time.
            (_, Outdated | ClockSetBack) => Standing::True,
            // Nothing is told to be granted where a message can't say that replicas have it; a
            // script that is stopped, late or sent elsewhere tells nobody anything that is not in
            // the record.
            (
                Self::Told,
                Unreplicated | Unconfirmable | Aborted | Late | Elsewhere | Forgotten | Replica,
            ) => Standing::Unsaid,
            // What was forgotten is not renewed.
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
    /// What it proves, if it gives a lease.
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
    /// What it proves, if it gives leases.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Granted(_) => Some(Proof::Set),
            Self::Blocked { .. } => None,
        }
    }
}

impl Convert {
    /// What it proves, if the lease is held in the mode asked for.
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
    /// What it proves, if it says that a lease was handed over.
    #[must_use]
    pub const fn proves(&self) -> Option<Proof> {
        match self {
            Self::Granted { .. } => Some(Proof::Told),
            Self::First { .. } | Self::Lost { .. } | Self::Resync | Self::Silent => None,
        }
    }
}
