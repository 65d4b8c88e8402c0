//! The table of options for holding and waiting, from which all setters are made.
//!
//! [`LockOptions`] and the setters of every kind of lock, for tasks and for threads, come from it.

use std::fmt;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result, Ttl, length};

/// Who is next among waiters.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served. Waiters are in the store's queue; a release hands the lease to the
    /// first of them and wakes only that one.
    #[default]
    Fifo,
    /// Waiters compete: they poll by their [retry strategy](crate::Mutex::retry), so a waiter may
    /// starve. Waiters in the queue of the same lock go before them.
    Barging,
}

/// How long a wait without a limit of its own may take, such as
/// [`Mutex::lock`](crate::Mutex::lock).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WaitLimit {
    /// Until the lock is held.
    #[default]
    Forever,
    /// For at most this time.
    For(Duration),
    /// For at most the ttl of the lease that it waits for.
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

/// All options of locks: the name, the type, and the setting of a new lock.
macro_rules! all_options {
    ($make:ident) => {
        $make! {
            ttl: leasehold_core::Ttl = |config| config.ttl;
            stop_grace: Option<std::time::Duration> = |_| None;
            renew: bool = |_| true;
            max_hold: Option<std::time::Duration> = |_| None;
            progress_within: Option<std::time::Duration> = |_| None;
            metadata: leasehold_core::Metadata = |_| Default::default();
            owner: leasehold_core::OwnerName = |config| config.owner.clone();
            fairness: crate::Fairness = |_| crate::Fairness::Fifo;
            retry: std::sync::Arc<dyn leasehold_core::retry::RetryStrategy> = |_| usual_retry();
            give_up_early: bool = |_| false;
            max_waiters: Option<u32> = |_| None;
            wait_limit: crate::WaitLimit = |_| crate::WaitLimit::Forever;
        }
    };
}

macro_rules! lock_options {
    ($($option:ident: $type:ty = $default:expr;)*) => {
        /// How to hold a lock and how to wait for it: options to make once and give to locks of any
        /// kind.
        ///
        /// An option that is not set leaves the lock's setting as it is. A new lock starts with its
        /// client's [options](crate::ClientBuilder::options). The first method that locks reports a
        /// wrong setting. A kind of lock ignores options that it has no use for. A job [once per
        /// period](crate::OncePer) starts at once or is skipped, for example. The owner of a
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
            $(pub(crate) $option: Option<$type>,)*
            /// The first setting that is wrong.
            pub(crate) wrong: Option<Error>,
        }

        impl fmt::Debug for LockOptions {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct("LockOptions");
                $(if let Some(value) = &self.$option {
                    shown.field(stringify!($option), value);
                })*
                if let Some(wrong) = &self.wrong {
                    shown.field("wrong", wrong);
                }
                shown.finish()
            }
        }
    };
}

all_options!(lock_options);

impl LockOptions {
    /// No option set.
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

/// Refuses a length that is too short for any work: a lease is never shorter either.
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

/// Options for holding, for every kind of lock.
macro_rules! holding_options {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// The length of a lease: 10 ms to 30 days, by default the client's. A crashed holder's
            /// lock comes free after at most this long; a live one renews it every third of it.
            ttl(ttl: std::time::Duration) |options| {
                crate::Ttl::new(ttl).map(|ttl| options.ttl = Some(ttl))
            }

            /// How early a loss is reported, so that the work can stop in time: this long before
            /// the store can grant the lock to another holder. At most half of the ttl. By default
            /// 5 % of it, at least 20 ms, and at most 5 s or a quarter of the ttl. The heartbeat
            /// timeout of a waiter is four times this, or 30 s if that is longer, and its ttl at
            /// most.
            stop_grace(grace: std::time::Duration) |options| {
                options.stop_grace = Some(Some(grace));
                Ok(())
            }

            /// Whether leases are renewed in the background; they are by default. A lease that is
            /// not renewed expires after its ttl.
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
            /// [`HeldLease::progress`](crate::HeldLease::progress) is called at least this often.
            /// At least 10 ms. Without it, which is the default, a lease is renewed for as long as
            /// its guard lives, even if the work under it hangs.
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

/// The name of the holder, for the kinds to which it is only text.
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

/// Options for waiting, for the kinds that wait.
macro_rules! waiting_options {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// Whether to queue, which is the default, or to compete: see
            /// [`Fairness`](crate::Fairness).
            fairness(fairness: crate::Fairness) |options| {
                options.fairness = Some(fairness);
                Ok(())
            }

            /// When to try again while waiting, and when to stop waiting. By default it tries after
            /// pauses of 5 ms to 250 ms, growing, with jitter, for ever. The end of the holder's
            /// lease cuts a pause short.
            ///
            /// The store wakes a waiter in its queue, which needs no pauses. So this also sets
            /// [`Fairness::Barging`](crate::Fairness::Barging). If
            /// [`Fairness::Fifo`](crate::Fairness::Fifo) is set after it, the pauses apply after
            /// errors.
            retry(strategy: impl crate::retry::RetryStrategy) |options| {
                options.retry = Some(std::sync::Arc::new(strategy));
                options.fairness = Some(crate::Fairness::Barging);
                Ok(())
            }

            /// Refuses to wait when this many wait already; without limit by default.
            max_waiters(max: impl Into<Option<u32>>) |options| {
                options.max_waiters = Some(max.into());
                Ok(())
            }
        }
    };
}

/// Options for how long to wait, for the kinds that wait.
macro_rules! patience_options {
    ([$($make:tt)*] $type:ident) => {
        $($make)*! { $type
            /// Stops waiting at once if the holder's lease, as it is now, expires after the time to
            /// wait. Renewals of that holder can only make this later.
            give_up_early(give_up_early: bool) |options| {
                options.give_up_early = Some(give_up_early);
                Ok(())
            }

            /// How long to wait if the call sets no limit: for ever by default, for a time, or for
            /// [as long as the ttl](crate::WaitLimit::Ttl). A limit of the call counts instead.
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
    all_options, delegate, holding_options, owner_option, patience_options, setters,
    waiting_options,
};

holding_options!([define] LockOptions);
owner_option!([define] LockOptions);
waiting_options!([define] LockOptions);
patience_options!([define] LockOptions);
