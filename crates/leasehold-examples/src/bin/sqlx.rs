//! An `UPDATE` that a stale holder of the lock can't make.
//!
//! The row keeps the highest fence that it has seen, and rejects lower ones.
//!
//! `cargo run -p leasehold-examples --bin sqlx STORE_URL POSTGRESQL_URL`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use anyhow::{Context as _, bail, ensure};
use leasehold::{Client, Fence};
use sqlx::postgres::PgPool;

/// The fence is a column of the row that it protects.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS account (
    name text PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)";

/// Writes if no later holder has written. One statement, so nothing can come in between.
///
/// For work of several statements see `leasehold::fencing::postgresql`.
async fn write(pool: &PgPool, name: &str, balance: i64, fence: Fence) -> anyhow::Result<()> {
    let update =
        sqlx::query("UPDATE account SET balance = $2, fence = $3 WHERE name = $1 AND fence <= $3");
    let update = update.bind(name).bind(balance).bind(fence.as_i64());
    let rows = update.execute(pool).await?.rows_affected();
    if rows == 0 {
        bail!("refused: a later holder has written to the account {name}, or it does not exist");
    }
    Ok(())
}

async fn balance(pool: &PgPool, name: &str) -> anyhow::Result<i64> {
    let balance = sqlx::query_scalar("SELECT balance FROM account WHERE name = $1");
    Ok(balance.bind(name).fetch_one(pool).await?)
}

/// Reads, computes, and writes, under the lock.
#[leasehold::locked("account/{name}", client = locks, lease = lease)]
async fn book(locks: &Client, pool: &PgPool, name: &str, amount: i64) -> anyhow::Result<i64> {
    let new = balance(pool, name).await? + amount;
    write(pool, name, new, lease.fence()?).await?;
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

    // A holder that is late: it is paused for longer than its lease, and another takes its place.
    let late = locks.mutex("account/ann").lock().await?;
    let fence = late.fence()?;
    locks.force_release("account/ann", fence).await?;
    book(&locks, &pool, "ann", 25).await?;
    let refused = write(&pool, "ann", 0, fence).await;
    println!("the late holder: {}", refused.as_ref().expect_err("its fence is lower"));
    ensure!(balance(&pool, "ann").await? == 100, "a late holder has written");

    drop(late);
    pool.close().await;
    locks.close().await?;
    Ok(())
}
