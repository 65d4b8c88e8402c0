//! What developers and CI run: `cargo xtask <command>`.
//!
//! Nothing here ships. Commands live in modules of their own; this one only picks.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]

mod book;
mod budgets;
mod check;
mod circles;
mod commits;
mod dist;
mod doc_links;
mod features;
mod files;
mod histories;
mod hygiene;
mod interop;
mod jobs;
mod links;
mod picture;
mod promises;
mod prose;
mod python;
mod sim;
mod surface;
mod tests_named;
mod tools;
mod torture;
mod words;

use std::env;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  check [--fast]  everything CI checks; --fast leaves out features, documentation, doc tests,
                  other libraries, Python, torture, simulation and model
  hygiene         what no compiler complains about: leftovers, white space, long files, links, words,
                  tests that documents name, promises, circles of modules, commit messages
  files [WORD…]   what each source file is for, by its own first line: of all files, or of those whose
                  path or line has all these words
  doc-links       the links of the documentation that `cargo doc` has put into target/doc, where rustdoc
                  does not look: to files and places in pages, and those that came out as text
  tools           the licences and sources of all dependencies, and spelling, by tools that it installs
                  into target/tools
  book            the documents as a book in target/book
  interop [NAME…] the lock libraries of other languages and leasehold on the same locks, see
                  docs/interop-trials.md; all of them, or those of these names
  picture         draws docs/picture.svg from a session that it records
  prose [--write | PART…]
                  the findings of style in all prose, or in files whose path has one of these parts; --write
                  notes in xtask/prose.txt that there are fewer of them (more are refused, by hygiene as well)
  python [WORD…]  the Python package: its tests, mypy, stubtest and pyright, in target/python; with words
                  the tests alone, and the words go to pytest
  surface [--write]
                  whether the public surface is what docs/api says, or makes docs/api say so; and whether
                  each method that waits says its cost, its errors and what a dropped future loses
  dist [PART...]  what is given to users, into target/dist: package (Debian, and its files alone), static
                  (the same with musl), image, crates (as they are published),
                  python (a wheel and the source archive); without arguments all of it
  sim [run|history|histories|model|planted ARGUMENT...]
                  the client simulated, see docs/proof.md: `run --seconds N`, `run --seeds N --from SEED`,
                  `history SEED`, `model`, `planted`; `histories [--write]`, whether some seeds' histories are
                  those recorded, or records them; without arguments what `check` runs: these histories, a
                  minute of the same seeds, half a minute of others, and the model
  torture [STORE SECONDS [SEED]]
                  the whole command under faults, see docs/reliability.md; STORE is embedded, redis,
                  sentinel, cluster, quorum or all; without arguments it is `all 30`
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [] | ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(())
        }
        ["check"] => check::run(check::Scope::Everything),
        ["check", "--fast"] => check::run(check::Scope::Fast),
        ["hygiene"] => hygiene::run(root()),
        ["files", words @ ..] => files::run(root(), words),
        ["doc-links"] => check::documentation_links(),
        ["tools"] => tools::run(),
        ["book"] => book::run(root()),
        ["picture"] => picture::run(root()),
        ["prose", rest @ ..] => prose::run(root(), rest),
        ["python", words @ ..] => python::run(words),
        ["surface"] => surface::run(root(), surface::Task::Compare),
        ["surface", "--write"] => surface::run(root(), surface::Task::Write),
        ["interop", names @ ..] => interop::run(names),
        ["dist", parts @ ..] => dist::run(parts),
        ["sim", rest @ ..] => sim::run(rest),
        ["torture", rest @ ..] => torture::run(rest),
        _ => {
            eprint!("xtask: no such command: {}\n\n{USAGE}", args.join(" "));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace, wherever the command was called.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}
