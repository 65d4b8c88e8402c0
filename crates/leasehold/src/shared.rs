//! The state that all parts of one client share.
//!
//! It lies below the kinds of locks, waiting and guards: all of these know it, and it knows only
//! itself.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::{
    Ask, AskRequest, ClientId, Clock, Error, ErrorKind, Key, LockInfo, Moment, Result, Store,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::audience::Audience;
use crate::config::Config;
use crate::lease::handle::LeaseHandle;
use crate::lease::orphans::Reaper;
use crate::lease::renewal::RenewalSchedule;
use crate::lease::succession::Succession;
use crate::log::LogWriter;
use crate::settings::Settings;
use crate::waiting::wake::Hub;

/// What all parts of one client share: its store, its clock, and its work in the background.
///
/// A fork's child forgets it instead of dropping it, which would touch locks and sockets of the
/// parent.
pub(crate) struct Inner(Option<Parts>);

/// The content of an [`Inner`].
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The runtime for work that must not depend on any caller.
    pub(crate) background: Handle,
    pub(crate) schedule: Arc<RenewalSchedule>,
    pub(crate) reaper: Reaper,
    pub(crate) hub: Hub,
    pub(crate) succession: Arc<Succession>,
    pub(crate) config: Config,
    /// The settings of a lock without options of its own.
    pub(crate) settings: Arc<Settings>,
    /// The readers of the leases' events.
    pub(crate) audience: Arc<Audience>,
    pub(crate) location: Arc<str>,
    process: Process,
    pub(crate) closed: CancellationToken,
    /// As `closed`, but cheaper to look at: each acquisition does so three times.
    closing: AtomicBool,
    /// Ends the schedule.
    stop: CancellationToken,
    /// When the store last answered, in nanoseconds; 0 before it ever did.
    heard_ns: AtomicU64,
    /// The marks of tokens that have, or may have, something in the store that is not a lease yet.
    pub(crate) unproven: Marks,
}

/// Marks of tokens.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<Vec<u32>>);

impl Marks {
    fn all(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, mark: u32) {
        self.all().push(mark);
    }

    pub(crate) fn remove(&self, mark: u32) {
        let mut all = self.all();
        if let Some(at) = all.iter().position(|it| *it == mark) {
            all.swap_remove(at);
        }
    }

    fn contains(&self, mark: u32) -> bool {
        self.all().contains(&mark)
    }
}

impl Deref for Inner {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.0.as_ref().expect("BUG: only dropping it takes the content")
    }
}

impl Inner {
    /// Starts a client's work over time, on `background`.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: Config,
        background: Handle,
    ) -> Result<Arc<Self>> {
        let log = LogWriter::start(&store, &background, &clock, &config.owner, config.call_timeout);
        let stop = CancellationToken::new();
        let succession = Arc::<Succession>::default();
        let schedule =
            RenewalSchedule::new(Arc::clone(&store), Arc::clone(&clock), Arc::clone(&succession));
        background.spawn(Arc::clone(&schedule).run(stop.clone()));
        let reaper = Reaper::start(&background, Arc::clone(&store), Arc::clone(&clock));
        let client = ClientId::from_bytes(*store.token()?.as_bytes());
        let hub = Hub::new(Arc::clone(&store), background.clone(), client, Arc::clone(&schedule));
        let audience = Arc::new(Audience::new(log));
        Ok(Arc::new(Self(Some(Parts {
            location: store.location().into(),
            store,
            clock,
            background,
            schedule,
            reaper,
            hub,
            succession,
            settings: Arc::new(Settings::new(&config, &audience)),
            config,
            audience,
            process: Process::current(),
            closed: CancellationToken::new(),
            closing: AtomicBool::new(false),
            stop,
            heard_ns: AtomicU64::new(0),
            unproven: Marks::default(),
        }))))
    }

    pub(crate) fn location(&self) -> Arc<str> {
        Arc::clone(&self.location)
    }

    /// The runtime of the caller, or the background's for a caller without one.
    pub(crate) fn here(&self) -> Handle {
        Handle::try_current().unwrap_or_else(|_| self.background.clone())
    }

    /// Records that the store has answered.
    pub(crate) fn heard(&self, now: Moment) {
        self.heard_ns.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    /// When the store last answered, if it ever did.
    pub(crate) fn heard_at(&self) -> Option<Moment> {
        match self.heard_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Moment::from_nanos(ns)),
        }
    }

    /// Whether no lease is held, on its way, to be released or to be logged.
    pub(crate) fn has_nothing_left(&self) -> bool {
        // A lease is in the schedule before it stops being armed, and armed before it leaves the
        // schedule. So the reaper is looked at first and last.
        self.reaper.is_idle_for_good()
            && self.schedule.holds().is_empty()
            && self.reaper.is_idle_for_good()
            && self.audience.log().is_none()
    }

    /// From here on it takes no lock.
    pub(crate) fn begin_to_close(&self) {
        self.closing.store(true, Ordering::Release);
        self.closed.cancel();
    }

    /// Ends this client's work in the background.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.hub.stop();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(self.closed());
        }
        self.check_process()
    }

    /// An error in a fork's child.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process.is_current() {
            return Ok(());
        }
        let why = "this client belongs to the parent process; the child of a fork must connect \
                   itself";
        Err(Error::new(ErrorKind::Misuse, why).at_store(self.location()))
    }

    /// The store, with the time that one call of it may take.
    pub(crate) fn to_call(&self) -> Result<(&dyn Store, Duration)> {
        self.check_process()?;
        Ok((&*self.store, self.config.call_timeout))
    }

    pub(crate) fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, "the client was closed").at_store(self.location())
    }

    /// Whether what has this mark in the store is a position, a try or a lease of this client.
    pub(crate) fn is_own(&self, mark: u32) -> bool {
        self.unproven.contains(mark)
            || self.schedule.holds().iter().any(|lease| lease.token.mark() == mark)
    }

    /// The leases of a lock that have a holder here.
    pub(crate) fn holds_of(&self, key: &Key) -> impl Iterator<Item = Arc<LeaseHandle>> {
        let now = self.clock.now();
        let of_the_name = self.schedule.holds().into_iter().filter(move |lease| lease.key == *key);
        // A lease on its way to the next contender has no holder.
        of_the_name.filter(move |lease| !lease.state().is_offered() && lease.is_held(now))
    }

    /// Inspects a lock.
    pub(crate) async fn look(&self, key: &Key) -> Result<Option<LockInfo>> {
        let (store, limit) = self.to_call()?;
        let info = store.inspect(key, limit).await;
        info.map_err(|error| self.explain(error, "inspect").on_key(key))
    }

    /// Requests release from holders.
    pub(crate) async fn ask(&self, request: AskRequest) -> Result<u32> {
        let (store, limit) = self.to_call()?;
        let answer = store.ask(&request, limit).await;
        match answer.map_err(|error| self.explain(error, "ask").on_key(&request.key))? {
            Ask::Asked { holders } => Ok(holders),
            _ => Ok(0),
        }
    }

    pub(crate) fn explain(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation).at_store(self.location())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("store", &self.location)
            .field("owner", &self.config.owner.as_str())
            .field("closed", &self.is_closed())
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process.is_current() {
            self.stop();
        } else {
            std::mem::forget(self.0.take());
        }
    }
}
