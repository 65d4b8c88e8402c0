//! The clocks that leasehold runs on; only this crate reads the time of day.
//!
//! [`SystemClock`] is what leases run on; [`ManualClock`] moves only when a test moves it;
//! [`TokioClock`] (feature `tokio`) follows a runtime whose time is paused. All of them are a
//! [`leasehold_core::Clock`]. The time of day ([`wall`]) seeds fences and decides nothing.
//!
//! Leases depend on a second fact that only the machine knows: which process this is ([`Process`]),
//! since a process's forks don't hold its leases. With the feature `tokio`, a process has a thread
//! of its own, on which leases are renewed ([`Driver`]).

#[cfg(feature = "tokio")]
mod driver;
mod manual;
mod process;
mod system;
mod tag;
#[cfg(feature = "tokio")]
mod tokio;
pub mod wall;

pub use manual::ManualClock;
pub use process::Process;
pub use system::SystemClock;
pub use wall::fence_floor;

#[cfg(feature = "tokio")]
pub use self::driver::Driver;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
