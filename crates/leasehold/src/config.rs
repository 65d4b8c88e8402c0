//! The checked settings of a client.

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, OwnerName, Result, Ttl};

use crate::options::LockOptions;

/// The default length of a lease: long enough to ride out a fail-over, short enough to wait for
/// after a crash. The client renews it every third of that.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How long one request to the store may take by default.
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often in a row a lease is handed off inside the process by default before waiters elsewhere
/// get their turn.
pub const DEFAULT_LOCAL_HANDOFFS: u32 = 16;
/// For how long a lease is handed off inside the process, counted from its grant.
pub(crate) const LOCAL_HANDOFFS_FOR: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) ttl: Ttl,
    pub(crate) min_ttl: Ttl,
    pub(crate) min_renewal: Ttl,
    pub(crate) owner: OwnerName,
    pub(crate) call_timeout: Duration,
    pub(crate) local_handoffs: u32,
    pub(crate) retry_store: Duration,
    /// The options of locks that set none themselves.
    pub(crate) options: LockOptions,
}

impl Config {
    /// Passes when the ttl of a held lease may be set this short.
    pub(crate) fn allows(&self, ttl: Ttl) -> Result<()> {
        if ttl < self.min_renewal {
            let least = self.min_renewal;
            let why = format!(
                "a ttl of {ttl} is below this client's minimum of {least}; give a \
                               longer ttl"
            );
            return Err(Error::new(ErrorKind::Config, why));
        }
        Ok(())
    }

    /// The fences to reserve with each grant: the holder's own, and one for each hand-off inside
    /// the process.
    pub(crate) const fn fence_block(&self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self.local_handoffs)
    }
}
