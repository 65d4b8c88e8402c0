//! `leasehold setup`: print or apply the SQL that a PostgreSQL database needs for locks.

use leasehold::postgres::{PostgresStore, Rights, setup_sql};

use crate::cli::Setup;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::signals::unless_interrupted;

pub(crate) async fn setup(args: &Setup, context: &Context) -> Outcome {
    let settings = &context.settings;
    if !settings.is_in_postgresql() {
        return Err(Failure::config(
            "only a PostgreSQL database needs a setup; name one with --store postgres://USER@HOST/DATABASE",
        ));
    }
    let role = args.user.as_deref();
    let rights = if args.least { Rights::OfOwner } else { Rights::OfCallers };
    if !args.run {
        output::data(&setup_sql(settings.store(), role, rights)?)?;
        return Ok(Exit::Success);
    }
    let mut builder = PostgresStore::builder();
    if let Some(password) = settings.password_given() {
        builder = builder.password(password);
    }
    let (store, mut signals) = (settings.store_with_password_file(), context.catch_signals()?);
    unless_interrupted(&mut signals, builder.set_up(&store, role, rights)).await??;
    output::message(&format!("the tables of locks are in {}", settings.place()));
    Ok(Exit::Success)
}
