//! What a back end must do: the [`Store`] trait with its requests and replies.

use std::fmt::{self, Debug};
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::change::{
    AcquireAll, Ask, AskRequest, Convert, ConvertRequest, SetLimit, SetLimitRequest,
};
use crate::doctor::Finding;
use crate::error::{Error, Result};
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;
use crate::label::{Metadata, OwnerName};
use crate::token::{ClientId, Token};
use crate::ttl::Ttl;

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A back end that grants leases.
///
/// For implementors; users take the `leasehold` crate's client.
///
/// # Contract
///
/// Every operation means what the lock table ([`crate::table`]) says, on the store's own time.
/// `within` is how long the call may take, connecting included: an answer that has not come by
/// then is an [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) whose effect is
/// [`Effect::Unknown`](crate::Effect::Unknown), or [`Effect::NotApplied`](crate::Effect::NotApplied)
/// when nothing was sent. ([`ErrorKind::Timeout`](crate::ErrorKind::Timeout) is for callers whose
/// wait for the lock ran out; no store says it.) A store never sends a request twice blindly; it
/// may resend one because every operation is idempotent per token.
///
/// # Atomicity
///
/// Each operation on one key is a single atomic step for every client of the store. A batch of
/// renewals is atomic per key only.
///
/// # Time
///
/// Leases run on the store's clock, never on a client's. A store does not decide whether a caller
/// still holds a lock; [`LeaseState`](crate::LeaseState) does, on the caller's clock.
///
/// # Cancellation
///
/// Dropping a returned future leaves it open whether the operation took effect. The caller that
/// may have acquired something must then [`leave`](Store::leave) with the same token; a store
/// carries out a `leave` after an `acquire` that was sent before it on the same connection.
///
/// # Wrappers
///
/// There are no default methods, so a wrapper that forgets one does not compile.
///
/// # Conformance
///
/// The suite in `leasehold-testkit` has a case per promise; a store is one macro line there.
pub trait Store: Debug + Send + Sync + 'static {
    /// Takes the lock, takes a place in its line, or says what stands in the way. Repeating it
    /// with the same token renews the lease or the place; see [`Acquire`].
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>>;

    /// Renews leases; one answer per request, in order. One bad lease does not fail the others.
    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>>;

    /// Ends a lease, or counts a re-entrant one down.
    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>>;

    /// Gives up whatever the token has: a place in line, or a lease.
    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>>;

    /// Takes several locks, or none of them, in one step. The requests name different locks and
    /// ask for no place in line. Repeating it with the same tokens renews what they hold.
    ///
    /// A store that can't do this for these locks says
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), having done nothing.
    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>>;

    /// Changes the mode in which a lease is held, at once or not at all; see [`ConvertRequest`].
    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>>;

    /// Changes the limit of a semaphore in use, and serves whoever can be served by it.
    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>>;

    /// Notes that holders are asked to let go; they learn of it by [`Renew::Asked`].
    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>>;

    /// Describes a lock, or `None` when nobody uses it. Changes nothing.
    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>>;

    /// Describes the locks in use whose names start with a prefix, ordered by name. One that can't
    /// be read is told as such beside the others, and fails nothing but itself.
    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>>;

    /// Takes a lease away from its holder: for operators, who must name the fence they saw.
    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>>;

    /// Opens a client's wake channel; only called where [`Capability::wake`] says it exists.
    /// Returns once the channel is confirmed: a message sent after that arrives or is followed by
    /// [`Wake::Resync`].
    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>>;

    /// For how long, at least, the store has forgotten nothing that it was told: the time since
    /// it started without its data. `None` when it does not outlive its memory, or keeps leases
    /// through a restart.
    ///
    /// A quorum counts a node only once this is more than the longest ttl, so that a node that
    /// was restarted empty does not grant a lease to a second holder.
    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>>;

    /// Looks at where this store keeps its locks, and says what that means for them: settings,
    /// rights, clocks, room. Changes nothing that a lock could notice.
    ///
    /// What can't be found out, for want of a right say, is a finding too; only a store that can't
    /// be reached at all is an error. A store that consists of others gives the findings of each,
    /// [named](Finding::at_store) after it.
    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>>;

    /// A handle to the same store that shares no connection, and nothing else that is bound to an
    /// async runtime, with this one: requests through it depend on the runtime that they are made
    /// on and on no other. It connects when it is first used.
    ///
    /// Leases are renewed through such a handle, so that they outlive the runtime that they were
    /// taken on, and what holds it up. `None`, the default, where this handle does as well, as when
    /// no runtime is needed, or where connections are somebody else's.
    fn separate(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// What this store can do.
    fn capability(&self) -> Capability;

    /// The store's name for people: scheme and host or path, never a secret.
    fn location(&self) -> String;
}

