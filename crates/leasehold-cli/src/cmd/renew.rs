//! `leasehold renew`: give a lease that was taken with `acquire` a new length.

use leasehold::ErrorKind;

use crate::cli::Renew;
use crate::context::Context;
use crate::describe;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::lease_file::{self, file_text};
use crate::output;

pub(crate) async fn renew(args: &Renew, context: &Context) -> Outcome {
    let taken = lease_file::read(&args.source, context.settings.layout())?;
    let (leases, place) = (&taken.leases, context.settings.place());
    let Some(client) = context.connect_if_made(None, true).await? else {
        return Err(lease_file::has_no_store("renew", &context.settings.place()));
    };
    let mut renewed = Vec::with_capacity(leases.len());
    let mut failed = None;
    for lease in leases {
        match client.renew(lease, args.ttl.unwrap_or_else(|| lease.ttl()).duration()).await {
            Ok(lease) => renewed.push(lease),
            // The others go on: one that is lost does not make them lost.
            Err(error) => {
                renewed.push(lease.clone());
                let why = match error.kind() {
                    ErrorKind::Late => Some(format!(
                        "too late: the lease had run out {}, or was released; nobody else has held \
                         the lock since",
                        describe::before(taken.over_for(lease), ""),
                    )),
                    ErrorKind::Lost => Some(taken.elsewhere(&place).unwrap_or_else(|| {
                        "the lease is lost: it had run out, was released before or was taken away; \
                         stop what was done under it"
                            .to_owned()
                    })),
                    _ => None,
                };
                let failure = match why {
                    Some(why) => {
                        let (key, location) = (lease.key(), client.location());
                        Failure::new(Exit::Lost, format!("renew \"{key}\" at {location}: {why}"))
                    }
                    None => Failure::from(error),
                };
                if let Some(Failure { message, .. }) = failed.replace(failure) {
                    output::message(&message);
                }
            }
        }
    }
    if let Some(path) = &args.source.lease_file
        && renewed != *leases
    {
        let text = file_text(&renewed, context.settings.layout(), &taken.place_or(&place));
        lease_file::replace(path, &text).map_err(|error| {
            Failure::new(
                Exit::Output,
                format!("the lease is renewed, but {} can't be rewritten: {error}", path.display()),
            )
        })?;
    }
    failed.map_or(Ok(Exit::Success), Err)
}
