//! A client's notification channel: one for all of its waiters, opened by the first that needs it.
//!
//! No waiter depends on it. Waiters poll until it is open, and after several grants in a row
//! without a notification. As long as there are waiters, a channel that failed is opened again.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClientId, Error, ErrorKind, Listener, Result, Store, Wake};
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::lease::renewal::RenewalSchedule;
use crate::waiting::mailbox::{Receiver, Sender, mailbox};

/// Pauses before the channel is tried again. Each is lengthened by up to half at random.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// After this many grants in a row without a notification, waiters poll. A notification may also
/// arrive just after a poll has found the grant.
const UNTOLD_MAX: u32 = 3;

/// The state of the channel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ChannelState {
    Opening,
    Open,
    /// It could not be opened, or has broken; it is tried again.
    Silent,
}

/// The state of the channel, to look at and to wait for. Waiters go on in the order in which they
/// came, so that a simulation's seed alone decides what comes next.
#[derive(Debug)]
struct Channel {
    now: Mutex<ChannelState>,
    changed: Notify,
}

impl Channel {
    fn get(&self) -> MutexGuard<'_, ChannelState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state; returns the one before.
    fn set(&self, state: ChannelState) -> ChannelState {
        let before = std::mem::replace(&mut *self.get(), state);
        self.changed.notify_waiters();
        before
    }

    /// Returns once opening the channel was tried. Cancel safe.
    async fn tried(&self) {
        let changed = self.changed.notified();
        // A change in between is noticed even if this was not polled yet.
        if *self.get() == ChannelState::Opening {
            changed.await;
        }
    }
}

/// The task that opens the channel and serves it. It runs on the runtime of its callers, so that a
/// notification wakes no other thread. If they are on several runtimes, each of which may be
/// blocked, it runs in the background.
#[derive(Clone, Debug)]
struct Served {
    channel: Arc<Channel>,
    task: AbortHandle,
    /// The runtime of its callers; `None` in the background.
    home: Option<Id>,
}

impl Served {
    fn is_open(&self) -> bool {
        !self.task.is_finished() && *self.channel.get() == ChannelState::Open
    }

    /// Whether it goes on while the caller does.
    fn goes_on(&self) -> bool {
        let here = || Handle::try_current().ok().map(|here| here.id());
        !self.task.is_finished() && (self.home.is_none() || self.home == here())
    }
}

/// The task that serves the channel, if there is one.
#[derive(Debug, Default)]
struct Serving {
    last: Option<Served>,
    /// The channel has ended for good.
    stopped: bool,
}

/// The client's end of its channel.
#[derive(Debug)]
pub(crate) struct Hub {
    store: Arc<dyn Store>,
    /// The background's, for callers on several runtimes, and for callers without one.
    runtime: Handle,
    client: ClientId,
    schedule: Arc<RenewalSchedule>,
    serving: Mutex<Serving>,
    lines: Arc<Lines>,
    next_ticket: AtomicU64,
}

#[derive(Debug, Default)]
struct Lines {
    lines: Mutex<BTreeMap<u64, Sender<Wake>>>,
    /// Grants since the last notification that came without one.
    untold: AtomicU32,
    /// Notified when an expected notification did not come.
    doubts: Notify,
}

impl Lines {
    fn get(&self) -> MutexGuard<'_, BTreeMap<u64, Sender<Wake>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.get().is_empty()
    }

    /// Has every waiter poll.
    fn resync(&self) {
        self.get().values().for_each(|line| drop(line.send(Wake::Resync)));
    }

    fn dispatch(&self, wake: Wake) {
        match wake {
            Wake::Granted { ticket, .. } | Wake::First { ticket, .. } => {
                self.untold.store(0, Ordering::Relaxed);
                if let Some(line) = self.get().get(&ticket) {
                    // A waiter that has just gone abandons its token by itself.
                    drop(line.send(wake));
                }
            }
            _ => self.resync(),
        }
    }
}

/// A waiter's own mailbox of notifications.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) ticket: u64,
    messages: Receiver<Wake>,
    lines: Arc<Lines>,
}

impl Line {
    /// The next notification for this waiter. Cancel safe.
    pub(crate) async fn next(&mut self) -> Wake {
        self.messages.recv().await
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.get().remove(&self.ticket);
    }
}

