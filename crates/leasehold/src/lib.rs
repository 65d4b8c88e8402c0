//! Distributed locks: the lock you can prove you hold.
//!
//! A **lock** is a name. Its holder has a **lease**, a hold that expires unless it is renewed, so a
//! crashed holder blocks others for one lease at most. Each lease has a **fencing token** (a
//! [`Fence`]): a number that grows with every lease of the name. By it the protected resource can
//! refuse a stale holder. A **store** grants the leases: Redis or Valkey, a table in PostgreSQL, a
//! directory for the processes of one machine, or memory for tests. The code is the same for all of
//! them.
//!
//! Begin with [`Client`], a connection to a store. It makes [`Mutex`] values. Locking one gives a
//! [`Guard`], the proof that this process may act. While the guard lives, the client renews its
//! lease in the background. If renewals fail, the guard reports the loss *before* the store can
//! grant the lock to another holder.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use leasehold::Client;
//!
//! // Or "embedded:/var/lib/app/locks", or "redis://127.0.0.1:6379".
//! let client = Client::connect("memory:").await?;
//! let mutex = client.mutex("reports/daily");
//!
//! let guard = mutex.lock().await?;
//! println!("held, with fence {}", guard.fence()?);
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # What happens if …
//!
//! | … | then |
//! | --- | --- |
//! | a guard or a future is dropped | the client releases in the background, while the process lives |
//! | the process dies | the lock is free after its ttl; on the embedded store at once |
//! | the lease is lost | `guard.lost()` returns, `guard.fence()` is an error, and a release fails |
//!
//! A [`Guard`] derefs to [`HeldLease`], and has all its methods.
//!
//! # Which lock?
//!
//! | you want | make | and call | example |
//! | --- | --- | --- | --- |
//! | one at a time | [`Client::mutex`] | [`lock`](Mutex::lock), [`try_lock`](Mutex::try_lock), [`run`](Mutex::run) | `increasing_ids` |
//! | one at a time, where the holder may lock again | [`Client::reentrant`] with an [`Owner`] | [`lock`](Reentrant::lock) | `thread_floors` |
//! | many readers, or one writer | [`Client::rwlock`] | [`read`](RwLock::read), [`write`](RwLock::write) | `rw_cache` |
//! | at most *n* at a time | [`Client::semaphore`] | [`acquire`](Semaphore::acquire) | `flash_sale` |
//! | several locks, all or none | [`Client::multi`] | [`lock`](Multi::lock), [`run`](Multi::run) | `job_queue` |
//! | once an hour, on the first host that tries | [`Client::once_per`] | [`run`](OncePer::run) | `cron_report` |
//! | one leader, which all can see | [`Client::election`] | [`campaign`](Election::campaign), [`run`](Election::run), [`observe`](Election::observe) | `election` |
//! | the holder to release | [`Mutex::ask`] | | [below](#-request-release-from-the-holder) |
//!
//! Each method that waits has a `try_…`, which does not wait, and a `…_within`, which waits for a
//! limited time. All kinds have leases with fencing tokens and the same setters. The client renews
//! them all, and reports their loss, in the same way. The examples are in the crate's `examples`
//! folder and run as they are. The [pages](docs) of the crate have [whole programs](docs::programs)
//! to copy and the [guarantees](docs::guarantees).
//!
//! Use a name for one kind of lock at a time. Mutexes, re-entrant and read-write locks, elections
//! and jobs are one kind and exclude each other under one name. A semaphore with its limit is
//! another kind; using a name as both is an error.
//!
//! # Stores and features
//!
//! | URL | store | feature |
//! | --- | --- | --- |
//! | `memory:` | this client alone; for tests | `embedded` (default) |
//! | `embedded:` | the processes of this user on this machine, without a server | `embedded` (default) |
//! | `embedded:/path` | the same, in a directory that you choose | `embedded` (default) |
//! | `redis://[user:password@]host[:port][/database]` | one Redis or Valkey server | `redis` (default) |
//! | `redis+unix:///path/to/socket` | the same, through a Unix socket | `redis` (default) |
//! | `rediss://…` | the same, through TLS | `tls-rustls` or `tls-native` |
//! | `redis+sentinel://host,host/name` | primaries that sentinels fail over; `rediss+sentinel://` through TLS | `redis` (default) |
//! | `redis+cluster://host,host` | a cluster; `rediss+cluster://` through TLS | `redis` (default) |
//! | `postgres://user@host/database` | [a table in PostgreSQL](postgres) | `postgres` |
//! | `quorum+redis://host,host,host` | a majority of several servers; `quorum+rediss://` through TLS | `quorum` and `redis` |
//! | `quorum:STORE,STORE,STORE` | a majority of several stores of any kind | `quorum` |
//! | `spread:NAME=STORE,NAME=STORE` | a sharded store: [each lock is in one of several](store::SpreadStore) | the features of its stores |
//!
//! [`Client::connect`] lists the settings that a URL may have.
//!
//! Further features, all off by default:
//!
//! - `interop` adds the module `interop`: locks shared with programs that use Redisson, redis-py,
//!   redislock, redsync and others.
//! - `metrics` counts waits, holds, hand-offs and losses through the `metrics` facade.
//! - `macros` has the attribute `#[leasehold::locked("report-{id}")]` for functions.
//! - `tower` has a layer that lets one request at a time through for each key.
//!
//! A feature only adds: types that exist without it keep their behaviour. To use a store of your
//! own, implement [`store::Store`] and give it to [`Client::new`].
//!
//! # How to …
//!
//! All of these run as they stand, with `let client = Client::connect("memory:").await?` before.
//!
//! ## … run a job once, on the first machine that tries
//!
//! [`Mutex::try_lock`] does not wait: for a held lock it returns `None` in place of a guard. (To
//! learn who holds it, use [`lock_within`](Mutex::lock_within) with a limit of zero.) A cooldown
//! then keeps the lock from being acquired for a while, so that a machine whose clock is behind
//! does not run the job again.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use leasehold::Cooldown;
//! use std::time::Duration;
//!
//! let mutex = client.mutex("reports/daily");
//! if let Some(guard) = mutex.try_lock().await? {
//!     // … the report …
//!     guard.release_with_cooldown(Cooldown::new(Duration::from_secs(60))?).await?;
//! }
//! assert!(mutex.try_lock().await?.is_none());
//! # Ok(()) }
//! ```
//!
//! ## … run a job once a day
//!
//! [`OncePer::run`] returns `None` if the job has started in this period already. A body that
//! failed counts as a start; [`run_or_reopen`](OncePer::run_or_reopen) reopens the period for
//! another try.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use std::time::Duration;
//!
//! let invoices = client.once_per("invoices", Duration::from_secs(23 * 3600));
//! let first = invoices.run_or_reopen(async |_lease| Err::<u32, _>("no mail server")).await?;
//! assert_eq!(first, Some(Err("no mail server")));
//! let second = invoices.run_or_reopen(async |_lease| Ok::<u32, &str>(17)).await?;
//! assert_eq!(second, Some(Ok(17)));
//! let third = invoices.run_or_reopen(async |_lease| Ok::<u32, &str>(0)).await?;
//! assert_eq!(third, None);
//! # Ok(()) }
//! ```
//!
//! ## … elect a leader, and see who leads
//!
//! [`Election::run`] campaigns, runs its body on the leader, and campaigns again after a loss. It
//! ends with what the body returns, or with `None` when the first argument is ready: a request to
//! stop. [`Election::campaign`] gives a [`Leadership`] instead, which ends by
//! [`resign`](Leadership::resign).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! let election = client.election("scheduler").owner("node-a");
//! let stop = std::future::pending(); // or tokio::signal::ctrl_c()
//! let led = election.run(stop, async |lease| lease.is_held()).await?;
//! assert_eq!(led, Some(true));
//!
//! let leadership = election.campaign().await?;
//! let mut leaders = client.election("scheduler").observe();
//! // `None` means that there is no leader just now; the next look may find one.
//! let leader = leaders.changed().await?;
//! assert_eq!(leader.unwrap().owner.as_str(), "node-a");
//! leadership.resign().await?;
//! # Ok(()) }
//! ```
//!
//! An observer looks at [intervals](Election::look_every), so a short term can go unseen.
//!
//! ## … wait, but not for ever
//!
//! Waiters are served in order of arrival. The error of a wait that timed out names the holder.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use leasehold::ErrorKind;
//! use std::time::Duration;
//!
//! let guard = client.mutex("stock").owner("web-7").lock().await?;
//! let error = client.mutex("stock").lock_within(Duration::from_millis(20)).await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Timeout);
//! assert_eq!(error.holder().unwrap().owner.as_str(), "web-7");
//! # guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! A limit of zero tries once, in one round trip, and gives the same error. With
//! [`Mutex::give_up_early`] the wait ends at once if the holder's lease expires after the limit.
//!
//! ## … set options once for many locks
//!
//! [`LockOptions`] apply to every kind of lock. A single lock can set more on itself.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use leasehold::LockOptions;
//! use std::time::Duration;
//!
//! let nightly = LockOptions::new().ttl(Duration::from_secs(120)).owner("nightly");
//! let ledger = client.mutex("ledger").options(&nightly).lock().await?;
//! let seats = client.semaphore("seats", 3).options(&nightly).metadata("row 7").acquire().await?;
//! # seats.release().await?;
//! # ledger.release().await?;
//! # Ok(()) }
//! ```
//!
//! Options for all locks of a client are set when the client is made: [`ClientBuilder::options`].
//!
//! ## … stop when the lock is lost
//!
//! [`Mutex::run`] takes the lock, runs a body, and releases. If the lease is lost, the body is
//! dropped at its current await.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! let mutex = client.mutex("ledger");
//! let work = mutex.run(async |lease| {
//!     // The view of the lease is for the work: its fence, its time left, its loss.
//!     assert!(lease.is_held());
//!     1 + 1
//! });
//! assert_eq!(work.await?, 2);
//! # Ok(()) }
//! ```
//!
//! A body that can fail returns a `Result` of its own, so its caller writes `?` twice: once for the
//! lock, once for the body.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! let mutex = client.mutex("ledger");
//! let booked = mutex.run(async |lease| {
//!     let fence = lease.fence()?; // for the UPDATE
//!     Ok::<_, leasehold::Error>(fence.as_i64())
//! });
//! assert!(booked.await?? > 0);
//! # Ok(()) }
//! ```
//!
//! `run` fails with a [`RunError`], which has what the body returned, if it did; `?` and `into()`
//! make an [`Error`] of it.
//!
//! Work that can't be dropped at an await has to look for a loss itself: call [`HeldLease::check`]
//! before each side effect, await [`HeldLease::lost`], or pass down a
//! [`HeldLease::cancellation_token`].
//!
//! ## … protect the resource itself
//!
//! A process can be paused between the check of its guard and its write. Only the resource can
//! refuse that write, by the fencing token. [`fencing`] has that check for values in this process,
//! for SQL databases and for Redis. A column of an SQL table takes [`Fence::as_i64`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use leasehold::fencing::FencedCell;
//!
//! let balance = FencedCell::new(100);
//! let guard = client.mutex("balance").lock().await?;
//! balance.update(guard.fence()?, |balance| *balance -= 10)?;
//! # guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! Each of several locks has a fence of its own, by name and in the order of the names:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! let both = client.multi(["account/2", "account/1"]).lock().await?;
//! for (key, fence) in both.fences()? {
//!     // UPDATE account SET …, fence = $fence WHERE name = $key AND fence <= $fence
//!     println!("{key}: {}", fence.as_i64());
//! }
//! both.release().await?;
//! # Ok(()) }
//! ```
//!
//! ## … transfer a lease to another process
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use leasehold::DetachedLease;
//!
//! let guard = client.mutex("deploy").lock().await?;
//! let secret = guard.detach().await?.to_secret_text();
//! // … there:
//! let lease: DetachedLease = secret.parse()?;
//! let guard = client.adopt(&lease).await?;
//! # guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! On the embedded store a lease ends with the process that acquired it, unless its client was made
//! with [`ClientBuilder::detached`].
//!
//! ## … list the holders, and force-release a lease
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! # let guard = client.mutex("reports/daily").metadata("pages=12").lock().await?;
//! for lock in client.list("reports/").await?.locks {
//!     for holder in &lock.holders {
//!         println!("{}: {} for {:?}", lock.key, holder.owner, holder.held_for);
//!         // The fence names the lease that was seen; another one is left alone.
//!         client.force_release(&lock.key, holder.fence).await?;
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! ## … request release from the holder
//!
//! The holder learns of the request and decides.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! let mutex = client.mutex("screen");
//! let guard = mutex.lock().await?;
//! let holder = async {
//!     guard.asked().await;
//!     guard.release().await
//! };
//! let visitor = async {
//!     assert!(mutex.ask().await?);
//!     mutex.lock().await
//! };
//! let (released, guard) = tokio::join!(holder, visitor);
//! released?;
//! assert!(guard?.is_held());
//! # Ok(()) }
//! ```
//!
//! ## … keep a record of locks
//!
//! [`Client::events`] reports each grant, hand-off, release and loss of this client's leases as it
//! happens.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! let mut events = client.events();
//! client.mutex("ledger").lock().await?.release().await?;
//! for expected in ["granted", "released"] {
//!     let event = events.next().await.expect("the client is there");
//!     println!("{} {} (fence {})", event.key, event.what.name(), event.fence);
//!     assert_eq!(event.what.name(), expected);
//! }
//! # Ok(()) }
//! ```
//!
//! ## … end a program
//!
//! A dropped guard is released in the background. [`Client::close`] waits for that, releases what
//! is still held, and ends every wait.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! drop(client.mutex("key").lock().await?);
//! client.close().await
//! # }
//! ```
//!
//! # Threads
//!
//! A thread without a runtime waits for any of these futures by [`Wait::wait`]:
//!
//! ```
//! # fn main() -> leasehold::Result<()> {
//! use leasehold::{Client, Wait};
//!
//! let client = Client::connect("memory:").wait()?;
//! let guard = client.mutex("reports/daily").lock().wait()?;
//! println!("held, with fence {}", guard.fence()?);
//! guard.release().wait()?;
//! client.close().wait()
//! # }
//! ```
//!
//! `.await` needs a tokio runtime with time and I/O (`enable_all`), and panics as tokio does on one
//! without. A client may be made on one runtime and used on another, in threads, or in several of
//! these at a time. It outlives them all. A future belongs to the runtime on which it was polled
//! first.
//!
//! One thread of the process, named `leasehold`, renews the leases of all clients. So a task that
//! blocks its worker, or a runtime that ends, costs no lease. The thread starts with the first
//! client, and sleeps while no lease is held. It does not keep the process alive. A renewal shows
//! that the process lives. It does not show that the work makes progress. If it should depend on
//! the work, set [`Mutex::progress_within`] and call [`HeldLease::progress`] from the work.
//!
//! [`driver`] returns the runtime of that thread. Spawn there what must go on when your own runtime
//! blocks or ends. A task that blocks there stops all renewals.
//!
//! # Tests
//!
//! Tests need no server: they connect to `memory:`, a store of that client and its clones alone.
//! With tokio's feature `test-util`, under `#[tokio::test(start_paused = true)]`, use
//! `Client::builder().tokio_time().connect("memory:")`. Leases then run on the test's time. See
//! [`ClientBuilder::tokio_time`].
//!
//! # What a lease can't promise
//!
//! While a guard says that it is held, no other guard of that name in that store does. The one
//! exception is [`Client::force_release`]: the holder learns of it at its next renewal, or at its
//! lease's end if the store is out of its reach. This assumes clocks that run at the same speed
//! within 1 %, and a store that keeps what it has acknowledged. A client's time of day, the
//! network, and the length of a process's pauses don't matter.
//!
//! * **It can't stop a write that is on its way.** A request that was sent under the lease may
//!   arrive after its end. Use [the fencing token](fencing).
//! * **It can't outlive its store's memory.** A Redis server may grant a held lock again if it
//!   restarts without persistence, evicts keys, or fails over to a replica that lacks the lock. The
//!   holder learns of it at its next renewal, at most a third of the ttl later. Fences of later
//!   leases are still larger, as long as the servers' clocks go forward.
//! * **It does not make work atomic or exactly-once.** A holder that dies half-way leaves half the
//!   work done, and the next holder has to cope with that.
//! * **It does not renew while the process stands still**, because it is stopped, swapped out, or
//!   suspended with its machine. The guard then reports the loss by the clock alone. Choose a `ttl`
//!   longer than the longest pause that the lock should survive.
//!
//! # Time
//!
//! All times are [`Duration`](std::time::Duration)s. A lease counts from the moment its request was
//! *sent*, less a margin of 1 % of the ttl and 2 ms. Its clock goes on while the machine sleeps
//! ([`clock::SystemClock`]). The default ttl is [`DEFAULT_TTL`]; leases are renewed every third of
//! their ttl.
//!
//! # Cost
//!
//! Each method says under *Cost* how many round trips it makes, what it waits for, and for how long
//! at most. A round trip is one request to the store and its answer: one call of a script on a
//! Redis server, one transaction of the embedded store. A quorum sends to all its nodes at the same
//! time; acquiring a lock is two such rounds. Three things can add to it: a connection that has to
//! be made first, a script that the server does not know yet, and [replicas](docs::operations) that
//! confirm a grant. All of them are part of the time that a request has, the [call
//! timeout](ClientBuilder::call_timeout), [`DEFAULT_CALL_TIMEOUT`] by default.
//!
//! # Errors
//!
//! There is one type, [`Error`]. [`RunError`] also has the body's value, and [`NotChanged`] the
//! guard. Branch on [`Error::kind`]. Most programs match [`Timeout`](ErrorKind::Timeout) (the wait
//! is over),
//! [`Lost`](ErrorKind::Lost) and [`Late`](ErrorKind::Late) (stop), and
//! [`Unavailable`](ErrorKind::Unavailable) (the store is away). [`Error::effect`] says whether the
//! operation may have happened anyway. After a timeout that can be *unknown*. Messages name the
//! lock and the store, but have no password or token in them.
//!
//! # Cancelling
//!
//! Every future can be dropped at any await; each method says under *Cancel safety* what that
//! means. A dropped future never leaks a lease: what it may have taken is released in the
//! background.
//!
//! The background needs the process to live on for the time of a request. A program that drops a
//! future or a guard and exits at once may leave something in the store. A lease stays for its ttl,
//! a position in the queue for its heartbeat timeout (by default 30 s at most). [`Client::close`]
//! waits until all of that is released. Futures that are awaited to their end need no such care: a
//! release has been answered by then, and a wait that fails has left the queue.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod audience;
mod audit;
mod background;
mod by_name;
mod client;
mod config;
mod connect;
mod cost;
#[cfg(doc)]
pub mod docs;
mod events;
pub mod fencing;
#[cfg(feature = "interop")]
pub mod interop;
mod kinds;
mod lease;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod locked;
mod log;
mod options;
mod owner;
mod refusal;
mod rt;
mod settings;
mod shared;
mod spread;
pub mod store;
mod together;
#[cfg(feature = "tower")]
pub mod tower;
mod wait;
mod waiting;

