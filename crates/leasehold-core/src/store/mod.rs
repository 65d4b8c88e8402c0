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

/// How long a request may be on its way to a store, which refuses it later. The client may repeat
/// an unanswered request after this time, for as long as the call may take.
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
/// `within` is how long the call may take, connecting included. If no answer has come by then, the
/// error is [`ErrorKind::Unavailable`]. Its effect is [`Effect::Unknown`](crate::Effect::Unknown),
/// or [`Effect::NotApplied`](crate::Effect::NotApplied) when no request was sent.
/// [`ErrorKind::Timeout`] is only for callers whose wait for the lock timed out. A store may send a
/// request again, because every operation is idempotent per token.
///
/// The store carries a request out within `within`, or within [`VALID_FOR`] if that is shorter, or
/// never, by its own clock. Later its caller has gone, and a lock that it took would have no
/// holder. The [`margin`](crate::margin) of that time is for clocks that run at different speeds.
/// Requests that give something back are carried out however late they come.
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
/// Dropping a returned future leaves it open whether the operation took effect. A caller that may
/// have acquired something must then [`leave`](Store::leave) with the same token. A store carries
/// out a `leave` after an `acquire` that was sent before it on the same connection.
///
/// # Wrappers
///
/// A store that stands before another is a [`StoreLayer`], which sees all calls in one function.
/// Only four methods have a default, so a store that forgets another does not compile.
///
/// # Conformance
///
/// The suite in `leasehold-testkit` has a case per promise; a store is one macro line there.
pub trait Store: Debug + Send + Sync + 'static {
    /// Takes the lock, takes a position in its queue, or says why it can't be acquired now.
    /// Repeating it with the same token renews the lease or the position; see [`Acquire`].
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

    /// Ends whatever the token has: a position in the queue, or a lease.
    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>>;

    /// Takes all of several locks in one step, or leaves them all. The requests name different
    /// locks and don't queue. Repeating it with the same tokens renews what they hold.
    ///
    /// If a store can't do this for these locks, it returns [`ErrorKind::Unsupported`] and leaves
    /// them all.
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

    /// Records a release request for holders; they learn of it by [`Renew::Asked`].
    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>>;

    /// Describes a lock; `None` when it is not in use. Changes nothing.
    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>>;

    /// Describes the locks in use whose names start with a prefix, ordered by name. Unreadable
    /// locks are listed as such; they leave the others as they are.
    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>>;

    /// Force-releases a lease. For operators: the request names the fence that was seen.
    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>>;

    /// Opens a client's notification channel; only called if [`Capability::wake`] is set. Returns
    /// once the channel is confirmed: a notification sent after that arrives or is followed by
    /// [`Wake::Resync`].
    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>>;

    /// How long the store has kept all it acknowledged, at least: the time since it started without
    /// its data. `None` if it ends with its memory, or keeps leases through a restart.
    ///
    /// A quorum counts a node only once this is more than the longest ttl. So a node that was
    /// restarted empty grants no lease to a second holder.
    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>>;

    /// Looks at where this store keeps its locks, and reports what that means for them: settings,
    /// rights, clocks, room. The locks are not affected.
    ///
    /// A fact that can't be read, such as for a missing right, is a finding too. Only a store that
    /// can't be reached at all is an error. A store that consists of others returns the findings of
    /// each, [named](Finding::at_store) after it.
    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>>;

    /// The log of this store's locks, for people. `None`, the default, if it can't keep one.
    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    /// What is stored for a lock, in words for people, with a line for each field that is stored.
    /// The [fingerprint](crate::Token::fingerprint) stands for a token. Changes nothing.
    ///
    /// The default returns [`ErrorKind::Unsupported`]: the store has no such record.
    fn raw<'a>(
        &'a self,
        request: &'a RawRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>>> {
        let why = "this store has no record of its own in a Redis server";
        let error = Error::new(ErrorKind::Unsupported, why).during("show").on_key(&request.key);
        Box::pin(std::future::ready(Err(error.at_store(self.location()))))
    }

    /// The secret of a new acquisition, or the bytes of a new client's name. The default is
    /// [`Token::generate`]. A store for one machine alone can make many of what the operating
    /// system gave once.
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
    /// It has a queue of waiters.
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
    /// It can see, with a request, that a holder is dead before its lease has expired. The head of
    /// a queue then polls this often, instead of sleeping until the lease's end; those behind it
    /// poll less often further back.
    pub notices_death: Option<Duration>,
    /// It undoes acquisitions that it could carry out only in part. The undoing may arrive late and
    /// more than once. So each try that was not granted ends its token, and the next one has a new
    /// token.
    pub undoes: bool,
    /// It notifies holders through the notification channel when others have ended their leases.
    pub tells_loss: bool,
    /// It refuses leases that are longer than this.
    pub longest: Option<Duration>,
}

impl Capability {
    /// A store that can do everything, except that it notices a death, and reports a loss, only
    /// with a request.
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
