//! What happens behind a write, in the background: notifications, and the deletion of idle locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::Key;
use leasehold_core::table::Notice;
use tokio_postgres::types::Type;

use crate::classify::{Deadline, Fault};
use crate::listen::{channel, spoken};
use crate::pool::Param;
use crate::store::{PostgresStore, Shared};

const BACKGROUND: Duration = Duration::from_secs(5);
/// Writes between two looks for idle locks, on average.
const FORGET_EVERY: u32 = 64;
/// How many locks to look at for each write: more than it can have added.
const LOOKED_AT: u32 = 4;
/// The shortest time between two looks.
const FORGET_PAUSE: Duration = Duration::from_millis(100);

impl PostgresStore {
    /// Sends notifications right behind the write of this row, before its answer. They are
    /// delivered if it took effect. Returns whether that is certain.
    ///
    /// They have a statement of their own: a transaction that notifies and writes makes all such
    /// commits of the database wait for each other.
    pub(crate) async fn tell_behind(
        &self,
        hash: u64,
        row: Option<(&Key, i64)>,
        notices: &[Notice],
        deadline: Deadline,
    ) -> bool {
        let (channels, texts) = spelled(notices);
        let Some((key, version)) = row.filter(|_| !channels.is_empty()) else { return true };
        let name = key.as_str();
        let params: [Param<'_>; 4] = [
            (&name, Type::TEXT),
            (&version, Type::INT8),
            (&channels, Type::TEXT_ARRAY),
            (&texts, Type::TEXT_ARRAY),
        ];
        let Shared { pool, statements, .. } = &*self.shared;
        let told = pool.ask(hash, &statements.tell, &params, deadline).await;
        told.is_ok_and(|rows| !rows.is_empty())
    }

    /// Sends notifications of a write that took effect.
    pub(crate) fn tell(&self, hash: u64, notices: &[Notice]) {
        let (channels, texts) = spelled(notices);
        if channels.is_empty() {
            return;
        }
        let pool = Arc::clone(&self.shared.pool);
        // Nothing depends on it: a waiter that is not told asks at its next heartbeat.
        self.shared.pool.driver.runtime().spawn(async move {
            const TELL: &str = "SELECT pg_notify(c, t)::text FROM unnest($1, $2) AS n(c, t)";
            let params: [Param<'_>; 2] =
                [(&channels, Type::TEXT_ARRAY), (&texts, Type::TEXT_ARRAY)];
            if let Err(fault) = pool.ask(hash, TELL, &params, Deadline::after(BACKGROUND)).await {
                tracing::debug!(target: "leasehold", error = %fault.error, "notifications were not sent");
            }
        });
    }

    /// Deletes idle locks now and then. Chance decides when, since most processes write only a few
    /// times.
    pub(crate) fn wrote(&self) {
        let Shared { writes, pool, .. } = &*self.shared;
        writes.fetch_add(1, Ordering::Relaxed);
        if fastrand::u32(..FORGET_EVERY) > 0 {
            return;
        }
        let Ok(turn) = Arc::clone(&self.shared.forgets).try_lock_owned() else { return };
        let count = writes.swap(0, Ordering::Relaxed).max(FORGET_EVERY).saturating_mul(LOOKED_AT);
        let store = self.clone();
        pool.driver.runtime().spawn(async move {
            if let Err(fault) = store.forget(count).await {
                tracing::debug!(target: "leasehold", error = %fault.error, "idle locks were not deleted");
            }
            tokio::time::sleep(FORGET_PAUSE).await;
            drop(turn);
        });
    }

    /// Looks at `count` locks, and deletes those that were idle for long.
    async fn forget(&self, count: u32) -> Result<(), Fault> {
        let Shared { pool, statements, retention, .. } = &*self.shared;
        let (seconds, count) = (retention.as_secs_f64(), i64::from(count));
        let params: [Param<'_>; 2] = [(&count, Type::INT8), (&seconds, Type::FLOAT8)];
        pool.ask(0, &statements.forget, &params, Deadline::after(BACKGROUND)).await.map(drop)
    }
}

/// The channels and texts of notifications.
fn spelled(notices: &[Notice]) -> (Vec<String>, Vec<String>) {
    let spelled = |notice: &Notice| Some((channel(notice.client), spoken(&notice.wake)?));
    notices.iter().filter_map(spelled).unzip()
}
