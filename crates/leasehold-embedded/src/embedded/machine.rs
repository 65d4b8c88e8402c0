//! Identifies this run of this machine: after a restart, a store's leases are void.

use std::fmt;

use leasehold_core::Result;

/// If it is equal for two processes, their times are comparable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Machine {
    /// The kernel's random name for this boot.
    pub(super) boot: String,
    /// The time namespace: its number, and by how much its `CLOCK_BOOTTIME` is ahead. The kernel
    /// reuses the numbers of ended namespaces.
    pub(super) time_namespace: String,
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
                format!("an embedded store needs {BOOT_ID}; mount /proc"),
            )
            .caused_by(error)
        })?;
        let boot = boot.trim().to_owned();
        if boot.is_empty() || boot.contains(char::is_whitespace) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{BOOT_ID} has no boot id, which an embedded store needs"),
            ));
        }
        // Kernels before 5.6 have no time namespaces.
        let number =
            |of: &str| std::fs::metadata(format!("/proc/self/ns/{of}")).map_or(0, |it| it.ino());
        let own = number("time");
        // The file shows the offsets of this process's children.
        let ahead = (own == number("time_for_children"))
            .then(|| std::fs::read_to_string("/proc/self/timens_offsets").ok())
            .flatten();
        let ahead = ahead.as_deref().map_or_else(|| UNKNOWN.to_owned(), boottime_ahead);
        Ok(Self { boot, time_namespace: format!("{own} {ahead}") })
    }

    /// Without a name for the boot, only a clock that has gone back reveals a restart; see
    /// [`super::header::Header`].
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn this() -> Result<Self> {
        Ok(Self { boot: "unknown".to_owned(), time_namespace: format!("0 {UNKNOWN}") })
    }
}

/// Stands for an offset that can't be read.
const UNKNOWN: &str = "-";

/// Reads `/proc/self/timens_offsets`, one line for each clock: name or number, seconds,
/// nanoseconds.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn boottime_ahead(offsets: &str) -> String {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let is_boottime = matches!(words.next(), Some("boottime" | "7"));
        let (seconds, nanoseconds) = (words.next()?, words.next()?);
        is_boottime.then(|| format!("{seconds}.{nanoseconds}"))
    };
    offsets.lines().find_map(of).unwrap_or_else(|| UNKNOWN.to_owned())
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot {}, time namespace {}", self.boot, self.time_namespace)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_is_known_by_its_clock_as_well() {
        let said = |seconds: i64| format!("monotonic {seconds:>10} 0\nboottime {seconds:>10} 0\n");
        assert_eq!(boottime_ahead(&said(100_000)), "100000.0");
        assert_ne!(boottime_ahead(&said(0)), boottime_ahead(&said(-1)));
        assert_eq!(boottime_ahead("monotonic 0 0\n7 3 4\n"), "3.4");
        assert_eq!(boottime_ahead("monotonic 0 0\n"), UNKNOWN);
        assert_eq!(Machine::this().unwrap(), Machine::this().unwrap());
    }
}
