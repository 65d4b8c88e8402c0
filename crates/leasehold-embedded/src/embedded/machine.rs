//! Which run of which machine this is, by which a store knows that its leases are void.

use std::fmt;

use leasehold_core::Result;

/// Times are comparable between two processes if this is equal for them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Machine {
    /// The kernel's random name for this boot.
    pub(super) boot: String,
    /// The identity of the time namespace: `CLOCK_BOOTTIME` has another offset in each.
    pub(super) time_namespace: u64,
}

impl Machine {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn this() -> Result<Self> {
        use std::os::unix::fs::MetadataExt as _;

        use leasehold_core::{Error, ErrorKind};

        const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(BOOT_ID).map_err(|error| {
            Error::new(
                ErrorKind::Unsupported,
                format!("an embedded store needs {BOOT_ID} to know when leases are void"),
            )
            .caused_by(error)
        })?;
        let boot = boot.trim().to_owned();
        if boot.is_empty() || boot.contains(char::is_whitespace) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{BOOT_ID} holds no boot id, which an embedded store needs"),
            ));
        }
        // Kernels before 5.6 have no time namespaces.
        let time_namespace = std::fs::metadata("/proc/self/ns/time").map_or(0, |meta| meta.ino());
        Ok(Self { boot, time_namespace })
    }

    /// Without a name for the boot, only a clock that has gone back tells of a restart; see
    /// [`super::header::Header`].
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn this() -> Result<Self> {
        Ok(Self { boot: "unknown".to_owned(), time_namespace: 0 })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot {}, time namespace {}", self.boot, self.time_namespace)
    }
}
