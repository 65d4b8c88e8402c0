//! Makes the tables and functions, and checks the ones that are there.

use leasehold_core::{Error, ErrorKind, Reason};

use crate::classify::{Deadline, Fault, missing};
use crate::pool::Pool;

/// The format of the tables.
const FORMAT: i32 = 1;
/// Under which lock the tables are made; any number that no other program uses.
const SETUP_LOCK: i64 = 0x6c65_6173_6568_6f6c;

/// The statements that make the tables in this schema.
pub(crate) fn sql(schema: &str) -> String {
    in_schema(include_str!("setup.sql"), schema)
}

/// A text with the names of another schema.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "leasehold" {
        return sql.to_owned();
    }
    let sql = sql.replace("leasehold.", &format!("{schema}."));
    sql.replace("SCHEMA IF NOT EXISTS leasehold", &format!("SCHEMA IF NOT EXISTS {schema}"))
}

/// Makes what is missing. One implicit transaction, which poolers allow in every mode.
pub(crate) async fn apply(pool: &Pool, deadline: Deadline) -> Result<(), Fault> {
    let sql = sql(&pool.dial.address.schema);
    pool.batch(&format!("SELECT pg_advisory_xact_lock({SETUP_LOCK});\n{sql}"), deadline).await
}

/// Checks that the tables are there, in a format that this version knows. Tables that are missing leave no error in the
/// server's log.
pub(crate) async fn check(pool: &Pool, deadline: Deadline) -> Result<(), Fault> {
    let sql = |text| in_schema(text, &pool.dial.address.schema);
    let there = pool
        .ask(0, &sql("SELECT to_regclass('leasehold.meta') IS NOT NULL"), &[], deadline)
        .await?;
    if !there.first().and_then(|row| row.try_get(0).ok()).unwrap_or(false) {
        return Err(missing());
    }
    let rows =
        pool.ask(0, &sql("SELECT format FROM leasehold.meta WHERE id = 1"), &[], deadline).await?;
    let format = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
    if format == Some(FORMAT) {
        return Ok(());
    }
    let why = match format {
        Some(format) => {
            format!(
                "the tables have the format {format}, and this version knows {FORMAT}; use a newer one"
            )
        }
        None => "the table meta has no row; apply the setup of leasehold's schema again".to_owned(),
    };
    Err(Error::new(ErrorKind::Config, why).with_reason(Reason::OtherVersion).into())
}
