//! `leasehold release`: end a lease of `acquire`, a hold of `hold`, or all leases of an owner.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::{
    Fence, ForceRelease as Forced, Key, Listing, LockInfo, OwnerName, Release as Released,
};

use crate::arguments;
use crate::cli::Release;
use crate::cmd::hold::letting_go;
use crate::context::Context;
use crate::describe::tell_unreadable;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::lease_file;
use crate::leases::{Numbers, expired, is_lost};
use crate::output;
use crate::typed;

pub(crate) async fn release(args: &Release, context: &Context) -> Outcome {
    if let (Some(key), Some(fence)) = (&args.key, args.fence) {
        let keys = arguments::keys(std::slice::from_ref(key))?;
        let Some(key) = keys.first() else { return Ok(Exit::Usage) };
        return match letting_go::ask(key, fence, &context.settings.place())? {
            Some(exit) => Ok(exit),
            None => Err(unheard(key, fence, context).await),
        };
    }
    if args.all { all(args, context).await } else { taken(args, context).await }
}

/// Why no holder can get the request.
async fn unheard(key: &Key, fence: u64, context: &Context) -> Failure {
    let (place, numbers) = (context.settings.place(), Numbers::of(context.settings.layout()));
    let told = fence.to_string();
    let info = match context.connect_to_look().await {
        Ok(None) => None,
        Ok(Some(client)) => match client.inspect(key).await {
            Ok(info) => info,
            Err(error) => return error.into(),
        },
        Err(failure) => return failure,
    };
    let mut holders = info.iter().flat_map(|info| &info.holders);
    match holders.find(|holder| numbers.text(holder.fence).as_ref() == Some(&told)) {
        Some(holder) => Failure::new(
            Exit::System,
            format!(
                "{} holds \"{key}\" (fence {fence}) at {place} out of reach. Release it as its user on its \
                 host, or run `{}`",
                holder.owner,
                typed::command_on(&format!("force-release --fence {fence}"), key)
            ),
        ),
        None => Failure::new(
            Exit::Lost,
            format!(
                "no `leasehold hold` of this user holds \"{key}\" (fence {fence}) at {place} on \
                 this machine; it has ended, or lost the lock"
            ),
        ),
    }
}

/// Ends leases that were taken with `acquire`.
async fn taken(args: &Release, context: &Context) -> Outcome {
    let layout = context.settings.layout();
    let cooldown = args.cooldown.filter(|cooldown| !cooldown.is_none());
    arguments::refuse_for(layout, &[(cooldown.is_some(), "--cooldown", "cooldown")])?;
    let taken = lease_file::read(&args.source, layout)?;
    let Some(client) = context.connect_if_made(None, true).await? else {
        return Err(lease_file::has_no_store("release", &context.settings.place()));
    };
    let location = client.location();
    let mut failed: Option<Failure> = None;
    let mut may_be_held = false;
    for lease in &taken.leases {
        let fail = |exit, why: &str| {
            Failure::new(exit, format!("release \"{}\" at {location}: {why}", lease.key()))
        };
        let failure = match client.release_outcome(lease, cooldown).await {
            Ok(Released::Released) => continue,
            Ok(Released::Late { by }) => {
                let expired = expired(by.or_else(|| taken.over_for(lease)), "the release");
                fail(Exit::Lost, &format!("{expired}. Give a longer --ttl"))
            }
            Ok(Released::NotHeld) => match taken.elsewhere(&context.settings.place()) {
                Some(why) => {
                    may_be_held = true;
                    fail(Exit::Lost, &why)
                }
                None => fail(Exit::Lost, &is_lost(lease.key(), layout)),
            },
            Ok(_) => {
                may_be_held = true;
                fail(Exit::Store, "no answer; try again")
            }
            Err(error) => {
                may_be_held = true;
                error.into()
            }
        };
        if let Some(Failure { message, .. }) = failed.replace(failure) {
            output::message(&message);
        }
    }
    // With a lease that may still be held the file stays, for another try.
    if let Some(path) = args.source.lease_file.as_ref().filter(|_| !may_be_held)
        && let Err(error) = taken.remove(path, layout)
    {
        output::message(&format!("warning: can't remove {}: {error}", path.display()));
    }
    failed.map_or(Ok(Exit::Success), Err)
}

