//! Wall clock and processor time of both sides over one turn.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::server::Server;

/// Measures from its start to its reading.
#[derive(Debug)]
pub(crate) struct Meter {
    server: Option<Server>,
    server_us: f64,
    client_us: f64,
    started: Instant,
}

/// What one turn took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) wall: Duration,
    pub(crate) client_us: f64,
    /// NaN without a server.
    pub(crate) server_us: f64,
}

impl Meter {
    pub(crate) fn start(server: Option<&Server>) -> Self {
        let server = server.cloned();
        let server_us = server.as_ref().map_or(f64::NAN, Server::cpu_us);
        Self { server, server_us, client_us: own_cpu_us(), started: Instant::now() }
    }

    pub(crate) fn read(self) -> Reading {
        let (wall, client_us) = (self.started.elapsed(), own_cpu_us() - self.client_us);
        let server_us = self.server.as_ref().map_or(f64::NAN, Server::cpu_us) - self.server_us;
        Reading { wall, client_us, server_us }
    }
}

fn own_cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
