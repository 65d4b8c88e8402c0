//! One connection through the proxy: two directions, each a reader, a queue and a writer.
//!
//! The reader decides what is lost, at the moment it arrives; the writer decides when the rest goes
//! out. Every chunk between them has its own due time, so latency delays a stream without slowing
//! it down.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{AfterLoss, Fault, Settings, Shared};
use crate::resp::{Kind, Scanner};

/// Chunks in flight in one direction; beyond it the sender is slowed down, as by a full pipe.
const QUEUE_LENGTH: usize = 1024;

const READ_SIZE: usize = 16 * 1024;

/// How long a server may take to read what a reset client had sent before.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Why a connection ends before both sides have closed it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    /// A side is gone, or a reply is lost and the client should notice: plain close.
    Close,
    /// The client gets a reset, at once.
    Reset,
    /// The client gets a reset; the server still executes the requests it was sent.
    ResetAndDrain,
}

enum Item {
    Bytes(Vec<u8>),
    /// The sender has closed. If a queue ends without it, data was lost, and the end is hidden from
    /// the receiver.
    End,
    Verdict(Verdict),
}

type Queue = mpsc::Sender<(Instant, Item)>;

/// Serves one accepted client to its end.
pub(super) async fn serve(
    shared: Arc<Shared>,
    mut client: TcpStream,
    mut kills: watch::Receiver<u64>,
) {
    let verdict = tokio::select! {
        verdict = relay(&shared, &mut client) => verdict,
        _ = kills.changed() => Verdict::Reset,
    };
    if verdict != Verdict::Close {
        // Lingering for no time makes the kernel send a reset.
        drop(client.set_zero_linger());
    }
    drop(client);
    shared.count(|stats| stats.connections_ended += 1);
}

async fn relay(shared: &Shared, client: &mut TcpStream) -> Verdict {
    let Ok(mut server) = TcpStream::connect(shared.upstream).await else {
        return unreachable(shared, client).await;
    };
    // Every write is a packet: the kernel must not merge what a fault has cut apart.
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return Verdict::Close;
    }
    let replies_cut = AtomicBool::new(false);
    let both = {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let (requests, requests_queued) = mpsc::channel(QUEUE_LENGTH);
        let (replies, replies_queued) = mpsc::channel(QUEUE_LENGTH);
        tokio::try_join!(
            read_requests(shared, client_read, requests, &replies_cut),
            write(shared, server_write, requests_queued),
            read_replies(shared, server_read, replies, &replies_cut),
            write(shared, client_write, replies_queued),
        )
    };
    match both {
        Ok(_) => Verdict::Close,
        Err(Verdict::ResetAndDrain) => {
            // In the background: the client must get its reset before the server is done.
            tokio::spawn(drain(server));
            Verdict::Reset
        }
        Err(verdict) => verdict,
    }
}

/// The server is down: the client is reset, except in a black hole.
async fn unreachable(shared: &Shared, client: &mut TcpStream) -> Verdict {
    let mut settings = shared.settings.subscribe();
    if settings.borrow().fault != Fault::BlackHole {
        return Verdict::Reset;
    }
    let mut buffer = vec![0; READ_SIZE];
    loop {
        tokio::select! {
            lifted = settings.wait_for(|settings| settings.fault != Fault::BlackHole) => {
                drop(lifted);
                return Verdict::Reset;
            }
            read = client.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return Verdict::Close,
                Ok(_) => {}
            },
        }
    }
}

/// Sends the server the end of the stream and reads until it has closed. A close with unread
/// replies would make the kernel send a reset, perhaps before the server has read the request.
async fn drain(mut server: TcpStream) {
    let until_closed = async {
        if server.shutdown().await.is_ok() {
            let mut buffer = vec![0; READ_SIZE];
            while matches!(server.read(&mut buffer).await, Ok(1..)) {}
        }
    };
    // A timeout is fine: the connection is abandoned in either case.
    drop(tokio::time::timeout(DRAIN_MAX, until_closed).await);
}

fn settings(shared: &Shared) -> Settings {
    *shared.settings.borrow()
}

/// Queues `item`. Fails only when the writer has ended, which ends the connection anyway.
async fn queue(queue: &Queue, latency: Duration, item: Item) -> Result<(), Verdict> {
    queue.send((Instant::now() + latency, item)).await.map_err(|_| Verdict::Close)
}

async fn read_requests(
    shared: &Shared,
    mut client: ReadHalf<'_>,
    to_server: Queue,
    replies_cut: &AtomicBool,
) -> Result<(), Verdict> {
    let mut scanner = Scanner::default();
    let mut buffer = vec![0; READ_SIZE];
    let mut mute = false;
    loop {
        // A reset by the client counts as a close.
        let length = client.read(&mut buffer).await.unwrap_or(0);
        let Settings { fault, latency_to_server: latency, .. } = settings(shared);
        mute |= matches!(fault, Fault::BlackHole | Fault::DropRequests);
        if length == 0 {
            return end(to_server, latency, mute).await;
        }
        let resetting = fault == Fault::ResetAfterRequest && !mute;
        let (taken, complete) = if resetting {
            let (taken, complete) = scanner.advance(&buffer[..length]);
            (taken, u64::from(complete))
        } else {
            (length, scanner.count(&buffer[..length]))
        };
        if complete > 0 {
            // Before they are passed on: a reply must never be counted ahead of its request.
            shared.count(|stats| {
                stats.requests += complete;
                stats.requests_forwarded += if mute { 0 } else { complete };
            });
        }
        if mute {
            continue;
        }
        // Also before: the server may answer while the verdict is still on its way.
        replies_cut.fetch_or(resetting && complete > 0, Ordering::SeqCst);
        queue(&to_server, latency, Item::Bytes(buffer[..taken].to_vec())).await?;
        if resetting && complete > 0 {
            queue(&to_server, latency, Item::Verdict(Verdict::ResetAndDrain)).await?;
            // The verdict ends this future too. Until then, reading must stop.
            std::future::pending::<()>().await;
        }
    }
}

