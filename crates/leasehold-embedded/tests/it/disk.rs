//! Tests full disks, directories that can't be written to, and the rights of users.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use leasehold_core::doctor::Severity;
use leasehold_core::{Error, ErrorKind, Release, ReleaseRequest, Renew, RenewRequest, Store};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, request, ttl};
use crate::child::Child;
use crate::place;

/// A file system in memory with little room, or with other options, removed with the test.
pub(crate) struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    pub(crate) fn mount(size: &str) -> Self {
        Self::mount_with(&format!("size={size}"))
    }

    fn mount_with(options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(directory.path())
            .status()
            .unwrap();
        assert!(status.success(), "mount: {status}");
        Self { directory }
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("locks")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.directory.path()).status());
    }
}

/// Whether this process may mount. If not, the test is run again in a new namespace by a process
/// that may, and this one is done. If there are no such namespaces, the test prints that, and fails
/// under `CI=1`.
pub(crate) fn can_mount(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    let mut apart = Command::new("unshare");
    apart.args(["--user", "--map-root-user", "--mount"]);
    let mut again = Command::new("unshare");
    again.args(apart.get_args()).arg(std::env::current_exe().unwrap());
    let again = again.args(["--exact", test]).output();
    if again.is_ok_and(|output| output.status.success()) {
        return false;
    }
    let possible = apart.arg("true").status().is_ok_and(|status| status.success());
    assert!(!possible, "{test} failed when run by itself with the right to mount");
    assert!(std::env::var_os("CI").is_none(), "{test} needs the right to mount");
    eprintln!("skipped: {test} needs the right to mount, or user namespaces (unshare -Um)");
    false
}

fn refused(path: &Path) -> Error {
    EmbeddedStore::open(path).unwrap_err()
}

#[tokio::test]
async fn a_full_disk_refuses_new_locks_and_still_renews_and_releases_old_ones() {
    if !can_mount("disk::a_full_disk_refuses_new_locks_and_still_renews_and_releases_old_ones") {
        return;
    }
    let disk = SmallDisk::mount("6m");
    let store = EmbeddedStore::open(disk.path()).unwrap();
    let mut held = Vec::new();
    let error = loop {
        let asked = request(&format!("name-{}", held.len()));
        match store.acquire(&asked, WITHIN).await {
            Ok(answer) => held.push((asked, granted(answer))),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("make room"), "{error}");
    assert!(held.len() > 1_000, "full after {}", held.len());
    // The rest is for other programs to fill up; the store has its own room.
    fs::write(disk.directory.path().join("filler"), vec![1; 6 << 20]).unwrap_err();
    for (asked, fences) in &held {
        let again = RenewRequest::new(asked.key.clone(), asked.token, *fences, ttl(1_800_000));
        assert_eq!(*store.renew(&[again], WITHIN).await[0].as_ref().unwrap(), Renew::Renewed);
    }
    for (asked, fences) in held {
        let ending = ReleaseRequest::new(asked.key, asked.token, fences);
        assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
    }
    assert_eq!(store.entries(WITHIN).await.unwrap().1, 0);
}

#[tokio::test]
async fn a_disk_without_room_for_a_store_says_so() {
    if !can_mount("disk::a_disk_without_room_for_a_store_says_so") {
        return;
    }
    let disk = SmallDisk::mount("256k");
    let error = refused(&disk.path());
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains(&*disk.path().to_string_lossy()), "{error}");
}

#[tokio::test]
async fn a_disk_that_takes_no_more_files_is_found_before_it_takes_none() {
    if !can_mount("disk::a_disk_that_takes_no_more_files_is_found_before_it_takes_none") {
        return;
    }
    let disk = SmallDisk::mount_with("size=64m,nr_inodes=40");
    let store = EmbeddedStore::options().open(disk.path()).unwrap();
    let about_files = async || {
        let findings = store.examine(WITHIN).await.unwrap();
        findings.into_iter().find(|finding| finding.found.contains("inodes")).unwrap().severity
    };
    assert_eq!(about_files().await, Severity::Warning);
    let filled =
        (0..).find(|n| std::fs::File::create(disk.directory.path().join(n.to_string())).is_err());
    assert!(filled.is_some());
    assert_eq!(about_files().await, Severity::Problem);
    let error = store.acquire(&request("k"), WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("df -i"), "{error}");
}

