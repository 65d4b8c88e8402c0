//! Receives notifications: one connection for all clients of a process, opened by the first wait.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::{
    BoxFuture, ClientId, Effect, Error, ErrorKind, Fence, FenceBlock, Listener, Reason, Wake,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Notification};

use crate::classify::{Deadline, Fault, judge};
use crate::pool::{Dial, Pool};

/// Within this time a notification to oneself arrives.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// A silent connection is tried this often.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Without a waiter, the connection is closed after this time.
const IDLE: Duration = Duration::from_secs(60);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Notifications that a listener may have unread.
const UNREAD_MAX: usize = 1_024;

/// The subscriptions of this process and of its ancestors. Each generation of processes has an
/// entry of its own. So a child never waits for a mutex that was locked in its parent at the moment
/// of the fork.
static SUBSCRIPTIONS: [Mutex<Vec<Known>>; 64] = [const { Mutex::new(Vec::new()) }; 64];

/// A subscription, its process, and the URL that it serves.
type Known = (Process, String, Weak<Subscription>);

/// A client's channel.
pub(crate) fn channel(client: ClientId) -> String {
    let hex = client.as_bytes().iter().map(|byte| format!("{byte:02x}"));
    format!("leasehold_{}", hex.collect::<String>())
}

/// A notification as text; `None` for one that stores don't send.
pub(crate) fn spoken(wake: &Wake) -> Option<String> {
    match wake {
        Wake::Granted { ticket, heartbeat, fences } => {
            Some(format!("g {ticket} {heartbeat} {} {}", fences.first(), fences.count()))
        }
        Wake::First { ticket, retry_after } => {
            Some(format!("f {ticket} {}", retry_after.as_micros()))
        }
        _ => None,
    }
}

fn understood(text: &str) -> Option<Wake> {
    let mut words = text.split(' ');
    let kind = words.next()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    match kind {
        "g" => {
            let (ticket, heartbeat) = (number()?, u32::try_from(number()?).ok()?);
            let (first, count) =
                (Fence::from_value(number()?).ok()?, u32::try_from(number()?).ok()?);
            Some(Wake::Granted { ticket, heartbeat, fences: FenceBlock::new(first, count) })
        }
        "f" => {
            Some(Wake::First { ticket: number()?, retry_after: Duration::from_micros(number()?) })
        }
        _ => None,
    }
}

enum Order {
    Listen {
        channel: String,
        id: u64,
        messages: mpsc::Sender<Wake>,
        ready: oneshot::Sender<Result<(), Fault>>,
    },
    Leave {
        channel: String,
        id: u64,
    },
    Doubt,
}

/// The process's connection for notifications of one database.
pub(crate) struct Subscription {
    orders: mpsc::UnboundedSender<Order>,
    trouble: Arc<Mutex<Option<Error>>>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

impl Subscription {
    /// The subscription that clients of this URL share, made if there is none.
    pub(crate) fn of(dial: Dial, pool: &Arc<Pool>) -> Arc<Self> {
        let key =
            format!("{}\0{}\0{:?}", dial.address.location(), dial.address.user, dial.address.tls);
        let process = Process::current();
        let [first, ..] = &SUBSCRIPTIONS;
        let place = SUBSCRIPTIONS.get(process.place(SUBSCRIPTIONS.len())).unwrap_or(first);
        let mut subscriptions = place.lock().unwrap_or_else(PoisonError::into_inner);
        subscriptions
            .retain(|(of, _, subscription)| *of == process && subscription.strong_count() > 0);
        if let Some(subscription) = subscriptions
            .iter()
            .find_map(|(_, other, subscription)| subscription.upgrade().filter(|_| *other == key))
        {
            return subscription;
        }
        let subscription = Self::new(dial, pool);
        subscriptions.push((process, key, Arc::downgrade(&subscription)));
        subscription
    }

    fn new(dial: Dial, pool: &Arc<Pool>) -> Arc<Self> {
        let (orders, given) = mpsc::unbounded_channel();
        let trouble = Arc::default();
        let hub = Hub {
            dial,
            pool: Arc::clone(pool),
            orders: given,
            channels: HashMap::new(),
            trouble: Arc::clone(&trouble),
            failures: 0,
        };
        pool.driver.runtime().spawn(hub.run());
        Arc::new(Self { orders, trouble })
    }