/// A client's open wake channel. Dropping it closes the channel.
pub trait Listener: Debug + Send {
    /// The next message. Cancel safe: dropping the future loses none. Messages may get lost on
    /// the way; whoever waits relies on its own timers and takes a message as a hint.
    fn next(&mut self) -> BoxFuture<'_, Wake>;

    /// A message that should have come did not: the channel makes sure that it still lives, and
    /// is made anew if not. Does not block.
    fn doubt(&mut self) {}
}

/// A message on a client's wake channel.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Wake {
    /// A waiter has become the holder.
    Granted {
        /// The waiter, by the number its client gave it.
        ticket: u64,
        /// The last heartbeat that the store had received from it. The lease runs for the
        /// waiter's window from the moment the store received *that* request, so the client
        /// counts it from when it sent that one.
        heartbeat: u32,
        /// The fences granted.
        fences: FenceBlock,
    },
    /// A waiter has become the first in line and can be served in this time at the earliest.
    First {
        /// The waiter, by the number its client gave it.
        ticket: u64,
        /// When the lock could come free unless it is renewed.
        retry_after: Duration,
    },
    /// Messages may have been lost: every waiter should send a heartbeat.
    Resync,
    /// No messages come for now, until [`Wake::Resync`]: waiters should ask instead.
    Silent,
}

/// What a store can do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capability {
    /// It keeps waiters in line.
    pub queue: bool,
    /// It wakes waiters through a channel.
    pub wake: bool,
    /// It keeps shared holds and semaphores, not only exclusive ones.
    pub shared: bool,
    /// It can list its locks.
    pub list: bool,
    /// It takes any locks at once, in one step. Without it, some sets may be
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    pub sets: bool,
    /// It can tell, when asked, that a holder is dead before its lease has run out. The head of a
    /// line asks this often then, instead of sleeping until the lease's end; those behind it ask
    /// the less often the further back they are.
    pub notices_death: Option<Duration>,
    /// It undoes acquisitions that it could carry out in part only. What undoes them may still be
    /// on its way when the answer is there, so who asks again brings a new token.
    pub undoes: bool,
}

impl Capability {
    /// A store that can do everything, except that it knows of a death only by the lease's end.
    pub const ALL: Self = Self {
        queue: true,
        wake: true,
        shared: true,
        list: true,
        sets: true,
        notices_death: None,
        undoes: false,
    };
    /// A store that can do nothing beyond the exclusive lock.
    pub const NONE: Self = Self {
        queue: false,
        wake: false,
        shared: false,
        list: false,
        sets: false,
        notices_death: None,
        undoes: false,
    };
}

/// The kind of a lock in use. It is stored with the name, and another kind is refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Kind {
    /// One exclusive holder or many shared ones: a mutex is a read-write lock without readers.
    Lock,
    /// Holders of permits, up to a limit.
    Semaphore {
        /// All permits there are.
        limit: NonZeroU32,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("lock"),
            Self::Semaphore { limit } => write!(f, "semaphore with limit {limit}"),
        }
    }
}

/// How a holder holds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// With some of a semaphore's permits.
    Permits {
        /// How many.
        count: NonZeroU32,
        /// Out of how many; all users of the name must agree on it.
        limit: NonZeroU32,
    },
}

impl Mode {
    /// The kind of lock that this mode belongs to.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Exclusive | Self::Shared => Kind::Lock,
            Self::Permits { limit, .. } => Kind::Semaphore { limit },
        }
    }
}

/// Asks for a lease, or renews a place in line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub key: Key,
    /// The acquisition's secret, the same in all its retries.
    pub token: Token,
    /// How to hold it.
    pub mode: Mode,
    /// For how long.
    pub ttl: Ttl,
    /// Who asks.
    pub owner: OwnerName,
    /// What they say about it.
    pub metadata: Metadata,
    /// How many fences to reserve.
    pub fence_block: NonZeroU32,
    /// How many times the holder holds it, as an absolute number; 1 unless re-entrant.
    pub holds: NonZeroU32,
    /// Whether it goes before all who don't: into the line, and past it where the holders leave
    /// room. How a read-write lock prefers writers, or readers.
    pub preferred: bool,
    /// Closes the lock to everyone else for so long, in the same step as an immediate grant. Not
    /// for waiters: whoever is handed the lease in line closes nothing.
    pub close_for: Option<Duration>,
    /// Whether to wait in line, and how.
    pub queue: Option<QueueRequest>,
}

