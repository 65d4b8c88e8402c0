//! A TCP proxy that loses, delays or cuts what passes between a client and a server.
//!
//! Faults are switched while connections live. The proxy has its own thread, so a test that blocks
//! its executor does not slow the traffic. `connection` applies the faults to one connection; this
//! module is the handle, the listener and the numbers.
//!
//! The invariant is TCP's: **a stream never loses its middle**. A connection that has lost a byte
//! in one direction stays mute in that direction until it is closed, even after the fault is
//! lifted. Otherwise a client could take the second request's answer for the first one's, which
//! can't happen on a network.
//!
//! ```
//! use leasehold_testkit::proxy::{AfterLoss, Proxy};
//! use leasehold_testkit::server::RedisServer;
//!
//! let server = RedisServer::start();
//! let proxy = Proxy::start(server.addr());
//! proxy.drop_reply(1, AfterLoss::Close);
//! // A client of `proxy.url()` now gets its first request executed and never hears of it.
//! # let mut stream = std::net::TcpStream::connect(proxy.addr()).unwrap();
//! # std::io::Write::write_all(&mut stream, b"SET key value\r\n").unwrap();
//! # assert_eq!(std::io::Read::read(&mut stream, &mut [0; 9]).unwrap(), 0);
//! # assert_eq!(server.cli(&["GET", "key"]), "value");
//! ```

mod connection;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Long enough for any machine, short enough for a failing test to report it.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// How many connections the kernel queues until they are accepted.
const BACKLOG: u32 = 1024;

/// The fault of all traffic, until the next [`Proxy::set`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// Both directions are swallowed, like by a firewall that drops packets. Connections are
    /// accepted and stay open, even when the other side closes.
    BlackHole,
    /// Replies are swallowed: requests are executed, and the client does not learn that. With
    /// [`AfterLoss::Close`] the connection is closed once a whole reply is lost.
    DropReplies(AfterLoss),
    /// Requests are swallowed before they are executed, and the client does not learn that.
    DropRequests,
    /// All data passes.
    #[default]
    Pass,
    /// New connections are refused. Existing ones continue; see [`Proxy::kill_connections`].
    Refuse,
    /// The next complete request of a connection is executed, and the client gets a reset (RST)
    /// instead of the reply.
    ResetAfterRequest,
    /// All data waits and arrives when the fault is lifted: a partition that heals, as TCP sees it.
    Stall,
}

/// What happens to a connection that lost a reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum AfterLoss {
    /// It is closed in good order (FIN), once everything sent before has arrived.
    Close,
    /// As [`Close`](Self::Close), but the first two bytes of the reply still arrive.
    Cut,
    /// It stays open, and no further reply comes through.
    Silence,
}

/// What has passed so far, over all connections.
///
/// Requests and replies are counted as RESP frames. A push (RESP3) is neither. A message on a RESP2
/// subscription counts as a reply, since both look alike. What a client sends and gets while it
/// connects (`HELLO`, `AUTH`, `CLIENT SETINFO`) counts like everything else. With TLS these numbers
/// are meaningless.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections accepted.
    pub connections: u64,
    /// Connections that have ended.
    pub connections_ended: u64,
    /// Complete requests that came from clients, passed on or not.
    pub requests: u64,
    /// Requests passed on in full; with latency, on their way.
    pub requests_forwarded: u64,
    /// Replies that began to come from the server, passed on or not.
    pub replies: u64,
    /// Replies passed on in full; with latency, on their way.
    pub replies_forwarded: u64,
    /// Replies swallowed in full, by any fault; their requests were executed.
    pub replies_dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    fault: Fault,
    latency_to_client: Duration,
    latency_to_server: Duration,
    slice_max: Option<NonZeroUsize>,
}

/// The reply that [`Proxy::drop_reply`] waits for.
#[derive(Clone, Copy, Debug)]
struct Armed {
    /// Replies still to pass, the fatal one included.
    replies_left: u64,
    after: AfterLoss,
}

#[derive(Debug)]
struct Shared {
    armed: Mutex<Option<Armed>>,
    connections: Mutex<Vec<JoinHandle<()>>>,
    kills: watch::Sender<u64>,
    listening: watch::Sender<bool>,
    settings: watch::Sender<Settings>,
    stats: watch::Sender<Stats>,
    upstream: SocketAddr,
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut Stats)) {
        self.stats.send_modify(change);
    }

    fn armed(&self) -> MutexGuard<'_, Option<Armed>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a reply that begins; returns what to do if it is the one to swallow.
    fn reply_begins(&self) -> Option<AfterLoss> {
        self.count(|stats| stats.replies += 1);
        let mut armed = self.armed();
        let target = armed.as_mut()?;
        target.replies_left -= 1;
        if target.replies_left > 0 {
            return None;
        }
        armed.take().map(|target| target.after)
    }
}

