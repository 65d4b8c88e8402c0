//! Checks a store's directory: where it is, who may write there, and on which file system.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Reason, Result, escape};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};

use super::{filesystem, header};

/// The users of a store.
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

    const fn mode(self) -> Mode {
        let owner = Mode::RUSR.union(Mode::WUSR);
        match self {
            Self::Private => owner,
            Self::Group => owner.union(Mode::RGRP).union(Mode::WGRP),
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

/// A store's directory that has passed the checks.
#[derive(Debug)]
pub(super) struct Directory {
    /// Has no symbolic links.
    pub(super) path: PathBuf,
    pub(super) handle: File,
    /// The number of its file system's type; see [`filesystem::Kind`].
    pub(super) file_system: u32,
    /// Whether its files can be written through a memory map without a full disk killing the
    /// process.
    pub(super) has_room_ahead: bool,
}

/// The names in the directory, except for the header's.
pub(super) const GATE: &str = "gate";
pub(super) const DATA: &str = "data.mdb";
pub(super) const SESSIONS: &str = "sessions";
pub(super) const WAKE: &str = "wake";

impl Directory {
    /// Finds or creates the directory at `path`.
    pub(super) fn prepare(path: &Path, access: Access) -> Result<Self> {
        check_absolute(path)?;
        if let Ok(meta) = fs::symlink_metadata(path)
            && !meta.is_dir()
            && !(meta.is_symlink() && path.is_dir())
        {
            return Err(Error::new(ErrorKind::Config, "not a directory; name a directory"));
        }
        if !path.exists() {
            make(path, access)?;
        }
        let path = fs::canonicalize(path).map_err(|error| unusable("find", error))?;
        // That the store belongs to other users explains more than that it can't be opened.
        let directory = Self::open(path.clone()).or_else(|error| {
            fs::metadata(&path).map_or(Ok(()), |meta| check_rights(&meta, access))?;
            Err(error)
        })?;
        let meta = directory.handle.metadata().map_err(|error| unusable("look at", error))?;
        check_rights(&meta, access)?;
        Ok(directory)
    }

    /// As [`prepare`](Self::prepare), for the default path.
    ///
    /// Other users can write there as well, and might have put something there in advance. So it
    /// checks the opened directory, not its name, which could be exchanged in between.
    pub(super) fn prepare_default(path: &Path) -> Result<Self> {
        match DirBuilder::new().mode(Access::Private.directory_mode()).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unusable("create", error)),
        }
        let distrust = |why: &str| {
            Error::new(
                ErrorKind::Denied,
                format!(
                    "the default directory {} is not safe: {why}; remove it, or name another, as \
                     in embedded:/var/lib/app/locks",
                    path.display()
                ),
            )
            .with_reason(Reason::StoreSettings)
        };
        let place = path.parent().zip(path.file_name());
        let (parent, name) = place.ok_or_else(|| distrust("it has no name"))?;
        let parent = fs::canonicalize(parent).map_err(|error| unusable("find", error))?;
        let meta = fs::symlink_metadata(path).map_err(|error| unusable("look at", error))?;
        if meta.is_symlink() {
            return Err(distrust("it is a symbolic link"));
        }
        if !meta.is_dir() {
            return Err(distrust("it is not a directory"));
        }
        let directory = Self::open(parent.join(name))?;
        let meta = directory.handle.metadata().map_err(|error| unusable("look at", error))?;
        if meta.uid() != geteuid().as_raw() {
            return Err(distrust("it belongs to another user"));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(distrust("others have rights on it"));
        }
        Ok(directory)
    }

    /// Opens a directory by a path that has no symbolic link at its end.
    fn open(path: PathBuf) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| unusable("open", error.into()))?;
        let handle = File::from(handle);
        let kind = filesystem::examine(&handle)?;
        let filesystem::Kind { number, has_room_ahead } = kind;
        Ok(Self { path, handle, file_system: number, has_room_ahead })
    }

    /// Refuses a directory with files that are not a store's. It creates, changes and removes
    /// nothing there.
    pub(super) fn check_ours(&self) -> Result<()> {
        if self.has_header() {
            return Ok(());
        }
        let mut foreign = None;
        for entry in fs::read_dir(&self.path).map_err(|error| unusable("list", error))? {
            let entry = entry.map_err(|error| unusable("list", error))?;
            let name = entry.file_name();
            // Left over from a store whose creation was cut short before its header.
            let begun = (name == GATE || name == header::NEW)
                && entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= BEGUN_MAX);
            if !begun {
                foreign = Some(name);
            }
        }
        // The header is created before everything else, so a store has one by now.
        match foreign {
            Some(name) if !self.has_header() => Err(Error::new(
                ErrorKind::Foreign,
                format!(
                    "this directory has no store, but another file ({}); name an empty or a new \
                     directory",
                    escape::terminal(&name.to_string_lossy())
                ),
            )
            .with_reason(Reason::StoreSettings)),
            _ => Ok(()),
        }
    }

    /// Whether a store's header is there, damaged or not. A file of that name counts if it begins
    /// like a header, or if the gate exists, which is created before it.
    fn has_header(&self) -> bool {
        let is_file = |name| fs::symlink_metadata(self.file(name)).is_ok_and(|meta| meta.is_file());
        is_file(header::NAME) && (is_file(GATE) || header::is_marked(&self.path))
    }

    /// Whether the directory was made for a group: its owner gave the group the right to write.
    pub(super) fn is_for_group(path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o022 == 0o020 && is_member(meta.gid()))
    }

    /// Gives the directory's group its rights, if a store for the group is created in a private
    /// directory.
    pub(super) fn open_to_group(&self) -> io::Result<()> {
        let meta = self.handle.metadata()?;
        let mode = Access::Group.directory_mode();
        if meta.uid() == geteuid().as_raw() && meta.mode() & 0o020 == 0 {
            self.handle.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    /// Renews the age of all files of a store in use. Programs that clear temporary files go by
    /// each file's age, and a store that lost some of its files is destroyed.
    pub(super) fn freshen(&self) {
        const OLD: Duration = Duration::from_secs(3600);

        let touch = |name: &str| {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            // Fails in a group's store that another user created; that user then does it.
            _ = utimensat(&self.handle, name, &times, AtFlags::SYMLINK_NOFOLLOW);
        };
        let is_old = fs::symlink_metadata(self.file(header::NAME))
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD));
        if is_old {
            for name in [GATE, DATA, SESSIONS, WAKE, ".", header::NAME] {
                touch(name);
            }
        }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file of the store for reading and writing, and creates it if there is none.
    /// Completes the rights of a file whose creation was cut short.
    pub(super) fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
        let new = OFlags::CREATE | OFlags::EXCL;
        let file = match self.open_at(name, new, access) {
            Err(Errno::EXIST) => self.open_existing(name)?,
            made => File::from(made?),
        };
        let meta = file.metadata()?;
        if meta.uid() == geteuid().as_raw() {
            access.settle(&file, &self.path)?;
        }
        Ok(file)
    }

    /// Opens a file of the store for reading and writing.
    pub(super) fn open_existing(&self, name: &str) -> io::Result<File> {
        let file = match self.open_at(name, OFlags::empty(), Access::Private) {
            Err(Errno::LOOP) => return Err(not_ours(name)),
            opened => File::from(opened?),
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(not_ours(name)) }
    }

    fn open_at(&self, name: &str, flags: OFlags, access: Access) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.handle, name, flags, access.mode())
    }

    /// Creates a directory in the store unless it exists.
    pub(super) fn make_inner(&self, name: &str, access: Access) -> io::Result<PathBuf> {
        let path = self.file(name);
        match DirBuilder::new().mode(access.directory_mode()).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let meta = fs::symlink_metadata(&path)?;
        if !meta.is_dir() {
            return Err(not_ours(name));
        }
        let mode = access.directory_mode();
        if meta.mode() & 0o7777 != mode && meta.uid() == geteuid().as_raw() {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(path)
    }
}