impl AcquireRequest {
    /// An exclusive hold without waiting; change the fields for anything else.
    #[must_use]
    pub fn new(key: Key, token: Token, ttl: Ttl) -> Self {
        Self {
            key,
            token,
            mode: Mode::Exclusive,
            ttl,
            owner: OwnerName::default(),
            metadata: Metadata::default(),
            fence_block: NonZeroU32::MIN,
            holds: NonZeroU32::MIN,
            preferred: false,
            close_for: None,
            queue: None,
        }
    }
}

/// How an acquisition waits in line.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct QueueRequest {
    /// The waiter's client, whose wake channel is told of a grant.
    pub client: ClientId,
    /// The client's own number for this waiter; a message carries it instead of the token.
    pub ticket: u64,
    /// The number of this request, counted up from 0 with each one sent for this waiter.
    pub heartbeat: u32,
    /// How long the place is kept after this request, and how long a lease handed to the waiter
    /// runs, counted from the same moment. At most the ttl.
    pub window: Ttl,
    /// The place told in an earlier answer: a waiter that the store has forgotten gets it back.
    pub place: Option<Place>,
    /// Refuse a newcomer, who brings no place, when so many are waiting already.
    pub waiters_max: Option<u32>,
}

impl QueueRequest {
    /// The first request of a waiter.
    #[must_use]
    pub const fn new(client: ClientId, ticket: u64, window: Ttl) -> Self {
        Self { client, ticket, heartbeat: 0, window, place: None, waiters_max: None }
    }

    /// How often a waiter should send a heartbeat to keep a place with this window.
    #[must_use]
    pub fn heartbeat_every(window: Ttl) -> Duration {
        window.part(3)
    }
}

/// A waiter's place in line: the lower number is served first.
///
/// The first place in an empty line is its waiter's arrival by the store's time, in µs, and the
/// others follow without gaps. Those who are not [preferred](AcquireRequest::preferred) have places
/// of their own, which are above by [`BEHIND`](Self::BEHIND).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Place(u64);

impl Place {
    /// What is added to the places of those who are not preferred: 2^52, more microseconds than
    /// any clock shows for a century, and few enough for all places to be exact as floating-point
    /// numbers.
    pub const BEHIND: u64 = 1 << 52;

    /// The place of somebody who arrived then, by the store's time in µs.
    #[must_use]
    pub const fn on_arrival(us: u64, preferred: bool) -> Self {
        let us = us % Self::BEHIND;
        Self(if preferred { us } else { us.saturating_add(Self::BEHIND) })
    }

    /// The arrival that the place stands for, by the store's time in µs.
    #[must_use]
    pub const fn arrival(self) -> u64 {
        self.0 % Self::BEHIND
    }

    /// Whether it is before all places of those who are not preferred.
    #[must_use]
    pub const fn is_preferred(self) -> bool {
        self.0 < Self::BEHIND
    }

    /// The place right behind.
    pub(crate) const fn following(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The place with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The answer to [`Store::acquire`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Acquire {
    /// The lease is granted.
    Granted(Granted),
    /// This token holds the lease already: by an earlier request whose answer was lost, or
    /// because it was handed the lease while waiting. The lease runs for the ttl from now.
    Already(Already),
    /// In line.
    Waiting(Waiting),
    /// Not free, and not asked to wait.
    Busy(Busy),
    /// The lock can't be used like this.
    Refused(Refusal),
}

impl Acquire {
    /// The fences of the lease, if one is held now.
    #[must_use]
    pub const fn fences(&self) -> Option<FenceBlock> {
        match self {
            Self::Granted(granted) => Some(granted.fences),
            Self::Already(already) => Some(already.fences),
            Self::Waiting(_) | Self::Busy(_) | Self::Refused(_) => None,
        }
    }
}

/// A new lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Granted {
    /// Its fences.
    pub fences: FenceBlock,
}

impl Granted {
    /// A grant of these fences.
    #[must_use]
    pub const fn new(fences: FenceBlock) -> Self {
        Self { fences }
    }
}

/// A lease that the token has already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Already {
    /// Its fences, the same as when it was granted.
    pub fences: FenceBlock,
    /// How many times it is held now.
    pub holds: u32,
}

impl Already {
    /// A hold of these fences.
    #[must_use]
    pub const fn new(fences: FenceBlock, holds: u32) -> Self {
        Self { fences, holds }
    }
}

/// A place in line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting {
    /// How many are before, at most: a store may count places that were given up. 0 is the head,
    /// for sure, which should try again after `retry_after`.
    pub position: u32,
    /// To be sent with every heartbeat.
    pub place: Place,
    /// When the lock could come free at the earliest unless it is renewed.
    pub retry_after: Duration,
    /// Who holds it, or one of them.
    pub holder: Option<HolderInfo>,
}