/// A running proxy. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    // An option, because a runtime shuts down without blocking only by value.
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy on a free loopback port in front of `upstream`, which need not be there yet.
    ///
    /// # Panics
    ///
    /// When the machine has no free thread or port.
    #[must_use]
    pub fn start(upstream: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("test-proxy")
            .enable_all()
            .build()
            .expect("a test process can start one more thread");
        // Sockets belong to the runtime that is entered here.
        let context = runtime.enter();
        let held = bind((Ipv4Addr::LOCALHOST, 0).into());
        let addr = held.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            armed: Mutex::new(None),
            connections: Mutex::new(Vec::new()),
            kills: watch::Sender::new(0),
            listening: watch::Sender::new(true),
            settings: watch::Sender::new(Settings::default()),
            stats: watch::Sender::new(Stats::default()),
            upstream,
        });
        let listener = bind(addr).listen(BACKLOG).expect("the port is ours");
        runtime.spawn(accept(Arc::clone(&shared), held, listener));
        drop(context);
        Self { addr, runtime: Some(runtime), shared }
    }

    /// `127.0.0.1` and the port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Switches to `fault`. Everything that is sent after this returns is subject to it.
    ///
    /// # Panics
    ///
    /// When the port cannot be opened again after [`Fault::Refuse`].
    pub fn set(&self, fault: Fault) {
        self.change(|settings| settings.fault = fault);
        let mut listening = self.shared.listening.subscribe();
        self.block_on(async move {
            let wanted = fault != Fault::Refuse;
            // An error means that the listening task died, which only a lost port can cause.
            listening.wait_for(|listening| *listening == wanted).await.map(drop)
        })
        .expect("the port of the proxy is still ours");
    }

    /// Delays everything by this much on its way to the server and back. Order and spacing are
    /// kept: a burst arrives as a burst.
    pub fn set_latency(&self, to_server: Duration, to_client: Duration) {
        self.change(|settings| {
            settings.latency_to_server = to_server;
            settings.latency_to_client = to_client;
        });
    }

    /// Cuts everything into pieces of at most this many bytes, in both directions. `None` ends it.
    ///
    /// Every piece is a packet, but a receiver that is slower than the proxy sees several at once.
    pub fn set_slice_max(&self, bytes: impl Into<Option<NonZeroUsize>>) {
        let bytes = bytes.into();
        self.change(|settings| settings.slice_max = bytes);
    }

    /// Swallows the `k`-th reply that begins from now on, counted over all connections from 1, and
    /// then closes or silences its connection. Happens once; a second call replaces the first.
    ///
    /// # Panics
    ///
    /// When `k` is 0.
    pub fn drop_reply(&self, k: u64, after: AfterLoss) {
        assert!(k > 0, "replies are counted from 1");
        *self.shared.armed() = Some(Armed { replies_left: k, after });
    }

    /// Resets every connection, and returns once they are gone. New ones are accepted.
    ///
    /// # Panics
    ///
    /// When a connection does not end.
    pub fn kill_connections(&self) {
        // Taken before the signal: a connection accepted in between may live on, and must not be
        // waited for.
        let connections = std::mem::take(&mut *self.shared.connections());
        self.shared.kills.send_modify(|kills| *kills += 1);
        self.block_on(async move {
            for connection in connections {
                drop(connection.await);
            }
        });
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *self.shared.stats.borrow()
    }

    /// Waits until the numbers are as wanted, and returns them.
    ///
    /// # Panics
    ///
    /// When they are not after 20 seconds.
    pub async fn wait_for(&self, wanted: impl FnMut(&Stats) -> bool + Send) -> Stats {
        let mut stats = self.shared.stats.subscribe();
        // Measured on the proxy's runtime, since the test's may have its clock paused.
        let deadline = self.runtime().spawn(async { tokio::time::sleep(WAIT_MAX).await });
        tokio::select! {
            found = stats.wait_for(wanted) => *found.expect("the proxy holds the sender"),
            _ = deadline => panic!("waited for in vain: {:?}", self.stats()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) {
        self.shared.settings.send_modify(change);
    }

    /// Blocks the calling thread, inside a runtime or not, for something the proxy does at once.
    fn block_on<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.runtime().spawn(async move {
            // The receiver is waited on below.
            drop(done.send(work.await));
        });
        result.recv_timeout(WAIT_MAX).expect("the proxy answers")
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only Drop takes it")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A plain drop would block, which is forbidden inside another runtime.
            runtime.shutdown_background();
        }
    }
}

/// A socket on `addr` that does not listen yet.
///
/// `SO_REUSEPORT` lets a second socket of the proxy hold the port while the listener is closed. So
/// the port stays reserved, and the kernel itself refuses connections.
fn bind(addr: SocketAddr) -> TcpSocket {
    let bound = || -> std::io::Result<TcpSocket> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(addr)?;
        Ok(socket)
    };
    bound().expect("loopback has a free port")
}

async fn accept(shared: Arc<Shared>, held: TcpSocket, listener: TcpListener) {
    let addr = held.local_addr().expect("it is bound");
    let mut settings = shared.settings.subscribe();
    let mut listener = Some(listener);
    // Ends when the handle is dropped, with the runtime.
    while let Ok(fault) = settings.wait_for(|_| true).await.map(|settings| settings.fault) {
        match (listener.take(), fault) {
            (Some(listening), Fault::Refuse) => stop(listening),
            (None, Fault::Refuse) => {}
            (Some(listening), _) => listener = Some(listening),
            (None, _) => listener = Some(bind(addr).listen(BACKLOG).expect("the port is ours")),
        }
        shared.listening.send_replace(listener.is_some());
        tokio::select! {
            // First, so that a refusal comes before connections that are waiting.
            biased;
            changed = settings.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            client = next(listener.as_ref()) => {
                let Ok(client) = client else { continue };
                shared.count(|stats| stats.connections += 1);
                let kills = shared.kills.subscribe();
                let task = tokio::spawn(connection::serve(Arc::clone(&shared), client, kills));
                let mut connections = shared.connections();
                connections.retain(|connection| !connection.is_finished());
                connections.push(task);
            }
        }
    }
}

/// Ends listening at once. A child forked a moment ago has a copy of the socket until it runs
/// another program. A mere close would let that copy accept connections.
fn stop(listener: TcpListener) {
    rustix::net::shutdown(&listener, Shutdown::Read).expect("it listens");
}

async fn next(listener: Option<&TcpListener>) -> std::io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(client, _)| client),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