    /// Why notifications are missing, if they are.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn listen(
        &self,
        client: ClientId,
        deadline: Deadline,
    ) -> Result<Box<dyn Listener>, Fault> {
        let (sender, messages) = mpsc::channel(UNREAD_MAX);
        let (ready, confirmed) = oneshot::channel();
        let (channel, id) = (channel(client), fastrand::u64(..));
        let listening =
            Listening { orders: self.orders.clone(), channel: channel.clone(), id, messages };
        let order = Order::Listen { channel, id, messages: sender, ready };
        let gone = || {
            Fault::from(Error::new(ErrorKind::Unavailable, "the thread of this process has ended"))
        };
        self.orders.send(order).map_err(|_| gone())?;
        match timeout_at(deadline.at, confirmed).await {
            Ok(Ok(outcome)) => outcome.map(|()| Box::new(listening) as Box<dyn Listener>),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(deadline.missed(Effect::NotApplied)),
        }
    }
}

#[derive(Debug)]
struct Listening {
    orders: mpsc::UnboundedSender<Order>,
    channel: String,
    id: u64,
    messages: mpsc::Receiver<Wake>,
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Order")
    }
}

impl Listener for Listening {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async move {
            match self.messages.recv().await {
                Some(wake) => wake,
                None => std::future::pending().await,
            }
        })
    }

    fn doubt(&mut self) {
        // Without the thread there is no channel to doubt.
        drop(self.orders.send(Order::Doubt));
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.orders.send(Order::Leave { channel: self.channel.clone(), id: self.id }));
    }
}

struct Channel {
    id: u64,
    messages: mpsc::Sender<Wake>,
    /// Whether a notification was lost since, because the listener left too many unread.
    is_behind: bool,
}

impl Channel {
    fn send(&mut self, wake: Wake) {
        if self.is_behind && self.messages.try_send(Wake::Resync).is_ok() {
            self.is_behind = false;
        }
        if self.is_behind || self.messages.try_send(wake).is_err() {
            self.is_behind = true;
        }
    }
}

/// The task of a subscription.
struct Hub {
    dial: Dial,
    pool: Arc<Pool>,
    orders: mpsc::UnboundedReceiver<Order>,
    channels: HashMap<String, Channel>,
    trouble: Arc<Mutex<Option<Error>>>,
    /// In a row.
    failures: u32,
}

/// An open connection.
struct Line {
    client: tokio_postgres::Client,
    heard: mpsc::UnboundedReceiver<Notification>,
    /// The channel on which it hears itself.
    own: String,
}

/// Why a connection is left.
enum End {
    /// No client listens.
    Idle,
    Lost(Fault),
    /// The last store has gone.
    Over,
}

impl Hub {
    async fn run(mut self) {
        loop {
            // The first wait opens the connection.
            let mut waiting = Vec::new();
            while self.channels.is_empty() {
                match self.orders.recv().await {
                    Some(order) => waiting.extend(self.enter(order)),
                    None => return,
                }
            }
            let end = match self.open().await {
                Ok(line) => {
                    for ready in waiting {
                        // A listener that has gone has left an order.
                        drop(ready.send(Ok(())));
                    }
                    self.follow(line).await
                }
                Err(fault) => {
                    for ready in waiting {
                        drop(ready.send(Err(fault.clone())));
                    }
                    End::Lost(fault)
                }
            };
            match end {
                End::Idle => {}
                End::Over => return,
                End::Lost(fault) => {
                    tracing::debug!(
                        target: "leasehold", error = %fault.error,
                        "the connection for notifications was lost"
                    );
                    *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(fault.error.clone());
                    self.tell_all(&Wake::Silent);
                    if !self.pause(&fault).await {
                        return;
                    }
                }
            }
        }
    }

