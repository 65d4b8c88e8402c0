//! One machine, many processes: locks in a directory, without a server.
//!
//! [`open`] prepares a store and [`environment`] holds it. [`table`] runs the lock table inside the
//! [`gate`]. [`session`] detects dead holders, and [`wake`] notifies waiters.

mod checksum;
mod commits;
mod directory;
mod doctor;
mod environment;
mod filesystem;
mod gate;
mod header;
mod in_use;
mod log;
mod machine;
mod noted;
mod open;
mod options;
mod pages;
mod record;
mod room;
mod session;
mod still_there;
mod table;
mod unshared;
mod wake;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod word;
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
#[path = "no_word.rs"]
mod word;
mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::table::{Now, Operation};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Call, Capability, ClientId,
    Convert, ConvertRequest, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave,
    LeaveRequest, ListRequest, Listener, Listing, LockInfo, LockLog, Release, ReleaseRequest,
    Renew, RenewRequest, Result, SetLimit, SetLimitRequest, Store, Token,
};

pub use options::EmbeddedStoreOptions;

use environment::Environment;
use record::SessionId;
use session::Session;
use table::ListFrom;

use crate::tokens;

/// A store for the processes of one machine: a directory, and no server.
///
/// Clones and all stores that a process has opened at the same path share the file. Every call of
/// [`open`](Self::open) begins a *session*. Leases and queue positions belong to the session that
/// acquired them and end **at once** with it. A session ends when its process dies, however that
/// happens, or when the last clone is dropped. A process that is merely stopped keeps its leases
/// until their ttl ends. Leases of a [detached](EmbeddedStoreOptions::detached) store belong to no
/// session and end with their ttl alone. A fork shares its parent's session, which then lasts until
/// both have ended.
///
/// # Guarantees
///
/// Every operation is one atomic step for all processes of the machine, even if a process is killed
/// in the middle of it. Leases run on the time since the machine was started, sleep included.
/// Setting the time of day does not affect them, and a restart voids them. Fences keep growing over
/// a restart if the time of day does.
///
/// # Time
///
/// An operation takes a few microseconds and runs on the calling thread. If another process is in
/// the middle of an operation, this one waits on the store's own thread, for at most `within`. It
/// is then either carried out or known not to have been.
///
/// # Forks
///
/// In a forked child every operation is an [`ErrorKind::Misuse`], and dropping the child's copy
/// leaves its parent's leases alone. The child can open the store again, for a session of its own.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("locks");
/// use std::time::Duration;
/// use leasehold_core::{Acquire, AcquireRequest, Key, Store, Token, Ttl};
/// use leasehold_embedded::EmbeddedStore;
///
/// let store = EmbeddedStore::open(&path)?;
/// let ttl = Ttl::new(Duration::from_secs(30))?;
/// let request = AcquireRequest::new(Key::new("reports/daily")?, Token::generate()?, ttl);
/// let answer = store.acquire(&request, Duration::from_secs(1)).await?;
/// assert!(matches!(answer, Acquire::Granted(_)));
/// # Ok::<(), leasehold_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct EmbeddedStore {
    environment: Arc<Environment>,
    client: Arc<Client>,
}

/// How often the head of a queue checks whether a holder in its way has died.
const LOOK_FOR_DEAD_EVERY: Duration = Duration::from_millis(200);

/// What belongs to one call of `open`.
#[derive(Debug)]
struct Client {
    detached: bool,
    /// How many events the log keeps; 0 for no log.
    log: u32,
    /// Begun by the first acquisition, so that a mere look leaves no trace. It begins inside the
    /// gate, where this process is alone.
    session: OnceLock<Session>,
}

