//! `leasehold set-limit`: change the limit of a semaphore in use.

use leasehold::DEFAULT_CALL_TIMEOUT;
use leasehold::store::{Kind, SetLimit as Answer, SetLimitRequest};

use crate::arguments;
use crate::cli::SetLimit;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

pub(crate) async fn set_limit(args: &SetLimit, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    let limit = arguments::limit(args.limit)?;
    let client = context.connect_to_look().await?;
    let at = client
        .as_ref()
        .map_or_else(|| context.settings.place_looked_at(), |it| it.location().to_owned());
    let refuse =
        |exit, why: &str| Err(Failure::new(exit, format!("set-limit \"{key}\" at {at}: {why}")));
    let unused = || refuse(Exit::Lost, "it is not in use, so its next user sets the limit");
    let Some(client) = client else { return unused() };
    let request = SetLimitRequest::new(key.clone(), limit);
    let answer = client.store().set_limit(&request, DEFAULT_CALL_TIMEOUT).await;
    let answer =
        answer.map_err(|error| error.during("set-limit").on_key(&key).at_store(at.as_str()))?;
    match answer {
        Answer::Set { before } => {
            output::message(&format!("\"{key}\" at {at}: limit changed from {before} to {limit}"));
            Ok(Exit::Success)
        }
        Answer::NotInUse => unused(),
        _ => {
            let kind = client.inspect(&key).await?.map_or(Kind::Lock, |info| info.kind);
            refuse(
                Exit::Store,
                &format!(
                    "it is in use as a {kind}, which has no limit; name a \
                                          semaphore"
                ),
            )
        }
    }
}
