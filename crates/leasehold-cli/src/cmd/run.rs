//! `leasehold run`: take a lock, run a command, release the lock.

use crate::arguments;
use crate::cli::Run;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::job::Runner;
use crate::kind::Kind;
use crate::leases::Cooldown;
use crate::request::Request;

pub(crate) async fn run(run: &Run, context: &Context) -> Outcome {
    let kind = Kind::of(&run.kinds, run.keys.len())?;
    let cooldown = run.cooldown.filter(|cooldown| !cooldown.is_none());
    kind.judge(run.taking.waiting.wait, cooldown.is_some())?;
    if run.reopen_on_failure && !matches!(kind, Kind::OncePer(_)) {
        return Err(Failure::usage(
            "--reopen-on-failure opens the period of --once-per again; give that too",
        ));
    }
    let cooling = (cooldown.is_some(), "--cooldown", "cooldown");
    let asking = (run.job.on_ask.is_some(), "--on-ask", "release requests");
    arguments::refuse_for(context.settings.layout(), &[cooling, asking])?;
    let mut request = Request::new(&run.keys, kind, &run.taking, context)?;
    request.ttl = arguments::within(run.max_hold, request.ttl, run.job.grace)?;
    let cooldown = cooldown.map_or(Cooldown::AsGranted, Cooldown::For);
    let runner = Runner::new(&run.job, &request)?
        .cooldown(cooldown, run.reopen_on_failure)
        .max_hold(run.max_hold);
    let mut signals = context.catch_signals()?;
    let (client, held) = request.take(context, &mut signals, runner.manner()).await?;
    Ok(runner.run(held, context, &client, &mut signals).await?.exit())
}
