//! Distributed locks: the lock you can prove you hold.
//!
//! A **lock** is a name. Whoever takes it gets a **lease**, a hold that ends by itself unless it is
//! renewed, so that a crash locks nobody out. A lease comes with a **fence**, a number that grows
//! with every lease of the name, by which the protected resource can refuse a holder that is late.
//! Leases are granted by a **store**: Redis or Valkey, or a directory for the processes of one
//! machine, or memory for tests. The code is the same for all of them.
//!
//! The type to begin with is [`Client`], a connection to a store. It makes [`Mutex`] values; locking
//! one gives a [`Guard`], the proof that this process may act. While it is held the lease is renewed
//! in the background; when it can't be any more, the guard says so *before* the store could grant
//! the lock to somebody else.
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
//! # Which lock?
//!
//! | you want | take | for example |
//! | --- | --- | --- |
//! | one at a time | [`Client::mutex`] | `increasing_ids` |
//! | one at a time, and what it calls takes the lock again | [`Client::reentrant`] with an [`Owner`] | `building_floors` |
//! | many that look, or one that changes | [`Client::rwlock`] | `rw_cache` |
//! | so many at a time | [`Client::semaphore`] | `flash_sale` |
//! | several things at once, or none of them | [`Client::multi`] | `job_queue` |
//! | once an hour, on whichever host is first | [`Client::once_per`] | `cron_report` |
//! | one leader, whom everybody can see | [`Client::election`] | `election` |
//! | that the holder makes room | [`Client::ask`] | [below](#-ask-the-holder-to-let-go) |
//!
//! All of them have leases with fences, renewed and lost alike, and the same setters. The examples
//! are in the crate's `examples` folder and run as they are; [whole programs](docs::programs) to copy
//! are among the [pages](docs) that come with the crate, beside what is [guaranteed](docs::guarantees).
//!
//! A name is used as one kind at a time. Mutexes, re-entrant and read-write locks, elections and
//! jobs are one kind (they exclude each other under one name); a semaphore with its limit is
//! another, and using the name as both is an error.
//!
//! # Stores and features
//!
//! | URL | store | feature |
//! | --- | --- | --- |
//! | `memory:` | this client alone; for tests | `embedded` (default) |
//! | `embedded:` | the processes of this user on this machine, without a server | `embedded` (default) |
//! | `embedded:/path` | the same, in a directory of choice | `embedded` (default) |
//! | `redis://[user:password@]host[:port][/database]` | one Redis or Valkey server | `redis` (default) |
//! | `redis+unix:///path/to/socket` | the same, through a Unix socket | `redis` (default) |
//! | `rediss://…` | the same, through TLS | `tls-rustls` or `tls-native` |
//! | `redis+sentinel://host,host/name` | primaries that sentinels fail over; `rediss+sentinel://` through TLS | `redis` (default) |
//! | `redis+cluster://host,host` | a cluster; `rediss+cluster://` through TLS | `redis` (default) |
//! | `quorum+redis://host,host,host` | a majority of several servers | `quorum` and `redis` |
//! | `quorum:STORE,STORE,STORE` | a majority of several stores of any sort | `quorum` |
//!
//! [`Client::connect`] says what else a URL may have in it.
//!
//! The feature `interop` (off by default) adds `interop`: locks shared with programs that use Redisson,
//! redis-py, redislock, redsync and others. The feature `blocking` (off by default) adds [the same API
//! for threads](#threads), the feature `metrics` counts waits, holds, hand-offs and losses through the
//! `metrics` facade. No
//! feature changes how anything behaves that is there without it. A store of one's own is anything
//! that implements [`store::Store`], given to [`Client::new`].
//!
//! # How to …
//!
//! All of these run as they stand, with `let client = Client::connect("memory:").await?` before.
//!
//! ## … run a job once, on whichever machine is first
//!
//! [`Mutex::try_lock`] does not wait. That somebody else is at it is no error but `None`. A
//! cool-down keeps the lock closed for a while after, for the machine whose clock is late. For at
//! most one run in each hour or day there is [`OncePer`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use std::time::Duration;
//!
//! let mutex = client.mutex("reports/daily");
//! if let Some(guard) = mutex.try_lock().await? {
//!     // … the report …
//!     guard.release_with_cooldown(Duration::from_secs(60)).await?;
//! }
//! assert!(mutex.try_lock().await?.is_none());
//! # Ok(()) }
//! ```
//!
//! ## … wait, but not for ever
//!
//! Waiters are served in the order in which they came. The error of a wait that ran out says who
//! was in the way.
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
//! With a limit of zero it tries once, in one round trip, and says the same. With
//! [`Mutex::give_up_early`] it gives up at once when the holder's lease runs past the limit.
//!
//! ## … say once how locks are held
//!
//! [`LockOptions`] are for locks of every kind; what one lock needs besides is set on it.
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
//! What all locks of a client are to have is said where it is made: [`ClientBuilder::options`].
//!
//! ## … be stopped when the lock is lost
//!
//! [`Mutex::run`] takes the lock, runs a body, and releases. If the lease is lost the body is
//! dropped where it stands.
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
//! Work that can't be dropped at an await looks for itself: [`HeldLease::check`] before each side
//! effect, [`HeldLease::lost`] to wait for it, [`HeldLease::cancellation_token`] to hand down.
//!
//! ## … protect the resource itself
//!
//! A process can be paused between a look at its guard and its write. Only the resource can refuse
//! that write, by the fence; [`fencing`] has that check for values in this process, for SQL
//! databases and for Redis. A column of an SQL table takes [`Fence::as_i64`].
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
//! ## … give a lease to another process
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
//! On the embedded store a lease ends with the process that took it, unless its client was made
//! with [`ClientBuilder::detached`].
//!
//! ## … see who holds what, and take it away
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
//! ## … ask the holder to let go
//!
//! Nobody is forced: the holder learns of it and decides.
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
//! ## … end a program
//!
//! A dropped guard is given up in the background. [`Client::close`] waits for that, releases what
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
//! With the feature `blocking` the module `leasehold::blocking` has the same types with the same
//! methods for programs without a runtime. The async API needs a tokio runtime, any one: a client
//! may be made on one and used on another.
//!
//! Leases are renewed on a thread of leasehold's own, `leasehold`, one for all clients of a process,
//! async and blocking ones. A task that blocks its worker, or a runtime that ends, costs no lease.
//! The thread is started with the first client, sleeps while nothing is held, and does not keep the
//! process alive. Renewal says that the process lives; whoever wants it to depend on the work sets
//! [`Mutex::progress_within`], and calls [`HeldLease::progress`] from it.
//!
//! # Tests with paused time
//!
//! Under `#[tokio::test(start_paused = true)]` take
//! `Client::builder().tokio_time().connect("memory:")`: leases then run on the test's time. See
//! [`ClientBuilder::tokio_time`].
//!
//! # What a lease can't promise
//!
//! While a guard says that it is held, no other guard of that name in that store says so. That
//! rests on clocks that run at the same speed within 1 %, and on a store that keeps what it has
//! acknowledged. It rests on nothing else: not on the time of day of any client, not on the network,
//! and not on how long a process is paused.
//!
//! * **It can't stop a write that is on its way.** What was sent while the lease held may arrive
//!   after. Use [the fence](fencing).
//! * **It can't outlive its store's memory.** A Redis that is restarted without persistence, fails
//!   over to a replica that had not got the lock, or evicts keys may grant it again while it is
//!   held. The holder learns of it at its next renewal, after a third of the ttl at most. Fences of
//!   later leases are still larger, as far as the servers' clocks go forward.
//! * **It does not make work atomic, and not exactly once.** A holder that dies half-way leaves half
//!   the work done, and the next one has to cope.
//! * **It does not renew while the process stands still**, stopped, swapped out or suspended with
//!   its machine; the guard then says, by the clock alone, that it is lost. Leave `ttl` room for the
//!   longest pause that should be ridden out.
//!
//! # Time
//!
//! All times are [`Duration`](std::time::Duration)s. A lease is counted from the moment at which its
//! request was *sent*, on a clock that goes on while the machine sleeps ([`clock::SystemClock`]), and
//! 1 % of the ttl and 2 ms are left as a margin. The default ttl is [`DEFAULT_TTL`], renewed every
//! third of it.
//!
//! # Cost
//!
//! Each method says under *Cost* how many round trips it makes, what it waits for, and for how long
//! at most. A round trip is one request to the store and its answer: one call of a script on a Redis
//! server, one transaction of the embedded store. A quorum asks all nodes at the same time, and asks
//! again where their answers leave nobody with a majority. Three things can add to it: a connection
//! that has to be made first, a script that the server does not know yet, and
//! [replicas](docs::operations) that confirm a grant. All of them are part of the time that a request
//! has, the [call time-out](ClientBuilder::call_timeout), [`DEFAULT_CALL_TIMEOUT`] by default.
//!
//! # Errors
//!
//! There is one type, [`Error`]. [`Error::kind`] says what to branch on and [`Error::effect`] whether
//! the operation may have happened all the same: after a time-out nobody knows, and *unknown* is a
//! third truth beside yes and no. Messages name the lock and the store, and never a password or a
//! token.
//!
//! # Cancelling
//!
//! Every future here can be dropped at any await, and each says under *Cancel safety* what that
//! means. None leaves a lease behind that nobody gives up: what a dropped future may have taken is
//! released in the background.
//!
//! "In the background" needs the process to live on for the time of a request. A program that drops
//! a future or a guard and ends at once may leave a lease for its ttl, or a place in line for its
//! window of at most half a minute; [`Client::close`] waits until all of that is given up. What is
//! awaited to its end needs no such care: a release has been answered, and a wait that fails has
//! left the line before it says so.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
#[cfg(feature = "blocking")]
pub mod blocking;
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
mod options;
mod owner;
mod refusal;
mod rt;
mod settings;
mod shared;
pub mod store;
mod waiting;