#[tokio::test]
async fn a_store_that_has_reached_its_limit_says_so_and_still_releases() {
    let (path, _keep) = place();
    let store = EmbeddedStore::options().bytes_max(4 << 20).open(path).unwrap();
    let mut held = Vec::new();
    let error = loop {
        let asked = request(&format!("name-{}", held.len()));
        match store.acquire(&asked, WITHIN).await {
            Ok(answer) => held.push((asked, granted(answer))),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("4 MiB"), "{error}");
    for (asked, fences) in held {
        let ending = ReleaseRequest::new(asked.key, asked.token, fences);
        assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn a_store_that_was_full_has_room_again_once_its_locks_are_released() {
    let (path, _keep) = place();
    let store = EmbeddedStore::options().bytes_max(4 << 20).open(path).unwrap();
    let keep = request("keep");
    let kept = granted(store.acquire(&keep, WITHIN).await.unwrap());
    let mut last = None;
    for round in 0..3 {
        let mut held = Vec::new();
        let error = loop {
            let asked = request(&format!("round-{round}/name-{}", held.len()));
            match store.acquire(&asked, WITHIN).await {
                Ok(answer) => held.push((asked, granted(answer))),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(held.len() > 3_000, "round {round}: full after {}", held.len());
        for (asked, fences) in &held {
            let ending = ReleaseRequest::new(asked.key.clone(), asked.token, *fences);
            assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
            last = last.max(Some(fences.last()));
        }
    }
    // A name that was forgotten for lack of room starts above its last fence. Held locks were kept.
    let again = granted(store.acquire(&request("round-0/name-0"), WITHIN).await.unwrap());
    assert!(Some(again.first()) > last);
    let ending = ReleaseRequest::new(keep.key, keep.token, kept);
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
}

#[test]
fn too_small_a_limit_is_refused() {
    let (path, _keep) = place();
    let error = EmbeddedStore::options().bytes_max(1 << 20).open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!path.exists());
}

#[test]
fn a_directory_on_a_read_only_disk_is_refused() {
    if !can_mount("disk::a_directory_on_a_read_only_disk_is_refused") {
        return;
    }
    let disk = SmallDisk::mount("6m,ro");
    let error = refused(&disk.path());
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("can write to"), "{error}");
}

/// A limit of zero would end the process at its first write.
#[test]
fn a_limit_on_the_size_of_files_is_reported_and_ends_no_process() {
    for blocks in ["0", "1", "64"] {
        let (path, _keep) = place();
        let shell = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut child = Child::start_by(&["bash", "-c", &shell], &path, "try-open");
        let said = child.next().unwrap();
        assert!(said.starts_with("Full") && said.contains("ulimit -f"), "{said}");
        child.end();
    }
}

#[test]
fn a_file_and_a_path_through_a_file_are_refused() {
    let (path, _keep) = place();
    fs::write(&path, "a file").unwrap();
    assert_eq!(refused(&path).kind(), ErrorKind::Config);
    let error = refused(&path.join("below"));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"a file");
}

#[tokio::test]
async fn everything_in_a_store_is_its_owners_alone() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    let client = leasehold_core::ClientId::generate().unwrap();
    let _channel = store.listen(client, WITHIN).await.unwrap();
    assert_modes(&path, 0o700, 0o600);
}

#[tokio::test]
async fn everything_in_a_groups_store_is_the_groups() {
    let (path, _keep) = place();
    let store = EmbeddedStore::options().group(true).open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    let client = leasehold_core::ClientId::generate().unwrap();
    let _channel = store.listen(client, WITHIN).await.unwrap();
    assert_modes(&path, 0o2770, 0o660);
    let without_saying_so = Child::that_says(&path, "open", "open");
    without_saying_so.end();
}

/// Checks a directory and all below it.
#[track_caller]
fn assert_modes(path: &Path, directories: u32, files: u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    let expected = if meta.is_dir() { directories } else { files };
    assert_eq!(meta.mode() & 0o7777, expected, "{}", path.display());
    if meta.is_dir() {
        for inner in fs::read_dir(path).unwrap() {
            assert_modes(&inner.unwrap().path(), directories, files);
        }
    }
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let (path, _keep) = place();
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let error = refused(&path);
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("all users can write"), "{error}");
    let error = EmbeddedStore::options().group(true).open(&path).unwrap_err();
    assert!(error.to_string().contains("all users can write"), "{error}");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let (given_away, _keep) = place();
    let (path, user) = if rustix::process::geteuid().is_root() {
        let nobody = 65_534;
        fs::DirBuilder::new().mode(0o700).create(&given_away).unwrap();
        std::os::unix::fs::chown(&given_away, Some(nobody), Some(nobody)).unwrap();
        (given_away.as_path(), nobody)
    } else {
        (Path::new("/usr"), 0)
    };
    let before = fs::read_dir(path).unwrap().count();
    let error = refused(path);
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains(&format!("belongs to user {user}")), "{error}");
    assert_eq!(fs::read_dir(path).unwrap().count(), before);
}

/// ext2 shares ext4's type number, but can't preallocate.
#[tokio::test]
async fn a_disk_that_sets_no_room_aside_still_takes_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let (image, disk) = (directory.path().join("image"), directory.path().join("disk"));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir(&disk).unwrap();
    let works = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let mounted = works(Command::new("mkfs.ext2").args(["-q", "-F"]).arg(&image))
        && works(Command::new("mount").args(["-t", "ext2", "-o", "loop"]).args([&image, &disk]));
    if !mounted {
        assert!(std::env::var_os("CI").is_none(), "this needs the right to mount an image");
        eprintln!("skipped: this needs mkfs.ext2 and the right to mount an image");
        return;
    }
    let _unmounted = Unmount(&disk);
    let store = EmbeddedStore::open(disk.join("locks")).unwrap();
    let asked = request("k");
    let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
    let ending = ReleaseRequest::new(asked.key, asked.token, fences);
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
    let findings = store.examine(WITHIN).await.unwrap();
    let room = findings.iter().find(|finding| finding.topic == "room").unwrap();
    assert!(room.means.contains("may not be renewed or released"), "{room:?}");
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.0).status());
    }
}
