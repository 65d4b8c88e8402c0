//! Checks fences in MySQL and MariaDB (InnoDB), Galera clusters included.
//!
//! Create the table once with [`SCHEMA`]. Then begin **every** transaction that works on the
//! protected resource, read-only ones included, with [`TOUCH`] and [`PASSES`]. Under a [shared
//! lease](super#shared-leases), begin it with [`TOUCH_SHARED`] and [`PASSES_SHARED`]. **Commit**
//! it, reads too:
//!
//! ```sql
//! START TRANSACTION;
//! -- TOUCH, with 'ledger' and the fence
//! -- PASSES, with the fence and 'ledger': it says 1, so go on
//! UPDATE account SET balance = balance - 10 WHERE id = 7;
//! COMMIT;
//! ```
//!
//! [`check`] turns the answer of [`PASSES`] into an error: 0 means that a later holder has touched
//! the resource, so roll back and stop. It takes two statements because the number of rows affected
//! by the first means different things with different drivers.
//!
//! The touch locks the resource's row until the transaction ends, and always changes it. So fenced
//! transactions on one resource run one after the other. A stale one either ends before its
//! successor begins or is refused afterwards. On a Galera cluster two nodes don't see each other's
//! row locks; there the changed row is what makes the second transaction to commit fail (1213).
//! That holds as long as you keep these rules:
//!
//! * The touch is the transaction's **first** statement, and the transaction was not started `WITH
//!   CONSISTENT SNAPSHOT`: what you read before the touch could be older than the fence record.
//! * The work is in the same transaction, not in one that commits by itself (`autocommit`).
//!   MariaDB's [`PASSES`] says -1 outside a transaction; MySQL can't distinguish that.
//! * The transaction commits, and nothing commits it early. `ROLLBACK` takes the touch back, so a
//!   fenced *read* that rolls back excludes no stale holder, and many drivers roll back a
//!   transaction that you drop. `ROLLBACK TO SAVEPOINT` takes the touch back as well if the
//!   savepoint is older than the touch. `CREATE`, `ALTER`, `DROP`, `TRUNCATE`, `LOCK TABLES` and a
//!   second `START TRANSACTION` commit what came before, so the statements after them are outside
//!   the check. If you can't control how transactions end, let the lease begin with a [touch that
//!   commits by itself](super#every-touch-commits).
//! * After a deadlock (error 1213, SQL state `40001`) the server has **ended the transaction**:
//!   each later statement would commit by itself, unchecked. Run the transaction again, **from
//!   `START TRANSACTION` on**. After a lock that took too long (1205) the server has undone only
//!   the statement: `ROLLBACK`, then do the same. On Galera, `COMMIT` itself may say 1213. These
//!   errors are not refusals.
//! * All tables of the work are InnoDB, or another engine with transactions.
//!
//! The statements convert the resource's name to UTF-8 and keep its bytes, so connections with
//! different character sets mean the same record. A driver that sends bytes (`VARBINARY`) should
//! send UTF-8.
//!
//! A holder that is paused inside its transaction delays its successor. Run [`timeouts`] once per
//! connection.
//! connection.
//!
//! `./check` runs these statements on a real MariaDB server under every isolation level, and on a
//! Galera pair, with the stale holder paused before each of its statements.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Fence, Result};

use super::StaleFence;

/// The table of fence records. May be run again.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource VARBINARY(512) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0 CHECK (fence >= 0),
    shared BIGINT NOT NULL DEFAULT 0 CHECK (shared >= 0),
    touched BIGINT NOT NULL DEFAULT 1
) ENGINE = InnoDB";

