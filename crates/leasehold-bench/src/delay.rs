//! A TCP relay that adds a fixed delay each way.
//!
//! The test kit's proxy counts its delays in whole ticks of a millisecond, which is right for
//! faults; here a delay of 1 ms has to be one to within some 0.1 ms, so a thread of its own asks
//! the kernel to be woken at each due time.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long the thread may take to notice that it is to stop.
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
        let mut relay = Relay { upstream, each_way, listener, pairs: Vec::new() };
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

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Relay {
    upstream: SocketAddr,
    each_way: Duration,
    listener: TcpListener,
    pairs: Vec<Pair>,
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
    to_server: Way,
    to_client: Way,
}

/// What is on its way in one direction.
#[derive(Default)]
struct Way {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    closed: bool,
}

impl Relay {
    fn turn(&mut self) {
        self.wait();
        while let Ok((client, _)) = self.listener.accept() {
            // A connection that can't be made is dropped, and its client sees it closed.
            if let Ok(pair) = Pair::new(client, self.upstream) {
                self.pairs.push(pair);
            }
        }
        let each_way = self.each_way;
        self.pairs.retain_mut(|pair| pair.turn(each_way));
    }

    /// Until something came or something is due.
    fn wait(&self) {
        let mut sockets = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for pair in &self.pairs {
            if !pair.to_server.closed {
                sockets.push(PollFd::new(&pair.client, PollFlags::IN));
            }
            if !pair.to_client.closed {
                sockets.push(PollFd::new(&pair.server, PollFlags::IN));
            }
        }
        let due = self.pairs.iter().flat_map(|pair| [&pair.to_server, &pair.to_client]);
        let due = due.filter_map(|way| way.chunks.front()).map(|(due, _)| *due).min();
        let now = Instant::now();
        let left = due.map_or(LOOK_UP, |due| due.saturating_duration_since(now)).min(LOOK_UP);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // A signal that interrupts it only makes the turn come sooner.
        let _ready: Result<_, _> = poll(&mut sockets, Some(&timeout));
    }
}

impl Pair {
    fn new(client: TcpStream, upstream: SocketAddr) -> std::io::Result<Self> {
        let server = TcpStream::connect(upstream)?;
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        Ok(Self { client, server, to_server: Way::default(), to_client: Way::default() })
    }

    /// Moves what can be moved; `false` when the connection is over.
    fn turn(&mut self, each_way: Duration) -> bool {
        let Self { client, server, to_server, to_client } = self;
        to_server.read(client, each_way);
        to_client.read(server, each_way);
        let moved = to_server.write(server).and_then(|()| to_client.write(client));
        let over = |way: &Way| way.closed && way.chunks.is_empty();
        moved.is_ok() && !over(to_server) && !over(to_client)
    }
}

impl Way {
    fn read(&mut self, from: &mut TcpStream, each_way: Duration) {
        let mut buffer = [0; 16 * 1024];
        while !self.closed {
            match from.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(length) => {
                    let chunk = buffer.get(..length).unwrap_or_default().to_vec();
                    self.chunks.push_back((Instant::now() + each_way, chunk));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }

    fn write(&mut self, to: &mut TcpStream) -> std::io::Result<()> {
        while let Some((due, chunk)) = self.chunks.front_mut() {
            if *due > Instant::now() {
                return Ok(());
            }
            match to.write(chunk) {
                Ok(length) if length < chunk.len() => drop(chunk.drain(..length)),
                Ok(_) => drop(self.chunks.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
