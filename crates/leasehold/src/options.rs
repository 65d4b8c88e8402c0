//! The table of options for holding and waiting, from which all setters are made.
//!
//! [`LockOptions`] and the setters of every kind of lock, for tasks and for threads, come from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::RetryStrategy;
use leasehold_core::{Error, ErrorKind, Metadata, OwnerName, Result, Ttl, length};

/// How waiters come to their turn.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served. Waiters stand in the store's line; a release hands the lease to
    /// the first of them and wakes only that one.
    #[default]
    Fifo,
    /// Waiters compete: they stand in no line and ask again by their [retry
    /// strategy](crate::Mutex::retry), so a waiter may starve. Waiters in line for the same lock go
    /// before them.
    Barging,
}

/// For how long a wait goes on that is given no limit of its own, such as
/// [`Mutex::lock`](crate::Mutex::lock).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WaitLimit {
    /// Until the lock is held.
    #[default]
    Forever,
    /// For at most so long.
    For(Duration),
    /// For at most the ttl that is asked for: a waiter stops by itself, without a deadline of its
    /// own.
    Ttl,
}

impl WaitLimit {
    /// The limit of a wait for a lease of this length.
    pub(crate) const fn under(self, ttl: Ttl) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::For(limit) => Some(limit),
            Self::Ttl => Some(ttl.duration()),
        }
    }
}

impl From<Duration> for WaitLimit {
    fn from(limit: Duration) -> Self {
        Self::For(limit)
    }
}

/// How to hold a lock and how to wait for it: options to make once and give to locks of any kind,
/// async and blocking.
///
/// An option that is not set leaves the lock's setting as it is, at first the client's, which are
/// options [as well](crate::ClientBuilder::options). The first method that locks reports a wrong
/// setting. A kind of lock ignores options that mean nothing to it: a job
/// [once per period](crate::OncePer) never waits, and the owner of a
/// [re-entrant lock](crate::Reentrant) is its [`Owner`](crate::Owner).
///
/// Each kind of lock also has these as setters: `client.mutex("a").ttl(ttl)`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// use leasehold::LockOptions;
/// use std::time::Duration;
///
/// let nightly = LockOptions::new().ttl(Duration::from_secs(120)).owner("nightly").max_waiters(10);
/// let ledger = client.mutex("ledger").options(&nightly);
/// let prices = client.rwlock("prices").options(&nightly).ttl(Duration::from_secs(5));
/// # drop((ledger.lock().await?, prices.read().await?)); client.close().await
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "options do nothing until a lock has them"]
pub struct LockOptions {
    pub(crate) ttl: Option<Ttl>,
    pub(crate) stop_grace: Option<Duration>,
    pub(crate) renew: Option<bool>,
    pub(crate) max_hold: Option<Option<Duration>>,
    pub(crate) progress_within: Option<Option<Duration>>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) owner: Option<OwnerName>,
    pub(crate) fairness: Option<Fairness>,
    pub(crate) retry: Option<Arc<dyn RetryStrategy>>,
    pub(crate) give_up_early: Option<bool>,
    pub(crate) max_waiters: Option<Option<u32>>,
    pub(crate) wait_limit: Option<WaitLimit>,
    /// The first setting that is wrong.
    pub(crate) wrong: Option<Error>,
}

impl LockOptions {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    fn set(&mut self, set: impl FnOnce(&mut Self) -> Result<()>) {
        if self.wrong.is_none()
            && let Err(error) = set(self)
        {
            self.wrong = Some(error);
        }
    }
}

impl fmt::Debug for LockOptions {
    /// What is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LockOptions");
        macro_rules! show {
            ($($option:ident)*) => {
                $(if let Some(value) = &self.$option {
                    shown.field(stringify!($option), value);
                })*
            };
        }
        show!(ttl stop_grace renew max_hold progress_within metadata owner fairness retry give_up_early);
        show!(max_waiters wait_limit wrong);
        shown.finish()
    }
}

/// Refuses a length in which nothing can be done: a lease is never shorter either.
pub(crate) fn long_enough(what: &str, length: Option<Duration>) -> Result<Option<Duration>> {
    match length {
        Some(length) if length < Ttl::MIN.duration() => Err(Error::new(
            ErrorKind::Config,
            format!(
                "{what} of {} leaves no time to work; give at least {}",
                length::typed(length),
                Ttl::MIN
            ),
        )),
        length => Ok(length),
    }
}

