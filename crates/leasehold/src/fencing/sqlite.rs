//! The check for SQLite.
//!
//! Create the table once with [`SCHEMA`]. Then begin **every** transaction that works on the
//! protected resource, read-only ones included, with [`TOUCH`]. When it changes no row, a later
//! holder has been there: roll back and stop. [`SEEN`] tells which fence it had.
//!
//! ```
//! use leasehold::Fence;
//! use leasehold::fencing::sqlite::{SCHEMA, TOUCH};
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! fn write(db: &mut Connection, fence: Fence, text: &str) -> rusqlite::Result<bool> {
//!     let work = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     if work.execute(TOUCH, ("ledger", fence.as_i64()))? == 0 {
//!         return Ok(false);
//!     }
//!     work.execute("INSERT INTO entry VALUES (?1)", [text])?;
//!     work.commit()?;
//!     Ok(true)
//! }
//!
//! let mut db = Connection::open_in_memory()?;
//! db.execute_batch(SCHEMA)?;
//! db.execute_batch("CREATE TABLE entry (text TEXT)")?;
//! # let (early, later) = (Fence::new(0, 1).unwrap(), Fence::new(0, 2).unwrap());
//! assert!(write(&mut db, early, "first")?);
//! assert!(write(&mut db, later, "second")?);
//! assert!(!write(&mut db, early, "late")?);
//! # Ok::<(), rusqlite::Error>(())
//! ```
//!
//! The touch takes the database's write lock until the transaction ends, so fenced transactions
//! run one after the other. It has to be the transaction's **first** statement, and the work has
//! to be in that same transaction. `BEGIN IMMEDIATE` waits for the lock at a point where nothing
//! is lost by it; a plain `BEGIN` may see `SQLITE_BUSY` at the touch, which is no refusal.
//!
//! The upsert needs SQLite 3.24.

/// The table of guards. May be run again.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource TEXT NOT NULL PRIMARY KEY,
    fence INTEGER NOT NULL CHECK (fence >= 0)
) WITHOUT ROWID";

/// Raises the guard. `?1` is the resource's name and `?2` the fence
/// ([`Fence::as_i64`](crate::Fence::as_i64)). One row changes when it passes, none when it is
/// stale.
pub const TOUCH: &str = "\
INSERT INTO leasehold_fence (resource, fence) VALUES (?1, ?2) \
ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence \
WHERE leasehold_fence.fence <= excluded.fence";

/// The highest fence seen, for messages. `?1` is the resource's name.
pub const SEEN: &str = "SELECT fence FROM leasehold_fence WHERE resource = ?1";