    /// Notes who listens. Returns where to confirm it.
    fn enter(&mut self, order: Order) -> Option<oneshot::Sender<Result<(), Fault>>> {
        match order {
            Order::Listen { channel, id, messages, ready } => {
                self.channels.insert(channel, Channel { id, messages, is_behind: false });
                Some(ready)
            }
            Order::Leave { channel, id } => {
                if self.channels.get(&channel).is_some_and(|known| known.id == id) {
                    self.channels.remove(&channel);
                }
                None
            }
            Order::Doubt => None,
        }
    }

    /// Waits before the next try. Until then new listeners are refused, and retry.
    async fn pause(&mut self, fault: &Fault) -> bool {
        let longest = RETRY_MIN.saturating_mul(1 << self.failures.min(7)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        let ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let until = Instant::now() + Duration::from_millis(fastrand::u64(ms / 2..=ms));
        loop {
            match timeout_at(until, self.orders.recv()).await {
                Err(_) => return true,
                Ok(None) => return false,
                Ok(Some(Order::Listen { ready, .. })) => drop(ready.send(Err(fault.clone()))),
                Ok(Some(order)) => drop(self.enter(order)),
            }
        }
    }

    async fn open(&self) -> Result<Line, Fault> {
        let (sender, heard) = mpsc::unbounded_channel();
        let hear = move |said| match said {
            AsyncMessage::Notification(said) => sender.send(said).is_ok(),
            _ => true,
        };
        let client = self.dial.open("leasehold-listen", Box::new(hear)).await?;
        let own = format!("leasehold_ear_{:016x}", fastrand::u64(..));
        let line = Line { client, heard, own };
        let all: Vec<&str> =
            self.channels.keys().map(String::as_str).chain([line.own.as_str()]).collect();
        line.listen(&all).await?;
        Ok(line)
    }

    /// Passes notifications on until the connection is lost or needed no more.
    async fn follow(&mut self, mut line: Line) -> End {
        // Whatever was sent before the channels were there is lost.
        let mut is_heard = false;
        let mut probe = Some(self.probe(&line));
        let mut quiet_at = Instant::now();
        let mut idle_since = None;
        loop {
            idle_since = self.channels.is_empty().then(|| idle_since.unwrap_or_else(Instant::now));
            let due = match (probe, idle_since) {
                (Some(until), _) => until,
                (None, Some(since)) => since + IDLE,
                (None, None) => quiet_at + PING_EVERY,
            };
            tokio::select! {
                biased;
                said = line.heard.recv() => match said {
                    Some(said) if said.channel() == line.own => {
                        (probe, quiet_at) = (None, Instant::now());
                        if !is_heard {
                            is_heard = true;
                            self.failures = 0;
                            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
                            self.tell_all(&Wake::Resync);
                        }
                    }
                    Some(said) => {
                        if let Some(channel) = self.channels.get_mut(said.channel())
                            && let Some(wake) = understood(said.payload())
                        {
                            channel.send(wake);
                        }
                    }
                    None => return End::Lost(lost("the connection for notifications ended")),
                },
                order = self.orders.recv() => {
                    let Some(order) = order else { return End::Over };
                    let left = if let Order::Leave { channel, .. } = &order { Some(channel.clone()) } else { None };
                    let joined = if let Order::Listen { channel, .. } = &order { Some(channel.clone()) } else { None };
                    if matches!(order, Order::Doubt) && probe.is_none() {
                        probe = Some(self.probe(&line));
                    }
                    let ready = self.enter(order);
                    if let (Some(channel), Some(ready)) = (joined, ready) {
                        let listening = line.listen(&[&channel]).await;
                        let failed = listening.clone().err();
                        drop(ready.send(listening));
                        if let Some(fault) = failed {
                            return End::Lost(fault);
                        }
                    }
                    if let Some(channel) = left.filter(|channel| !self.channels.contains_key(channel))
                        && let Err(fault) = line.unlisten(&channel).await
                    {
                        return End::Lost(fault);
                    }
                },
                () = sleep_until(due) => {
                    if probe.is_some() {
                        let why = "no notification arrives on the connection that listens; behind a pooler, give the \
                                   URL of the server itself in listen=, or listen=none";
                        return End::Lost(lost(why));
                    }
                    if idle_since.is_some() {
                        return End::Idle;
                    }
                    probe = Some(self.probe(&line));
                },
            }
        }
    }

    /// Sends a notification from another connection. Until the returned time it has to arrive.
    fn probe(&self, line: &Line) -> Instant {
        let (pool, own) = (Arc::clone(&self.pool), line.own.clone());
        self.pool.driver.runtime().spawn(async move {
            const PROBE: &str = "SELECT pg_notify($1, '')::text";
            // If it can't be sent, it does not arrive.
            drop(
                pool.ask(
                    fastrand::u64(..),
                    PROBE,
                    &[(&own, Type::TEXT)],
                    Deadline::after(PROBE_WITHIN),
                )
                .await,
            );
        });
        Instant::now() + PROBE_WITHIN
    }

    fn tell_all(&mut self, wake: &Wake) {
        for channel in self.channels.values_mut() {
            channel.send(wake.clone());
        }
    }
}

impl Line {
    async fn listen(&self, channels: &[&str]) -> Result<(), Fault> {
        let orders: Vec<String> =
            channels.iter().map(|channel| format!("LISTEN \"{channel}\"")).collect();
        self.order(&orders.join("; ")).await
    }