/// Passes on that the sender of this direction has closed, unless it is mute.
async fn end(to: Queue, latency: Duration, mute: bool) -> Result<(), Verdict> {
    if mute { Ok(()) } else { queue(&to, latency, Item::End).await }
}

async fn read_replies(
    shared: &Shared,
    mut server: ReadHalf<'_>,
    to_client: Queue,
    replies_cut: &AtomicBool,
) -> Result<(), Verdict> {
    let mut replies = Replies { scanner: Scanner::default(), kind: Kind::Reply, target: None };
    let mut buffer = vec![0; READ_SIZE];
    let mut mute = false;
    loop {
        let length = server.read(&mut buffer).await.unwrap_or(0);
        let Settings { fault, latency_to_client: latency, .. } = settings(shared);
        mute |= replies_cut.load(Ordering::SeqCst)
            || matches!(fault, Fault::BlackHole | Fault::DropReplies(_));
        if length == 0 {
            return end(to_client, latency, mute).await;
        }
        let close_on_loss = fault == Fault::DropReplies(AfterLoss::Close);
        let taken = replies.take(shared, &buffer[..length], mute, close_on_loss);
        mute |= taken.forward < length;
        if taken.forward > 0 {
            let bytes = buffer[..taken.forward].to_vec();
            queue(&to_client, latency, Item::Bytes(bytes)).await?;
        }
        if taken.close {
            queue(&to_client, latency, Item::Verdict(Verdict::Close)).await?;
            std::future::pending::<()>().await;
        }
    }
}

/// How many bytes arrive of a reply that is cut off: its kind, and a sign that there is more.
const CUT_AFTER: usize = 2;

/// The replies of one connection, counted and dropped by frame.
struct Replies {
    scanner: Scanner,
    /// The kind of the current frame.
    kind: Kind,
    /// Set if the current frame is the one to drop.
    target: Option<AfterLoss>,
}

/// What to do with a chunk of replies.
struct Taken {
    /// How many of its first bytes to pass on. The rest is lost.
    forward: usize,
    /// Whether to close the connection after those bytes.
    close: bool,
}

impl Replies {
    fn take(&mut self, shared: &Shared, chunk: &[u8], mute: bool, close_on_loss: bool) -> Taken {
        let mut forward = if mute { 0 } else { chunk.len() };
        let mut position = 0;
        while position < chunk.len() {
            if self.scanner.at_start() {
                self.kind = Scanner::kind(chunk[position]);
                if self.kind == Kind::Reply {
                    self.target = shared.reply_begins();
                }
                if let Some(after) = self.target {
                    let arrives = if after == AfterLoss::Cut { CUT_AFTER } else { 0 };
                    forward = forward.min(position + arrives);
                }
            }
            let (taken, complete) = self.scanner.advance(&chunk[position..]);
            position += taken;
            if !complete || self.kind == Kind::Push {
                continue;
            }
            if position <= forward {
                shared.count(|stats| stats.replies_forwarded += 1);
                continue;
            }
            shared.count(|stats| stats.replies_dropped += 1);
            let target = self.target.take();
            if close_on_loss || matches!(target, Some(AfterLoss::Close | AfterLoss::Cut)) {
                return Taken { forward, close: true };
            }
        }
        Taken { forward, close: false }
    }
}

/// Sends what is queued, each item when it is due.
async fn write(
    shared: &Shared,
    mut to: WriteHalf<'_>,
    mut queue: mpsc::Receiver<(Instant, Item)>,
) -> Result<(), Verdict> {
    while let Some((due, item)) = queue.recv().await {
        tokio::time::sleep_until(due).await;
        moving(shared).await;
        match item {
            Item::Bytes(bytes) => {
                let slice_max = settings(shared).slice_max.map_or(bytes.len(), NonZeroUsize::get);
                for slice in bytes.chunks(slice_max) {
                    to.write_all(slice).await.map_err(|_| Verdict::Close)?;
                    // Lets a receiver in this process see the slice alone.
                    tokio::task::yield_now().await;
                }
            }
            Item::End => to.shutdown().await.map_err(|_| Verdict::Close)?,
            Item::Verdict(verdict) => return Err(verdict),
        }
    }
    Ok(())
}

/// Waits while the network is stalled.
async fn moving(shared: &Shared) {
    let mut settings = shared.settings.subscribe();
    // The sender lives in `shared`, so there is no error to handle.
    drop(settings.wait_for(|settings| settings.fault != Fault::Stall).await);
}