/// How a lock is held, for every kind of lock.
macro_rules! holding_options {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// The length of a lease: 10 ms to 30 days, by default the client's. A crashed holder's
            /// lock comes free after at most this long; a live one renews it every third of it.
            ttl(ttl: std::time::Duration) |options| {
                crate::Ttl::new(ttl).map(|ttl| options.ttl = Some(ttl))
            }

            /// How long before the store can grant the lock to another holder a loss is told, so
            /// that the work can stop in time: at most half of the ttl. By default 5 % of it, at
            /// least 20 ms and at most 5 s. A waiter that dies may hold up others for four times
            /// this, or half a minute where that is longer, and for its ttl at most.
            stop_grace(grace: std::time::Duration) |options| {
                options.stop_grace = Some(grace);
                Ok(())
            }

            /// Whether leases are renewed in the background; they are by default. A lease that is
            /// not ends with its ttl.
            renew(renew: bool) |options| {
                options.renew = Some(renew);
                Ok(())
            }

            /// The longest time for which one lease is held, renewals included, at least 10 ms;
            /// without limit by default. After it the lease counts as lost, and the store keeps it
            /// no longer.
            max_hold(max_hold: impl Into<Option<std::time::Duration>>) |options| {
                let max_hold = crate::options::long_enough("a longest hold", max_hold.into())?;
                options.max_hold = Some(max_hold);
                Ok(())
            }

            /// Renews the lease only while its work makes progress: while
            /// [`HeldLease::progress`](crate::HeldLease::progress) is called at least this often,
            /// which is every 10 ms or less often. Without it, which is the default, a lease is renewed for as long as its guard lives,
            /// also when the work under it hangs.
            progress_within(limit: impl Into<Option<std::time::Duration>>) |options| {
                let limit = crate::options::long_enough("a limit on progress", limit.into())?;
                options.progress_within = Some(limit);
                Ok(())
            }

            /// Text that is kept with the lease. All that can inspect the lock can read it.
            metadata(metadata: impl AsRef<str>) |options| {
                crate::Metadata::new(metadata).map(|metadata| options.metadata = Some(metadata))
            }
        }
    };
}

/// The name of the holder, for the kinds to which that is only text.
macro_rules! owner_option {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// The name of the holder, for people; by default the client's owner.
            owner(owner: impl AsRef<str>) |options| {
                crate::OwnerName::new(owner).map(|owner| options.owner = Some(owner))
            }
        }
    };
}

/// How a lock is waited for, for the kinds that are.
macro_rules! waiting_options {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// Whether to wait in line, which is the default, or to compete: see
            /// [`Fairness`](crate::Fairness).
            fairness(fairness: crate::Fairness) |options| {
                options.fairness = Some(fairness);
                Ok(())
            }

            /// When to try again while waiting, and when to give up. By default 5 ms to 250 ms,
            /// growing, with jitter, for ever. The end of the holder's lease cuts a pause short.
            ///
            /// A waiter in line is woken and needs no pauses, so this also sets
            /// [`Fairness::Barging`](crate::Fairness::Barging); with
            /// [`Fairness::Fifo`](crate::Fairness::Fifo) set after it, the pauses are those after
            /// errors.
            retry(strategy: impl crate::retry::RetryStrategy) |options| {
                options.retry = Some(std::sync::Arc::new(strategy));
                options.fairness = Some(crate::Fairness::Barging);
                Ok(())
            }

            /// Refuses to wait when so many wait already; without limit by default.
            max_waiters(max: impl Into<Option<u32>>) |options| {
                options.max_waiters = Some(max.into());
                Ok(())
            }
        }
    };
}

/// For how long a lock is waited for, for the kinds that are.
macro_rules! patience_options {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// Gives up at once when the holder's lease, as it stands, runs past the time to wait.
            /// A holder that renews can only make that later.
            give_up_early(give_up_early: bool) |options| {
                options.give_up_early = Some(give_up_early);
                Ok(())
            }

            /// For how long to wait where the call says nothing: for ever by default, for a time, or
            /// for [as long as the ttl](crate::WaitLimit::Ttl). A limit that a call gives counts
            /// instead.
            wait_limit(limit: impl Into<crate::WaitLimit>) |options| {
                options.wait_limit = Some(limit.into());
                Ok(())
            }
        }
    };
}

macro_rules! define {
    ($type:ident $(
        $(#[$doc:meta])*
        $name:ident($argument:ident: $argument_type:ty) |$options:ident| $set:block
    )*) => {
        impl $type { $(
            $(#[$doc])*
            pub fn $name(mut self, $argument: $argument_type) -> Self {
                self.set(|$options| $set);
                self
            }
        )* }
    };
}

/// Setters that make options of their one setting.
macro_rules! delegate {
    ($type:ident $(
        $(#[$doc:meta])*
        $name:ident($argument:ident: $argument_type:ty) |$options:ident| $set:block
    )*) => {
        impl $type { $(
            $(#[$doc])*
            pub fn $name(self, $argument: $argument_type) -> Self {
                self.options(&crate::LockOptions::new().$name($argument))
            }
        )* }
    };
}

/// The setters of one kind of lock, which has `options`.
macro_rules! setters {
    ($type:ident: $($group:ident)*) => {
        $($crate::options::$group!([$crate::options::delegate] $type);)*
    };
}

pub(crate) use {
    delegate, holding_options, owner_option, patience_options, setters, waiting_options,
};

holding_options!([define] LockOptions);
owner_option!([define] LockOptions);
waiting_options!([define] LockOptions);
patience_options!([define] LockOptions);
