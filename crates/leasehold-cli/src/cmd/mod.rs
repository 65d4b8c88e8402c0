//! What each subcommand does, a file for each.

mod acquire;
mod ask;
pub(crate) mod completions;
mod doctor;
mod elect;
mod force_release;
pub(crate) mod hold;
mod last_run;
mod log;
mod ls;
pub(crate) mod man;
mod metrics;
mod observe;
mod probe;
mod release;
mod renew;
mod run;
mod set_limit;
mod setup;
mod show;
mod top;
mod ui;
mod wait;
mod why;

use crate::cli::Command;
use crate::context::Context;
use crate::failure::Outcome;

pub(crate) async fn carry_out(command: &Command, context: &Context) -> Outcome {
    match command {
        Command::Run(args) => run::run(args, context).await,
        Command::Elect(args) => elect::elect(args, context).await,
        Command::Observe(args) => observe::observe(args, context).await,
        Command::Acquire(args) => acquire::acquire(args, context).await,
        Command::Renew(args) => renew::renew(args, context).await,
        Command::Release(args) => release::release(args, context).await,
        Command::Hold(args) => hold::hold(args, context).await,
        Command::Wait(args) => wait::wait(args, context).await,
        Command::Ls(args) => ls::ls(args, context).await,
        Command::Log(args) => log::log(args, context).await,
        Command::Show(args) => show::show(args, context).await,
        Command::Top(args) => top::top(args, context).await,
        Command::Ui(args) => ui::ui(args, context).await,
        Command::Metrics(args) => metrics::metrics(args, context).await,
        Command::Why(args) => why::why(args, context).await,
        Command::Ask(args) => ask::ask(args, context).await,
        Command::ForceRelease(args) => force_release::force_release(args, context).await,
        Command::SetLimit(args) => set_limit::set_limit(args, context).await,
        Command::Setup(args) => setup::setup(args, context).await,
        Command::Doctor(args) => doctor::doctor(args, context).await,
        Command::Completions(args) => completions::completions(args),
        Command::Man(args) => man::man(args),
    }
}