/// Whether this user may use the store, and whether only those who should can write to it.
fn check_rights(meta: &fs::Metadata, access: Access) -> Result<()> {
    let refuse =
        |why: String| Err(Error::new(ErrorKind::Denied, why).with_reason(Reason::StoreSettings));
    let (mode, user) = (meta.mode(), geteuid().as_raw());
    if mode & 0o002 != 0 {
        return refuse(format!(
            "all users can write to this directory (mode {:o}); run `chmod o-w` on it, or name \
             another directory",
            mode & 0o7777
        ));
    }
    let for_group = access == Access::Group;
    if mode & 0o020 != 0 && !for_group && meta.uid() != user {
        let group = group_name(meta.gid());
        return refuse(format!(
            "this directory is for user {} and group {group}, not for user {user}. Join the group \
             (`sudo usermod -aG {group} USER`, log in again), or name another directory",
            meta.uid()
        ));
    }
    if mode & 0o020 != 0 && !for_group {
        return refuse(format!(
            "group {group} can write to this directory (mode {:o}), and user {user} is not in it; \
             join the group, or run `chmod g-w`",
            mode & 0o7777,
            group = meta.gid()
        ));
    }
    if meta.uid() != user && !(for_group && mode & 0o020 != 0 && is_member(meta.gid())) {
        return refuse(format!(
            "this directory belongs to user {}, not to {user}; run as that user, use a store of a \
             common group, or name another directory",
            meta.uid()
        ));
    }
    Ok(())
}

/// Above the size of a gate, and of a header whose creation was cut short.
const BEGUN_MAX: u64 = 1024;

fn not_ours(name: &str) -> io::Error {
    io::Error::other(format!(
        "{name} is not a file of the store; remove it, or name another \
                              directory"
    ))
}

/// Refuses a path that depends on the process's working directory.
fn check_absolute(path: &Path) -> Result<()> {
    if path.is_absolute() {
        return Ok(());
    }
    let shown = path.to_string_lossy();
    let shown = escape::terminal(&shown);
    let advice = if path.starts_with("~") {
        "the tilde is not replaced here; write the whole path, beginning with /".to_owned()
    } else {
        match std::path::absolute(path) {
            Ok(absolute) => {
                let absolute = absolute.to_string_lossy();
                format!("for the one below this directory, write {}", escape::terminal(&absolute))
            }
            Err(_) => "write it beginning with /".to_owned(),
        }
    };
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "the path {shown} is relative, so each working directory has another store; {advice}"
        ),
    ))
}

