//! `cargo xtask sim`: builds the simulation and runs it.

use std::process::{Command, Stdio};

use crate::{check, root, torture};

/// Without arguments: the same seeds each time, and then others.
const FIXED: [&str; 5] = ["run", "--seconds", "60", "--from", "1"];
const NEW: [&str; 4] = ["run", "--seconds", "30", "--new"];
const BUILD: [&str; 7] = [
    "build",
    "--quiet",
    "--profile",
    "sim",
    "--package",
    "leasehold-sim",
    "--message-format=json-render-diagnostics",
];

pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let planted = args.first() == Some(&"planted");
    let program = build(planted)?;
    if args.is_empty() {
        simulate(&program, &FIXED)?;
        return simulate(&program, &NEW);
    }
    simulate(&program, args)
}

/// The faults are planted in a build of its own, beside all others.
fn build(planted: bool) -> Result<String, String> {
    let mut command = check::command(&BUILD);
    if planted {
        command.env("RUSTFLAGS", "--cfg leasehold_planted");
        command.env("CARGO_TARGET_DIR", root().join("target/planted"));
    }
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {}", BUILD.join(" ")));
    }
    torture::executable(&String::from_utf8_lossy(&output.stdout), "leasehold-sim")
}

fn simulate(program: &str, args: &[&str]) -> Result<(), String> {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("leasehold-sim {}: {status}", args.join(" ")))
    }
}
