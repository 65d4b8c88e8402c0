//! The check for PostgreSQL.
//!
//! Create the table once with [`SCHEMA`]. Then begin **every** transaction that works on the
//! protected resource, read-only ones included, with [`TOUCH`]:
//!
//! ```sql
//! BEGIN;
//! -- TOUCH, with $1 = 'ledger' and $2 = the fence: one row came back, so go on
//! UPDATE account SET balance = balance - 10 WHERE id = 7;
//! COMMIT;
//! ```
//!
//! When no row comes back (and no row counts as affected), a later holder has been there: roll
//! back and stop. [`SEEN`] tells which fence it had.
//!
//! The touch locks the resource's row until the transaction ends, so fenced transactions on one
//! resource run one after the other, and a late one is either finished before its successor
//! begins or refused after. Two things keep that true:
//!
//! * The touch is the transaction's **first** statement. Under `REPEATABLE READ` and
//!   `SERIALIZABLE` the first statement takes the snapshot; what was read before the touch could
//!   be older than the guard. Under these levels a touch may end in a serialization failure
//!   (`40001`), which is no refusal: run the transaction again, from the touch on.
//! * The work is in that same transaction. A touch that was committed by itself proves nothing.
//!
//! Tried with PostgreSQL 15.18; `ON CONFLICT` needs 9.5.

/// The table of guards. May be run again.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource text COLLATE \"C\" PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence >= 0)
)";

/// Raises the guard. `$1` is the resource's name and `$2` the fence
/// ([`Fence::as_i64`](crate::Fence::as_i64)). One row, the fence, when it passes; none when it is
/// stale.
pub const TOUCH: &str = "\
INSERT INTO leasehold_fence AS guard (resource, fence) VALUES ($1, $2) \
ON CONFLICT (resource) DO UPDATE SET fence = EXCLUDED.fence \
WHERE guard.fence <= EXCLUDED.fence \
RETURNING fence";

/// The highest fence seen, for messages. `$1` is the resource's name.
pub const SEEN: &str = "SELECT fence FROM leasehold_fence WHERE resource = $1";
