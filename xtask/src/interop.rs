//! `cargo xtask interop`: runs lock libraries of other languages and leasehold on the same locks.
//!
//! The programs' dependencies are installed below `target/interop`, with the languages' own tools.
//! The distribution's package manager installs the tools themselves. If anything is missing, the
//! run fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{root, torture};

/// A tool, and the Debian package that has it.
const TOOLS: [(&str, &str); 7] = [
    ("go", "golang-go"),
    ("javac", "default-jdk-headless"),
    ("mvn", "maven"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("php", "php-cli"),
    ("python3", "python3-venv"),
];

/// Symfony's Lock component, where its package puts it.
const SYMFONY: &str = "/usr/share/php/Symfony/Component/Lock/autoload.php";

/// Installs and builds what is missing. Each part is marked when it is complete, so half-done parts
/// are repeated.
pub(crate) fn prepare() -> Result<(), String> {
    let (sources, built) = folders();
    tools()?;
    python(&sources, &built)?;
    node(&sources, &built)?;
    go(&sources, &built)?;
    java(&sources, &built)
}

/// Where the programs' sources are, and where they are built.
fn folders() -> (PathBuf, PathBuf) {
    (root().join("interop"), root().join("target/interop"))
}

pub(crate) fn run(names: &[&str]) -> Result<(), String> {
    prepare()?;
    let (sources, built) = folders();
    let mut trials = Command::new(torture::built("leasehold-interop")?);
    trials.arg(sources).arg(built).args(names);
    finish(trials)
}

fn tools() -> Result<(), String> {
    let lacks = |tool: &str| {
        let asked = Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        // Not all tools know the option, but any answer shows that the tool is there.
        asked.is_err()
    };
    let mut missing: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| lacks(tool)).map(|(_, package)| *package).collect();
    let php_lacks_redis = || {
        let modules = Command::new("php").arg("-m").output();
        !modules.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).lines().any(|m| m == "redis"))
    };
    missing.extend(php_lacks_redis().then_some("php-redis"));
    missing.extend((!Path::new(SYMFONY).exists()).then_some("php-symfony-lock"));
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs Debian packages.
pub(crate) fn install(missing: &[&str]) -> Result<(), String> {
    println!("    installing {}", missing.join(", "));
    let mut install = as_root("apt-get");
    install.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(missing);
    install.stdout(Stdio::null());
    let mut update = as_root("apt-get");
    update.args(["update", "--quiet"]).stdout(Stdio::null());
    finish(update)
        .and_then(|()| finish(install))
        .map_err(|error| format!("{error}; install by hand what is missing: {}", missing.join(" ")))
}

/// A program with the rights to install, as `./check` gets them: as root, or else by a sudo without
/// a password.
fn as_root(program: &str) -> Command {
    let mut id = Command::new("id");
    let id = id.arg("-u").stderr(Stdio::null()).output();
    let is_root = id.is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    // Set by `env`, since sudo drops variables.
    let mut words = vec!["env", "DEBIAN_FRONTEND=noninteractive", program];
    if !is_root {
        words.splice(0..0, ["sudo", "-n"]);
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Whether something was built from these files in their current state.
fn is_current(mark: &Path, from: &[PathBuf]) -> Result<Option<String>, String> {
    let mut now = String::new();
    for file in from {
        let content = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        now.push_str(&content);
    }
    let before = std::fs::read_to_string(mark).unwrap_or_default();
    Ok(if before == now { None } else { Some(now) })
}

/// Builds something, unless it was built from the same files before.
fn build(
    folder: &Path,
    from: &[PathBuf],
    make: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let mark = folder.join("built-from");
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let Some(now) = is_current(&mark, from)? else { return Ok(()) };
    println!("    building in {}", folder.display());
    make()?;
    std::fs::write(&mark, now).map_err(|error| format!("{}: {error}", mark.display()))
}

fn python(sources: &Path, built: &Path) -> Result<(), String> {
    environment(&sources.join("python/requirements.txt"), &built.join("python"))
}

/// An environment of Python's in `to` with what the file `from` lists.
pub(crate) fn environment(from: &Path, to: &Path) -> Result<(), String> {
    build(to, &[from.to_owned()], || {
        let mut environment = Command::new("python3");
        environment.args(["-m", "venv"]).arg(to);
        finish(environment)?;
        let mut install = Command::new(to.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(from);
        finish(install)
    })
}

fn node(sources: &Path, built: &Path) -> Result<(), String> {
    let to = built.join("node");
    let files = ["package.json", "peer.js"];
    let from: Vec<_> = files.iter().map(|file| sources.join("node").join(file)).collect();
    build(&to, &from, || {
        for (from, file) in from.iter().zip(files) {
            std::fs::copy(from, to.join(file)).map_err(|error| format!("{file}: {error}"))?;
        }
        let mut install = Command::new("npm");
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]);
        install.current_dir(&to);
        finish(install)
    })
}

fn go(sources: &Path, built: &Path) -> Result<(), String> {
    let (from, to) = (sources.join("go"), built.join("go"));
    let files: Vec<_> = ["go.mod", "go.sum", "main.go"].iter().map(|it| from.join(it)).collect();
    build(&to, &files, || {
        let mut compile = Command::new("go");
        compile.args(["build", "-o"]).arg(to.join("peer")).arg(".").current_dir(&from);
        finish(compile)
    })
}

fn java(sources: &Path, built: &Path) -> Result<(), String> {
    let (from, to) = (sources.join("java"), built.join("java"));
    let source = from.join("src/main/java/Peer.java");
    build(&to, &[from.join("pom.xml"), source.clone()], || {
        let mut fetch = Command::new("mvn");
        fetch.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
        fetch.arg(format!("-DoutputDirectory={}", to.join("lib").display())).current_dir(&from);
        finish(fetch)?;
        let mut compile = Command::new("javac");
        compile.arg("-cp").arg(to.join("lib/*")).arg("-d").arg(to.join("classes")).arg(source);
        finish(compile)
    })
}

pub(crate) fn finish(mut command: Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("cannot run {shown}: {error}")),
    }
}
