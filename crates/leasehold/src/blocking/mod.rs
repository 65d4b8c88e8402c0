//! The same locks for threads: no runtime needed, every call waits where it stands.
//!
//! The types and their methods have the names and the meaning of those at the top of the crate;
//! their own pages say what differs. All clients of a process share one thread, `leasehold`, which
//! keeps leases renewed and gives up what guards leave behind, whatever the caller's threads do. It
//! starts with the first client and then stays, asleep while there is nothing to do; it does not
//! keep the process alive.
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
//! A call that would wait is refused with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) when it
//! is made by code that tokio polls: it would hold up every task of that thread. Use the async API
//! there, or `spawn_blocking`, where these calls work. Dropping is fine anywhere. Code under
//! `tokio::task::unconstrained` can't be told from code in `spawn_blocking`: a call there is not
//! refused, and holds up its thread.
//!
//! # At the end of the process
//!
//! What a guard leaves behind is given up while the process lives. Call [`Client::close`] before
//! `main` returns. Functions that run after it (`atexit`, destructors of thread-local values and of
//! a C library) come too late: calls are refused there, or find no thread any more, and a guard in a
//! `static` is never dropped. Such a lease ends with its ttl.
//!
//! # After `fork`
//!
//! The thread does not exist in a child made by `fork`. What the child inherits holds nothing:
//! calls that would wait are refused with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse), and
//! dropping leaks a little memory and touches nothing of the parent's. The child can make clients
//! of its own.

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