/// The target of log events about single locks.
const LOCK: &str = "leasehold::lock";

pub use audit::{LockEvent, LockEventKind, LockEvents, LossReason};
pub use client::{CLOSE_WITHIN, Client};
pub use config::{DEFAULT_CALL_TIMEOUT, DEFAULT_LOCAL_HANDOFFS, DEFAULT_TTL};
pub use connect::builder::ClientBuilder;
pub use kinds::election::{DEFAULT_LOOK_EVERY, Election, Leader, Leadership, Observer};
pub use kinds::multi::{Multi, MultiGuard};
pub use kinds::mutex::Mutex;
pub use kinds::once::{OnceGuard, OncePer, PERIOD_MIN, PERIOD_RANGE};
pub use kinds::reentrant::{Reentrant, ReentrantGuard};
pub use kinds::rwlock::{ReadGuard, RwLock, RwPreference, WriteGuard};
pub use kinds::semaphore::{Semaphore, SemaphoreGuard};
pub use lease::detached::DetachedLease;
pub use lease::guard::Guard;
pub use lease::held_lease::HeldLease;
pub use lease::held_leases::HeldLeases;
pub use lease::loss::Loss;
pub use lease::not_changed::NotChanged;
pub use lease::prolonged::Prolonged;
pub use lease::release::{Release, Releases};
pub use lease::run::RunError;
pub use options::{Fairness, LockOptions, WaitLimit};
pub use owner::Owner;
pub use wait::{Outcome, Wait};

pub use background::driver;
pub use leasehold_clock as clock;
pub use leasehold_core::{
    Cooldown, Effect, Error, ErrorKind, Fence, ForceRelease, HolderInfo, IntoKey, Key, Listing,
    LockInfo, Metadata, OwnerName, Reason, Result, Ttl, WaiterInfo, retry,
};
#[cfg(feature = "embedded")]
pub use leasehold_embedded as embedded;
#[cfg(feature = "macros")]
pub use leasehold_macros::locked;
#[cfg(feature = "postgres")]
pub use leasehold_postgres as postgres;
#[cfg(feature = "quorum")]
pub use leasehold_quorum as quorum;
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;
