//! `cargo xtask check`: runs the steps in order, times each, and stops at the first failure.
//!
//! Steps that run programs come last. All of them run, and the failures are listed at the end.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::jobs::{self, Job};
use crate::{doc_links, features, hygiene, interop, python, root, surface, tools};

/// How much to check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Scope {
    /// What CI checks.
    Everything,
    /// Only what changes most often: it leaves out feature combinations, documentation, other
    /// libraries, Python, torture and simulation.
    Fast,
}

type Step = fn() -> Result<(), String>;

/// The name, whether [`Scope::Fast`] leaves it out, and the function.
const STEPS: &[(&str, bool, Step)] = &[
    ("format", false, format),
    ("hygiene", false, || hygiene::run(root())),
    ("lints", false, lints),
    ("features", true, feature_sets),
    ("documentation", true, documentation),
    ("public surface", true, || surface::run(root(), surface::Task::Compare)),
];

pub(crate) fn run(scope: Scope) -> Result<(), String> {
    tools()?;
    let begin = now();
    // Mostly waits for registries. If this fails, the jobs try again, and report why.
    let prepared = (scope == Scope::Everything)
        .then(|| thread::spawn(|| (interop::prepare(), python::prepare())));
    for (name, slow, step) in STEPS {
        if *slow && scope == Scope::Fast {
            println!("==> {name}: left out (--fast)");
            continue;
        }
        timed(name, step)?;
    }
    let mut queues = Vec::new();
    timed("build of tests", || {
        queues.push(tests()?);
        Ok(())
    })?;
    if let Some(prepared) = prepared {
        drop(prepared.join());
        timed("licences and spelling", tools::run)?;
        queues.push(others()?);
    }
    timed("tests", || jobs::run(queues))?;
    println!("==> all checks passed in {}", seconds(begin.elapsed()));
    Ok(())
}

fn timed(name: &str, step: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    println!("==> {name}");
    let begin = now();
    let result = step();
    let seconds = seconds(begin.elapsed());
    result.map_err(|message| format!("{name} failed after {seconds}: {message}"))?;
    println!("==> {name}: ok in {seconds}");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a time to print")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

/// Cargo reports a missing component as an unknown command; this names the remedy.
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
    // Separate, since the program has the library's name, and both would write the same files.
    cargo(&[&args[..], &["--package", "leasehold-cli", "--bins"]].concat(), &strict)?;
    // Pages of the program, and of earlier runs, have links to pages that are gone.
    let pages = documents();
    let failed =
        |what: &str, error: &io::Error| format!("can't {what} {}: {error}", pages.display());
    match fs::remove_dir_all(&pages) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &error)),
        _ => {}
    }
    // rustdoc links to another crate's pages only if their folder exists, and builds the crates in
    // any order.
    for library in libraries().map_err(|error| failed("look for the crates of", &error))? {
        fs::create_dir_all(pages.join(library)).map_err(|error| failed("make", &error))?;
    }
    cargo(&[&args[..], &["--workspace", "--lib"]].concat(), &strict)?;
    documentation_links()
}

/// The libraries of the workspace, by rustdoc's names.
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

pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// What runs longest. It begins first, so that all queues end at about the same time.
const LONG: &[&str] = &["it", "cells", "instructions", "leasehold_redis"];

/// Builds all test programs. They run one at a time: two of the large ones need all of two
/// processors.
fn tests() -> Result<Vec<Job>, String> {
    let args = ["test", "--no-run", "--workspace", "--all-features"];
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    let format = ["--message-format", "json-render-diagnostics"];
    let messages = output(&[&args[..], &targets, &format].concat())?;
    // Tests mostly wait for servers, leases and each other.
    let threads = env::var("RUST_TEST_THREADS").unwrap_or_else(|_| {
        (2 * thread::available_parallelism().map_or(1, usize::from)).to_string()
    });
    let mut programs = test_programs(&messages);
    programs.sort_by_key(|program| !LONG.contains(&program.target.as_str()));
    Ok(programs.into_iter().map(|it| it.job(&threads)).collect())
}

#[derive(Debug, Eq, PartialEq)]
struct TestProgram {
    executable: String,
    target: String,
    /// Its package's folder, in which cargo runs it.
    folder: PathBuf,
}

impl TestProgram {
    fn job(self, threads: &str) -> Job {
        let Self { executable, target, folder } = self;
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = Command::new(executable);
        command.env("RUST_TEST_THREADS", threads).env("CARGO_MANIFEST_DIR", &folder);
        command.env("CARGO_PKG_NAME", &package).current_dir(folder);
        Job { name: format!("{package} {target}"), command }
    }
}

/// The test programs in cargo's messages.
fn test_programs(messages: &str) -> Vec<TestProgram> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|it| it["profile"]["test"] == true);
    let program = |message: Value| {
        let manifest = Path::new(message["manifest_path"].as_str()?);
        Some(TestProgram {
            executable: message["executable"].as_str()?.to_owned(),
            target: message["target"]["name"].as_str()?.to_owned(),
            folder: manifest.parent()?.to_owned(),
        })
    };
    tests.filter_map(program).collect()
}

/// The jobs besides the tests: other commands of this program, and cargo's.
fn others() -> Result<Vec<Job>, String> {
    let this = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let job = |name: &str, mut command: Command| {
        command.arg(name);
        Job { name: name.to_owned(), command }
    };
    let with = |name: &str| job(name, Command::new(&this));
    let doc_tests = command(&["test", "--doc", "--workspace", "--all-features"]);
    let doc_tests = Job { name: "doc tests".to_owned(), command: doc_tests };
    let sim = job("sim", yielding(&this));
    Ok(vec![sim, with("interop"), with("python"), doc_tests, with("torture")])
}

/// A program that mostly computes, with the processor time that others leave: tests beside it judge
/// servers and leases of few seconds.
pub(crate) fn yielding(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program);
    command
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
    // Set by cargo for its children, so that all use the same toolchain.
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_those_that_cargo_has_built_to_test() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"manifest_path":"/w/a/Cargo.toml","target":{{"name":"it"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let lines = [
            message(true, r#""/t/it-1""#),
            message(false, r#""/t/it""#),
            message(true, "null"),
            "no JSON".to_owned(),
        ];
        let it = TestProgram {
            executable: "/t/it-1".to_owned(),
            target: "it".to_owned(),
            folder: "/w/a".into(),
        };
        assert_eq!(test_programs(&lines.join("\n")), [it]);
    }
}
