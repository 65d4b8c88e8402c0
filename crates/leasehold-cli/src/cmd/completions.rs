//! `leasehold completions`: print a shell's script, made from the definition of the command line.

use clap::CommandFactory as _;

use crate::cli::{Cli, Completions};
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output;

pub(crate) fn completions(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    output::data(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
