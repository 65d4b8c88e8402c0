//! Keeps a client's channel for notifications: one connection that is replaced when it breaks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use leasehold_core::{BoxFuture, Listener, Wake};
use redis::Value;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::classify::{self, Stage, Verdict};
use crate::connect::access::Access;
use crate::connect::pause::pause_after;
use crate::script::request::{Deadline, here};
use crate::topology::cluster::Cluster;
use crate::topology::sentinel::Found;
use crate::wire::forms::{Pack as _, Packed};
use crate::wire::spelling::block;

/// Notifications kept for a client that does not read them. Beyond that, the client learns that
/// some may be lost, and sends one request for each of its waiters.
pub(crate) const QUEUE_MAX: usize = 1024;

/// After this time of silence, the client sends a ping, and waits for the answer for the other
/// time.
const PING_EVERY: Duration = Duration::from_secs(5);
const PONG_WITHIN: Duration = Duration::from_secs(3);

/// How subscribed connections are made.
pub(crate) enum Source {
    /// With the store's own access.
    Own(Arc<Access>),
    /// To any node.
    Cluster(Cluster),
    /// With a client that the user gave.
    Client(Box<redis::Client>),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Cluster(_) => "Cluster",
            Self::Client(_) => "Client",
        })
    }
}

impl Source {
    /// The access with which the store makes connections itself.
    fn access(&self) -> Option<&Access> {
        match self {
            Self::Own(access) => Some(access),
            Self::Cluster(cluster) => Some(cluster.access()),
            Self::Client(_) => None,
        }
    }

    /// Returns once requests lack a connection because the server is full.
    async fn is_in_the_way(&self) {
        if let Some(access) = self.access()
            && access.lacks_room().wait_for(|lacks| *lacks).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// How long one attempt of a user's client may take.
    const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

    async fn subscribed(&self, channel: &str) -> Result<Subscribed, Verdict> {
        let asked = |error| classify::judge(&error, Stage::Connecting);
        let limit = match self {
            Self::Own(access) => access.connect_timeout,
            Self::Cluster(cluster) => cluster.access().connect_timeout,
            Self::Client(_) => Self::CLIENT_TIMEOUT,
        };
        let both = async {
            let (mut connection, from) = match self {
                Self::Own(access) => {
                    access.open_pubsub().await.map(|(one, from)| (one, Some(from)))?
                }
                Self::Cluster(cluster) => {
                    cluster.open_pubsub().await.map(|(one, from)| (one, Some(from)))?
                }
                Self::Client(client) => (client.get_async_pubsub().await.map_err(asked)?, None),
            };
            // Returns once the server has confirmed it.
            connection.subscribe(channel).await.map_err(asked)?;
            Ok(Subscribed { connection: Connection::new(connection), from })
        };
        timeout(limit.saturating_mul(2), both).await.unwrap_or_else(|_| {
            Err(Verdict::unconnected("the server did not confirm a subscription in time"))
        })
    }

    /// Subscribes on the runtime that drives the connections, because it owns their sockets.
    async fn subscribed_there(self: &Arc<Self>, channel: &str) -> Result<Subscribed, Verdict> {
        if self.is_in_the_way().now_or_never().is_some() {
            return Err(Verdict::nobody_yet(
                "the server has no room for this client's requests, which come first",
            ));
        }
        let there = self.access().map_or_else(here, Access::runtime)?;
        let (source, channel) = (Arc::clone(self), channel.to_owned());
        let mut subscribing = JoinSet::new();
        subscribing.spawn_on(async move { source.subscribed(&channel).await }, &there);
        match subscribing.join_next().await {
            Some(Ok(subscribed)) => subscribed,
            Some(Err(_)) | None => Err(Access::lost_runtime()),
        }
    }

    /// Returns once the messages come from another server than this one.
    async fn left(&self, from: Option<&Found>) {
        match (self, from) {
            (Self::Own(access), Some(from)) => access.left(from).await,
            (Self::Cluster(cluster), Some(from)) => cluster.left(&from.endpoint).await,
            _ => std::future::pending().await,
        }
    }
}

/// A subscribed connection, and its server if that can change.
struct Subscribed {
    connection: Connection,
    from: Option<Found>,
}

struct Connection {
    sink: PubSubSink,
    stream: PubSubStream,
    /// A ping that is not answered yet.
    ping: Option<BoxFuture<'static, bool>>,
}

impl Connection {
    fn new(connection: PubSub) -> Self {
        let (sink, stream) = connection.split();
        Self { sink, stream, ping: None }
    }