impl Waiting {
    /// A place in line.
    #[must_use]
    pub const fn new(
        position: u32,
        place: Place,
        retry_after: Duration,
        holder: Option<HolderInfo>,
    ) -> Self {
        Self { position, place, retry_after, holder }
    }
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Busy {
    /// When the lock could come free at the earliest unless it is renewed.
    pub retry_after: Duration,
    /// Who holds it, or one of them; `None` while it is closed after a release.
    pub holder: Option<HolderInfo>,
}

impl Busy {
    /// Not free before `retry_after`.
    #[must_use]
    pub const fn new(retry_after: Duration, holder: Option<HolderInfo>) -> Self {
        Self { retry_after, holder }
    }
}

/// Why a lock can't be used as asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// The name is in use as something else, or with another limit.
    WrongKind {
        /// What it is in use as.
        stored: Kind,
    },
    /// More permits were asked for than there are.
    TooManyPermits {
        /// All there are.
        limit: NonZeroU32,
    },
    /// The line is full.
    QueueFull {
        /// How many are waiting.
        waiters: u32,
    },
}

/// Asks for a lease to run on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to tell a late renewal from a lost one.
    ///
    /// An exclusive lease takes these over when they are above all that the store has issued, and
    /// the store goes on counting from them: how a quorum makes its nodes agree on the highest
    /// that any of them granted.
    pub fences: FenceBlock,
    /// How long it is to run from now.
    pub ttl: Ttl,
    /// Whether it may end earlier than it would have.
    pub shorten: bool,
    /// The secret that the lease is to have from now on, if it is handed over: `token` is spent
    /// then, and whatever names it finds no lease. Sent again with the same successor, the request
    /// renews again; with another one it is answered as by a stranger.
    pub successor: Option<Token>,
}

impl RenewRequest {
    /// A renewal that does not shorten and hands nothing over.
    #[must_use]
    pub const fn new(key: Key, token: Token, fences: FenceBlock, ttl: Ttl) -> Self {
        Self { key, token, fences, ttl, shorten: false, successor: None }
    }

    /// The secret of the lease once it is renewed.
    #[must_use]
    pub fn renewed_token(&self) -> Token {
        self.successor.unwrap_or(self.token)
    }
}

/// The answer to one renewal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Renew {
    /// It runs on.
    Renewed,
    /// It runs on, and somebody asks its holder to let go.
    Asked,
    /// It had run out, and nobody has held the lock since. It stays ended.
    Late,
    /// It is not this token's any more.
    NotHeld,
}

/// Ends a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to tell a late release from a lost one.
    pub fences: FenceBlock,
    /// Keep the lock closed to everyone for so long after this release.
    pub cooldown: Option<Duration>,
    /// How many holds are to remain, as an absolute number; 0 ends the lease.
    pub remaining: u32,
    /// Opens the lock again that the grant or an earlier release closed for a while; with a
    /// cool-down of its own, the lock is closed for that.
    pub reopen: bool,
}

impl ReleaseRequest {
    /// A full release without cool-down.
    #[must_use]
    pub const fn new(key: Key, token: Token, fences: FenceBlock) -> Self {
        Self { key, token, fences, cooldown: None, remaining: 0, reopen: false }
    }
}

/// The answer to [`Store::release`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Release {
    /// The lease ended by this token's release.
    Released,
    /// Some of its holds remain.
    StillHeld {
        /// How many.
        holds: u32,
    },
    /// It had run out before, and nobody has held the lock since.
    Late,
    /// It was not this token's any more.
    NotHeld,
}

/// Gives up what a token has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaveRequest {
    /// The lock.
    pub key: Key,
    /// The acquisition's secret.
    pub token: Token,
    /// Opens the lock again that the grant closed; for undoing an acquisition that asked for
    /// [`close_for`](AcquireRequest::close_for) and came to nothing.
    pub reopen: bool,
}

impl LeaveRequest {
    /// Gives up what `token` has of `key`.
    #[must_use]
    pub const fn new(key: Key, token: Token) -> Self {
        Self { key, token, reopen: false }
    }
}

/// The answer to [`Store::leave`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Leave {
    /// It was waiting, and has left the line.
    Left,
    /// It held the lease, which is passed on or free now.
    Released,
    /// It had nothing.
    NotHeld,
}

/// Asks for a list of locks in use.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListRequest {
    /// How their names start; empty for all.
    pub prefix: String,
}

