//! `leasehold man`: print the manual, made from the definition of the command line.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::cli::{self, Cli};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

pub(crate) fn man(args: &cli::Man) -> Outcome {
    if let Some(directory) = &args.dir {
        return write_all(directory);
    }
    let pages = pages();
    let wanted = match &args.command {
        None => "leasehold".to_owned(),
        Some(command) => format!("leasehold-{command}"),
    };
    match pages.into_iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => output::data(&page).map(|()| Exit::Success),
        None => Err(Failure::usage(format!(
            "{wanted} is not the page of a command; leave it out \
                                            for all"
        ))),
    }
}

fn write_all(directory: &Path) -> Outcome {
    fs::create_dir_all(directory).map_err(|error| {
        Failure::new(Exit::Output, format!("can't make {}: {error}", directory.display()))
    })?;
    for (name, page) in pages() {
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, page).map_err(|error| {
            Failure::new(Exit::Output, format!("can't write {}: {error}", path.display()))
        })?;
    }
    Ok(Exit::Success)
}

/// Every page with its name, the program's own first.
fn pages() -> Vec<(String, String)> {
    let mut program = Cli::command();
    program.build();
    let render = |command: &clap::Command| {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let mut page = Vec::new();
        // Writing into memory does not fail.
        drop(Man::new(command.clone()).render(&mut page));
        (name, String::from_utf8_lossy(&page).into_owned())
    };
    let commands = program.get_subcommands().filter(|command| command.get_name() != "help");
    std::iter::once(&program).chain(commands).map(render).collect()
}
