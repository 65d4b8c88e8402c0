//! Who this process is, for people.

use leasehold_core::OwnerName;

/// `host_pid`, the default owner.
pub(crate) fn of_this_process() -> OwnerName {
    let name = format!("{}_{}", host(), std::process::id());
    OwnerName::new(&name).unwrap_or_default()
}

#[cfg(unix)]
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().take(60).collect()
}

#[cfg(not(unix))]
fn host() -> String {
    let name = std::env::var("COMPUTERNAME").or_else(|_| std::env::var("HOSTNAME"));
    name.unwrap_or_else(|_| "localhost".to_owned()).chars().take(60).collect()
}
