//! Makes the tables and functions, and checks the ones that are there.

use leasehold_core::{Error, ErrorKind, Reason, Result};

use crate::address::Address;
use crate::classify::{Deadline, Fault, missing};
use crate::pool::Pool;
use crate::row::get;

/// The format of the tables.
const FORMAT: i32 = 1;
/// Under which lock the tables are made; any number that no other program uses.
const SETUP_LOCK: i64 = 0x6c65_6173_6568_6f6c;

/// The least rights to the tables with which every operation works.
const RIGHTS: [(&str, &str); 4] = [
    ("lock", "SELECT, INSERT, UPDATE, DELETE"),
    ("alive", "SELECT, INSERT"),
    ("meta", "SELECT, UPDATE"),
    ("log", "SELECT, INSERT, DELETE"),
];

/// With whose rights the functions of the schema work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Rights {
    /// The caller's, which has to have rights to the tables.
    #[default]
    OfCallers,
    /// The rights of the schema's owner (`SECURITY DEFINER`). A caller needs no right to the
    /// tables, and changes a lock by the functions alone.
    OfOwner,
}

/// The SQL that makes the tables in the schema that a URL names, grants a role the least rights
/// with which all locks work, and advises settings for the role. Without a role it is the user in
/// the URL.
///
/// It does not connect. Applying the SQL again changes nothing.
///
/// # Errors
///
/// [`ErrorKind::Config`] for a URL that can't be used.
pub fn setup_sql(url: &str, role: Option<&str>, rights: Rights) -> Result<String> {
    let address = Address::parse(url)?;
    let role = quoted(role.unwrap_or(&address.user));
    let schema = &address.schema;
    let advice: String = ["statement_timeout = '10s'", "lock_timeout = '2s'", "jit = off"]
        .into_iter()
        .map(|setting| format!("-- ALTER ROLE {role} SET {setting};\n"))
        .collect();
    Ok(format!(
        "BEGIN;\nSELECT pg_advisory_xact_lock({SETUP_LOCK});\n{}{}COMMIT;\n\n\
         -- Useful limits for a role that does nothing but locks:\n{advice}",
        sql(schema),
        grants(schema, &role, rights)
    ))
}

fn grants(schema: &str, role: &str, rights: Rights) -> String {
    let mut sql = "\n-- What a role needs that takes locks.\n".to_owned();
    let mut granted = vec![usage(schema), execute(schema)];
    match rights {
        Rights::OfCallers => {
            let tables = RIGHTS.iter().map(|(table, what)| format!("{what} ON {schema}.{table}"));
            granted.extend(tables);
        }
        Rights::OfOwner => {
            let owner = format!(
                "SELECT c.relowner FROM pg_class c WHERE c.oid = '{schema}.lock'::regclass"
            );
            // Without rights of its own, an owner's functions would have none either.
            let refusal = "this role owns the tables; name another one by --user";
            sql += &format!(
                "DO $$ BEGIN IF ({owner}) = to_regrole('{}') THEN RAISE EXCEPTION '{refusal}'; \
                 END IF; END $$;\n",
                role.replace('\'', "''")
            );
            for function in functions() {
                sql += &format!(
                    "ALTER FUNCTION {schema}.{function} SECURITY DEFINER SET search_path = '';\n"
                );
            }
            sql += &format!("REVOKE {} FROM PUBLIC;\n", execute(schema));
            let tables = RIGHTS.iter().map(|(table, _)| format!("{schema}.{table}"));
            let tables = tables.collect::<Vec<_>>().join(", ");
            sql += &format!("REVOKE ALL ON {tables} FROM {role};\n");
        }
    }
    sql.extend(granted.iter().map(|right| grant(right, role)));
    sql
}

/// The names of the functions.
fn functions() -> impl Iterator<Item = &'static str> {
    let made = include_str!("setup.sql").split("CREATE OR REPLACE FUNCTION leasehold.").skip(1);
    made.filter_map(|rest| Some(rest.split_once('(')?.0))
}

fn grant(right: &str, role: &str) -> String {
    format!("GRANT {right} TO {role};\n")
}

fn usage(schema: &str) -> String {
    format!("USAGE ON SCHEMA {schema}")
}

fn execute(schema: &str) -> String {
    format!("EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema}")
}

