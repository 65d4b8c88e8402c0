//! `force-release`, `release --all`, `ask` and `set-limit`: what operators do to others' locks.

use std::num::NonZeroU32;

use leasehold::core::{Kind, SetLimit as Answer, SetLimitRequest};
use leasehold::{
    DEFAULT_CALL_TIMEOUT, Fence, ForceRelease as Forced, Key, Listing, LockInfo, OwnerName,
};

use crate::cli::{Ask, ForceRelease, Release, SetLimit};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::look::tell_unreadable;
use crate::output;
use crate::take;

pub(crate) async fn force_release(args: &ForceRelease, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let fence = fence(args.fence)?;
    let client = context.connect(false).await?;
    let (by, at) = (client.owner().clone(), client.location().to_owned());
    let done = match client.force_release(&key, fence).await? {
        Forced::Released => {
            output::message(&format!("{by} took \"{key}\" (fence {fence}) away at {at}"));
            return Ok(Exit::Success);
        }
        Forced::OtherFence { fences } => {
            let fences: Vec<String> = fences.iter().map(Fence::to_string).collect();
            format!("it is held under another fence ({}); look again", fences.join(", "))
        }
        _ => "nobody holds it".to_owned(),
    };
    Err(Failure::new(Exit::Lost, format!("force-release \"{key}\" at {at}: {done}")))
}

fn fence(typed: u64) -> Outcome<Fence> {
    Fence::from_value(typed).map_err(|error| Failure::of_argument(&error))
}

/// Takes every lease of an owner away, each by the fence that was seen: a lease that somebody
/// takes meanwhile is not hit.
pub(crate) async fn release_all(args: &Release, context: &Context) -> Outcome {
    let Some(owner) = args.owner.as_deref().or_else(|| context.settings.owner()) else {
        return Err(Failure::usage(
            "say whose leases are to be taken away: give --owner NAME, as `leasehold ls` shows it",
        ));
    };
    let owner = OwnerName::new(owner).map_err(|error| Failure::of_argument(&error))?;
    let Some(client) = context.connect_to_look().await? else {
        output::message(&format!("{owner} holds nothing: there is no store yet"));
        return Ok(Exit::Success);
    };
    let Listing { locks, unreadable, .. } = client.list("").await?;
    // Any of these may be the owner's too.
    let told = tell_unreadable(&unreadable);
    let leases = leases_of(&owner, &locks);
    let at = client.location();
    if leases.is_empty() {
        let known = if unreadable.is_empty() { "" } else { " that can be read" };
        output::message(&format!("{owner} holds nothing{known} at {at}"));
        return Ok(told);
    }
    if !args.yes {
        let held = |(key, fence): &(Key, Fence)| {
            vec![key.to_string(), fence.to_string(), "held".to_owned()]
        };
        output::data(&output::table(&leases.iter().map(held).collect::<Vec<_>>()))?;
        output::message(&format!(
            "nothing was done: add --yes to take these leases away from {owner} at {at}, who works on \
             until the next renewal",
        ));
        return Ok(told);
    }
    let mut failed = 0_usize;
    let mut rows = Vec::new();
    for (key, fence) in &leases {
        let outcome = match client.force_release(key, *fence).await {
            Ok(Forced::Released) => "released".to_owned(),
            Ok(_) => "had ended by itself".to_owned(),
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
    Err(Failure::new(Exit::Store, format!("{failed} of {of} leases could not be taken away")))
}

fn leases_of(owner: &OwnerName, locks: &[LockInfo]) -> Vec<(Key, Fence)> {
    let leases = locks.iter().flat_map(|info| {
        let theirs = info.holders.iter().filter(|holder| holder.owner == *owner);
        theirs.map(|holder| (info.key.clone(), holder.fence))
    });
    leases.collect()
}

pub(crate) async fn ask(args: &Ask, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let fence = args.fence.map(fence).transpose()?;
    let client = context.connect_as(args.owner.as_deref(), false, None).await?;
    let asked = match fence {
        Some(fence) => client.ask_holder(&key, fence).await?,
        None => client.ask(&key).await?,
    };
    let at = client.location();
    match (asked, fence) {
        (0, None) => {
            Err(Failure::new(Exit::Lost, format!("ask for \"{key}\" at {at}: nobody holds it")))
        }
        (0, Some(fence)) => Err(Failure::new(
            Exit::Lost,
            format!("ask for \"{key}\" at {at}: nobody holds it with fence {fence}; look again"),
        )),
        (holders, _) => {
            let s = if holders == 1 { "" } else { "s" };
            output::message(&format!("asked {holders} holder{s} of \"{key}\" at {at} to let go"));
            Ok(Exit::Success)
        }
    }
}

pub(crate) async fn set_limit(args: &SetLimit, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let Some(limit) = NonZeroU32::new(args.limit) else {
        return Err(Failure::usage(
            "with a limit of 0 nobody could ever get a permit; give at least 1",
        ));
    };
    let client = context.connect(false).await?;
    let at = client.location().to_owned();
    let request = SetLimitRequest::new(key.clone(), limit);
    let answer = client.store().set_limit(&request, DEFAULT_CALL_TIMEOUT).await;
    let answer =
        answer.map_err(|error| error.during("set-limit").on_key(&key).at_store(at.as_str()))?;
    let refuse =
        |exit, why: &str| Err(Failure::new(exit, format!("set-limit \"{key}\" at {at}: {why}")));
    match answer {
        Answer::Set { before } => {
            output::message(&format!("\"{key}\" at {at}: limit changed from {before} to {limit}"));
            Ok(Exit::Success)
        }
        Answer::NotInUse => refuse(
            Exit::Lost,
            "nobody uses it, so there is no limit to change; its next user sets the limit",
        ),
        _ => {
            let kind = client.inspect(&key).await?.map_or(Kind::Lock, |info| info.kind);
            refuse(Exit::Store, &format!("it is in use as a {kind}, which has no limit"))
        }
    }
}
