//! Opening a socket to a server: TCP with the settings a lock needs, a Unix socket, or TLS.

use std::io;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::address::Endpoint;
use crate::classify::{Stage, Verdict, io_error};
use crate::tls::Tls;

/// Unanswered probes begin after a quiet quarter of a minute, so a client behind a dead network
/// notices before half a minute is over even when it sends nothing.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// Sent bytes that nobody acknowledged for so long end the connection. Left to itself, Linux
/// repeats them for a quarter of an hour.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// A socket of any sort.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a socket. Takes as long as the network does; the caller bounds it.
pub(crate) async fn dial(endpoint: &Endpoint, tls: &Tls) -> Result<Box<dyn Stream>, Verdict> {
    let verdict = |error: io::Error| io_error(error.kind(), &error.to_string(), Stage::Connecting);
    match endpoint {
        Endpoint::Tcp { host, port, .. } => {
            let socket = TcpStream::connect((host.as_str(), *port)).await.map_err(verdict)?;
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

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}
