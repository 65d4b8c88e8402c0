//! Directories with foreign files, and ambiguous paths.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use leasehold_core::{ErrorKind, Store};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, request};
use crate::child::Child;
use crate::{header, place};

/// All below a directory, with the contents of files and the targets of links.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let what = if meta.is_dir() {
                open.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if meta.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            found.insert(path, what);
        }
    }
    found
}

#[test]
fn a_directory_with_anything_else_in_it_is_refused_and_left_as_it_is() {
    let foreign = |path: &Path, name: &str| {
        fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
        fs::write(path.join(name), "theirs").unwrap();
    };
    for name in [
        "sessions/sess_1",
        "sessions/0123456789abcdef",
        "wake/music.txt",
        "data.mdb",
        "store",
        "store/inner",
        "lock.mdb",
        "notes.txt",
        "gate/inner",
        ".hidden",
    ] {
        let (path, _keep) = place();
        foreign(&path, name);
        let before = contents(&path);
        let error = EmbeddedStore::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{name}: {error}");
        let outermost = name.split('/').next().unwrap();
        let text = error.to_string();
        assert!(text.contains(outermost) && text.contains("empty"), "{text}");
        assert_eq!(contents(&path), before, "{name}");
    }
    // A long file with the gate's name is not a gate.
    let (path, _keep) = place();
    foreign(&path, "gate");
    fs::write(path.join("gate"), vec![b'x'; 4096]).unwrap();
    assert_eq!(EmbeddedStore::open(&path).unwrap_err().kind(), ErrorKind::Foreign);
}

#[tokio::test]
async fn what_others_put_into_a_store_is_never_removed() {
    let (path, _keep) = place();
    drop(EmbeddedStore::open(&path).unwrap());
    fs::write(path.join("notes"), "theirs").unwrap();
    fs::create_dir(path.join("sessions/0000000000000001")).unwrap();
    fs::write(path.join("sessions/readme"), "theirs").unwrap();
    fs::write(path.join("wake/0123456789abcdef0123456789abcdef"), "theirs").unwrap();
    std::os::unix::fs::symlink(path.join("notes"), path.join("sessions/0000000000000002")).unwrap();
    let theirs = contents(&path);
    let theirs: Vec<_> = theirs.iter().filter(|(_, what)| *what == b"theirs").collect();
    for making in [false, true] {
        if making {
            // The data are void, so all of the store is created again.
            header::change(&path, "state ", "making");
        }
        let store = EmbeddedStore::open(&path).unwrap();
        granted(store.acquire(&request("k"), WITHIN).await.unwrap());
        drop(store);
        let after = contents(&path);
        for (path, what) in &theirs {
            assert_eq!(after.get(*path), Some(*what), "{}", path.display());
        }
        assert!(after.contains_key(&path.join("sessions/0000000000000001")));
        assert!(after.contains_key(&path.join("sessions/0000000000000002")));
    }
}

#[test]
fn links_in_the_place_of_a_stores_files_are_not_followed() {
    let (path, keep) = place();
    drop(EmbeddedStore::open(&path).unwrap());
    let victim = keep.path().join("victim");
    for name in ["gate", "data.mdb"] {
        fs::rename(path.join(name), &victim).unwrap();
        std::os::unix::fs::symlink(&victim, path.join(name)).unwrap();
        let before = fs::read(&victim).unwrap();
        let error = EmbeddedStore::open(&path).unwrap_err();
        assert!(error.to_string().contains("not a file of the store"), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), before);
        fs::rename(&victim, path.join(name)).unwrap();
    }
    fs::rename(path.join("sessions"), &victim).unwrap();
    std::os::unix::fs::symlink(&victim, path.join("sessions")).unwrap();
    assert!(EmbeddedStore::open(&path).is_err());
}

#[test]
fn a_relative_path_is_refused_with_the_absolute_one() {
    let here = std::env::current_dir().unwrap();
    for path in ["locks", "./locks", "a/b", "~/locks"] {
        let error = EmbeddedStore::open(path).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Config, "{text}");
        assert!(text.contains("relative"), "{text}");
        let home = path.starts_with('~');
        assert!(text.contains(if home { "tilde" } else { here.to_str().unwrap() }), "{text}");
        assert!(!here.join(path).exists());
    }
}

#[test]
fn a_store_that_can_not_be_opened_delays_no_other() {
    let (stuck, keep) = place();
    drop(EmbeddedStore::open(&stuck).unwrap());
    let gate = fs::File::open(stuck.join("gate")).unwrap();
    gate.lock().unwrap();
    let (begun, begins) = mpsc::channel();
    let opening = thread::spawn(move || {
        begun.send(()).unwrap();
        EmbeddedStore::open(stuck)
    });
    begins.recv().unwrap();
    for n in 0..20 {
        EmbeddedStore::open(keep.path().join(format!("other-{n}"))).unwrap();
    }
    gate.unlock().unwrap();
    // On a busy machine it may time out, but it must not hang.
    drop(opening.join().unwrap());
}

#[test]
fn an_opening_without_a_wait_does_not_wait() {
    let (path, keep) = place();
    let open = || EmbeddedStore::options().at_once(true).open(&path).map_err(|error| error.kind());
    // Another test of this process may be about to open a store.
    let open_alone = || {
        std::iter::repeat_with(open)
            .take(1_000_000)
            .inspect(|_| thread::yield_now())
            .find(|opened| !matches!(opened, Err(ErrorKind::Unavailable)))
            .unwrap()
    };
    // The store would have to be created.
    assert_eq!(open().unwrap_err(), ErrorKind::Unavailable);
    assert!(!path.join("store").exists());
    drop(EmbeddedStore::open(&path).unwrap());
    drop(open_alone().unwrap());
    let gate = fs::File::open(path.join("gate")).unwrap();
    gate.lock().unwrap();
    assert_eq!(open().unwrap_err(), ErrorKind::Unavailable);
    // It does not hide a fault of the store, either.
    gate.unlock().unwrap();
    fs::write(path.join("store"), "this is no header").unwrap();
    assert_eq!(open_alone().unwrap_err(), ErrorKind::Corrupt);
    drop(keep);
}

#[test]
fn rights_that_a_maker_did_not_come_to_give_are_given_by_the_next() {
    let (path, _keep) = place();
    drop(EmbeddedStore::options().group(true).open(&path).unwrap());
    let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o7777;
    let before = ["gate", "data.mdb", "sessions", "wake"].map(mode);
    for name in ["gate", "sessions", "wake"] {
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    Child::that_says(&path, "open", "open").end();
    assert_eq!(["gate", "data.mdb", "sessions", "wake"].map(mode), before);
}

/// Otherwise a program that clears old temporary files would leave parts of it, which are not a
/// store.
#[tokio::test]
async fn everything_in_a_store_is_as_recent_as_its_last_use() {
    let (path, _keep) = place();
    drop(EmbeddedStore::open(&path).unwrap());
    let parts = ["store", "gate", "data.mdb", "sessions", "wake", "."].map(|name| path.join(name));
    let age = |part: &std::path::PathBuf| part.metadata().unwrap().modified().unwrap().elapsed();
    let hour = std::time::Duration::from_secs(3_600);
    for part in &parts {
        let old = std::time::SystemTime::UNIX_EPOCH + 1_000 * hour;
        let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
        fs::File::open(part).unwrap().set_times(times).unwrap();
    }
    drop(EmbeddedStore::open(&path).unwrap());
    for part in &parts {
        assert!(age(part).unwrap_or_default() < hour, "{}", part.display());
    }
}
