//! The mutex: one holder at a time, in any process.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::{Exponential, RetryStrategy};
use leasehold_core::{Error, ErrorKind, Key, Metadata, OwnerName, Result, Ttl};

use crate::acquire::Acquisition;
use crate::client::{Client, Inner};
use crate::guard::{Guard, HeldLease, Release};
use crate::settings::{Order, Settings};

/// A lock that one holder has at a time, in any process that uses the same store.
///
/// A value: making one sends nothing and cannot fail. What is wrong with a name or a setting is
/// told by the first method that locks. One value serves any number of acquisitions, one after
/// the other or at once; each is a lease of its own with a [`Guard`] of its own.
///
/// It is not re-entrant: locking twice in one task waits for itself.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// use std::time::Duration;
/// let mutex = client.mutex("reports/daily").ttl(Duration::from_secs(60));
///
/// if let Some(guard) = mutex.try_lock().await? {
///     // … the report …
///     assert!(mutex.try_lock().await?.is_none());
///     let _ = guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    client: Arc<Inner>,
    settings: Result<Arc<Settings>>,
}

impl Mutex {
    pub(crate) fn new(client: &Client, key: Result<Key>) -> Self {
        let inner = client.inner();
        let config = &inner.config;
        let settings = key.map(|key| {
            Arc::new(Settings {
                key,
                ttl: config.ttl,
                grace: None,
                renew: true,
                max_hold: None,
                progress_within: None,
                owner: config.owner.clone(),
                metadata: Metadata::default(),
                retry: Arc::new(
                    Exponential::new(Duration::from_millis(5), Duration::from_millis(250))
                        .jitter(0.25),
                ),
                not_in_vain: false,
                order: Order::Fifo,
                waiters_max: None,
                min_ttl: config.min_ttl,
            })
        });
        Self { client: Arc::clone(inner), settings }
    }

    fn set(mut self, set: impl FnOnce(&mut Settings) -> Result<()>) -> Self {
        if let Ok(settings) = &mut self.settings
            && let Err(error) = set(Arc::make_mut(settings))
        {
            let error = error.on_key(&settings.key);
            self.settings = Err(error);
        }
        self
    }

