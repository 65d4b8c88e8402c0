//! The [`Store`] trait: what a back end must do.

mod answer;
mod info;
mod layer;
mod log;
mod mode;
mod place;
mod request;
mod wake;

pub use answer::{
    Acquire, AcquireAll, Already, Ask, Busy, Convert, Converted, ForceRelease, Granted, Leave,
    Listing, Refusal, Release, Renew, SetLimit, Waiting,
};
pub use info::{HolderInfo, LockInfo, WaiterInfo};
pub use layer::{Call, Examine, Method, RemembersFor, StoreLayer};
pub use log::{LOG_MAX, LockLog, LogEntry, LogId, RESULT_MAX, checked_log, settle_log};
pub use mode::{Bond, Kind, Mode};
pub use place::Place;
pub use request::{
    AcquireRequest, AskRequest, ConvertRequest, ForceReleaseRequest, LeaveRequest, ListRequest,
    QueueRequest, RawRequest, ReleaseRequest, RenewRequest, SetLimitRequest,
};
pub use wake::{Listener, Wake};

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::doctor::Finding;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::{ClientId, Token};

/// How long a request may be on its way to a store, which refuses it later. A store that is asked in vain so may be
/// asked again, for as long as the call may take.
pub const VALID_FOR: Duration = Duration::from_secs(2);

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
/// then is an [`ErrorKind::Unavailable`] whose effect is
/// [`Effect::Unknown`](crate::Effect::Unknown), or [`Effect::NotApplied`](crate::Effect::NotApplied)
/// when nothing was sent. ([`ErrorKind::Timeout`] is for callers whose
/// wait for the lock ran out; no store says it.) A store never sends a request twice blindly; it
/// may resend one because every operation is idempotent per token.
///
/// What is not carried out `within` that time, or [`VALID_FOR`] where that is shorter, is not carried out later, as far
/// as the store's clock tells: nobody waits for it, and a lock that it took would be held by nobody. The
/// [`margin`](crate::margin) of that time is for clocks that run at different speeds. What gives something back may come
/// as late as it likes.
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
/// A store that stands before another is a [`StoreLayer`], which sees all calls in one function.
/// There are no default methods but four, so a store that forgets another does not compile.
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
    /// [`ErrorKind::Unsupported`], having done nothing.
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

    /// Changes the limit of a semaphore in use, and grants what a higher one leaves free.
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

    /// Takes a lease away from its holder. For operators: the request names the fence that was seen.
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

    /// Where this store keeps what became of its locks, for people. `None`, the default, where it has no
    /// place for that.
    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    /// What is stored for a lock, in words for people: a line for each field, and none where nothing is
    /// stored. Tokens are told by their [fingerprint](crate::Token::fingerprint) only. Changes nothing.
    ///
    /// The default says [`ErrorKind::Unsupported`]: the store has no such record.
    fn raw<'a>(
        &'a self,
        request: &'a RawRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>>> {
        let why = "this store keeps no record of its own in a Redis server";
        let error = Error::new(ErrorKind::Unsupported, why).during("show").on_key(&request.key);
        Box::pin(std::future::ready(Err(error.at_store(self.location()))))
    }

    /// The secret of a new acquisition, or the bytes of a new client's name. The default makes it by
    /// [`Token::generate`]. A store that is used on one machine alone can take it from what the operating
    /// system gave for many.
    ///
    /// # Errors
    ///
    /// As [`Token::generate`].
    fn token(&self) -> Result<Token> {
        Token::generate()
    }

    /// What this store can do.
    fn capability(&self) -> Capability;

    /// The store's name for people: scheme and host or path, never a secret.
    fn location(&self) -> String;
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
    /// [`ErrorKind::Unsupported`].
    pub sets: bool,
    /// It can tell, when asked, that a holder is dead before its lease has run out. The head of a
    /// line asks this often then, instead of sleeping until the lease's end; those behind it ask
    /// the less often the further back they are.
    pub notices_death: Option<Duration>,
    /// It undoes acquisitions that it could carry out in part only. What undoes one may arrive late and more
    /// than once, so each try that was not granted ends its token: ask again with a new one.
    pub undoes: bool,
    /// It tells holders through the wake channel of leases that others have ended.
    pub tells_loss: bool,
    /// It takes no lease that is longer than this.
    pub longest: Option<Duration>,
}

impl Capability {
    /// A store that can do everything, except that it knows of a death, and that a lease was taken
    /// away, only when somebody asks.
    pub const ALL: Self = Self {
        queue: true,
        wake: true,
        shared: true,
        list: true,
        sets: true,
        notices_death: None,
        undoes: false,
        tells_loss: false,
        longest: None,
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
        tells_loss: false,
        longest: None,
    };
}