/// The target of the events that tell what becomes of a single lock.
const LOCK: &str = "leasehold::lock";

pub use client::{CLOSE_WITHIN, Client};
pub use config::{DEFAULT_CALL_TIMEOUT, DEFAULT_LOCAL_HANDOFFS, DEFAULT_TTL};
pub use connect::builder::ClientBuilder;
pub use kinds::election::{DEFAULT_LOOK_EVERY, Election, Leader, Leadership, Observer};
pub use kinds::multi::{Multi, MultiGuard};
pub use kinds::mutex::Mutex;
pub use kinds::once::{OnceGuard, OncePer};
pub use kinds::reentrant::{Reentrant, ReentrantGuard};
pub use kinds::rwlock::{ReadGuard, RwLock, RwPreference, WriteGuard};
pub use kinds::semaphore::{Semaphore, SemaphoreGuard};
pub use lease::detached::DetachedLease;
pub use lease::guard::Guard;
pub use lease::held_lease::HeldLease;
pub use lease::held_leases::HeldLeases;
pub use lease::not_changed::NotChanged;
pub use lease::release::{Release, Releases};
pub use lease::run::RunError;
pub use options::{Fairness, LockOptions, WaitLimit};
pub use owner::Owner;

pub use leasehold_clock as clock;
pub use leasehold_core::{
    Effect, Error, ErrorKind, Fence, ForceRelease, HolderInfo, IntoKey, Key, Listing, LockInfo,
    Metadata, OwnerName, Result, Ttl, WaiterInfo, retry,
};
#[cfg(feature = "embedded")]
pub use leasehold_embedded as embedded;
#[cfg(feature = "quorum")]
pub use leasehold_quorum as quorum;
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;