    /// The length of a lease: 1 ms to 30 days, by default the client's. A crashed holder's lock
    /// comes free after at most this long; a live one renews it every third of it.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|settings| Ttl::new(ttl).map(|ttl| settings.ttl = ttl))
    }

    /// How long before the store could grant the lock to somebody else a loss is told, so that
    /// the work can stop in time: at most half of the ttl. By default 5 % of it, at least 20 ms
    /// and at most 5 s.
    pub fn stop_grace(self, grace: Duration) -> Self {
        self.set(|settings| {
            settings.grace = Some(grace);
            Ok(())
        })
    }

    /// Whether leases are renewed in the background; they are by default. A lease that is not
    /// ends with its ttl.
    pub fn renew(self, renew: bool) -> Self {
        self.set(|settings| {
            settings.renew = renew;
            Ok(())
        })
    }

    /// The longest time for which one lease is held, renewals included; without limit by
    /// default. After it the lease counts as lost.
    pub fn max_hold(self, max_hold: impl Into<Option<Duration>>) -> Self {
        let max_hold = max_hold.into();
        self.set(|settings| {
            settings.max_hold = max_hold;
            Ok(())
        })
    }

    /// Renews the lease only while its work gets on: while [`HeldLease::progress`] is called at
    /// least this often. Without it, which is the default, a lease is renewed for as long as its
    /// guard lives, also when the work under it hangs.
    pub fn progress_within(self, limit: impl Into<Option<Duration>>) -> Self {
        let limit = limit.into();
        self.set(|settings| {
            settings.progress_within = limit;
            Ok(())
        })
    }

    /// Who holds the lock, for people; by default the client's owner.
    pub fn owner(self, owner: impl AsRef<str>) -> Self {
        self.set(|settings| OwnerName::new(owner).map(|owner| settings.owner = owner))
    }

    /// Text that is kept with the lease, readable by everybody who can inspect the lock.
    pub fn metadata(self, metadata: impl AsRef<str>) -> Self {
        self.set(|settings| Metadata::new(metadata).map(|metadata| settings.metadata = metadata))
    }

    /// Whether to wait in line, which is the default, or to compete: see [`Order`].
    pub fn order(self, order: Order) -> Self {
        self.set(|settings| {
            settings.order = order;
            Ok(())
        })
    }

    /// When to try again while waiting, and when to give up. By default 5 ms to 250 ms, growing,
    /// with jitter, for ever. The end of the holder's lease cuts a pause short.
    ///
    /// Who waits in line is woken and has no use for pauses, so this also sets
    /// [`Order::Barging`]; with [`Order::Fifo`] set after it, the pauses are those after errors.
    pub fn retry(self, strategy: impl RetryStrategy) -> Self {
        self.set(|settings| {
            settings.retry = Arc::new(strategy);
            settings.order = Order::Barging;
            Ok(())
        })
    }

    /// Gives up at once when the holder's lease, as it stands, runs past the time to wait. A
    /// holder that renews can only make that later.
    pub fn not_in_vain(self, not_in_vain: bool) -> Self {
        self.set(|settings| {
            settings.not_in_vain = not_in_vain;
            Ok(())
        })
    }

    /// Refuses to wait when so many wait already; without limit by default.
    pub fn max_waiters(self, max: impl Into<Option<u32>>) -> Self {
        let max = max.into();
        self.set(|settings| {
            settings.waiters_max = max;
            Ok(())
        })
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// What is wrong with the name, or the first setting that is wrong.
    pub fn key(&self) -> Result<&Key> {
        match &self.settings {
            Ok(settings) => Ok(&settings.key),
            Err(error) => Err(error.clone()),
        }
    }

    /// Tries to take the lock, once. `None` when somebody else has it.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – a bad name or setting.
    /// * [`ErrorKind::Conflict`] – the name is in use as another kind of lock.
    /// * [`ErrorKind::Unavailable`] and others – the store could not be asked; see
    ///   [`Error::effect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, its token is given up in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        Acquisition::new(&self.client, &self.settings, Some(Duration::ZERO))?.try_once().await
    }

    /// Takes the lock, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Timeout`] when the retry strategy gives
    /// up. While waiting, a store that goes away is given half a minute to come back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future gives up the place in line, in the background.
    pub async fn lock(&self) -> Result<Guard> {
        Acquisition::new(&self.client, &self.settings, None)?.wait().await
    }

    /// Takes the lock, waiting for at most `limit`; with a limit of zero it tries once.
    ///
    /// # Time
    ///
    /// A request that is on its way when the limit is reached is given until its own time-out.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`ErrorKind::Timeout`] when the limit is reached. That error says
    /// who holds the lock ([`Error::holder`]) and how long its lease still runs
    /// ([`Error::retry_after`]).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future gives up the place in line, in the background.
    pub async fn lock_within(&self, limit: Duration) -> Result<Guard> {
        Acquisition::new(&self.client, &self.settings, Some(limit))?.wait().await
    }

    /// Takes the lock, runs `body` under it, and releases it. When the lease is lost, the body is
    /// dropped where it stands, before the store could grant the lock to somebody else.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`ErrorKind::Lost`] when the body was cut short, or when the
    /// release says that the lock was not held to the end; [`ErrorKind::Late`] when it had run
    /// out though nobody else took it. What the body has returned is lost with the error: let it
    /// write down what must not be.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease given up in the background.
    pub async fn run<T, F>(&self, body: impl FnOnce(HeldLease) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let guard = self.lock().await?;
        run_under(guard, body).await
    }

    /// As [`run`](Self::run), if the lock is free; `None` when somebody else has it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease given up in the background.
    pub async fn try_run<T, F>(&self, body: impl FnOnce(HeldLease) -> F) -> Result<Option<T>>
    where
        F: Future<Output = T>,
    {
        match self.try_lock().await? {
            Some(guard) => run_under(guard, body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Refreshes a lock that `guard` may still hold: to this value's ttl if it does, which may
    /// have changed in between; and if the lease is gone, takes the lock anew, with a new fence,
    /// unless somebody else has it (`None`).
    ///
    /// Compare the fences before and after to learn which of the two it was.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Misuse`] when the guard is of another
    /// lock. On an error the guard is dropped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease is given up in the background.
    pub async fn relock(&self, guard: Guard) -> Result<Option<Guard>> {
        let settings = self.settings.clone()?;
        if *guard.key() != settings.key || !Arc::ptr_eq(guard.client(), &self.client) {
            return Err(Error::new(
                ErrorKind::Misuse,
                format!("the guard is of another lock, \"{}\"", guard.key()),
            )
            .on_key(&settings.key));
        }
        match guard.renew_to(settings.ttl.duration()).await {
            Ok(()) => Ok(Some(guard)),
            Err(error) if matches!(error.kind(), ErrorKind::Late | ErrorKind::Lost) => {
                let _not_held = guard.release().await?;
                self.try_lock().await
            }
            Err(error) => Err(error),
        }
    }
}

async fn run_under<T, F>(guard: Guard, body: impl FnOnce(HeldLease) -> F) -> Result<T>
where
    F: Future<Output = T>,
{
    let lease = guard.lease().clone();
    let done = tokio::select! {
        biased;
        () = lease.lost() => None,
        done = body(lease.clone()) => Some(done),
    };
    let in_time = guard.is_held();
    let released = guard.release().await?;
    let error = |kind, why: &str| Err(Error::new(kind, why).during("run").on_key(lease.key()));
    match (done, released) {
        (None, _) => error(ErrorKind::Lost, "the lease was lost, and the body was cut short"),
        (Some(done), Release::Released | Release::Unknown) if in_time => Ok(done),
        (Some(_), Release::Late) => error(
            ErrorKind::Late,
            "the body ended after its lease, though nobody held the lock since",
        ),
        (Some(_), _) => error(
            ErrorKind::Lost,
            "the body ended after its lease was lost; it may have overlapped with another holder",
        ),
    }
}