    async fn unlisten(&self, channel: &str) -> Result<(), Fault> {
        self.order(&format!("UNLISTEN \"{channel}\"")).await
    }

    async fn order(&self, sql: &str) -> Result<(), Fault> {
        match timeout(PROBE_WITHIN, self.client.batch_execute(sql)).await {
            Ok(outcome) => outcome.map_err(|error| judge(&error, false)),
            Err(_) => Err(lost("the connection for notifications does not answer")),
        }
    }
}

fn lost(why: &str) -> Fault {
    Error::new(ErrorKind::Unavailable, why).with_reason(Reason::Disconnected).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    #[test]
    fn a_notification_is_understood_as_it_was_spoken_and_anything_else_is_ignored() {
        let fences = FenceBlock::new(Fence::new(3, 1_795_239_205_330_262).unwrap(), 17);
        let granted = Wake::Granted { ticket: u64::MAX, heartbeat: u32::MAX, fences };
        let first = Wake::First { ticket: 0, retry_after: Duration::from_micros(5) };
        for wake in [granted, first] {
            let text = spoken(&wake).unwrap();
            assert!(text.len() < 100, "{text}");
            assert_eq!(understood(&text), Some(wake.clone()));
            assert_eq!(understood(&format!("{text} later versions may add to it")), Some(wake));
        }
        for bad in ["", "g", "g 1 2 3", "f 1", "f x 1", "x 1 1", "g 1 4294967296 1 1", "f -1 1"] {
            assert_eq!(understood(bad), None, "{bad}");
        }
        assert_eq!(spoken(&Wake::Silent), None);
    }

    #[test]
    fn threads_that_ask_at_the_same_instant_share_a_subscription() {
        const THREADS: usize = 8;
        for round in 0..300 {
            let address = Address::parse(&format!("postgres://u@h{round}/d")).unwrap();
            let dial = Dial { address, timeout: IDLE };
            let begin = std::sync::Barrier::new(THREADS);
            let ask = || {
                let pool = Arc::new(Pool::new(dial.clone()).unwrap());
                begin.wait();
                Subscription::of(dial.clone(), &pool)
            };
            let all: Vec<Arc<Subscription>> = std::thread::scope(|scope| {
                let threads = [(); THREADS].map(|()| scope.spawn(ask));
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0])), "round {round}");
        }
    }

    #[test]
    fn a_listener_that_falls_behind_is_told_that_messages_may_be_lost() {
        let (messages, mut unread) = mpsc::channel(2);
        let mut channel = Channel { id: 0, messages, is_behind: false };
        let first = |ticket| Wake::First { ticket, retry_after: Duration::ZERO };
        for ticket in 0..4 {
            channel.send(first(ticket));
        }
        assert_eq!(unread.try_recv().unwrap(), first(0));
        assert_eq!(unread.try_recv().unwrap(), first(1));
        channel.send(first(4));
        assert_eq!(unread.try_recv().unwrap(), Wake::Resync);
        assert_eq!(unread.try_recv().unwrap(), first(4));
    }
}
