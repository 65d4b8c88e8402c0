//! `leasehold ask`: request release from the holders of a lock.

use crate::arguments;
use crate::cli::Ask;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

pub(crate) async fn ask(args: &Ask, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    let fence = args.fence.map(arguments::fence).transpose()?;
    let (asked, at) = match context.connect_if_made(args.owner.as_deref(), false).await? {
        Some(client) => {
            let asked = match fence {
                Some(fence) => client.ask_holder(&key, fence).await?,
                None => client.ask(&key).await?,
            };
            (asked, client.location().to_owned())
        }
        None => (0, context.settings.place_looked_at()),
    };
    match (asked, fence) {
        (0, None) => {
            Err(Failure::new(Exit::Lost, format!("ask \"{key}\" at {at}: it has no holder")))
        }
        (0, Some(fence)) => Err(Failure::new(
            Exit::Lost,
            format!("ask \"{key}\" at {at}: it has no holder with fence {fence}; look again"),
        )),
        (holders, _) => {
            let s = if holders == 1 { "" } else { "s" };
            output::message(&format!(
                "requested the release of \"{key}\" at {at} from {holders} \
                                      holder{s}"
            ));
            Ok(Exit::Success)
        }
    }
}
