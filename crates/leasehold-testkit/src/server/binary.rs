//! Finds the server program to run.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the server program.
pub const VARIABLE: &str = "LEASEHOLD_REDIS_SERVER";

/// A server program, and the name to run it under.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Binary {
    path: PathBuf,
    name: Option<&'static str>,
}

impl Binary {
    /// The program at `path`, under its own name.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), name: None }
    }

    /// Where the program is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command that runs the program.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(name) = self.name {
            command.arg0(name);
        }
        command
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

/// Finds a server program: what `LEASEHOLD_REDIS_SERVER` names, else `redis-server`,
/// `valkey-server` or `redis-check-rdb` in `PATH`.
///
/// The last is for Debian's `redis-tools`: there the checker *is* the server, which decides by the
/// name it is called under, and the package starts no daemon.
///
/// # Panics
///
/// When there is none: a test that needs a server must then fail.
#[must_use]
pub fn find() -> Binary {
    let named = env::var_os(VARIABLE);
    let path = env::var_os("PATH").unwrap_or_default();
    match search(named.as_deref(), &path) {
        Ok(binary) => binary,
        Err(message) => panic!("{message}"),
    }
}

fn search(named: Option<&OsStr>, path: &OsStr) -> Result<Binary, String> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        // A wrong setting must not silently test another server.
        return if is_program(Path::new(named)) {
            Ok(Binary::at(named))
        } else {
            Err(format!("{VARIABLE} names {named:?}, which is not a program"))
        };
    }
    for (program, name) in
        [("redis-server", None), ("valkey-server", None), ("redis-check-rdb", Some("redis-server"))]
    {
        let found =
            env::split_paths(path).map(|dir| dir.join(program)).find(|path| is_program(path));
        if let Some(path) = found {
            return Ok(Binary { path, name });
        }
    }
    Err(format!(
        "no redis-server or valkey-server in PATH, and this test needs one. Install it \
         (Debian, Ubuntu: apt-get install --no-install-recommends redis-tools, which starts no \
         daemon; Fedora: dnf install valkey; macOS: brew install redis) or name one in {VARIABLE}"
    ))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(programs: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for program in programs {
            let path = dir.path().join(program);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    #[test]
    fn a_server_is_preferred_over_the_checker_that_contains_one() {
        let dir = folder(&["redis-check-rdb", "valkey-server"]);
        let binary = search(None, dir.path().as_os_str()).unwrap();
        assert_eq!(binary, Binary::at(dir.path().join("valkey-server")));
    }

    #[test]
    fn the_checker_is_run_under_the_name_of_the_server() {
        let dir = folder(&["redis-check-rdb"]);
        let binary = search(Some(OsStr::new("")), dir.path().as_os_str()).unwrap();
        assert_eq!(binary.name, Some("redis-server"));
    }

    #[test]
    fn a_named_program_that_is_missing_is_not_replaced_by_another() {
        let dir = folder(&["redis-server"]);
        let message = search(Some(OsStr::new("/nonexistent")), dir.path().as_os_str()).unwrap_err();
        assert!(message.contains("LEASEHOLD_REDIS_SERVER names \"/nonexistent\""), "{message}");
    }

    #[test]
    fn without_any_the_message_says_what_to_install() {
        let dir = folder(&[]);
        let message = search(None, dir.path().as_os_str()).unwrap_err();
        assert!(
            message.contains("apt-get install --no-install-recommends redis-tools"),
            "{message}"
        );
    }
}
