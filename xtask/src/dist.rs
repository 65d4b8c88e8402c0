//! `cargo xtask dist`: makes everything that users get, in `target/dist`.
//!
//! If this machine can't make a part, all other parts are made anyway. At the end, the run fails
//! and names that part and what it needs.

use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{check, python, root, torture};

/// The image's name, until its user gives it another one.
const IMAGE: &str = "leasehold";
/// Unpublished packages, which check and measure the others.
const PRIVATE: [&str; 6] = [
    "leasehold-bench",
    "leasehold-examples",
    "leasehold-interop",
    "leasehold-python",
    "leasehold-testkit",
    "xtask",
];

/// For the static program. Without it, each start first writes the address that the system chose
/// into fifty pages of tables.
const AT_A_FIXED_PLACE: &[&str] = &["-C", "relocation-model=static"];
/// The linker that comes with the compiler: what it links starts sooner.
const LLD: &[&str] = &["-C", "linker=rust-lld", "-C", "linker-flavor=ld.lld"];

type Part = fn(&Path) -> Result<(), String>;

const PARTS: [(&str, Part); 5] = [
    ("package", package),
    ("static", static_package),
    ("image", image),
    ("crates", crates),
    ("python", python::dist),
];

/// Makes these parts, or all.
pub(crate) fn run(wanted: &[&str]) -> Result<(), String> {
    if let Some(unknown) = wanted.iter().find(|name| PARTS.iter().all(|(part, _)| part != *name)) {
        return Err(format!(
            "there is no part {unknown}; there are package, static, image, crates, python"
        ));
    }
    let directory = root().join("target/dist");
    fs::create_dir_all(&directory).map_err(|error| wrong(&directory, &error))?;
    let mut missing = Vec::new();
    for (name, make) in PARTS.iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(name))
    {
        println!("==> {name}");
        if let Err(why) = make(&directory) {
            println!("    {why}");
            missing.push(format!("{name}: {why}"));
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("not made: {}", missing.join("; "))) }
}

/// The program for systems with this machine's C library: a Debian package, and its files alone.
fn package(directory: &Path) -> Result<(), String> {
    wrap(&build(&[], &[])?, directory, &format!("{ARCH}-linux-gnu"))
}

/// Makes the program for every Linux.
///
/// It uses musl. A static program with glibc resolves host names by loading the same glibc's
/// libraries, and fails where those are missing.
fn static_package(directory: &Path) -> Result<(), String> {
    let directory = directory.join("static");
    wrap(&build_static()?, &directory, &format!("{ARCH}-linux-static"))
}

fn build_static() -> Result<PathBuf, String> {
    let target = format!("{ARCH}-unknown-linux-musl");
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(&target).exists() {
        return Err(format!("no standard library for {target}; run: rustup target add {target}"));
    }
    if !["musl-gcc", &format!("{ARCH}-linux-musl-gcc")].into_iter().any(is_there) {
        return Err(
            "no C compiler for musl, which LMDB and ring are built with; install musl-gcc \
                    (Debian, Ubuntu: apt-get install musl-tools)"
                .to_owned(),
        );
    }
    build(&["--target", &target], &[AT_A_FIXED_PLACE, LLD].concat())
}

/// By its recipe if a builder is installed, otherwise assembled from the static program.
fn image(directory: &Path) -> Result<(), String> {
    let builder = ["podman", "docker"].into_iter().find(|builder| {
        let mut info = Command::new(builder);
        let info = info.arg("info").stdout(Stdio::null()).stderr(Stdio::null());
        info.status().is_ok_and(|status| status.success())
    });
    let Some(builder) = builder else {
        println!("    neither podman nor docker answers here; packaging/image.sh does without");
        let mut script = Command::new(root().join("packaging/image.sh"));
        let archive = output(script.arg(build_static()?).arg(directory))?;
        println!("    {}", archive.trim());
        return Ok(());
    };
    let recipe = ["build", "--file", "packaging/Containerfile", "--tag", IMAGE, "."];
    succeed(Command::new(builder).args(recipe).current_dir(root()))
}

/// The crates as they would be published, each built from its archive.
fn crates(directory: &Path) -> Result<(), String> {
    let private = PRIVATE.iter().flat_map(|name| ["--exclude", name]);
    let mut cargo = check::command(&["package", "--workspace", "--all-features"]);
    succeed(cargo.args(private))?;
    let made = root().join("target/package");
    let entries = fs::read_dir(&made).map_err(|error| wrong(&made, &error))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if let (Some("crate"), Some(name)) =
            (path.extension().and_then(OsStr::to_str), path.file_name())
        {
            fs::copy(&path, directory.join(name)).map_err(|error| wrong(&path, &error))?;
        }
    }
    Ok(())
}

/// Builds the program for release, with options for the program alone; returns its path.
fn build(target: &[&str], options: &[&str]) -> Result<PathBuf, String> {
    let format = "--message-format=json-render-diagnostics";
    let build =
        ["rustc", "--profile", "shipped", "--locked", "--quiet", "--package", "leasehold-cli"];
    let arguments =
        [&build[..], &["--bin", "leasehold", format], target, &["--"], options].concat();
    let messages = check::output(&arguments)?;
    torture::executable(&messages, "leasehold").map(PathBuf::from)
}

/// Makes a Debian package of a program, and an archive of what is in it.
fn wrap(program: &Path, directory: &Path, system: &str) -> Result<(), String> {
    let mut script = Command::new(root().join("packaging/debian.sh"));
    let package = output(script.arg(program).arg(directory))?;
    let package = Path::new(package.trim());
    println!("    {}", package.display());
    let version = env!("CARGO_PKG_VERSION");
    let archive = directory.join(format!("leasehold-{version}-{system}.tar.gz"));
    let file = File::create(&archive).map_err(|error| wrong(&archive, &error))?;
    let mut tar = Command::new("dpkg-deb");
    let tar = tar.arg("--fsys-tarfile").arg(package).stdout(Stdio::piped());
    let mut tar = tar.spawn().map_err(|error| format!("cannot run {tar:?}: {error}"))?;
    let files = tar.stdout.take().ok_or("dpkg-deb has no output")?;
    succeed(Command::new("gzip").arg("-9n").stdin(files).stdout(file))?;
    let status = tar.wait().map_err(|error| format!("dpkg-deb: {error}"))?;
    if !status.success() {
        return Err(format!("dpkg-deb --fsys-tarfile: {status}"));
    }
    println!("    {}", archive.display());
    Ok(())
}

fn is_there(program: &str) -> bool {
    let mut asked = Command::new(program);
    let asked = asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{command:?}: {error}"))
}

fn wrong(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
