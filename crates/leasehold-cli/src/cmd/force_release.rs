//! `leasehold force-release`: take a lock away from its holder.

use leasehold::{Fence, ForceRelease as Forced};

use crate::arguments;
use crate::cli::ForceRelease;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

pub(crate) async fn force_release(args: &ForceRelease, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    let fence = arguments::fence(args.fence)?;
    let nobody = "nobody holds it".to_owned();
    let Some(client) = context.connect_to_look().await? else {
        let at = context.settings.place();
        return Err(Failure::new(Exit::Lost, format!("force-release \"{key}\" at {at}: {nobody}")));
    };
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
        _ => nobody,
    };
    Err(Failure::new(Exit::Lost, format!("force-release \"{key}\" at {at}: {done}")))
}
