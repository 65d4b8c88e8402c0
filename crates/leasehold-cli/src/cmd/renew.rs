//! `leasehold renew`: give a lease that was taken with `acquire` a new length.

use std::time::Duration;

use leasehold::{Client, DetachedLease, ErrorKind, Prolonged, Release};

use crate::arguments;
use crate::cli::Renew;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::lease_file::{self, file_text};
use crate::leases::{expired, is_lost};
use crate::output;

pub(crate) async fn renew(args: &Renew, context: &Context) -> Outcome {
    let layout = context.settings.layout();
    arguments::refuse_for(
        layout,
        &[(args.if_untaken, "--if-untaken", "record of their last holder")],
    )?;
    let taken = lease_file::read(&args.source, context.settings.layout())?;
    let (leases, place) = (&taken.leases, context.settings.place());
    let Some(client) = context.connect_if_made(None, true).await? else {
        return Err(lease_file::has_no_store("renew", &context.settings.place()));
    };
    let mut renewed = Vec::with_capacity(leases.len());
    let mut failed = None;
    for lease in leases {
        let ttl = args.ttl.unwrap_or_else(|| lease.ttl()).duration();
        match renew_one(&client, lease, ttl, args.if_untaken).await {
            Ok(Prolonged::Late(anew)) => {
                let (at, over_for) = (client.location(), taken.over_for(lease));
                output::message(&format!(
                    "renew \"{}\" at {at}: {}; it was taken again with fence {}",
                    lease.key(),
                    expired(over_for, "the renewal"),
                    anew.fence()
                ));
                renewed.push(anew);
            }
            Ok(in_time) => renewed.push(in_time.into_guard()),
            // The others go on: one that is lost does not make them lost.
            Err(error) => {
                renewed.push(lease.clone());
                let why = match error.kind() {
                    ErrorKind::Late => Some(format!(
                        "{}; take it again, or use --if-untaken",
                        expired(taken.over_for(lease), "the renewal, or was released"),
                    )),
                    ErrorKind::Lost => Some(
                        taken.elsewhere(&place).unwrap_or_else(|| is_lost(lease.key(), layout)),
                    ),
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
        let text = file_text(&renewed, layout, &taken.place_or(&place));
        if let Err(error) = lease_file::replace(path, &text) {
            let mut why = format!("can't write {}: {error}", path.display());
            // Without a file only this process can release them.
            for lease in anew(&renewed, leases) {
                let key = lease.key();
                why.push_str(&match client.release_outcome(lease, None).await {
                    Ok(Release::Released) => {
                        format!("; \"{key}\" was taken again, and released")
                    }
                    _ => format!("; \"{key}\" was taken again, and is free after its ttl"),
                });
            }
            return Err(Failure::new(Exit::Output, why));
        }
    }
    if args.source.lease_file.is_none() {
        let anew: Vec<_> = anew(&renewed, leases).cloned().collect();
        output::data_patiently(&lease_file::lines(&anew, layout)).await?;
    }
    failed.map_or(Ok(Exit::Success), Err)
}

/// Of the renewed leases, those that are other leases than before.
fn anew<'a>(
    renewed: &'a [DetachedLease],
    before: &'a [DetachedLease],
) -> impl Iterator<Item = &'a DetachedLease> {
    let pairs = renewed.iter().zip(before);
    pairs.filter(|(after, before)| after.fence() != before.fence()).map(|(after, _)| after)
}

async fn renew_one(
    client: &Client,
    lease: &DetachedLease,
    ttl: Duration,
    if_untaken: bool,
) -> leasehold::Result<Prolonged<DetachedLease>> {
    if if_untaken {
        return client.prolong(lease, ttl).await;
    }
    client.renew(lease, ttl).await.map(Prolonged::InTime)
}
