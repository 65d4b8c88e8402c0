//! The directory of a store: where it is, who may write there, and what it may lie on.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use leasehold_core::{Error, ErrorKind, Result};
use rustix::process::{getegid, geteuid, getgroups};

use super::filesystem;

/// Who may use a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Access {
    /// Its owner.
    Private,
    /// Its owner and the group of the directory.
    Group,
}

impl Access {
    const fn directory_mode(self) -> u32 {
        match self {
            Self::Private => 0o700,
            // New files take the directory's group.
            Self::Group => 0o2770,
        }
    }

    pub(super) const fn file_mode(self) -> u32 {
        match self {
            Self::Private => 0o600,
            Self::Group => 0o660,
        }
    }

    /// Gives a new file its mode, whatever the umask, and the directory's group.
    pub(super) fn settle(self, file: &File, directory: &Path) -> io::Result<()> {
        file.set_permissions(fs::Permissions::from_mode(self.file_mode()))?;
        if self == Self::Group {
            let group = fs::metadata(directory)?.gid();
            if file.metadata()?.gid() != group {
                std::os::unix::fs::fchown(file, None, Some(group))?;
            }
        }
        Ok(())
    }
}

/// A store's directory, looked at and found fit.
#[derive(Debug)]
pub(super) struct Directory {
    /// Without symbolic links.
    pub(super) path: PathBuf,
    pub(super) handle: File,
    /// Whether files on it can be written through a memory map without the risk of being killed
    /// by a full disk.
    pub(super) has_room_ahead: bool,
}

/// The names in the directory besides `store`.
pub(super) const GATE: &str = "gate";
pub(super) const DATA: &str = "data.mdb";
pub(super) const SESSIONS: &str = "sessions";
pub(super) const WAKE: &str = "wake";

impl Directory {
    /// Finds or makes the directory at `path`.
    pub(super) fn prepare(path: &Path, access: Access) -> Result<Self> {
        if let Ok(meta) = fs::symlink_metadata(path)
            && !meta.is_dir()
            && !(meta.is_symlink() && path.is_dir())
        {
            return Err(Error::new(
                ErrorKind::Config,
                "this is no directory; an embedded store is one",
            ));
        }
        if !path.exists() {
            make(path, access)?;
        }
        let path = fs::canonicalize(path).map_err(|error| unusable("find", error))?;
        let handle = File::open(&path).map_err(|error| unusable("open", error))?;
        let kind = filesystem::examine(&handle)?;
        let directory = Self { path, handle, has_room_ahead: kind.has_room_ahead };
        directory.check_rights(access)?;
        Ok(directory)
    }

