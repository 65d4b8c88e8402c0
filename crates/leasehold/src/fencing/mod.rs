//! Checks fencing tokens ([`Fence`](crate::Fence)) at a protected resource, and refuses lower ones.
//!
//! A lease can end while its holder does not know it: the process was paused, the machine slept,
//! the network was gone. No lock can prevent the last write of that stale holder. Only the resource
//! can: it keeps the highest fence that it has seen, the **fence record**, and refuses every lower
//! one. This module has that check for resources of several kinds:
//!
//! * [`FencedCell`]: a value in this process.
//! * [`postgresql`], [`mysql`], [`sqlite`]: SQL text, run in the same transaction as the work.
//! * [`redis`]: a Lua script that checks the fence and runs one command, in one step.
//!
//! All of them keep these four rules, which a check needs to prove anything:
//!
//! 1. **Check and work are one atomic step.** A check in a request of its own proves nothing about
//!    the request that follows it.
//! 2. **The first touch raises the record, reads included.** Suppose that a new holder reads,
//!    decides and only then writes. The read has to exclude the stale holder, or a stale write
//!    between the two would go unseen.
//! 3. **Every touch changes the record, and commits.** A touch that is rolled back never happened.
//! 4. **A lower fence is refused; an equal one passes.** One lease may touch the resource as often
//!    as it likes.
//!
//! # Every touch commits
//!
//! In a database, the touch is part of the transaction, and so is undone with it. A fenced read
//! that ends in `ROLLBACK` has excluded no stale holder, and many drivers roll back a transaction
//! that is dropped. There are two ways to keep rule 3, and both may be used together:
//!
//! * Commit every fenced transaction, reads too.
//! * Begin each *lease* with a touch that commits by itself, before anything is read. It excludes
//!   every earlier holder for good, however later transactions end. Each transaction still begins
//!   with a touch.
//!
//! # Shared leases
//!
//! Readers and holders of permits hold the lock together, each with a fence of its own, so a fence
//! lower than another reader's is not stale. Use the shared touch of each resource for them: it
//! refuses a fence below the last *writer's*, and a writer's touch refuses a fence below the last
//! reader's. So a reader whose lease ended before a writer came is excluded, and so is a writer
//! whose lease ended before readers came.
//!
//! # A fence in each row
//!
//! If the resource has a row, document or object of its own, the fence can be stored in it, and the
//! check becomes part of the write itself: `UPDATE account SET balance = …, fence = $2 WHERE id =
//! $1 AND fence <= $2`. That needs the fence in *every* row the lease protects, and reads must
//! write it too; the statements here keep one fence record per protected resource instead.
//!
//! A fence belongs to one lock of one store. Keep one record per lock, never compare the fences of
//! two locks, and when a lock moves to another store let the last holder there finish first.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let client = leasehold::Client::connect("memory:").await?;
//! use leasehold::fencing::FencedCell;
//!
//! let ledger = FencedCell::new(Vec::new());
//! let mutex = client.mutex("ledger");
//!
//! let guard = mutex.lock().await?;
//! let early = guard.fence()?;
//! ledger.update(early, |entries| entries.push("first"))?;
//! guard.release().await?;
//!
//! let guard = mutex.lock().await?;
//! assert_eq!(ledger.read(guard.fence()?, Vec::len)?, 1);
//! // The first holder comes back. The read has excluded it.
//! assert!(ledger.update(early, |entries| entries.push("late")).is_err());
//! # guard.release().await?;
//! # Ok(()) }
//! ```

mod cell;
pub mod mysql;
pub mod postgresql;
pub mod redis;
pub mod sqlite;
mod stale;

pub use cell::FencedCell;
pub use stale::{StaleFence, passed};
