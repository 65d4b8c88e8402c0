//! Opens a socket to a server: TCP with the settings that a lock needs, Unix, or TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::Effect;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::classify::{self, Stage, Verdict, io_error};
use crate::connect::tls::{Stream, Tls};
use crate::topology::address::Endpoint;

/// Probes begin after 15 s of silence, so a client behind a dead network notices it within 30 s
/// even if it sends no requests.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// The connection ends if sent bytes stay unacknowledged for this time. By default, Linux repeats
/// them for about 15 min.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a socket: to the address `at`, if it is set, or to any address of the name. The caller
/// must set a time limit, since the network may never answer.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    at: Option<SocketAddr>,
    tls: &Tls,
) -> Result<Socket, Verdict> {
    Ok(Socket::new(open(endpoint, at, tls).await?))
}

async fn open(
    endpoint: &Endpoint,
    at: Option<SocketAddr>,
    tls: &Tls,
) -> Result<Box<dyn Stream>, Verdict> {
    let verdict = |error: io::Error| io_error(&error, Stage::Connecting);
    match endpoint {
        Endpoint::Tcp { host, port, .. } => {
            let socket = match at {
                Some(at) => TcpStream::connect(at).await,
                None => TcpStream::connect((host.as_str(), *port)).await,
            };
            let socket = socket.map_err(verdict)?;
            prepare(&socket).map_err(verdict)?;
            tls.wrap(host, socket).await
        }
        #[cfg(unix)]
        Endpoint::Unix(path) => {
            Ok(Box::new(tokio::net::UnixStream::connect(path).await.map_err(verdict)?))
        }
        #[cfg(not(unix))]
        Endpoint::Unix(_) => {
            Err(Verdict::misconfigured("this system has no Unix sockets; use redis://host:port"))
        }
    }
}

/// An open socket, which remembers the server's first answer if it was an error.
///
/// A server that refuses a client sends the reason and closes, often before the client has written.
/// The reason can still be read after a write has failed.
pub(crate) struct Socket {
    inner: Box<dyn Stream>,
    /// Writing has failed. What the server sent before can still be read.
    broken: bool,
    begun: bool,
    /// The last two bytes that were read.
    last: [u8; 2],
    heard: FirstWords,
}

/// How every answer ends.
const END_OF_LINE: [u8; 2] = *b"\r\n";

impl Socket {
    pub(crate) fn new(inner: Box<dyn Stream>) -> Self {
        let heard = FirstWords::default();
        Self { inner, broken: false, begun: false, last: END_OF_LINE, heard }
    }

    /// Has the connection end by a reset when it is closed: the system then drops what it could not
    /// send.
    pub(crate) fn keep_nothing(&self) {
        if let Some(socket) = self.inner.tcp() {
            // This fails if the connection has ended.
            drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
        }
    }

    pub(crate) fn first_words(&self) -> FirstWords {
        self.heard.clone()
    }

    /// Logs in by means of the client library, and returns the socket with no request under way.
    pub(crate) async fn log_in(self, login: &RedisConnectionInfo) -> RedisResult<Self> {
        let lent = Lent(Arc::new(Mutex::new(Some(self))));
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let opened = MultiplexedConnection::new_with_config(login, lent.clone(), config).await?;
        drop(opened);
        lent.socket().take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    }
}

/// The error that a server began with.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstWords(Arc<OnceLock<String>>);

impl FirstWords {
    /// Enough to recognise the error.
    const BYTES_MAX: usize = 200;

    fn note(&self, bytes: &[u8]) {
        let Some(error) = bytes.strip_prefix(b"-") else { return };
        let Some(end) = error.iter().position(|byte| *byte == b'\r') else { return };
        let line = error.get(..end).unwrap_or_default();
        let line = line.get(..Self::BYTES_MAX).unwrap_or(line);
        // The client library also sends its own name, and goes on if the server refuses that.
        let line = String::from_utf8_lossy(line).into_owned();
        if !line.to_ascii_lowercase().contains("setinfo") {
            drop(self.0.set(line));
        }
    }

    /// The server's own reason for a failure to connect, if the server sent one.
    pub(crate) fn explain(&self, verdict: Verdict) -> Verdict {
        match self.0.get() {
            Some(line) if !verdict.answered => {
                let (code, detail) = line.split_once(' ').unwrap_or((line, ""));
                classify::server(code, detail).with_effect(Effect::NotApplied)
            }
            _ => verdict,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let bytes = buffer.filled().get(before..).unwrap_or_default();
        if !bytes.is_empty() && !self.begun {
            self.begun = true;
            self.heard.note(bytes);
        }
        match bytes {
            // The client library takes a text that was cut off for a whole one.
            [] if matches!(read, Poll::Ready(Ok(())))
                && buffer.remaining() > 0
                && self.last != END_OF_LINE =>
            {
                return Poll::Ready(Err(classify::cut_off()));
            }
            [] => {}
            [only] => self.last = [self.last[1], *only],
            [.., last_but_one, last] => self.last = [*last_but_one, *last],
        }
        read
    }
}

impl Socket {
    /// Reports a failure to write as a success, because reading may still return the server's
    /// reason.
    fn unless_broken<T>(&mut self, written: Poll<io::Result<T>>, taken: T) -> Poll<io::Result<T>> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        match written {
            Poll::Ready(Err(error))
                if matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset) =>
            {
                self.broken = true;
                Poll::Ready(Ok(taken))
            }
            written => written,
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.unless_broken(written, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.unless_broken(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// A socket that is lent to the client library.
#[derive(Clone)]
struct Lent(Arc<Mutex<Option<Socket>>>);

impl Lent {
    fn socket(&self) -> MutexGuard<'_, Option<Socket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        work: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.socket() {
            Some(socket) => work(Pin::new(socket)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Lent {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Lent {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.with(|socket| socket.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_shutdown(cx))
    }
}