    /// As [`prepare`](Self::prepare) for a path that nobody gave: where others can write, too,
    /// somebody might have put something there in advance.
    pub(super) fn prepare_default(path: &Path) -> Result<Self> {
        if let Ok(meta) = fs::symlink_metadata(path) {
            let why = if meta.is_symlink() {
                "it is a symbolic link"
            } else if !meta.is_dir() {
                "it is no directory"
            } else if meta.uid() != geteuid().as_raw() {
                "it belongs to somebody else"
            } else if meta.mode() & 0o077 != 0 {
                "others have rights on it"
            } else {
                return Self::prepare(path, Access::Private);
            };
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "the default directory {} can't be trusted: {why}; remove it, set \
                     XDG_RUNTIME_DIR, or name another directory",
                    path.display()
                ),
            ));
        }
        Self::prepare(path, Access::Private)
    }

    /// Whether this user may use the store, and nobody else than those who should can write to it.
    fn check_rights(&self, access: Access) -> Result<()> {
        let meta = self.handle.metadata().map_err(|error| unusable("look at", error))?;
        let refuse = |why: String| Err(Error::new(ErrorKind::Denied, why));
        let (mode, user) = (meta.mode(), geteuid().as_raw());
        if mode & 0o002 != 0 {
            return refuse(format!(
                "everybody can write to this directory (mode {:o}); take that right away or name \
                 another directory",
                mode & 0o7777
            ));
        }
        let for_group = access == Access::Group;
        if mode & 0o020 != 0 && !for_group {
            return refuse(format!(
                "the group {} can write to this directory (mode {:o}); take that right away, or \
                 open the store for its group",
                meta.gid(),
                mode & 0o7777
            ));
        }
        if meta.uid() != user && !(for_group && mode & 0o020 != 0 && is_member(meta.gid())) {
            return refuse(format!(
                "this directory belongs to user {}, not to {user}; run as that user, open a store \
                 made for a group that both are in, or name another directory",
                meta.uid()
            ));
        }
        Ok(())
    }

    /// Whether the directory was made for a group: its owner has given the group the right to
    /// write.
    pub(super) fn is_for_group(path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o022 == 0o020 && is_member(meta.gid()))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file of the store for reading and writing, and makes it if there is none.
    pub(super) fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
        let path = self.file(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(access.file_mode());
        match options.clone().create_new(true).open(&path) {
            Ok(file) => {
                access.settle(&file, &self.path)?;
                Ok(file)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(&path),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory in the store unless it is there.
    pub(super) fn make_inner(&self, name: &str, access: Access) -> io::Result<PathBuf> {
        let path = self.file(name);
        match DirBuilder::new().mode(access.directory_mode()).create(&path) {
            Ok(()) => {
                fs::set_permissions(&path, fs::Permissions::from_mode(access.directory_mode()))?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(path)
    }
}

fn make(path: &Path, access: Access) -> Result<()> {
    let mode = access.directory_mode();
    match DirBuilder::new().recursive(true).mode(mode).create(path) {
        Ok(()) if access == Access::Private => Ok(()),
        // The umask may have taken the group's rights away.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| unusable("give the group rights on", error)),
        Err(error) => Err(unusable("make", error)),
    }
}

fn is_member(group: u32) -> bool {
    getegid().as_raw() == group
        || getgroups().is_ok_and(|groups| groups.iter().any(|of| of.as_raw() == group))
}

/// What went wrong with a file or directory, and what to do.
pub(super) fn unusable(what: &str, error: io::Error) -> Error {
    let (kind, advice) = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::Denied, "; give this user the right to, or name another directory")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Denied, "; name a directory that can be written to")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Full, "; make room, or name a directory on another disk")
        }
        io::ErrorKind::FileTooLarge => {
            (ErrorKind::Full, "; raise the limit on the size of files (ulimit -f)")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            (ErrorKind::Config, "; check the path")
        }
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("can't {what} it: {error}{advice}")).caused_by(error)
}

/// Where the store is unless a path is given: `$XDG_RUNTIME_DIR/leasehold`, else
/// `/run/user/UID/leasehold` where that is ours, else `leasehold-UID` in the directory for
/// temporary files.
pub(super) fn default_path() -> PathBuf {
    default_path_from(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

fn default_path_from(runtime: Option<PathBuf>) -> PathBuf {
    let user = geteuid().as_raw();
    let is_ours = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == user && meta.mode() & 0o022 == 0)
    };
    let runtime = runtime.filter(|path| path.is_absolute() && is_ours(path));
    let by_system = PathBuf::from(format!("/run/user/{user}"));
    match runtime.or_else(|| is_ours(&by_system).then_some(by_system)) {
        Some(runtime) => runtime.join("leasehold"),
        None => std::env::temp_dir().join(format!("leasehold-{user}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_directory_is_taken_if_it_is_absolute_and_ours() {
        let ours = tempfile::tempdir().unwrap();
        let path = ours.path().to_owned();
        assert_eq!(default_path_from(Some(path.clone())), path.join("leasehold"));
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&path, open).unwrap();
        for other in [Some(path), Some("relative".into()), Some("/nonexistent".into()), None] {
            let user = geteuid().as_raw();
            let taken = default_path_from(other);
            assert!(
                taken == Path::new(&format!("/run/user/{user}/leasehold"))
                    || taken == std::env::temp_dir().join(format!("leasehold-{user}")),
                "{taken:?}"
            );
        }
    }

    #[test]
    fn a_default_directory_that_others_could_have_made_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("leasehold");
        let check = |claim: &str| {
            let error = Directory::prepare_default(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.to_string().contains(claim), "{error}");
        };
        std::os::unix::fs::symlink(base.path(), &path).unwrap();
        check("symbolic link");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        check("no directory");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        check("others have rights");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Directory::prepare_default(&path).unwrap();
    }
}
