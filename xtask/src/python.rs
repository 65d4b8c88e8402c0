//! `cargo xtask python`: builds the Python package, and runs its tests and type checkers.
//!
//! It needs Python 3.11 or later with `venv`, which it installs on Debian. All else comes from the
//! languages' registries, into `target/python`. If anything is missing, the run fails.

use std::env;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::{check, interop, root};

/// What the tests and the type checkers need, with its version.
const REQUIREMENTS: &str = "tests/requirements.txt";

/// Fails if the interpreter is too old, or can't make environments.
const IS_USABLE: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";

/// Installs what the package is built and tested with.
pub(crate) fn prepare() -> Result<(), String> {
    if !is_usable() {
        interop::install(&["python3", "python3-venv"])?;
    }
    if !is_usable() {
        return Err(
            "python3 is older than 3.11 or has no venv; put a newer one first in PATH".to_owned()
        );
    }
    interop::environment(&sources().join(REQUIREMENTS), &environment())
}

fn is_usable() -> bool {
    let mut python = Command::new("python3");
    let python = python.args(["-c", IS_USABLE]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// With words, runs the tests alone and gives them these.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    prepare()?;
    install(&wheel("dev", &["--auditwheel", "skip"])?)?;
    if !words.is_empty() {
        return interop::finish(tests(words));
    }
    // The tests mostly wait for servers, leases and each other. The slow ones stand side by side in
    // one file, which one worker would have for itself. So idle workers take tests over.
    let wrong: Vec<String> = thread::scope(|scope| {
        let types = scope.spawn(types);
        let tested = interop::finish(tests(&["-n", "4", "--dist", "worksteal"]));
        let typed = types.join().map_err(|_| "the type checkers ended in a panic".to_owned());
        [typed.and_then(|typed| typed), tested].into_iter().filter_map(Result::err).collect()
    });
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The type checkers. Their output is printed if they have findings.
fn types() -> Result<(), String> {
    let runs: [(&str, &[&str]); 4] = [
        ("mypy", &["--strict", "python", "tests/typed.py"]),
        ("stubtest", &["leasehold", "--ignore-disjoint-bases"]),
        ("pyright", &["tests/typed.py"]),
        ("pyright", &["--ignoreexternal", "--verifytypes", "leasehold"]),
    ];
    let mut wrong = Vec::new();
    for (name, args) in runs {
        let checker = check::yielding(program(name));
        let outcome = placed(checker, args).stdin(Stdio::null()).output();
        let ended = outcome.map_err(|error| format!("cannot run {name}: {error}"))?;
        if !ended.status.success() {
            let said = [ended.stdout, ended.stderr].concat();
            wrong.push(format!("{name}: {}\n{}", ended.status, String::from_utf8_lossy(&said)));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// A wheel and the source archive, for release, in `to`.
pub(crate) fn dist(to: &Path) -> Result<(), String> {
    prepare()?;
    let mut sdist = maturin("sdist");
    sdist.arg("--out").arg(to);
    interop::finish(sdist)?;
    let wheel = wheel("wheel", &[])?;
    let name = wheel.file_name().ok_or("a wheel has a name")?;
    fs::copy(&wheel, to.join(name)).map_err(|error| format!("{}: {error}", wheel.display()))?;
    println!("    {}", to.join(name).display());
    Ok(())
}

/// Builds the package; returns the wheel's path.
fn wheel(profile: &str, options: &[&str]) -> Result<PathBuf, String> {
    let folder = environment().join("wheels").join(profile);
    // Wheels of other versions would stay beside the new one.
    drop(fs::remove_dir_all(&folder));
    let mut build = maturin("build");
    build.args(["--locked", "--profile", profile, "--interpreter"]).arg(program("python"));
    build.args(options).arg("--out").arg(&folder);
    interop::finish(build)?;
    let made = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = made.flatten().map(|entry| entry.path());
    paths.next().ok_or_else(|| format!("no wheel in {}", folder.display()))
}

fn maturin(what: &str) -> Command {
    let mut maturin = check::yielding(program("maturin"));
    maturin.args([what, "--manifest-path"]).arg(sources().join("Cargo.toml"));
    maturin.env("CARGO_TARGET_DIR", check::target()).env("CARGO_TERM_QUIET", "true");
    maturin
}

fn install(wheel: &Path) -> Result<(), String> {
    let mut pip = tool("python", &["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]);
    pip.arg("--force-reinstall").arg(wheel);
    interop::finish(pip)
}

fn tests(words: &[&str]) -> Command {
    let mut tests = tool("python", &["-X", "dev", "-m", "pytest"]);
    tests.args(words);
    tests
}

fn tool(name: &str, args: &[&str]) -> Command {
    placed(Command::new(program(name)), args)
}

/// A tool with its arguments, where it finds the sources and the environment.
fn placed(mut tool: Command, args: &[&str]) -> Command {
    tool.args(args).current_dir(sources()).env("LEASEHOLD_TARGET", check::target());
    // Pyright looks for what is installed by the interpreter that it finds there.
    let found = env::var_os("PATH").unwrap_or_default();
    let folders = iter::once(environment().join("bin")).chain(env::split_paths(&found));
    tool.env("PATH", env::join_paths(folders).unwrap_or(found));
    tool
}

fn program(name: &str) -> PathBuf {
    environment().join("bin").join(name)
}

fn sources() -> PathBuf {
    root().join("bindings/python")
}

fn environment() -> PathBuf {
    check::target().join("python")
}
