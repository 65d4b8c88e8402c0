//! The check for MySQL and MariaDB (InnoDB).
//!
//! Create the table once with [`SCHEMA`]. Then begin **every** transaction that works on the
//! protected resource, read-only ones included, with [`TOUCH`] and [`PASSES`]:
//!
//! ```sql
//! START TRANSACTION;
//! -- TOUCH, with 'ledger', the fence and the fence again
//! -- PASSES, with the fence and 'ledger': it says 1, so go on
//! UPDATE account SET balance = balance - 10 WHERE id = 7;
//! COMMIT;
//! ```
//!
//! When [`PASSES`] says 0, a later holder has been there: roll back and stop. It takes two
//! statements because the number of rows affected by the first means different things with
//! different drivers.
//!
//! The touch locks the resource's row until the transaction ends, so fenced transactions on one
//! resource run one after the other, and a late one is either finished before its successor
//! begins or refused after. Three things keep that true:
//!
//! * The touch is the transaction's **first** statement, and the transaction was not started
//!   `WITH CONSISTENT SNAPSHOT`: what was read before the touch could be older than the guard.
//! * The work is in that same transaction, not in one that commits by itself (`autocommit`).
//! * All tables of the work are InnoDB, or another engine with transactions.
//!
//! A touch may end in a deadlock (error 1213), which is no refusal: run the transaction again,
//! from the touch on.
//!
//! Tried with MariaDB 10.11.19.

/// The table of guards. May be run again.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource VARBINARY(512) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL CHECK (fence >= 0)
) ENGINE = InnoDB";

/// Raises the guard unless it is higher already. The parameters are the resource's name, the
/// fence ([`Fence::as_i64`](crate::Fence::as_i64)), and the fence again.
// The casts are for drivers that send text: between a number and a text MySQL compares as
// floating point, which rounds above 2^53.
pub const TOUCH: &str = "\
INSERT INTO leasehold_fence (resource, fence) VALUES (?, CAST(? AS SIGNED)) \
ON DUPLICATE KEY UPDATE fence = GREATEST(fence, CAST(? AS SIGNED))";

/// Whether the fence passes, right after [`TOUCH`] in the same transaction: one row with 1 or 0.
/// The parameters are the fence and the resource's name.
pub const PASSES: &str = "\
SELECT fence = CAST(? AS SIGNED) FROM leasehold_fence WHERE resource = ? FOR UPDATE";

/// The highest fence seen, for messages. The parameter is the resource's name.
pub const SEEN: &str = "SELECT fence FROM leasehold_fence WHERE resource = ?";
