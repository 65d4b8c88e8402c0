//! Proves and releases a lock in a transaction of its holder, in the database that has the locks.
//!
//! [`HOLD`] is the first statement of the transaction. It fails with the SQLSTATE `LH001` if the
//! lease has ended or was granted to another holder since. Otherwise no other holder gets the lock
//! before the transaction ends, however late this one is. Renewals and releases go on meanwhile. A
//! transaction with an older snapshot may fail with `40001` instead, as it may for other reasons:
//! begin it again.
//!
//! [`RELEASE`] is the last statement before the commit. The release then takes effect with the
//! work, or neither does. Release the guard after the commit as well: it reports success, and wakes
//! the next waiter. A renewal that comes in between finds the lock released, and reports a loss.
//!
//! All tasks of a client that hand a lock off to each other share a grant, which both prove.
//!
//! Both are for exclusive locks in the schema `leasehold`; [`in_schema`] is for another one. They
//! are parameters and text for any driver: the lock's name (`text`) and the fence of the guard
//! (`bigint`).
//!
//! ```
//! use leasehold_postgres::hold::{HOLD, RELEASE};
//!
//! # async fn doc(tx: tokio_postgres::Transaction<'_>, name: &str, fence: i64) -> Result<(), tokio_postgres::Error> {
//! tx.execute(HOLD, &[&name, &fence]).await?;
//! // the work
//! tx.execute(RELEASE, &[&name, &fence]).await?;
//! tx.commit().await
//! # }
//! ```
//!
//! In `psql`: `BEGIN; SELECT leasehold.hold('reports/daily', 1795239205330262); …; COMMIT`.

/// Fails if the lease with this fence has ended, or another one was granted since.
pub const HOLD: &str = "SELECT leasehold.hold($1, $2)";

/// Releases the lease with the transaction.
pub const RELEASE: &str = "SELECT leasehold.release_with($1, $2)";

/// The SQLSTATE of a lease that is not held.
pub const NOT_HELD: &str = "LH001";

/// [`HOLD`] or [`RELEASE`] for the locks in another schema.
///
/// ```
/// use leasehold_postgres::hold::{HOLD, in_schema};
///
/// assert_eq!(in_schema(HOLD, "locks"), "SELECT locks.hold($1, $2)");
/// ```
#[must_use]
pub fn in_schema(statement: &str, schema: &str) -> String {
    crate::setup::in_schema(statement, schema)
}