/// Force-releases every lease of an owner, each by the fence that was seen. So a lease that is
/// taken meanwhile is not ended.
async fn all(args: &Release, context: &Context) -> Outcome {
    let found = (true, "--all", "owner");
    arguments::refuse_for(context.settings.layout(), &[found])?;
    // Other users and containers may share one from the config file.
    let Some(owner) = args.owner.as_deref() else {
        return Err(Failure::usage(
            "--all needs an owner; give --owner NAME, as `leasehold ls` shows it",
        ));
    };
    let owner = OwnerName::new(owner).map_err(|error| Failure::of_argument(&error))?;
    let Some(client) = context.connect_to_look().await? else {
        let at = context.settings.place_looked_at();
        output::message(&format!("{owner} has no leases: no store is at {at} yet"));
        return Ok(Exit::Success);
    };
    let Listing { locks, unreadable, .. } = client.list("").await?;
    // Any of these may be the owner's too.
    let told = tell_unreadable(&unreadable);
    let leases = leases_of(&owner, &locks);
    let at = client.location();
    if leases.is_empty() {
        let known = if unreadable.is_empty() { "" } else { " that can be read" };
        let at = context.settings.place_looked_at();
        let alike = alike(&owner, &locks);
        output::message(&format!("{owner} has no leases{known} at {at}{alike}"));
        return Ok(told);
    }
    if !args.yes {
        let held = |(key, fence, held_for): &(Key, Fence, Duration)| {
            let since = duration::show(*held_for);
            vec![key.to_string(), fence.to_string(), since, "held".to_owned()]
        };
        output::data(&output::table(&leases.iter().map(held).collect::<Vec<_>>()))?;
        output::message(&format!(
            "nothing was released; add --yes to force-release these leases of {owner} at {at}, which \
             works on until its next renewal",
        ));
        return Ok(told);
    }
    let mut failed = 0_usize;
    let mut rows = Vec::new();
    for (key, fence, _) in &leases {
        let outcome = match client.force_release(key, *fence).await {
            Ok(Forced::Released) => "released".to_owned(),
            Ok(_) => "had ended before".to_owned(),
            Err(error) => {
                failed = failed.saturating_add(1);
                output::message(&chain(&error));
                "failed".to_owned()
            }
        };
        rows.push(vec![key.to_string(), fence.to_string(), outcome]);
    }
    output::data(&output::table(&rows))?;
    if failed == 0 {
        return Ok(told);
    }
    let of = leases.len();
    Err(Failure::new(
        Exit::Store,
        format!("{failed} of {of} leases could not be released; try again"),
    ))
}

fn leases_of(owner: &OwnerName, locks: &[LockInfo]) -> Vec<(Key, Fence, Duration)> {
    let leases = locks.iter().flat_map(|info| {
        let theirs = info.holders.iter().filter(|holder| holder.owner == *owner);
        theirs.map(|holder| (info.key.clone(), holder.fence, holder.held_for))
    });
    leases.collect()
}

/// Names owners that begin as this one does: a process's name ends in a tag.
fn alike(owner: &OwnerName, locks: &[LockInfo]) -> String {
    let begin = format!("{}_", owner.as_str());
    let holders = locks.iter().flat_map(|info| &info.holders);
    let names: BTreeSet<String> = holders
        .filter(|holder| holder.owner.as_str().starts_with(&begin))
        .map(|holder| holder.owner.to_string())
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; name one of {}", names.into_iter().collect::<Vec<_>>().join(", ")),
    }
}
