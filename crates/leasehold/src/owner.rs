//! Owners: a name for people, and an identity for re-entrant locks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{OwnerName, Result};

/// The owner of [`Reentrant`](crate::Reentrant) locks: code that has this value may take a lock
/// again that it holds.
///
/// It stands for itself and its clones, whichever task or thread they are in. Nothing is ever
/// concluded from the task or the thread that calls: work that is spread over several passes its
/// owner along, and two pieces of work that must exclude each other have an owner each.
///
/// An owner counts within one [`Client`](crate::Client) and its clones. To another client, in this
/// process or elsewhere, it is a stranger, which waits.
#[derive(Clone)]
pub struct Owner {
    id: u64,
    name: Option<Result<OwnerName>>,
}

/// The identity of [`Owner::process`].
const PROCESS: u64 = 0;

impl Owner {
    /// A new owner, different from all others, under the client's name.
    #[expect(clippy::new_without_default, reason = "each call gives another one")]
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(PROCESS + 1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), name: None }
    }

    /// A new owner, different from all others also of the same name. The name is for people; what
    /// is wrong with it is told by the first method that locks.
    #[must_use]
    pub fn named(name: impl AsRef<str>) -> Self {
        Self { name: Some(OwnerName::new(name)), ..Self::new() }
    }

    /// This process: the same owner wherever it is asked for, under the name `host_pid`.
    #[must_use]
    pub fn process() -> Self {
        Self { id: PROCESS, name: Some(Ok(of_this_process())) }
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn name(&self) -> Option<&Result<OwnerName>> {
        self.name.as_ref()
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("id", &self.id).field("name", &self.name).finish()
    }
}

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