/// Raises the fence record for an exclusive lease unless it is higher already. The parameters are
/// the resource's name (1 to 512 bytes of UTF-8) and the fence
/// ([`Fence::as_i64`](crate::Fence::as_i64)).
// The casts are for drivers that send text: between a number and a text MySQL compares as
// floating point, which rounds above 2^53. The length is checked here because without strict mode
// the server would cut a longer name and raise the record of the shorter one.
pub const TOUCH: &str = "\
INSERT INTO leasehold_fence (resource, fence) \
SELECT given.resource, given.fence FROM (\
SELECT CAST(CONVERT(? USING utf8mb4) AS BINARY) AS resource, CAST(? AS SIGNED) AS fence\
) AS given WHERE LENGTH(given.resource) BETWEEN 1 AND 512 \
ON DUPLICATE KEY UPDATE \
fence = GREATEST(leasehold_fence.fence, given.fence), touched = leasehold_fence.touched + 1";

/// Whether the fence passes, right after [`TOUCH`] in the same transaction: one row for [`check`].
/// The parameters are the fence and the resource's name.
pub const PASSES: &str = "\
SELECT /*M! IF(@@in_transaction = 0, -1, */ \
guard.fence = given.fence AND guard.shared <= given.fence /*M! ) */ AS passes \
FROM (SELECT CAST(? AS SIGNED) AS fence) AS given LEFT JOIN leasehold_fence AS guard \
ON guard.resource = CAST(CONVERT(? USING utf8mb4) AS BINARY) FOR UPDATE";

/// Raises the fence record for a shared lease or for permits. Parameters as for [`TOUCH`].
pub const TOUCH_SHARED: &str = "\
INSERT INTO leasehold_fence (resource, shared) \
SELECT given.resource, given.fence FROM (\
SELECT CAST(CONVERT(? USING utf8mb4) AS BINARY) AS resource, CAST(? AS SIGNED) AS fence\
) AS given WHERE LENGTH(given.resource) BETWEEN 1 AND 512 \
ON DUPLICATE KEY UPDATE \
shared = GREATEST(leasehold_fence.shared, given.fence), touched = leasehold_fence.touched + 1";

/// As [`PASSES`], right after [`TOUCH_SHARED`]: refused only by a later *exclusive* holder.
pub const PASSES_SHARED: &str = "\
SELECT /*M! IF(@@in_transaction = 0, -1, */ \
guard.fence <= given.fence /*M! ) */ AS passes \
FROM (SELECT CAST(? AS SIGNED) AS fence) AS given LEFT JOIN leasehold_fence AS guard \
ON guard.resource = CAST(CONVERT(? USING utf8mb4) AS BINARY) FOR UPDATE";

/// The highest fence seen, of exclusive and shared holders, for messages. The parameter is the
/// resource's name.
pub const SEEN: &str = "\
SELECT GREATEST(fence, shared) AS seen FROM leasehold_fence \
WHERE resource = CAST(CONVERT(? USING utf8mb4) AS BINARY)";

/// Settings for a connection that does fenced work. A touch waits at most `ttl` for the row (whole
/// seconds, at least one), and MariaDB ends a connection whose transaction is idle for as long.
/// MySQL has no such limit for a single transaction; set `wait_timeout` there.
#[must_use]
pub fn timeouts(ttl: Duration) -> String {
    let seconds = ttl.as_secs().clamp(1, 31_536_000);
    format!(
        "SET SESSION innodb_lock_wait_timeout = {seconds} \
         /*M! , SESSION idle_transaction_timeout = {seconds} */"
    )
}

/// Judges the answer of [`PASSES`] or [`PASSES_SHARED`] (its first column, `None` for NULL).
///
/// # Errors
///
/// [`ErrorKind::Lost`] with a [`StaleFence`] as its cause when a later holder has touched the
/// resource. [`ErrorKind::Misuse`] when the statement ran outside a transaction, or the name is
/// empty or longer than 512 bytes. In all cases: roll back.
pub fn check(passes: Option<i64>, given: Fence) -> Result<()> {
    let misuse = |message| Err(Error::new(ErrorKind::Misuse, message));
    match passes {
        Some(1) => Ok(()),
        Some(-1) => misuse(
            "the fence was checked outside a transaction; begin with START TRANSACTION, and run \
             touch, check and work in it",
        ),
        Some(_) => Err(StaleFence::refused(given).into()),
        None => misuse("the resource has no guard; its name must have 1 to 512 bytes"),
    }
}
