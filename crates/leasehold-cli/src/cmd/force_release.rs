//! `leasehold force-release`: take a lock away from its holder.

use leasehold::{Fence, ForceRelease as Forced};

use crate::arguments;
use crate::cli::ForceRelease;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

/// For a lock that is free, or a store that does not exist yet.
pub(crate) const NO_HOLDER: &str = "it has no holder";

pub(crate) async fn force_release(args: &ForceRelease, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    let fence = arguments::fence(args.fence)?;
    let Some(client) = context.connect_to_look().await? else {
        let at = context.settings.place_looked_at();
        return Err(Failure::new(
            Exit::Lost,
            format!("force-release \"{key}\" at {at}: {NO_HOLDER}"),
        ));
    };
    let (by, at) = (client.owner().clone(), client.location().to_owned());
    let Some(why) = why_not(&client.force_release(&key, fence).await?) else {
        output::message(&format!("{by} force-released \"{key}\" (fence {fence}) at {at}"));
        return Ok(Exit::Success);
    };
    Err(Failure::new(Exit::Lost, format!("force-release \"{key}\" at {at}: {why}")))
}

/// Why the lease was not ended; `None` if it was.
pub(crate) fn why_not(done: &Forced) -> Option<String> {
    match done {
        Forced::Released => None,
        Forced::OtherFence { fences } => {
            let fences: Vec<String> = fences.iter().map(Fence::to_string).collect();
            Some(format!("it is held with another fence ({}); look again", fences.join(", ")))
        }
        _ => Some(NO_HOLDER.to_owned()),
    }
}
