//! Loopback ports that stay ours between a server's lives.

use std::net::Ipv4Addr;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

/// A free loopback port.
///
/// On Linux it is held by a socket that is bound but never listens. A server that sets
/// `SO_REUSEADDR`, as Redis does, can bind beside it, while the kernel hands the port to nobody as
/// a free one, so it is still there after the server was killed. A connection to it is refused as
/// long as no server listens.
#[derive(Debug)]
pub struct Reservation {
    port: u16,
    #[cfg(target_os = "linux")]
    _socket: OwnedFd,
}

impl Reservation {
    /// Finds and holds a port.
    ///
    /// # Panics
    ///
    /// When the machine has no free port.
    #[must_use]
    pub fn new() -> Self {
        reserve()
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Default for Reservation {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_os = "linux")]
fn reserve() -> Reservation {
    use std::net::SocketAddr;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

    let held = || -> rustix::io::Result<(u16, OwnedFd)> {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let addr = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((addr.port(), socket))
    };
    let (port, socket) = held().expect("loopback has a free port");
    Reservation { port, _socket: socket }
}

#[cfg(not(target_os = "linux"))]
fn reserve() -> Reservation {
    let listener =
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    Reservation { port: listener.local_addr().expect("it is bound").port() }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_until_somebody_listens() {
        let reservation = Reservation::new();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, reservation.port()));
        let refused = TcpStream::connect(addr).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // The standard library sets SO_REUSEADDR, as Redis does.
        let listener = TcpListener::bind(addr).unwrap();
        TcpStream::connect(addr).unwrap();
        drop(listener);
        TcpListener::bind(addr).unwrap();
    }
}
