//! Checks fences in SQLite.
//!
//! Create the table once with [`SCHEMA`]. Then begin **every** transaction that works on the
//! protected resource, read-only ones included, with [`TOUCH`] (or with [`TOUCH_SHARED`] under a
//! [shared lease](super#shared-leases)), and **commit** it, reads too. If the touch changes no row,
//! a later holder has touched the resource: roll back and stop. [`passed`](super::passed) turns the
//! count into an error; [`SEEN`] returns the later holder's fence.
//!
//! ```
//! use leasehold::Fence;
//! use leasehold::fencing::{passed, sqlite::{SCHEMA, TOUCH}};
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! fn write(db: &mut Connection, fence: Fence, text: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let work = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     passed(work.execute(TOUCH, ("ledger", fence.as_i64()))?, fence)?;
//!     work.execute("INSERT INTO entry VALUES (?1)", [text])?;
//!     work.commit()?;
//!     Ok(())
//! }
//!
//! let mut db = Connection::open_in_memory()?;
//! db.execute_batch(SCHEMA)?;
//! db.execute_batch("CREATE TABLE entry (text TEXT)")?;
//! # let (early, later) = (Fence::from_value(1)?, Fence::from_value(2)?);
//! write(&mut db, early, "first")?;
//! write(&mut db, later, "second")?;
//! assert!(write(&mut db, early, "late").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The touch takes the database's write lock until the transaction ends, so fenced transactions
//! run one after the other. That holds as long as you keep these rules:
//!
//! * The touch is the transaction's **first** statement, and the work is in the same transaction.
//!   Outside one the touch commits by itself and proves nothing about the statements after it;
//!   `sqlite3_get_autocommit` (rusqlite: `is_autocommit`) shows that.
//! * The transaction commits. `ROLLBACK` takes the touch back, so a fenced *read* that rolls back
//!   excludes no stale holder, and rusqlite, sqlx and Python's `sqlite3` roll back a transaction
//!   that you drop. `ROLLBACK TO` takes the touch back as well if the savepoint is older than the
//!   touch. If you can't control how transactions end, let the lease begin with a [touch that
//!   commits by itself](super#every-touch-commits).
//! * `BEGIN IMMEDIATE` waits for the lock before any work is done. After a plain `BEGIN` the touch
//!   may see `SQLITE_BUSY`, which is not a refusal: roll back and run the transaction again, **from
//!   `BEGIN` on**.
//!
//! A holder that is paused inside its transaction delays its successor for as long as it is paused:
//! SQLite has no server that could end it. Set a busy timeout (`sqlite3_busy_timeout`) of at most
//! the ttl, so that the successor gets an error.
//!
//! Bind the name as text and the fence as an integer; the table refuses blobs, which would be names
//! of their own. The upsert needs SQLite 3.24.

/// The table of fence records. May be run again.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource TEXT NOT NULL PRIMARY KEY
        CHECK (typeof(resource) = 'text' AND length(CAST(resource AS BLOB)) BETWEEN 1 AND 512),
    fence INTEGER NOT NULL DEFAULT 0 CHECK (typeof(fence) = 'integer' AND fence >= 0),
    shared INTEGER NOT NULL DEFAULT 0 CHECK (typeof(shared) = 'integer' AND shared >= 0),
    touched INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID";

/// Raises the fence record for an exclusive lease. `?1` is the resource's name and `?2` the fence
/// ([`Fence::as_i64`](crate::Fence::as_i64)). One row changes when it passes, none when it is
/// stale.
pub const TOUCH: &str = "\
INSERT INTO leasehold_fence (resource, fence) VALUES (?1, ?2) \
ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence, touched = touched + 1 \
WHERE leasehold_fence.fence <= excluded.fence AND leasehold_fence.shared <= excluded.fence";

/// Raises the fence record for a shared lease or for permits: refused only by a later *exclusive*
/// holder. Parameters and answer as for [`TOUCH`].
pub const TOUCH_SHARED: &str = "\
INSERT INTO leasehold_fence (resource, shared) VALUES (?1, ?2) \
ON CONFLICT (resource) DO UPDATE SET \
shared = max(leasehold_fence.shared, excluded.shared), touched = touched + 1 \
WHERE leasehold_fence.fence <= excluded.shared";

/// The highest fence seen, of exclusive and shared holders, for messages. `?1` is the resource's
/// name.
pub const SEEN: &str = "SELECT max(fence, shared) FROM leasehold_fence WHERE resource = ?1";
