//! A read and an `UPDATE` that a stale holder of the lock can't make.
//!
//! The row keeps the highest fence that it has seen, and rejects lower ones. A read shows its fence
//! too: otherwise a stale holder could write between the read and the write of the next holder.
//!
//! `cargo run -p leasehold-examples --bin sqlx STORE_URL POSTGRESQL_URL`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use anyhow::{Context as _, anyhow, ensure};
use leasehold::{Client, Fence};
use sqlx::postgres::PgPool;

/// The fence is a column of the row that it protects.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS account (
    name text PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)";

/// Reads what a write under the same lease is computed from. From now on the row refuses all
/// earlier holders, in the same statement.
async fn read(pool: &PgPool, name: &str, fence: Fence) -> anyhow::Result<i64> {
    let read = sqlx::query_scalar(
        "UPDATE account SET fence = $2 WHERE name = $1 AND fence <= $2 RETURNING balance",
    );
    let balance = read.bind(name).bind(fence.as_i64()).fetch_optional(pool).await?;
    balance.ok_or_else(|| refused(name))
}

/// Writes if no later holder has read or written. One statement checks and writes.
///
/// For work of several statements see `leasehold::fencing::postgresql`.
async fn write(pool: &PgPool, name: &str, balance: i64, fence: Fence) -> anyhow::Result<()> {
    let update =
        sqlx::query("UPDATE account SET balance = $2, fence = $3 WHERE name = $1 AND fence <= $3");
    let update = update.bind(name).bind(balance).bind(fence.as_i64());
    let rows = update.execute(pool).await?.rows_affected();
    if rows == 0 { Err(refused(name)) } else { Ok(()) }
}

fn refused(name: &str) -> anyhow::Error {
    anyhow!("refused: a later holder has used the account {name}, or it does not exist")
}

/// For display only: what a write depends on is read by [`read`].
async fn balance(pool: &PgPool, name: &str) -> anyhow::Result<i64> {
    let balance = sqlx::query_scalar("SELECT balance FROM account WHERE name = $1");
    Ok(balance.bind(name).fetch_one(pool).await?)
}

/// Reads, computes, and writes, under the lock.
#[leasehold::locked("account/{name}", client = locks, lease = lease)]
async fn book(locks: &Client, pool: &PgPool, name: &str, amount: i64) -> anyhow::Result<i64> {
    let fence = lease.fence()?;
    let new = read(pool, name, fence).await? + amount;
    write(pool, name, new, fence).await?;
    Ok(new)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: sqlx STORE_URL POSTGRESQL_URL";
    let (store, database) = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    let locks = Client::connect(&store).await?;
    let pool = PgPool::connect(&database).await?;
    sqlx::query(TABLE).execute(&pool).await?;
    let begin =
        "INSERT INTO account VALUES ('ann', 100) ON CONFLICT (name) DO UPDATE SET balance = 100";
    sqlx::query(begin).execute(&pool).await?;

    let (first, second) =
        tokio::join!(book(&locks, &pool, "ann", -30), book(&locks, &pool, "ann", 5));
    let sum = balance(&pool, "ann").await?;
    println!("{:?} and {:?}: {sum}", first?, second?);
    ensure!(sum == 75, "one booking overwrote the other: {sum}");

    // A stale holder: its lease has ended, and its write comes between the read and the write of
    // the next holder.
    let stale = locks.mutex("account/ann").lock().await?;
    let old_fence = stale.fence()?;
    locks.force_release("account/ann", old_fence).await?;
    let next = locks.mutex("account/ann").lock().await?;
    let old = read(&pool, "ann", next.fence()?).await?;
    let refused = write(&pool, "ann", 0, old_fence).await;
    println!("the stale holder: {}", refused.as_ref().expect_err("its fence is lower"));
    write(&pool, "ann", old + 25, next.fence()?).await?;
    ensure!(balance(&pool, "ann").await? == 100, "a stale holder has written");

    drop(stale);
    next.release().await?;
    pool.close().await;
    locks.close().await?;
    Ok(())
}