impl ListRequest {
    /// The locks whose names start with `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }
}

/// The answer to [`Store::list`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The locks in use that could be read, ordered by name.
    pub locks: Vec<LockInfo>,
    /// Why each of the others could not be, ordered by name: any of them may be in use. An error
    /// names its lock in [`Error::key`], unless the name can't be read either.
    pub unreadable: Vec<Error>,
}

impl Listing {
    /// The locks that could be read, and why others could not, each in any order.
    #[must_use]
    pub fn new(mut locks: Vec<LockInfo>, mut unreadable: Vec<Error>) -> Self {
        locks.sort_by(|a, b| a.key.cmp(&b.key));
        unreadable.sort_by(|a, b| a.key().cmp(&b.key()));
        Self { locks, unreadable }
    }
}

/// Takes a lease away.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceReleaseRequest {
    /// The lock.
    pub key: Key,
    /// The fence of the lease, as it was seen; another holder is left alone.
    pub fence: Fence,
}

impl ForceReleaseRequest {
    /// Takes the lease with this fence away.
    #[must_use]
    pub const fn new(key: Key, fence: Fence) -> Self {
        Self { key, fence }
    }
}

/// The answer to [`Store::force_release`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ForceRelease {
    /// The lease is gone; its holder learns of it at its next renewal.
    Released,
    /// The lock is held, but under other fences.
    OtherFence {
        /// The first fences of those who hold it.
        fences: Vec<Fence>,
    },
    /// Nobody holds it.
    NotHeld,
}

impl fmt::Display for ForceRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::NotHeld => f.write_str("not held by anybody"),
            Self::OtherFence { fences } => {
                f.write_str("held by another lease, with fence ")?;
                for (at, fence) in fences.iter().enumerate() {
                    write!(f, "{}{fence}", if at == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

/// A lock in use, for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub key: Key,
    /// What it is in use as.
    pub kind: Kind,
    /// Who holds it, in the order of their grants.
    pub holders: Vec<HolderInfo>,
    /// Who waits, first in line first.
    pub waiters: Vec<WaiterInfo>,
    /// How long it stays closed after a release with a cool-down.
    pub closed_for: Option<Duration>,
    /// The last fence of all that were issued or reserved for the name: the end of the block of its
    /// last grant, which nobody need have had.
    pub last_fence: Fence,
}

impl LockInfo {
    /// A lock that nobody holds or waits for.
    #[must_use]
    pub const fn new(key: Key, kind: Kind, last_fence: Fence) -> Self {
        Self { key, kind, holders: Vec::new(), waiters: Vec::new(), closed_for: None, last_fence }
    }

    /// How many permits are held.
    #[must_use]
    pub fn permits_held(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| match holder.mode {
            Mode::Permits { count, .. } => sum.saturating_add(count.get()),
            _ => sum,
        })
    }

    /// How many permits nobody holds; more may be held than there are, once the limit was lowered.
    #[must_use]
    pub fn permits_free(&self) -> u32 {
        match self.kind {
            Kind::Semaphore { limit } => limit.get().saturating_sub(self.permits_held()),
            Kind::Lock => 0,
        }
    }
}

/// A holder, for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Who.
    pub owner: OwnerName,
    /// What they say about it.
    pub metadata: Metadata,
    /// How they hold.
    pub mode: Mode,
    /// The lease's fence.
    pub fence: Fence,
    /// How many times they hold it.
    pub holds: u32,
    /// Since when.
    pub held_for: Duration,
    /// How long the lease runs on unless it is renewed. Never used for decisions.
    pub remaining: Duration,
    /// Who asked them last to let go.
    pub asked_by: Option<OwnerName>,
}

impl HolderInfo {
    /// A holder that says nothing about itself; set the other fields after.
    #[must_use]
    pub fn new(mode: Mode, fence: Fence, held_for: Duration, remaining: Duration) -> Self {
        Self {
            owner: OwnerName::default(),
            metadata: Metadata::default(),
            mode,
            fence,
            holds: 1,
            held_for,
            remaining,
            asked_by: None,
        }
    }
}

/// A waiter, for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// Who.
    pub owner: OwnerName,
    /// What they say about it.
    pub metadata: Metadata,
    /// How they want to hold.
    pub mode: Mode,
    /// Since when.
    pub waited: Duration,
}

impl WaiterInfo {
    /// A waiter that says nothing about itself; set the other fields after.
    #[must_use]
    pub fn new(mode: Mode, waited: Duration) -> Self {
        Self { owner: OwnerName::default(), metadata: Metadata::default(), mode, waited }
    }
}
