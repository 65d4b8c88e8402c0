//! Directories seen through several mounts, between which the kernel's locks don't work.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_core::{ErrorKind, Renew, RenewRequest, Store as _};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, request, ttl};
use crate::child::Child;
use crate::disk::{SmallDisk, can_mount};

/// A disk with containers' files.
struct Disk {
    path: PathBuf,
    _mounted: SmallDisk,
}

impl Disk {
    fn mount() -> Self {
        let disk = SmallDisk::mount("64m");
        let path = disk.path();
        fs::create_dir(&path).unwrap();
        Self { path, _mounted: disk }
    }

    /// Mounts a lower folder and an upper folder of this disk, like containers' file systems.
    fn overlay(&self, lower: &Path, upper: &str, name: &str) -> Overlay {
        let work = format!("work-{name}");
        let [upper, work, at] = [upper, &work, name].map(|name| self.path.join(name));
        for folder in [lower, &upper, &work, &at] {
            fs::create_dir_all(folder).unwrap();
        }
        let [lower, upper, work] = [lower, &upper, &work].map(|path| path.display().to_string());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let status = Command::new("mount")
            .args(["-t", "overlay", "-o", &options, "overlay"])
            .arg(&at)
            .status()
            .unwrap();
        assert!(status.success(), "mount: {status}");
        Overlay(at)
    }
}

/// A mount, removed with the test.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

#[track_caller]
fn refused(path: &Path, why: &str) {
    let error = EmbeddedStore::open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

const OTHER_VIEW: &str = "another mount";

/// Acquires a lock through one path, checks that another path is refused, and keeps the lock.
async fn held_against(path: &Path, other: &Path) {
    let store = EmbeddedStore::open(path).unwrap();
    let asked = request("k");
    let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
    for _ in 0..2 {
        refused(other, OTHER_VIEW);
    }
    let renewal = [RenewRequest::new(asked.key, asked.token, fences, ttl(60_000))];
    let renewed = store.renew(&renewal, WITHIN).await.pop().unwrap();
    assert_eq!(renewed.unwrap(), Renew::Renewed);
    drop(store);
    refused(other, OTHER_VIEW);
    EmbeddedStore::open(path).unwrap();
}

#[tokio::test]
async fn a_containers_store_is_refused_through_the_folder_in_which_its_host_keeps_it() {
    if !can_mount(
        "views::a_containers_store_is_refused_through_the_folder_in_which_its_host_keeps_it",
    ) {
        return;
    }
    let disk = Disk::mount();
    let container = disk.overlay(&disk.path.join("lower"), "upper", "container");
    let [inside, outside] = [&container.0, &disk.path.join("upper")];
    held_against(&inside.join("of-the-container"), &outside.join("of-the-container")).await;
    held_against(&outside.join("of-the-host"), &inside.join("of-the-host")).await;
}

/// The container would get a copy of the files at its first write.
#[tokio::test]
async fn a_store_of_the_hosts_is_refused_as_a_layer_of_a_container() {
    if !can_mount("views::a_store_of_the_hosts_is_refused_as_a_layer_of_a_container") {
        return;
    }
    let (disk, other) = (Disk::mount(), Disk::mount());
    for (name, lower) in [("same", disk.path.join("lower")), ("other", other.path.join("lower"))] {
        let container = disk.overlay(&lower, &format!("upper-{name}"), name);
        held_against(&lower.join("locks"), &container.0.join("locks")).await;
    }
}

#[tokio::test]
async fn a_store_in_two_overlays_with_one_upper_folder_is_refused() {
    if !can_mount("views::a_store_in_two_overlays_with_one_upper_folder_is_refused") {
        return;
    }
    let disk = Disk::mount();
    let lower = disk.path.join("lower");
    let first = disk.overlay(&lower, "upper", "first");
    let path = first.0.join("locks");
    let store = EmbeddedStore::open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    let second = disk.overlay(&lower, "upper", "second");
    refused(&second.0.join("locks"), "two overlays");
    drop(second);
    granted(store.acquire(&request("other"), WITHIN).await.unwrap());
}

/// As for a container that is killed and started again.
#[tokio::test]
async fn a_mount_that_was_made_again_has_its_store_as_before() {
    if !can_mount("views::a_mount_that_was_made_again_has_its_store_as_before") {
        return;
    }
    let disk = Disk::mount();
    let lower = disk.path.join("lower");
    let device = |overlay: &Overlay| overlay.0.metadata().unwrap().dev();
    let first = disk.overlay(&lower, "upper", "first");
    let (path, before) = (first.0.join("locks"), device(&first));
    Child::that_says(&path, "hold k", "held").kill();
    drop(first);
    // One of these has the number that the first one had.
    let mut between = Vec::new();
    let again = loop {
        let again = disk.overlay(&lower, "upper", "first");
        if device(&again) != before {
            break again;
        }
        drop(again);
        let number = between.len();
        between.push(disk.overlay(&lower, &format!("upper-{number}"), &format!("other-{number}")));
    };
    for _ in 0..2 {
        let store = EmbeddedStore::open(again.0.join("locks")).unwrap();
        granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    }
}

/// Whether the layer is the folder in which the store was created, or a copy of it.
#[tokio::test]
async fn a_store_in_an_image_is_adopted_by_each_of_its_containers() {
    if !can_mount("views::a_store_in_an_image_is_adopted_by_each_of_its_containers") {
        return;
    }
    let (disk, other) = (Disk::mount(), Disk::mount());
    let building = disk.overlay(&disk.path.join("lower"), "layer", "building");
    let store = EmbeddedStore::open(building.0.join("locks")).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    drop((store, building));
    let layer = disk.path.join("layer");
    for (number, on) in [&disk, &disk, &other].into_iter().enumerate() {
        let copy = on.path.join(format!("copy-{number}"));
        let copied = Command::new("cp").arg("-a").args([&layer, &copy]).status().unwrap();
        assert!(copied.success());
        for (kind, lower) in [("layer", &layer), ("copy", &copy)] {
            let name = format!("{kind}-in-{number}");
            let container = on.overlay(lower, &format!("upper-{name}"), &name);
            for _ in 0..2 {
                let store = EmbeddedStore::open(container.0.join("locks")).unwrap();
                granted(store.acquire(&request("k"), WITHIN).await.unwrap());
            }
        }
    }
}

/// A copy is a separate store.
#[tokio::test]
async fn a_copy_on_another_file_system_is_adopted() {
    if !can_mount("views::a_copy_on_another_file_system_is_adopted") {
        return;
    }
    let disk = Disk::mount();
    let container = disk.overlay(&disk.path.join("lower"), "upper", "container");
    let (path, copy) = (disk.path.join("locks"), container.0.join("copy"));
    drop(EmbeddedStore::open(&path).unwrap());
    let copied = Command::new("cp").arg("-a").args([&path, &copy]).status().unwrap();
    assert!(copied.success());
    for _ in 0..2 {
        let store = EmbeddedStore::open(&copy).unwrap();
        granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    }
}
