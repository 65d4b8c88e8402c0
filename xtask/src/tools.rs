//! Runs tools from Python's registry: licences of the dependencies, and spelling.

use std::process::Command;

use crate::{interop, root};

/// Each tool with its arguments.
const RUNS: [(&str, &[&str]); 2] = [
    // The advisories are a repository elsewhere, which this must not depend on.
    ("cargo-deny", &["--all-features", "check", "licenses", "bans", "sources"]),
    ("typos", &["--format", "brief"]),
];

pub(crate) fn run() -> Result<(), String> {
    let installed = root().join("target/tools");
    interop::environment(&root().join("xtask/requirements.txt"), &installed)?;
    for (tool, args) in RUNS {
        let mut command = Command::new(installed.join("bin").join(tool));
        command.args(args).current_dir(root());
        interop::finish(command)?;
    }
    Ok(())
}
