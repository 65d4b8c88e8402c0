//! Work that commits with the release of its lock, and a stale holder whose work can't begin.
//!
//! Lock and work are in one PostgreSQL database. `hold` keeps the next holder out until the
//! transaction ends, and `release_with` releases the lock with the commit, or not at all.
//!
//! `cargo run -p leasehold-examples --bin transaction POSTGRESQL_URL`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use anyhow::{Context as _, ensure};
use leasehold::postgres::hold::{HOLD, NOT_HELD, RELEASE};
use leasehold::{Client, Fence};
use sqlx::PgConnection;
use sqlx::postgres::PgPool;

const LOCK: &str = "ledger/2026-07";

/// Runs `HOLD` or `RELEASE`.
async fn call(
    statement: &'static str,
    fence: Fence,
    transaction: &mut PgConnection,
) -> sqlx::Result<()> {
    let query = sqlx::query(statement).bind(LOCK).bind(fence.as_i64());
    query.execute(transaction).await.map(drop)
}

/// Closes the month, once.
async fn close(locks: &Client, pool: &PgPool) -> anyhow::Result<()> {
    let guard = locks.mutex(LOCK).lock().await?;
    let fence = guard.fence()?;
    let mut transaction = pool.begin().await?;
    call(HOLD, fence, &mut transaction).await?;
    sqlx::query("INSERT INTO closed VALUES ($1)").bind(LOCK).execute(&mut *transaction).await?;
    call(RELEASE, fence, &mut transaction).await?;
    transaction.commit().await?;
    // It was released with the commit. This wakes the next waiter.
    guard.release().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("usage: transaction POSTGRESQL_URL")?;
    let locks = Client::builder().create_tables(true).connect(&url).await?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS closed (month text)").execute(&pool).await?;
    close(&locks, &pool).await?;
    close(&locks, &pool).await?;

    // A stale holder: its lease has ended, and the lock went to another one.
    let stale = locks.mutex(LOCK).lock().await?;
    let old = stale.fence()?;
    locks.force_release(LOCK, old).await?;
    let next = locks.mutex(LOCK).lock().await?;
    let mut transaction = pool.begin().await?;
    let refused = call(HOLD, old, &mut transaction).await.expect_err("its fence is lower");
    let code = refused.as_database_error().and_then(|error| error.code());
    ensure!(code.as_deref() == Some(NOT_HELD), "another error: {refused}");
    transaction.rollback().await?;
    println!("the stale holder: refused with {NOT_HELD}");

    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM closed").fetch_one(&pool);
    ensure!(count.await? == 2, "something was written twice, or not at all");
    drop(stale);
    next.release().await?;
    pool.close().await;
    locks.close().await?;
    Ok(())
}
