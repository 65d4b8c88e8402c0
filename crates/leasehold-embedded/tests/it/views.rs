//! Directories that are seen through more than one mount, where the kernel's locks do not meet.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_core::{ErrorKind, Store as _};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, request};
use crate::disk::{SmallDisk, can_mount};

/// A mount, gone with the test.
struct Overlay(PathBuf);

impl Overlay {
    /// Shows the folder `upper` of a disk, as containers' file systems do.
    fn mount(disk: &Path, name: &str) -> Self {
        let [lower, upper, work, at] =
            ["lower", "upper", &format!("work-{name}"), name].map(|name| disk.join(name));
        for folder in [&lower, &upper, &work, &at] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let [lower, upper, work] = [lower, upper, work].map(|path| path.display().to_string());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let status = Command::new("mount")
            .args(["-t", "overlay", "-o", &options, "overlay"])
            .arg(&at)
            .status()
            .unwrap();
        assert!(status.success(), "mount: {status}");
        Self(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).status());
    }
}

#[tokio::test]
async fn a_store_is_refused_through_another_mount_of_its_files() {
    if !can_mount("views::a_store_is_refused_through_another_mount_of_its_files") {
        return;
    }
    let disk = SmallDisk::mount("64m");
    let disk = disk.path();
    let first = Overlay::mount(&disk, "first");
    let second = Overlay::mount(&disk, "second");
    let upper = disk.join("upper");
    for (number, (one, other)) in
        [(&first.0, &upper), (&upper, &first.0), (&first.0, &second.0)].into_iter().enumerate()
    {
        let name = format!("locks-{number}");
        let store = EmbeddedStore::open(one.join(&name)).unwrap();
        granted(store.acquire(&request("k"), WITHIN).await.unwrap());
        let refused = EmbeddedStore::open(other.join(&name)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
        assert!(refused.to_string().contains("another mount of the same files"), "{refused}");
        drop(store);
        EmbeddedStore::open(one.join(&name)).unwrap();
    }
}

/// As a container that is started again has it.
#[tokio::test]
async fn a_mount_that_was_made_anew_has_its_store_as_before() {
    if !can_mount("views::a_mount_that_was_made_anew_has_its_store_as_before") {
        return;
    }
    let disk = SmallDisk::mount("64m");
    let disk = disk.path();
    let device = |path: &Path| std::os::unix::fs::MetadataExt::dev(&path.metadata().unwrap());
    let first = Overlay::mount(&disk, "first");
    let (path, before) = (first.0.join("locks"), device(&first.0));
    drop(EmbeddedStore::open(&path).unwrap());
    drop(first);
    // Has the number that the first one had.
    let between = Overlay::mount(&disk.join("elsewhere"), "between");
    let again = Overlay::mount(&disk, "first");
    assert_ne!(device(&again.0), before);
    drop(between);
    let store = EmbeddedStore::open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
}

/// A copy is a store of its own.
#[tokio::test]
async fn a_copy_on_another_file_system_is_taken_up() {
    if !can_mount("views::a_copy_on_another_file_system_is_taken_up") {
        return;
    }
    let disk = SmallDisk::mount("64m");
    let disk = disk.path();
    std::fs::create_dir_all(&disk).unwrap();
    let overlay = Overlay::mount(&disk, "first");
    let (path, copy) = (disk.join("locks"), overlay.0.join("copy"));
    drop(EmbeddedStore::open(&path).unwrap());
    let copied = Command::new("cp").arg("-a").args([&path, &copy]).status().unwrap();
    assert!(copied.success());
    let store = EmbeddedStore::open(&copy).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
}
