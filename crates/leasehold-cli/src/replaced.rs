//! Writes files in one step: a reader finds the old text or the whole new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes a file that has these rights where it is new.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    put(path, text, mode, |beside| fs::rename(beside, path))
}

/// The same where there is no file yet; an error where there is one.
pub(crate) fn create(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    put(path, text, mode, |beside| match fs::hard_link(beside, path) {
        Ok(()) => fs::remove_file(beside),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no such links. There who comes at the same moment is not seen.
        Err(_) => fs::rename(beside, path),
    })
}

fn put(
    path: &Path,
    text: &str,
    mode: u32,
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let (beside, mut file) = create_beside(path, mode)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| place(&beside));
    if written.is_err() {
        drop(fs::remove_file(beside));
    }
    written
}

/// Whether a file can be made there.
pub(crate) fn try_beside(path: &Path) -> io::Result<()> {
    let (beside, _file) = create_beside(path, 0o600)?;
    fs::remove_file(beside)
}

/// Makes a file in the same directory. A process id is not a unique name: two containers may share
/// one, and a killed process may have left a file.
fn create_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    let mut chance = [0; 8];
    getrandom::fill(&mut chance).map_err(|error| io::Error::other(error.to_string()))?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", u64::from_le_bytes(chance)));
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&name)?;
    Ok((name.into(), file))
}
