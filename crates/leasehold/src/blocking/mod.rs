//! The same locks for threads: no runtime needed, every call waits where it stands.
//!
//! The types and their methods have the names and the meaning of those at the top of the crate;
//! their own pages say what differs. Each client runs one thread, `leasehold-io`, which keeps
//! leases renewed and gives up what guards leave behind, whatever the caller's threads do. It
//! ends when the last client, mutex, guard and lease of its family is gone, after what was left
//! to give up is done, or [`CLOSE_WITHIN`](crate::CLOSE_WITHIN) later.
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
//! there, or `spawn_blocking`, where these calls work. Dropping is fine anywhere.
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
mod guard;
mod io;
mod multi;
mod mutex;
mod once;
mod reentrant;
mod run;
mod rwlock;
mod semaphore;
mod value;

pub use client::{Client, ClientBuilder};
pub use election::{Election, Leadership, Observer};
pub use guard::{Guard, HeldLease};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use once::{OnceGuard, OncePer};
pub use reentrant::{Reentrant, ReentrantGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::Semaphore;
