//! The stores from outside: what they promise, and how they behave on bad days.

#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test, as the test itself would"
)]

mod ask;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod calls;
#[cfg(unix)]
mod child;
#[cfg(unix)]
mod crowd;
#[cfg(unix)]
mod damage;
#[cfg(unix)]
mod disk;
#[cfg(unix)]
mod foreign;
#[cfg(unix)]
mod fork;
#[cfg(target_os = "linux")]
mod gate;
#[cfg(unix)]
mod header;
mod memory;
#[cfg(unix)]
mod processes;
mod promises;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod steps;
#[cfg(target_os = "linux")]
mod views;
#[cfg(unix)]
mod wake;

/// A path for a store, removed with the test.
#[cfg(unix)]
fn place() -> (std::path::PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (directory.path().join("locks"), directory)
}
