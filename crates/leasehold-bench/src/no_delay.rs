//! Stands in for the delaying relay on systems that lack it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;

/// Never created.
#[derive(Debug)]
pub(crate) enum Delay {}

impl Delay {
    pub(crate) fn start(_upstream: SocketAddr, _each_way: Duration) -> anyhow::Result<Self> {
        bail!("a delay can be added on Linux only; measure without --delay")
    }

    pub(crate) fn url(&self) -> String {
        match *self {}
    }
}