    /// The next notification, or `Some(None)` for another sign of life. `None` when the connection
    /// has ended. Cancel safe.
    async fn next(&mut self) -> Option<Option<Wake>> {
        tokio::select! {
            biased;
            message = self.stream.next() => Some(parse(message?.get_payload_bytes())),
            alive = answered(&mut self.ping) => {
                self.ping = None;
                alive.then_some(None)
            }
        }
    }

    fn ask_for_life(&mut self) {
        self.ping.get_or_insert_with(|| Box::pin(is_alive(self.sink.clone())));
    }
}

/// What brings a waiter its grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GrantSource {
    /// The message itself.
    Message,
    /// The answer to a request, which proves more than the notification. The notification is then
    /// only a reason to send the request at once.
    Answer,
}

/// Subscribes, and returns once the server has confirmed it.
pub(crate) async fn listen(
    source: Arc<Source>,
    channel: String,
    grants: GrantSource,
    deadline: Deadline,
) -> Result<Box<dyn Listener>, Verdict> {
    here()?;
    Listening::start(deadline, |messages, doubts, ready| {
        run(source, channel, Forwarder { grants, messages, doubts }, ready)
    })
    .await
}

async fn run(
    source: Arc<Source>,
    channel: String,
    forwarder: Forwarder,
    ready: oneshot::Sender<Result<(), Verdict>>,
) {
    let mut connection = match source.subscribed_there(&channel).await {
        Ok(connection) => connection,
        Err(verdict) => {
            // The receiver may have timed out.
            drop(ready.send(Err(verdict)));
            return;
        }
    };
    drop(ready.send(Ok(())));
    loop {
        let Subscribed { connection: from_there, from } = connection;
        tokio::select! {
            biased;
            () = forwarder.forward(from_there) => {}
            () = source.is_in_the_way() => {
                tracing::debug!("the notification channel is closed to make room for requests");
            }
            () = source.left(from.as_ref()) => {}
        }
        connection = forwarder.again(&source, &channel).await;
        forwarder.messages.put(Wake::Resync).await;
    }
}

/// Messages that are read and not taken yet.
#[derive(Debug, Default)]
struct Messages(Mutex<VecDeque<Wake>>);

impl Messages {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Wake>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Wake> {
        self.queue().pop_front()
    }

    /// Adds a message if there is room for it.
    fn try_put(&self, message: Wake) -> Result<(), Wake> {
        let mut queue = self.queue();
        if queue.len() >= QUEUE_MAX {
            return Err(message);
        }
        queue.push_back(message);
        Ok(())
    }

