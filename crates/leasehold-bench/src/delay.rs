//! A TCP relay that adds a fixed delay each way.
//!
//! The test kit's proxy counts its delays in whole milliseconds, which suffices for faults. Here a
//! delay of 1 ms has to be exact to about 0.1 ms. So a separate thread asks the kernel to wake it
//! at each due time, and when a socket has data. Linux only: elsewhere the other measurements work.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{Timespec, epoll};

/// How long the thread may take to notice that it has to stop.
const LOOK_UP: Duration = Duration::from_millis(50);

/// A running relay; dropping it stops it and closes its connections.
#[derive(Debug)]
pub(crate) struct Delay {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Delay {
    pub(crate) fn start(upstream: SocketAddr, each_way: Duration) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &listener, NEWCOMER, epoll::EventFlags::IN)?;
        let mut relay = Relay {
            upstream,
            each_way,
            listener,
            ready,
            pairs: BTreeMap::new(),
            next_pair: 1,
            chunks: VecDeque::new(),
        };
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("delay".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    relay.turn();
                }
            })
            .context("cannot start the thread of the delay")?;
        Ok(Self { addr, stop })
    }

    pub(crate) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The kernel's label for the listener. A pair's sockets have twice its number, and one more.
const NEWCOMER: epoll::EventData = epoll::EventData::new_u64(0);

struct Relay {
    upstream: SocketAddr,
    each_way: Duration,
    listener: TcpListener,
    ready: OwnedFd,
    pairs: BTreeMap<u64, Pair>,
    next_pair: u64,
    /// All data under way, in order: with one delay for all, the oldest is due first.
    chunks: VecDeque<Chunk>,
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
}

struct Chunk {
    due: Instant,
    pair: u64,
    way: Way,
    /// Empty if the sender has closed.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Way {
    ToServer,
    ToClient,
}

impl Relay {
    fn turn(&mut self) {
        for name in self.wait() {
            let way = if name.is_multiple_of(2) { Way::ToServer } else { Way::ToClient };
            match name {
                0 => self.accept(),
                name => self.read(name / 2, way),
            }
        }
        self.pass_on();
    }

    /// Waits for data or until a chunk is due; returns which sockets have data.
    fn wait(&self) -> Vec<u64> {
        let due = self.chunks.front().map(|chunk| chunk.due);
        let left = due.map_or(LOOK_UP, |due| due.saturating_duration_since(Instant::now()));
        let left = left.min(LOOK_UP);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let mut events = Vec::with_capacity(256);
        // An interrupting signal only makes the turn come sooner.
        let _count: Result<_, _> =
            epoll::wait(&self.ready, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        events.iter().map(|event: &epoll::Event| event.data.u64()).collect()
    }

    fn accept(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            // If the connection upstream fails, the client sees its own closed.
            let Ok(pair) = Pair::new(client, self.upstream) else { continue };
            for (socket, name) in
                [(&pair.client, self.next_pair * 2), (&pair.server, self.next_pair * 2 + 1)]
            {
                let name = epoll::EventData::new_u64(name);
                // If this fails, the connection hangs, which is easy to notice.
                let _added: Result<_, _> =
                    epoll::add(&self.ready, socket, name, epoll::EventFlags::IN);
            }
            self.pairs.insert(self.next_pair, pair);
            self.next_pair += 1;
        }
    }

    fn read(&mut self, number: u64, way: Way) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let from = match way {
            Way::ToServer => &mut pair.client,
            Way::ToClient => &mut pair.server,
        };
        let mut buffer = [0; 16 * 1024];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A reset is forwarded as a close.
                Err(_) => 0,
            };
            let bytes = buffer.get(..length).unwrap_or_default().to_vec();
            self.chunks.push_back(Chunk {
                due: Instant::now() + self.each_way,
                pair: number,
                way,
                bytes,
            });
            if length < buffer.len() {
                return;
            }
        }
    }

    /// Writes all chunks that are due.
    fn pass_on(&mut self) {
        while let Some(chunk) = self.chunks.front_mut()
            && chunk.due <= Instant::now()
        {
            let written = match (self.pairs.get_mut(&chunk.pair), chunk.way) {
                (None, _) => Ok(chunk.bytes.len()),
                (Some(_), _) if chunk.bytes.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
                (Some(pair), Way::ToServer) => pair.server.write(&chunk.bytes),
                (Some(pair), Way::ToClient) => pair.client.write(&chunk.bytes),
            };
            match written {
                Ok(length) if length < chunk.bytes.len() => drop(chunk.bytes.drain(..length)),
                Ok(_) => drop(self.chunks.pop_front()),
                // The receiver is slow; the next turn tries again.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.pairs.remove(&chunk.pair);
                    self.chunks.pop_front();
                }
            }
        }
    }
}

impl Pair {
    fn new(client: TcpStream, upstream: SocketAddr) -> std::io::Result<Self> {
        let server = TcpStream::connect(upstream)?;
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        Ok(Self { client, server })
    }
}