impl EmbeddedStore {
    /// Opens the store in a directory, and creates it if there is none.
    ///
    /// Blocks for a moment, and for up to five seconds while another process is inside. In async
    /// code use `spawn_blocking`, or a client's URL.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`]: the path is relative or another kind of file, or can't be created.
    /// * [`ErrorKind::Denied`]: this user may not use it, or other users could write to it.
    /// * [`ErrorKind::Unsupported`]: it is on a network file system, or was made by a later
    ///   version.
    /// * [`ErrorKind::Corrupt`]: the files can't be read as a store. Nothing was changed.
    /// * [`ErrorKind::Foreign`]: the directory has other files in it and no store. Nothing was
    ///   changed.
    /// * [`ErrorKind::Full`]: the disk is full.
    /// * [`ErrorKind::Misuse`]: it is in use in another time namespace, or by processes of another
    ///   machine.
    /// * [`ErrorKind::Unavailable`]: another process is stopped inside, or the operating system
    ///   failed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Settings to open a store with.
    pub fn options() -> EmbeddedStoreOptions {
        EmbeddedStoreOptions::default()
    }

    /// A user's store if no path is given.
    ///
    /// It is `/var/lib/leasehold` for all users of a machine that has this directory, as with the
    /// Debian package. Elsewhere it is `/run/leasehold` for root, and `/tmp/leasehold-UID` for
    /// other users. It ignores the environment, so that a shell, cron and services of one user
    /// share one store.
    #[must_use]
    pub fn default_path() -> PathBuf {
        directory::default_path()
    }

    /// Whether [`default_path`](Self::default_path) is the same for all users of this machine.
    #[must_use]
    pub fn default_is_shared() -> bool {
        directory::shared_path().is_some()
    }

    /// The store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.environment.path
    }

    /// How many names the store has an entry for, and how many of them are in use. For tests and
    /// for people. Reads all of them.
    ///
    /// # Errors
    ///
    /// As every operation.
    pub async fn entries(&self, within: Duration) -> Result<(usize, usize)> {
        self.environment.run(&(), within, |store, pass, ()| table::count(store, pass)).await
    }

    /// Carries out one operation on one lock.
    fn perform<'a, O>(
        &'a self,
        key: &'a Key,
        operation: &'a O,
        within: Duration,
    ) -> BoxFuture<'a, Result<<O as Operation>::Answer>>
    where
        O: Operation<Answer: Send> + Call + Clone,
    {
        Box::pin(async move {
            let here = self
                .environment
                .run_here(|store, pass, now| self.client.perform(store, pass, now, key, operation));
            let answer = match here {
                Some(answer) => answer,
                // Boxed: most requests don't need the space that this future takes.
                None => Box::pin(self.perform_queued(key, operation, within)).await,
            };
            answer.map_err(|error| error.during(O::METHOD.name()).on_key(key))
        })
    }

    async fn perform_queued<O>(
        &self,
        key: &Key,
        operation: &O,
        within: Duration,
    ) -> Result<<O as Operation>::Answer>
    where
        O: Operation<Answer: Send> + Call + Clone,
    {
        let (client, key) = (Arc::clone(&self.client), key.clone());
        let operation = operation.clone();
        let step = move |store: &Environment, pass: &gate::Pass<'_>, now: Now| {
            client.perform(store, pass, now, &key, &operation)
        };
        self.environment.run_queued(within, step).await
    }

    fn new(environment: Arc<Environment>, detached: bool, log: u32) -> Self {
        Self { environment, client: Arc::new(Client { detached, log, session: OnceLock::new() }) }
    }
}

impl Client {
    /// Carries an operation out inside the gate.
    fn perform<O: Operation>(
        &self,
        store: &Environment,
        pass: &gate::Pass<'_>,
        now: Now,
        key: &Key,
        operation: &O,
    ) -> table::Answer<O::Answer> {
        let session = if O::TAKES { self.session(store, pass)? } else { None };
        table::perform(store, pass, now, session, key, operation)
    }

