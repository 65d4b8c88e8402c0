//! Reserves loopback ports that stay reserved between a server's lives.

use std::net::Ipv4Addr;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

/// A free loopback port.
///
/// On Linux it is held by a socket that is bound but never listens. A server that sets
/// `SO_REUSEADDR`, as Redis does, can bind it as well. The kernel hands it out to no other program,
/// so it is still there after the server was killed. Connections to it are refused while no server
/// listens.
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

    /// Finds and holds a port, and with it the one that is `offset` above.
    ///
    /// # Panics
    ///
    /// When the machine has no such ports.
    #[must_use]
    pub fn pair(offset: u16) -> (Self, Self) {
        for _ in 0..1_000 {
            let low = reserve();
            let high = low.port.checked_add(offset).and_then(reserve_at);
            if let Some(high) = high {
                return (low, high);
            }
        }
        panic!("loopback has no two free ports that are {offset} apart");
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

fn reserve() -> Reservation {
    reserve_at(0).expect("loopback has a free port")
}

/// Holds this port, or any for 0.
#[cfg(target_os = "linux")]
fn reserve_at(port: u16) -> Option<Reservation> {
    use std::net::SocketAddr;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

    let held = || -> rustix::io::Result<(u16, OwnedFd)> {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Another reservation could share a port that it names if SO_REUSEADDR were set.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, port == 0)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        let addr = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((addr.port(), socket))
    };
    let (port, socket) = held().ok()?;
    Some(Reservation { port, _socket: socket })
}

#[cfg(not(target_os = "linux"))]
fn reserve_at(port: u16) -> Option<Reservation> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
    Some(Reservation { port: listener.local_addr().expect("it is bound").port() })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_until_a_server_listens() {
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

    #[test]
    fn two_ports_are_held_as_one() {
        let (low, high) = Reservation::pair(10_000);
        assert_eq!(low.port() + 10_000, high.port());
        for port in [low.port(), high.port()] {
            drop(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap());
        }
    }
}
