//! `cargo xtask check`: runs the steps in order, times each, and stops at the first failure.
//!
//! The tests come last, so that what remains on the screen is the summary of the test runner.

use std::env;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{doc_links, features, hygiene, interop, root, run_tests, sim, surface, torture};

/// How much to check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Scope {
    /// What CI checks.
    Everything,
    /// What changes most often: no feature combinations, no documentation, no other libraries, no torture, no simulation.
    Fast,
}

type Step = fn() -> Result<(), String>;

/// Name, whether [`Scope::Fast`] leaves it out, and what it does.
const STEPS: &[(&str, bool, Step)] = &[
    ("format", false, format),
    ("hygiene", false, || hygiene::run(root())),
    ("lints", false, lints),
    ("features", true, feature_sets),
    ("documentation", true, documentation),
    ("public surface", true, || surface::run(root(), surface::Task::Compare)),
    ("doc tests", true, doc_tests),
    ("other libraries", true, || interop::run(&[])),
    ("torture", true, || torture::run(&[])),
    ("simulation", true, sim::seeds),
    ("model", true, sim::model),
    ("tests", false, tests),
];

pub(crate) fn run(scope: Scope) -> Result<(), String> {
    tools()?;
    let begin = now();
    if scope == Scope::Everything {
        // Mostly a wait for registries. The step itself tries again what fails here, and says why.
        drop(thread::spawn(interop::prepare));
    }
    for (name, slow, step) in STEPS {
        if *slow && scope == Scope::Fast {
            println!("==> {name}: left out (--fast)");
            continue;
        }
        println!("==> {name}");
        let step_begin = now();
        let result = step();
        let seconds = seconds(step_begin.elapsed());
        result.map_err(|message| format!("{name} failed after {seconds}: {message}"))?;
        println!("==> {name}: ok in {seconds}");
    }
    println!("==> all checks passed in {}", seconds(begin.elapsed()));
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a time to print")]
fn now() -> Instant {
    Instant::now()
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

/// Cargo reports a missing component as an unknown command; this says what to do.
fn tools() -> Result<(), String> {
    for (tool, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !has(tool) {
            return Err(format!("cargo {tool} is missing; run: rustup component add {component}"));
        }
    }
    Ok(())
}

fn format() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"], &[])
}

fn lints() -> Result<(), String> {
    let args = ["clippy", "--workspace", "--all-targets", "--all-features", "--"];
    cargo(&[&args[..], &["-D", "warnings"]].concat(), &[])
}

fn feature_sets() -> Result<(), String> {
    let metadata = output(&["metadata", "--no-deps", "--format-version", "1"])?;
    for set in features::sets(&metadata)? {
        let features = set.features.join(",");
        println!("    {} [{features}]", set.package);
        let args = ["clippy", "--quiet", "--no-deps", "--package", &set.package];
        let selection = ["--no-default-features", "--features", &features, "--", "-D", "warnings"];
        cargo(&[&args[..], &selection].concat(), &[])?;
    }
    Ok(())
}

fn documentation() -> Result<(), String> {
    let strict = [("RUSTDOCFLAGS", "-D warnings")];
    let args = ["doc", "--no-deps", "--all-features", "--document-private-items"];
    // Apart: the program is called like the library, and both would go to the same files.
    cargo(&[&args[..], &["--package", "leasehold-cli", "--bins"]].concat(), &strict)?;
    // Pages of the program, and of earlier runs, link to what there is no more.
    let pages = documents();
    let failed =
        |what: &str, error: &io::Error| format!("can't {what} {}: {error}", pages.display());
    match fs::remove_dir_all(&pages) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &error)),
        _ => {}
    }
    // rustdoc links to another crate's pages if their folder is there, and makes them in no order.
    for library in libraries().map_err(|error| failed("look for the crates of", &error))? {
        fs::create_dir_all(pages.join(library)).map_err(|error| failed("make", &error))?;
    }
    cargo(&[&args[..], &["--workspace", "--lib"]].concat(), &strict)?;
    documentation_links()
}

/// The libraries of the workspace, as rustdoc calls them.
fn libraries() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let entry = entry?;
        if entry.path().join("src/lib.rs").is_file() {
            names.push(entry.file_name().to_string_lossy().replace('-', "_"));
        }
    }
    Ok(names)
}

pub(crate) fn documentation_links() -> Result<(), String> {
    doc_links::run(&documents())
}

/// Where `cargo doc` puts its pages.
fn documents() -> PathBuf {
    target().join("doc")
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

fn doc_tests() -> Result<(), String> {
    cargo(&["test", "--doc", "--workspace", "--all-features"], &[])
}

fn tests() -> Result<(), String> {
    let this = env::args_os().next().map_or_else(PathBuf::new, PathBuf::from);
    let this = this.canonicalize().map_err(|error| format!("{}: {error}", this.display()))?;
    let runner =
        format!("target.'cfg(all())'.runner = [{:?}, 'run-tests']", this.display().to_string());
    // They wait for servers, leases and each other far more than they compute.
    let threads = env::var("RUST_TEST_THREADS").unwrap_or_else(|_| {
        (2 * thread::available_parallelism().map_or(1, usize::from)).to_string()
    });
    let all = ["test", "--no-fail-fast", "--workspace", "--all-features", "--config", &runner];
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    let failures = root().join(target()).join("failures.txt");
    match fs::remove_file(&failures) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(format!("can't remove {}: {error}", failures.display()));
        }
        _ => {}
    }
    let kept = failures.display().to_string();
    let environment = [("RUST_TEST_THREADS", &*threads), (run_tests::FAILURES, &*kept)];
    let result = cargo(&[&all[..], &targets].concat(), &environment);
    if result.is_err() {
        println!("==> what failed, once more:");
        println!("{}", fs::read_to_string(&failures).unwrap_or_else(|error| error.to_string()));
    }
    result
}

pub(crate) fn cargo(args: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let status = command(args)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let variables: String =
        environment.iter().map(|(name, value)| format!("{name}=\"{value}\" ")).collect();
    Err(format!("{variables}cargo {}", args.join(" ")))
}

pub(crate) fn output(args: &[&str]) -> Result<String, String> {
    let output = command(args)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {}", args.join(" ")));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("cargo {}: {error}", args.join(" ")))
}

fn has(subcommand: &str) -> bool {
    command(&[subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn command(args: &[&str]) -> Command {
    // Set by cargo for what it runs: the same toolchain all the way down.
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}