    /// The session that new leases belong to, begun at first use.
    fn session(&self, store: &Environment, pass: &gate::Pass<'_>) -> Result<Option<SessionId>> {
        if self.detached {
            return Ok(None);
        }
        if let Some(session) = self.session.get() {
            return Ok(Some(session.id));
        }
        let begun = Session::begin(store.sessions.directory(), store.access, pass)
            .map_err(|error| directory::unusable("begin a session in", error))?;
        Ok(Some(self.session.get_or_init(|| begun).id))
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { environment, client } = self;
        f.debug_struct("EmbeddedStore")
            .field("path", &environment.path)
            .field("detached", &client.detached)
            .field("log", &client.log)
            .finish_non_exhaustive()
    }
}

impl Store for EmbeddedStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        self.perform(&request.key, request, within)
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for batch in requests.chunks(table::BATCH) {
                match self.environment.run(batch, within, table::renew).await {
                    Ok(answered) => answers.extend(answered),
                    Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
                }
            }
            let named = requests.iter().zip(answers).map(|(request, answer)| {
                answer.map_err(|error: Error| error.during("renew").on_key(&request.key))
            });
            named.collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        self.perform(&request.key, request, within)
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        self.perform(&request.key, request, within)
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(async move {
            AcquireAll::check(requests).map_err(|error| error.during("acquire"))?;
            let asked = (requests.to_vec(), Arc::clone(&self.client));
            let step =
                |store: &Environment,
                 pass: &gate::Pass<'_>,
                 (requests, client): &(Vec<AcquireRequest>, Arc<Client>)| {
                    let session = client.session(store, pass)?;
                    table::acquire_all(store, pass, session, requests)
                };
            let answer = self.environment.run(&asked, within, step).await;
            answer.map_err(|error| error.during("acquire"))
        })
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        self.perform(&request.key, request, within)
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        self.perform(&request.key, request, within)
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        self.perform(&request.key, request, within)
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let answer = self.environment.run(key, within, table::inspect).await;
            answer.map_err(|error| error.during("inspect").on_key(key))
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(async move {
            let mut whole = Listing::default();
            let mut from = Some(ListFrom::start(&request.prefix));
            while let Some(here) = from.take() {
                let listed = self.environment.run(&here, within, table::list).await;
                let listed = listed.map_err(|error| error.during("list"))?;
                whole.locks.extend(listed.locks);
                let unreadable = listed.unreadable.into_iter();
                whole.unreadable.extend(unreadable.map(|error| error.during("list")));
                from = listed.next.map(|name| ListFrom { name, ..here });
            }
            Ok(Listing::new(whole.locks, whole.unreadable))
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        self.perform(&request.key, request, within)
    }

    fn listen<'a>(
        &'a self,
        client: ClientId,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let channel = self.environment.listen(client)?;
            Ok(Box::new(channel) as Box<dyn Listener>)
        })
    }

    /// A restart of the machine ends a store's leases, but also all their holders.
    fn remembers_for(&self, _within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async move {
            let enter = |_: &Environment, _: &gate::Pass<'_>, (): &()| Ok(((), Vec::new()));
            let entered = self.environment.run(&(), within, enter).await;
            entered.map_err(|error| error.during("examine"))?;
            Ok(doctor::examine(&self.environment, self.client.detached))
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        Some(Arc::new(self.clone()))
    }

    fn token(&self) -> Result<Token> {
        tokens::draw()
    }

    fn capability(&self) -> Capability {
        let mut capability = Capability::ALL;
        capability.wake = self.environment.wakes.works();
        capability.notices_death = Some(LOOK_FOR_DEAD_EVERY);
        capability
    }

    fn location(&self) -> String {
        self.environment.location.to_string()
    }
}

/// A store's name for people.
fn location(path: &Path) -> String {
    format!("embedded:{}", leasehold_core::escape::terminal(&path.to_string_lossy()))
}

/// Refuses what another version has written.
fn other_format(format: u32) -> Error {
    let (of, remedy) = if format > header::FORMAT {
        ("a later", "upgrade this one, or name another directory")
    } else {
        ("an earlier", "end all its processes and remove its directory, or name another")
    };
    let known = header::FORMAT;
    let why = format!("made by {of} version of leasehold (format {format}, not {known}); {remedy}");
    Error::new(ErrorKind::Unsupported, why)
}