    /// Adds a message once there is room for it.
    async fn put(&self, message: Wake) {
        let mut message = Some(message);
        // It needs no waker: the reader of the messages polls this when it has taken all.
        poll_fn(|_| {
            message = message.take().and_then(|message| self.try_put(message).err());
            if message.is_none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Passes messages on.
struct Forwarder {
    grants: GrantSource,
    messages: Arc<Messages>,
    doubts: Arc<Notify>,
}

impl Forwarder {
    /// Subscribes, and tries again until it succeeds.
    async fn again(&self, source: &Arc<Source>, channel: &str) -> Subscribed {
        let mut failures = 0_u32;
        loop {
            match source.subscribed_there(channel).await {
                Ok(connection) => return connection,
                Err(verdict) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(
                        why = verdict.message(),
                        "no subscription to the notification channel"
                    );
                    if failures == 1 {
                        self.messages.put(Wake::Silent).await;
                    }
                    sleep(pause_after(failures)).await;
                }
            }
        }
    }

    /// Passes messages on until the connection ends or leaves a ping unanswered. The ping is for
    /// networks that drop packets and proxies that forget connections. A doubt leads to a ping too.
    async fn forward(&self, mut connection: Connection) {
        let mut heard_at = Instant::now();
        let mut asked_at: Option<Instant> = None;
        let mut look = pin!(sleep(PING_EVERY));
        let mut doubt = pin!(self.doubts.notified());
        loop {
            let wake = tokio::select! {
                biased;
                heard = connection.next() => match heard {
                    Some(wake) => wake,
                    None => return,
                },
                () = &mut doubt => {
                    doubt.set(self.doubts.notified());
                    if asked_at.is_none() {
                        asked_at = Some(Instant::now());
                        connection.ask_for_life();
                        look.as_mut().reset(Instant::now() + PONG_WITHIN);
                    }
                    continue;
                }
                () = &mut look => {
                    // A message leaves the timer alone, because resetting it each time would be
                    // expensive.
                    let due = asked_at.map_or(heard_at + PING_EVERY, |asked| asked + PONG_WITHIN);
                    if due > Instant::now() {
                        look.as_mut().reset(due);
                    } else if asked_at.is_some() {
                        tracing::debug!("the notification channel is silent; its connection is closed");
                        return;
                    } else {
                        asked_at = Some(Instant::now());
                        connection.ask_for_life();
                        look.as_mut().reset(Instant::now() + PONG_WITHIN);
                    }
                    continue;
                }
            };
            heard_at = Instant::now();
            asked_at = None;
            let Some(mut wake) = wake else { continue };
            if let (GrantSource::Answer, Wake::Granted { ticket, .. }) = (self.grants, &wake) {
                wake = Wake::First { ticket: *ticket, retry_after: Duration::ZERO };
            }
            if self.messages.try_put(wake).is_err() {
                self.messages.put(Wake::Resync).await;
            }
        }
    }
}

/// Whether the server answers, even with an error.
async fn is_alive(mut sink: PubSubSink) -> bool {
    match timeout(PONG_WITHIN, sink.ping::<Value>()).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => matches!(error.kind(), redis::ErrorKind::Server(_)),
        Err(_) => false,
    }
}

/// The answer to the ping that is under way; without one it stays pending.
async fn answered(ping: &mut Option<BoxFuture<'static, bool>>) -> bool {
    match ping {
        Some(ping) => ping.await,
        None => std::future::pending().await,
    }
}

/// Reads a message; `None` for anything that is not one.
fn parse(message: &[u8]) -> Option<Wake> {
    let mut packed = Packed(message);
    let (letter, ticket) = (packed.byte()?, packed.array().map(u64::from_le_bytes)?);
    match letter {
        b'g' => {
            let (heartbeat, epoch) = (packed.int()?, packed.short()?);
            let (first, count) = (packed.double()?, packed.int()?);
            Some(Wake::Granted { ticket, heartbeat, fences: block(epoch, first, count)? })
        }
        b'f' => Some(Wake::First { ticket, retry_after: Duration::from_micros(packed.double()?) }),
        _ => None,
    }
}

/// The notification for a waiter that has become the first in the queue.
pub(crate) fn first_in_line(ticket: u64, retry_after: Duration) -> Vec<u8> {
    let micros = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
    let mut message = Vec::new();
    message.byte(b'f').bytes(&ticket.to_le_bytes()).double(micros);
    message
}

/// The messages of a connection. The task that waits for them also reads them, so none has to pass
/// them on.
struct Listening {
    messages: Arc<Messages>,
    doubts: Arc<Notify>,
    reading: Option<BoxFuture<'static, ()>>,
}

impl Listening {
    /// Returns once `read` reports that it listens. Its arguments are where to put messages, what
    /// reports doubts, and where to report that it listens.
    async fn start<F>(
        deadline: Deadline,
        read: impl FnOnce(Arc<Messages>, Arc<Notify>, oneshot::Sender<Result<(), Verdict>>) -> F,
    ) -> Result<Box<dyn Listener>, Verdict>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let messages = Arc::<Messages>::default();
        let (ready, mut confirmed) = oneshot::channel();
        let doubts = Arc::new(Notify::new());
        let mut reading: BoxFuture<'static, ()> =
            Box::pin(read(Arc::clone(&messages), Arc::clone(&doubts), ready));
        let opened = async {
            tokio::select! {
                biased;
                opened = &mut confirmed => opened,
                () = &mut reading => (&mut confirmed).await,
            }
        };
        let gone =
            || Verdict::unconnected("the notification channel was closed while it was opened");
        match tokio::time::timeout_at(deadline.at, opened).await {
            Ok(Ok(Ok(()))) => Ok(Box::new(Self { messages, doubts, reading: Some(reading) })),
            Ok(Ok(Err(verdict))) => Err(verdict.give_up()),
            Ok(Err(_)) => Err(gone().give_up()),
            Err(_) => Err(deadline.missed_unsent(None)),
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Wake> {
        loop {
            if let Some(wake) = self.messages.take() {
                return Poll::Ready(wake);
            }
            // The reader has ended. Waiters go on, because they have timers of their own.
            let Some(reading) = &mut self.reading else { return Poll::Pending };
            match reading.as_mut().poll(cx) {
                Poll::Ready(()) => self.reading = None,
                Poll::Pending if self.messages.queue().is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl Listener for Listening {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(poll_fn(|cx| self.poll_next(cx)))
    }

    fn doubt(&mut self) {
        self.doubts.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn said(ticket: usize) -> Vec<u8> {
        let message = first_in_line(u64::try_from(ticket).unwrap(), Duration::from_micros(5));
        let head = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", message.len());
        [head.as_bytes(), &message, b"\r\n"].concat()
    }

    #[tokio::test]
    async fn a_listener_that_falls_behind_learns_that_messages_may_be_lost() {
        const SAID: usize = QUEUE_MAX + 500;
        let (ours, mut theirs) = tokio::io::duplex(1024 * 1024);
        let login = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        let connection = Connection::new(PubSub::new(&login, ours).await.unwrap());
        let (messages, doubts) = (Arc::<Messages>::default(), Arc::new(Notify::new()));
        let grants = GrantSource::Message;
        let forwarder =
            Forwarder { grants, messages: Arc::clone(&messages), doubts: Arc::clone(&doubts) };
        let reading: BoxFuture<'static, ()> =
            Box::pin(async move { forwarder.forward(connection).await });
        let mut listener = Listening { messages, doubts, reading: Some(reading) };
        let all: Vec<u8> = (0..SAID).flat_map(said).collect();
        theirs.write_all(&all).await.unwrap();
        // Reads for as long as there is something to read, and takes no message.
        for _ in 0..SAID {
            let reading = listener.reading.as_mut().unwrap();
            poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx).is_pending())).await;
            tokio::task::yield_now().await;
        }
        let retry_after = Duration::from_micros(5);
        let first = |ticket: usize| Wake::First { ticket: ticket as u64, retry_after };
        for ticket in 0..QUEUE_MAX {
            assert_eq!(listener.next().await, first(ticket));
        }
        assert_eq!(listener.next().await, Wake::Resync);
        // The one for which there was no room is lost; what comes later comes as before.
        for ticket in QUEUE_MAX + 1..SAID {
            assert_eq!(listener.next().await, first(ticket));
        }
    }

    #[test]
    fn a_grant_is_read_as_it_is_packed_and_what_is_no_message_is_ignored() {
        let mut grant = Vec::new();
        let (first, ticket) = (1_795_239_205_330_262, u64::MAX);
        grant.byte(b'g').bytes(&ticket.to_le_bytes()).int(4).short(12).double(first).int(17);
        let fences = block(12, first, 17).unwrap();
        let wake = Wake::Granted { ticket, heartbeat: 4, fences };
        assert_eq!(parse(&grant), Some(wake.clone()));
        for length in 0..grant.len() {
            assert_eq!(parse(&grant[..length]), None, "{length}");
        }
        let mut odd = grant.clone();
        odd[0] = b'x';
        assert_eq!(parse(&odd), None);
        // Later versions may add to it.
        grant.push(7);
        assert_eq!(parse(&grant), Some(wake));
    }
}