/// A name as SQL reads it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The statements that make the tables in this schema.
fn sql(schema: &str) -> String {
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

/// The bodies of the functions in this schema.
pub(crate) fn bodies(schema: &str) -> Vec<String> {
    let sql = sql(schema);
    let quoted = sql.split("AS $$").skip(1);
    quoted.filter_map(|rest| Some(rest.split_once("$$")?.0.to_owned())).collect()
}

/// Makes what is missing, and grants a role what it needs. One implicit transaction, which poolers
/// allow in every mode.
pub(crate) async fn apply(
    pool: &Pool,
    role: Option<(&str, Rights)>,
    deadline: Deadline,
) -> Result<(), Fault> {
    let schema = &pool.dial.address.schema;
    let grants = role.map(|(role, rights)| grants(schema, &quoted(role), rights));
    let grants = grants.unwrap_or_default();
    let sql = sql(schema);
    pool.batch(&format!("SELECT pg_advisory_xact_lock({SETUP_LOCK});\n{sql}{grants}"), deadline)
        .await
}

/// Finds the rights that the user lacks: a list, or NULL if the tables are missing. Every user may
/// ask so, and the server's log stays empty.
fn rights(schema: &str) -> String {
    let all: Vec<String> = RIGHTS
        .iter()
        .flat_map(|(table, rights)| {
            rights.split(", ").map(move |right| format!("('{right}', '{schema}.{table}')"))
        })
        .collect();
    format!(
        "SELECT CASE WHEN n.oid IS NULL THEN NULL \
         WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN ARRAY['{}'] \
         WHEN to_regclass('{schema}.meta') IS NULL THEN NULL \
         ELSE ARRAY(SELECT r.what || ' ON ' || r.tab FROM (VALUES {}) r(what, tab) \
             WHERE NOT has_table_privilege(r.tab, r.what) AND NOT EXISTS (SELECT FROM pg_proc p \
                 WHERE p.pronamespace = n.oid AND p.proname = 'read_1' AND p.prosecdef)) || \
             CASE WHEN has_function_privilege('{schema}.read_1(text)', 'EXECUTE') THEN '{{}}'::text[] \
             ELSE ARRAY['{}'] END END AS lacking \
         FROM (SELECT to_regnamespace('{schema}')::oid AS oid) n",
        usage(schema),
        all.join(", "),
        execute(schema),
    )
}

/// Checks that the tables are there, in a format that this version knows, and that the user may use
/// them.
pub(crate) async fn check(pool: &Pool, deadline: Deadline) -> Result<(), Fault> {
    let Address { schema, user, .. } = &pool.dial.address;
    let rows = pool.ask(0, &rights(schema), &[], deadline).await?;
    let lacking: Option<Vec<String>> = match rows.first() {
        Some(row) => get(row, "lacking")?,
        None => None,
    };
    let Some(lacking) = lacking else { return Err(missing()) };
    if !lacking.is_empty() {
        let user = leasehold_core::escape::terminal(user);
        let why = format!("the user {user} lacks rights; grant {}", lacking.join(" and "));
        return Err(Error::new(ErrorKind::Denied, why).with_reason(Reason::MissingRight).into());
    }
    let format = in_schema("SELECT leasehold.format_1() AS format", schema);
    let rows = pool.ask(0, &format, &[], deadline).await?;
    let format = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
    if format == Some(FORMAT) {
        return synchronous(pool, deadline).await;
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

/// Checks that commits wait for a standby, if the URL requires it.
async fn synchronous(pool: &Pool, deadline: Deadline) -> Result<(), Fault> {
    if pool.dial.address.is_synchronous {
        let check = in_schema("SELECT leasehold.commit_1(2)::text", &pool.dial.address.schema);
        pool.ask(0, &check, &[], deadline).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statements::Statements;

    #[test]
    fn the_sql_is_for_the_schema_and_the_role_that_are_named() {
        let sql = setup_sql("postgres://app@h/d?schema=locks", None, Rights::OfCallers).unwrap();
        assert!(
            sql.contains("CREATE SCHEMA IF NOT EXISTS locks;") && !sql.contains("leasehold.lock")
        );
        assert!(sql.contains("GRANT SELECT, INSERT ON locks.alive TO \"app\";"), "{sql}");
        assert!(sql.contains("\n-- ALTER ROLE \"app\" SET jit = off;"), "{sql}");
        let sql = setup_sql("postgres://app:s3cret@h/d", Some("a\"b"), Rights::OfOwner).unwrap();
        assert!(sql.contains("GRANT USAGE ON SCHEMA leasehold TO \"a\"\"b\";"), "{sql}");
        assert!(!sql.contains("s3cret") && !sql.contains("GRANT SELECT"));
        let definer = "ALTER FUNCTION leasehold.take_1 SECURITY DEFINER SET search_path = '';";
        assert!(sql.contains(definer), "{sql}");
    }

    #[test]
    fn no_statement_takes_the_time_of_its_transaction() {
        let all = format!("{}{:?}", include_str!("setup.sql"), Statements::of("leasehold"));
        assert!(all.contains("clock_timestamp()"));
        for other in [" now()", "current_timestamp", "localtimestamp", "statement_timestamp"] {
            assert!(!all.to_lowercase().contains(other), "{other}");
        }
    }

    /// All commits that notify wait for each other.
    #[test]
    fn no_statement_that_writes_notifies() {
        let notifies = |body: &&String| body.to_lowercase().contains("notify");
        let bodies = bodies("leasehold");
        let of_notices: Vec<_> = bodies.iter().filter(notifies).collect();
        assert_eq!(of_notices.len(), 1, "tell_1 alone");
        assert!(!["INSERT", "UPDATE", "DELETE"].iter().any(|word| of_notices[0].contains(word)));
    }

    #[test]
    fn statements_name_no_table() {
        let all = format!("{:?}", Statements::of("leasehold")).replace("leasehold.lock_1", "");
        let named = |table: &str| all.contains(&format!("FROM leasehold.{table} "));
        assert!(!["lock", "meta", "alive", "log"].into_iter().any(named), "{all}");
    }
}
