//! Owners: a name for people, and an identity for re-entrant locks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use leasehold_clock::Process;
use leasehold_core::{Bond, Error, ErrorKind, Key, OwnerName, Result, Token};
use sha2::{Digest as _, Sha256};

/// The owner of [`Reentrant`](crate::Reentrant) locks: code that has this value may take a lock
/// again that it holds.
///
/// It stands for itself and its clones, in any task or thread: which of them calls makes no
/// difference. Work that is spread over several tasks passes its owner along. Two pieces of work
/// that must exclude each other have an owner each.
///
/// An owner counts within one [`Client`](crate::Client) and its clones. Another client, in this
/// process or elsewhere, treats it as another owner, unless it was made [from a
/// secret](Self::from_secret).
#[derive(Clone)]
pub struct Owner {
    id: OwnerId,
    name: Option<Result<OwnerName>>,
}

/// The identity of an owner.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub(crate) enum OwnerId {
    /// By a number of this process.
    Numbered(u64),
    /// By a digest of its secret.
    Secret([u8; 32]),
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbered(number) => number.fmt(f),
            Self::Secret(_) => f.write_str("***"),
        }
    }
}

/// The identity of [`Owner::process`].
const PROCESS: u64 = 0;
/// The shortest secret.
const SECRET_MIN: usize = 16;

impl Owner {
    /// A new owner, different from all others, under the client's name.
    #[expect(clippy::new_without_default, reason = "each call gives another one")]
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(PROCESS + 1);
        let id = OwnerId::Numbered(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { id, name: None }
    }

    /// A new owner, different from all others also of the same name. The name is for people. The
    /// first method that locks reports a wrong name.
    #[must_use]
    pub fn named(name: impl AsRef<str>) -> Self {
        Self { name: Some(OwnerName::new(name)), ..Self::new() }
    }

    /// This process: one owner for all callers, under its name `host_pid_tag`.
    #[must_use]
    pub fn process() -> Self {
        Self { id: OwnerId::Numbered(PROCESS), name: Some(Ok(of_this_process())) }
    }

    /// The owner with this secret of at least 16 bytes: the same one in every client, in other
    /// processes and on other hosts, and after a restart. A caller that knows the secret can take a
    /// [`Reentrant`](crate::Reentrant) lock that this owner holds, so keep it as a password is
    /// kept.
    ///
    /// While one process holds the lock, the others of this owner take it at once, before the
    /// waiters. Each has a lease of its own, which it renews, and the lock comes free with the last
    /// of them. The lease of a process that dies excludes other owners until it expires. Its
    /// successor, with the same owner, takes the lock at once. Each process has a fence of its own,
    /// above the earlier ones. So the resource refuses the late writes of a dead process.
    ///
    /// While another owner holds the lock, this one queues like any contender. When its own owner
    /// gets the lock in another process meanwhile, it gets it with its next heartbeat.
    ///
    /// Quorums and the locks of other libraries refuse such an owner ([`ErrorKind::Unsupported`]).
    /// Each process shows its own name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// use leasehold::{Client, Owner};
    ///
    /// # let secret = "3d2f7a90c1b84e56";
    /// // let secret = std::fs::read("/etc/importer/owner.secret")?;
    /// let outer = client.reentrant("import", &Owner::from_secret(secret)?).lock().await?;
    /// // … in another process, or after a restart:
    /// let other = Client::new(client.store().clone())?;
    /// let inner = other.reentrant("import", &Owner::from_secret(secret)?).lock().await?;
    /// assert!(other.reentrant("import", &Owner::new()).try_lock().await?.is_none());
    /// # outer.release().await?; inner.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a shorter secret.
    pub fn from_secret(secret: impl AsRef<[u8]>) -> Result<Self> {
        let secret = secret.as_ref();
        if secret.len() < SECRET_MIN {
            let (length, short) = (secret.len(), SECRET_MIN);
            let why = format!(
                "an owner's secret of {length} bytes is too short; draw at least {short} at random, as \
                 `openssl rand -hex 16` does, and give all its processes the same"
            );
            return Err(Error::new(ErrorKind::Config, why));
        }
        let digest = Sha256::new().chain_update(b"leasehold owner 1\0").chain_update(secret);
        Ok(Self { id: OwnerId::Secret(digest.finalize().into()), name: None })
    }

    /// The bond of the holds that this owner has of a lock in several processes.
    pub(crate) fn bond(&self, key: &Key) -> Option<Bond> {
        let OwnerId::Secret(secret) = self.id else { return None };
        let digest = Sha256::new().chain_update(secret).chain_update(key.as_str());
        let number = digest.finalize().into_iter().take(8);
        Some(Bond::new(number.fold(0, |number, byte| (number << 8) | u64::from(byte))))
    }

    pub(crate) const fn id(&self) -> OwnerId {
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

/// `host_pid_tag`, the default owner. The tag distinguishes the process from processes with the
/// same number, in other containers or later.
pub(crate) fn of_this_process() -> OwnerName {
    static NAME: Mutex<Option<(Process, OwnerName)>> = Mutex::new(None);
    let process = Process::current();
    let mut name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    match &*name {
        Some((of, name)) if *of == process => name.clone(),
        _ => name.insert((process, named())).1.clone(),
    }
}

fn named() -> OwnerName {
    let number = std::process::id();
    let random = || Token::generate().map(|token| Process::tag_from(token.as_bytes()));
    let tag = Process::tag(number).or_else(|| random().ok()).unwrap_or_default();
    OwnerName::new(format!("{}_{number}_{tag}", host())).unwrap_or_default()
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