fn make(path: &Path, access: Access) -> Result<()> {
    // The part before a `..` must exist. Created only for the way back, it would remain.
    let mut before = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir && !before.exists() {
            return Err(unusable("find", io::ErrorKind::NotFound.into()));
        }
        before.push(part);
    }
    let mode = access.directory_mode();
    match DirBuilder::new().recursive(true).mode(mode).create(path) {
        Ok(()) if access == Access::Private => Ok(()),
        // The umask may have removed the group's rights.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| unusable("give the group rights on", error)),
        Err(error) => Err(unusable("create", error)),
    }
}

/// Whether this user has a group's rights; root has the rights of every group.
fn is_member(group: u32) -> bool {
    geteuid().is_root()
        || getegid().as_raw() == group
        || getgroups().is_ok_and(|groups| groups.iter().any(|of| of.as_raw() == group))
}

/// A group's name, if `/etc/group` lists it.
fn group_name(group: u32) -> String {
    let list = fs::read_to_string("/etc/group").unwrap_or_default();
    let number = group.to_string();
    let line = list.lines().find(|line| line.split(':').nth(2) == Some(number.as_str()));
    let name = line.and_then(|line| line.split(':').next());
    name.map_or_else(|| number.clone(), |name| escape::terminal(name).to_string())
}

/// An error for a file or directory, with advice.
pub(super) fn unusable(what: &str, error: io::Error) -> Error {
    let (kind, advice) = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::Denied, "; give this user the right to, or name another directory")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Denied, "; name a directory that you can write to")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Full, "; make room (`df` and `df -i`), or name a directory on another disk")
        }
        io::ErrorKind::FileTooLarge => {
            (ErrorKind::Full, "; raise the limit on the size of files (ulimit -f)")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            (ErrorKind::Config, "; check the path")
        }
        // Only this process can free its own descriptors, so waiting is useless.
        _ if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => (ErrorKind::Full, ""),
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("can't {what} it: {error}{advice}")).caused_by(error)
}

/// The default store: the machine's, or one per user. It ignores the process's environment and
/// needs no login.
pub(super) fn default_path() -> PathBuf {
    default_path_below(Path::new("/"), geteuid().as_raw())
}

/// The store of all users, if an administrator has created its directory.
pub(super) fn shared_path() -> Option<PathBuf> {
    shared_path_below(Path::new("/"))
}

fn shared_path_below(root: &Path) -> Option<PathBuf> {
    let path = root.join("var/lib/leasehold");
    // If this user can't look, the answer must still be the same for all users.
    let is_absent = fs::symlink_metadata(&path)
        .is_err_and(|error| matches!(error.kind(), io::ErrorKind::NotFound));
    (!is_absent).then_some(path)
}

fn default_path_below(root: &Path, user: u32) -> PathBuf {
    if let Some(path) = shared_path_below(root) {
        return path;
    }
    let system = ["run", "var/run"].map(|name| root.join(name));
    if user == 0
        && let Some(run) = system.iter().find(|path| path.is_dir())
    {
        return run.join("leasehold");
    }
    let temporary = root.join("tmp");
    let temporary = if temporary.is_dir() { temporary } else { std::env::temp_dir() };
    temporary.join(format!("leasehold-{user}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_directory_depends_on_user_and_machine_alone() {
        let machine = tempfile::tempdir().unwrap();
        let root = machine.path();
        fs::create_dir(root.join("tmp")).unwrap();
        assert_eq!(default_path_below(root, 0), root.join("tmp/leasehold-0"));
        assert_eq!(default_path_below(root, 7), root.join("tmp/leasehold-7"));
        fs::create_dir_all(root.join("var/run")).unwrap();
        assert_eq!(default_path_below(root, 0), root.join("var/run/leasehold"));
        fs::create_dir_all(root.join("run/user/7")).unwrap();
        assert_eq!(default_path_below(root, 0), root.join("run/leasehold"));
        assert_eq!(default_path_below(root, 7), root.join("tmp/leasehold-7"));
        assert_eq!(shared_path_below(root), None);
        fs::create_dir_all(root.join("var/lib")).unwrap();
        assert_eq!(shared_path_below(root), None);
    }

    #[test]
    fn a_store_of_the_machine_is_the_default_of_all_users_whatever_is_at_its_path() {
        let machine = tempfile::tempdir().unwrap();
        let (root, path) = (machine.path(), machine.path().join("var/lib/leasehold"));
        fs::create_dir_all(root.join("var/lib")).unwrap();
        fs::create_dir_all(root.join("run")).unwrap();
        let is_default = || [0, 7].iter().all(|user| default_path_below(root, *user) == path);
        assert!(!is_default());
        std::os::unix::fs::symlink("/nowhere/at/all", &path).unwrap();
        assert!(is_default());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(is_default());
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
        check("not a directory");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        check("others have rights");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Directory::prepare_default(&path).unwrap();
    }
}
