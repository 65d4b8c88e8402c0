//! The same locks for threads: no runtime needed, every call waits where it stands.
//!
//! The types and their methods have the names and the meaning of those at the top of the crate;
//! their own pages say what differs. All clients of a process share one thread, `leasehold`. It
//! renews leases and releases what guards leave behind, independently of the caller's threads. It
//! starts with the first client and then stays, asleep while it has no work. It does not keep the
//! process alive.
//!
//! Everything here can be shared between threads, and any number of them may wait at once.
//!
//! ```
//! # fn main() -> leasehold::Result<()> {
//! use leasehold::blocking::Client;
//!
//! let client = Client::connect("memory:")?;
//! let mutex = client.mutex("reports/daily");
//! if let Some(guard) = mutex.try_lock()? {
//!     // … the report …
//!     guard.release()?;
//! }
//! client.close()
//! # }
//! ```
//!
//! # Inside an async runtime
//!
//! tokio must not poll code that waits here, since all tasks of that thread would wait with it.
//! Such a call is refused with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse). Use the async API
//! there, or `spawn_blocking`, where these calls work. Dropping is fine anywhere. Code under
//! `tokio::task::unconstrained` looks like code in `spawn_blocking`: a call there passes, and
//! blocks its thread.
//!
//! # At the end of the process
//!
//! leasehold's thread releases what a guard leaves behind while the process lives. Call
//! [`Client::close`] before `main` returns. Functions that run after it (`atexit`, destructors of
//! thread-local values and of a C library) come too late: calls there are refused, or find no
//! thread. A guard in a `static` is never dropped. Such a lease expires.
//!
//! # After `fork`
//!
//! The thread does not exist in a child made by `fork`. The child holds no lease. Calls on clients
//! of the parent that would wait are refused with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse).
//! Dropping such a client or guard leaks a little memory and leaves the parent's leases alone. The
//! child can make clients of its own.

mod client;
mod driven;
mod election;
mod errors;
mod face;
mod guard;
#[cfg(feature = "interop")]
pub mod interop;
mod io;
mod multi;
mod mutex;
mod once;
mod reentrant;
mod run;
mod rwlock;
mod semaphore;
mod table;

pub use client::{Client, ClientBuilder, LockEvents};
pub use election::{Election, Leadership, Observer};
pub use guard::{Guard, HeldLease, HeldLeases};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use once::{OnceGuard, OncePer};
pub use reentrant::{Reentrant, ReentrantGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{Semaphore, SemaphoreGuard};