impl Hub {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        runtime: Handle,
        client: ClientId,
        schedule: Arc<RenewalSchedule>,
    ) -> Self {
        Self {
            store,
            runtime,
            client,
            schedule,
            serving: Mutex::default(),
            lines: Arc::default(),
            next_ticket: AtomicU64::new(1),
        }
    }

    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    fn serving(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the channel for good.
    pub(crate) fn stop(&self) {
        let last = {
            let mut serving = self.serving();
            serving.stopped = true;
            serving.last.take()
        };
        if let Some(served) = last {
            served.task.abort();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.serving().last.as_ref().is_some_and(Served::is_open)
    }

    /// Whether a waiter can rely on notifications; else it polls.
    pub(crate) fn tells(&self) -> bool {
        self.is_open() && self.lines.untold.load(Ordering::Relaxed) < UNTOLD_MAX
    }

    /// Opens the channel unless it is open. Notifications sent after this arrive, except when
    /// opening failed for now. Cancel safe.
    ///
    /// A task of its own does it, so that an unpolled waiter delays no other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] when the client was closed.
    pub(crate) async fn open(&self, within: Duration) -> Result<()> {
        if let Some(served) = self.serve(within) {
            served.channel.tried().await;
        }
        if self.serving().stopped {
            return Err(Error::new(ErrorKind::Closed, "the client was closed"));
        }
        Ok(())
    }

    /// Makes sure that the channel is tried: for a waiter, whose mailbox is open, or a holder.
    pub(crate) fn keep_trying(&self, within: Duration) {
        let is_served = |served: &Served| served.is_open() && served.goes_on();
        if !self.serving().last.as_ref().is_some_and(is_served) {
            drop(self.serve(within));
        }
    }

    /// The task that serves the channel, unless that has ended for good.
    fn serve(&self, within: Duration) -> Option<Served> {
        let mut serving = self.serving();
        if serving.stopped {
            return None;
        }
        if let Some(served) = serving.last.as_ref().filter(|served| served.goes_on()) {
            return Some(served.clone());
        }
        let mut runtime = self.runtime.clone();
        match serving.last.take().filter(|before| !before.task.is_finished()) {
            Some(elsewhere) => elsewhere.task.abort(),
            None => runtime = Handle::try_current().unwrap_or(runtime),
        }
        let home = (runtime.id() != self.runtime.id()).then(|| runtime.id());
        Some(serving.last.insert(self.start(within, &runtime, home)).clone())
    }

    fn start(&self, within: Duration, runtime: &Handle, home: Option<Id>) -> Served {
        let now = Mutex::new(ChannelState::Opening);
        let channel = Arc::new(Channel { now, changed: Notify::new() });
        let server = Server {
            store: Arc::clone(&self.store),
            client: self.client,
            lines: Arc::clone(&self.lines),
            schedule: Arc::clone(&self.schedule),
            channel: Arc::clone(&channel),
        };
        let task = runtime.spawn(server.run(within));
        Served { channel, task: task.abort_handle(), home }
    }

    /// Records that a waiter was granted a lease without a notification.
    pub(crate) fn untold(&self) {
        let before = self.lines.untold.fetch_add(1, Ordering::Relaxed);
        if before.saturating_add(1) == UNTOLD_MAX && self.is_open() {
            tracing::warn!(
                target: "leasehold",
                "no notification came with a lease, so waiters poll; check that scripts may \
                 publish, and that proxies pass notifications"
            );
        }
        self.lines.doubts.notify_one();
    }

    /// A mailbox for one waiter; dropping it closes it.
    pub(crate) fn line(&self) -> Line {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = mailbox();
        self.lines.get().insert(ticket, sender);
        Line { ticket, messages, lines: Arc::clone(&self.lines) }
    }
}

/// Opens the channel and passes its notifications on.
struct Server {
    store: Arc<dyn Store>,
    client: ClientId,
    lines: Arc<Lines>,
    schedule: Arc<RenewalSchedule>,
    channel: Arc<Channel>,
}

impl Server {
    /// Tries to open the channel until it is open or there is no waiter any more, and serves it for
    /// as long as there is a client.
    async fn run(self, within: Duration) {
        let mut pause = AGAIN_MIN;
        loop {
            match self.store.listen(self.client, within).await {
                Ok(listener) => {
                    _ = self.channel.set(ChannelState::Open);
                    // Waiters that got their positions before may have missed a notification.
                    self.lines.resync();
                    return self.follow(listener).await;
                }
                Err(error) => self.fail(&error),
            }
            tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
            if self.lines.is_empty() {
                return;
            }
            pause = pause.saturating_mul(2).min(AGAIN_MAX);
        }
    }

    fn fail(&self, error: &Error) {
        if self.channel.set(ChannelState::Silent) == ChannelState::Opening {
            tracing::warn!(target: "leasehold", %error, "no notifications; waiters poll instead");
        }
    }

    async fn follow(&self, mut listener: Box<dyn Listener>) {
        let mut doubt = pin!(self.lines.doubts.notified());
        loop {
            let wake = tokio::select! {
                biased;
                wake = listener.next() => wake,
                () = &mut doubt => {
                    doubt.set(self.lines.doubts.notified());
                    listener.doubt();
                    continue;
                }
            };
            match wake {
                Wake::Silent => _ = self.channel.set(ChannelState::Silent),
                Wake::Resync => _ = self.channel.set(ChannelState::Open),
                Wake::Lost { key, fence } => {
                    self.schedule.taken_away(&key, fence);
                    continue;
                }
                _ => {}
            }
            self.lines.dispatch(wake);
        }
    }
}

impl Drop for Server {
    /// A task that has ended has failed, or the client has ended it.
    fn drop(&mut self) {
        self.channel.set(ChannelState::Silent);
    }
}
