//! Checks fences in PostgreSQL.
//!
//! Create the table once with [`SCHEMA`]. Then begin **every** transaction that works on the
//! protected resource, read-only ones included, with [`TOUCH`] (or with [`TOUCH_SHARED`] under a
//! [shared lease](super#shared-leases)), and **commit** it, reads too:
//!
//! ```sql
//! BEGIN;
//! -- TOUCH, with $1 = 'ledger' and $2 = the fence: one row came back, so go on
//! UPDATE account SET balance = balance - 10 WHERE id = 7;
//! COMMIT;
//! ```
//!
//! If no row comes back, a later holder has touched the resource: roll back and stop. The number of
//! affected rows is 0 then. [`passed`](super::passed) turns that number into an error; [`SEEN`]
//! returns the later holder's fence.
//!
//! The touch locks the resource's row until the transaction ends. So fenced transactions on one
//! resource run one after the other. A stale one either ends before its successor begins or is
//! refused afterwards. That holds as long as you keep these rules:
//!
//! * The touch is the transaction's **first** statement. Under `REPEATABLE READ` and `SERIALIZABLE`
//!   the first statement takes the snapshot; what you read before the touch could be older than the
//!   fence record.
//! * The work is in the same transaction. Outside a transaction block the touch commits by itself
//!   and proves nothing about the statements after it. [`IN_TRANSACTION`] fails there (`25P01`);
//!   run it before the touch where you can't be sure.
//! * The transaction commits. `ROLLBACK` takes the touch back, so a fenced *read* that rolls back
//!   excludes no stale holder, and several drivers roll back a transaction that you drop. `ROLLBACK
//!   TO SAVEPOINT` takes the touch back as well if the savepoint is older than the touch. If you
//!   can't control how transactions end, let the lease begin with a [touch that commits by
//!   itself](super#every-touch-commits).
//! * After a serialization failure (`40001`), a deadlock (`40P01`), or a lock that took too long
//!   (`55P03`), roll back and run the transaction again, **from `BEGIN` on**. These errors are not
//!   refusals.
//!
//! A holder that is paused inside its transaction delays its successor for as long as the server
//! lets it. Run [`timeouts`] once per connection: the server then ends an idle transaction, and no
//! touch waits for longer than the ttl.
//!
//! `./check` runs these statements on a real server under every isolation level, with the stale
//! holder paused before each of its statements. `ON CONFLICT` needs PostgreSQL 9.5.

use std::time::Duration;

/// The table of fence records. May be run again.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource text COLLATE \"C\" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 512),
    fence bigint NOT NULL DEFAULT 0 CHECK (fence >= 0),
    shared bigint NOT NULL DEFAULT 0 CHECK (shared >= 0),
    touched bigint NOT NULL DEFAULT 1
)";

/// Fails with SQL state `25P01` outside a transaction block, and does nothing inside one.
pub const IN_TRANSACTION: &str = "SAVEPOINT leasehold_fence";

/// Raises the fence record for an exclusive lease. `$1` is the resource's name and `$2` the fence
/// ([`Fence::as_i64`](crate::Fence::as_i64)). One row, the fence, when it passes; none when it is
/// stale.
pub const TOUCH: &str = "\
INSERT INTO leasehold_fence AS guard (resource, fence) VALUES ($1, $2) \
ON CONFLICT (resource) DO UPDATE SET fence = EXCLUDED.fence, touched = guard.touched + 1 \
WHERE guard.fence <= EXCLUDED.fence AND guard.shared <= EXCLUDED.fence \
RETURNING fence";

/// Raises the fence record for a shared lease or for permits: refused only by a later *exclusive*
/// holder. Parameters and answer as for [`TOUCH`].
pub const TOUCH_SHARED: &str = "\
INSERT INTO leasehold_fence AS guard (resource, shared) VALUES ($1, $2) \
ON CONFLICT (resource) DO UPDATE SET \
shared = GREATEST(guard.shared, EXCLUDED.shared), touched = guard.touched + 1 \
WHERE guard.fence <= EXCLUDED.shared \
RETURNING shared";

/// The highest fence seen, of exclusive and shared holders, for messages. `$1` is the resource's
/// name.
pub const SEEN: &str =
    "SELECT GREATEST(fence, shared) AS seen FROM leasehold_fence WHERE resource = $1";

/// Two settings for a connection that does fenced work: a touch waits at most `ttl` for the row,
/// and the server ends a transaction that is idle for `ttl`. Without them a paused holder stops its
/// successors for as long as it is paused.
///
/// The lengths are whole milliseconds, at least one.
#[must_use]
pub fn timeouts(ttl: Duration) -> String {
    let ms = ttl.as_millis().clamp(1, i32::MAX as u128);
    format!("SET lock_timeout = {ms}; SET idle_in_transaction_session_timeout = {ms}")
}
