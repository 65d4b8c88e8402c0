//! Unreadable stores: refused with a remedy, and left unchanged.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use leasehold_core::{
    Acquire, Error, ErrorKind, ListRequest, Release, ReleaseRequest, RenewRequest, Store,
};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, key, request};
use crate::child::{Child, say};
use crate::{header, place};

const PAGE: u64 = 4096;

/// A closed store with this many detached leases, which outlive their processes.
async fn with_leases(path: &Path, count: usize) {
    let store = EmbeddedStore::options().detached(true).open(path).unwrap();
    for n in 0..count {
        granted(store.acquire(&request(&format!("name-{n}")), WITHIN).await.unwrap());
    }
}

fn refused(path: &Path) -> Error {
    EmbeddedStore::open(path).unwrap_err()
}

#[track_caller]
fn assert_corrupt(path: &Path, what: &str) {
    let error = refused(path);
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
    assert!(text.contains(what) && text.contains("remove its directory"), "{text}");
    assert!(text.contains(&*path.to_string_lossy()), "{text}");
}

/// The used part of the data file.
fn used(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path.join("data.mdb")).unwrap().take(64 * PAGE).read_to_end(&mut bytes).unwrap();
    bytes
}

fn data(path: &Path) -> File {
    OpenOptions::new().write(true).open(path.join("data.mdb")).unwrap()
}

#[tokio::test]
async fn a_store_is_read_again_as_it_was_left() {
    let (path, _keep) = place();
    with_leases(&path, 300).await;
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!(store.entries(WITHIN).await.unwrap(), (300, 300));
    let answer = store.acquire(&request("name-7"), WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
}

#[tokio::test]
async fn a_scribbled_data_file_is_refused_and_not_touched() {
    let (path, _keep) = place();
    with_leases(&path, 300).await;
    let before = used(&path);
    let mut rng = fastrand::Rng::with_seed(7);
    for (from, bytes) in [(0, 8_192), (PAGE, 64), (2 * PAGE, 16_384), (40, 4)] {
        let mut junk = vec![0; bytes];
        rng.fill(&mut junk);
        data(&path).write_all_at(&junk, from).unwrap();
        let scribbled = used(&path);
        assert_corrupt(&path, "data.mdb is damaged");
        assert!(used(&path) == scribbled, "a refused store was changed");
        data(&path).write_all_at(&before, 0).unwrap();
    }
    EmbeddedStore::open(&path).unwrap();
}

#[tokio::test]
async fn no_flipped_byte_crashes_or_loses_a_lease() {
    let (path, _keep) = place();
    with_leases(&path, 40).await;
    let before = used(&path);
    let end = before.iter().rposition(|byte| *byte != 0).unwrap();
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut refused, mut taken, mut one_refused) = (0, 0, 0);
    for _ in 0..600 {
        let at = rng.usize(..=end);
        data(&path).write_all_at(&[before[at] ^ 1 << rng.u8(..8)], at as u64).unwrap();
        match EmbeddedStore::open(&path) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
                refused += 1;
            }
            // The byte was unused (in a free page, a gap, or the older meta page), or in the value
            // of one record.
            Ok(store) => {
                assert_eq!(store.entries(WITHIN).await.unwrap(), (40, 40), "byte {at}");
                let damaged = damaged_names(&store, 40).await;
                assert!(damaged <= 1, "byte {at}: {damaged}");
                one_refused += damaged;
                taken += 1;
            }
        }
        data(&path).write_all_at(&before, 0).unwrap();
    }
    assert!(
        refused > 0 && taken > 0 && one_refused > 0,
        "{refused} refused, {taken} taken, {one_refused} with one lock refused"
    );
}

/// Covers which transaction was the last, how the trees are read, and whether leases are void.
#[tokio::test]
async fn no_flipped_bit_of_what_the_rest_hangs_on_loses_a_lease() {
    for count in [1, 2, 300] {
        let (path, _keep) = place();
        with_leases(&path, count).await;
        let keeps_all = async |what: &str| match EmbeddedStore::open(&path) {
            Err(error) => {
                let refused = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Misuse];
                assert!(refused.contains(&error.kind()), "{count}, {what}: {error}");
                false
            }
            Ok(store) => {
                assert_eq!(store.entries(WITHIN).await.unwrap(), (count, count), "{count}, {what}");
                for n in [0, count / 2, count - 1] {
                    let answer = store.acquire(&request(&format!("name-{n}")), WITHIN).await;
                    assert!(matches!(answer, Ok(Acquire::Busy(_))), "{count}, {what}: {answer:?}");
                }
                true
            }
        };
        let before = used(&path);
        let (even, odd) = (0..184, PAGE..PAGE + 184);
        for at in even.chain(1024..1056).chain(odd) {
            let byte = before[usize::try_from(at).unwrap()];
            for bit in 0..8 {
                data(&path).write_all_at(&[byte ^ 1 << bit], at).unwrap();
                keeps_all(&format!("byte {at}, bit {bit}")).await;
                data(&path).write_all_at(&[byte], at).unwrap();
                // Opening a store may note the time in it, which changes the first two pages.
                if used(&path)[..8_192] != before[..8_192] {
                    data(&path).write_all_at(&before, 0).unwrap();
                }
            }
        }
        let header = fs::read(path.join("store")).unwrap();
        for at in 0..header.len() {
            for bit in 0..8 {
                let mut damaged = header.clone();
                damaged[at] ^= 1 << bit;
                fs::write(path.join("store"), damaged).unwrap();
                assert!(!keeps_all(&format!("byte {at} of the header, bit {bit}")).await);
            }
        }
        fs::write(path.join("store"), header).unwrap();
        assert!(keeps_all("nothing").await);
    }
}

/// Requests all names, of which none may be granted, and counts the refused ones.
async fn damaged_names(store: &EmbeddedStore, count: usize) -> usize {
    let mut damaged = 0;
    for n in 0..count {
        match store.acquire(&request(&format!("name-{n}")), WITHIN).await {
            Ok(Acquire::Busy(_)) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                assert!(error.to_string().contains("other locks are fine"), "{error}");
                damaged += 1;
            }
            other => panic!("name-{n}: {other:?}"),
        }
    }
    damaged
}

#[tokio::test]
async fn a_damaged_record_refuses_its_own_lock_and_no_other() {
    let (path, _keep) = place();
    with_leases(&path, 40).await;
    let before = used(&path);
    // In a leaf, a value directly follows its name. Copied pages have the name, too.
    for (at, _) in before.windows(6).enumerate().filter(|(_, bytes)| bytes == b"name-7") {
        let at = at + 6 + 40;
        data(&path).write_all_at(&[before[at] ^ 1], at as u64).unwrap();
    }
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!(damaged_names(&store, 40).await, 1);
    let error = store.inspect(&key("name-7"), WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let listing = store.list(&ListRequest::default(), WITHIN).await.unwrap();
    assert_eq!(listing.locks.len(), 39, "{listing:?}");
    let [unreadable] = listing.unreadable.as_slice() else { panic!("{listing:?}") };
    assert_eq!(unreadable.key(), Some(&key("name-7")), "{unreadable}");
    assert_eq!(unreadable.to_string(), error.to_string().replace("inspect", "list"));
    let listing = store.list(&ListRequest::new("name-1"), WITHIN).await.unwrap();
    assert_eq!((listing.locks.len(), listing.unreadable.len()), (11, 0), "{listing:?}");
    // The sweep that forgets old names visits it again and again.
    for n in 0..200 {
        granted(store.acquire(&request(&format!("other-{n}")), WITHIN).await.unwrap());
    }
    assert_eq!(store.entries(WITHIN).await.unwrap(), (240, 240));
}

#[tokio::test]
async fn a_data_file_that_was_cut_off_or_lost_is_refused() {
    let (path, _keep) = place();
    with_leases(&path, 300).await;
    for length in [0, 100, PAGE, 3 * PAGE] {
        data(&path).set_len(length).unwrap();
        assert_corrupt(&path, "data.mdb");
    }
    fs::remove_file(path.join("data.mdb")).unwrap();
    assert_corrupt(&path, "data.mdb is missing");
    assert!(!path.join("data.mdb").exists());
}

#[tokio::test]
async fn a_damaged_header_is_refused() {
    let (path, _keep) = place();
    with_leases(&path, 1).await;
    let header = fs::read_to_string(path.join("store")).unwrap();
    for other in ["", "rubbish", &header[..header.len() - 2], &header.replace("ready", "steady")] {
        fs::write(path.join("store"), other).unwrap();
        assert_corrupt(&path, "the file store is damaged");
    }
    fs::remove_file(path.join("store")).unwrap();
    assert_eq!(refused(&path).kind(), ErrorKind::Foreign);
    fs::write(path.join("store"), header).unwrap();
    EmbeddedStore::open(&path).unwrap();
}

#[tokio::test]
async fn a_store_of_another_version_is_refused_as_such() {
    let (path, _keep) = place();
    with_leases(&path, 1).await;
    let header = fs::read_to_string(path.join("store")).unwrap();
    for (format, of) in [("3", "an earlier version"), ("9", "a later version")] {
        let other = header.replace("leasehold-store 6\n", &format!("leasehold-store {format}\n"));
        assert_ne!(other, header);
        fs::write(path.join("store"), &other).unwrap();
        let error = refused(&path);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let said = error.to_string();
        assert!(said.contains(of) && said.contains(&format!("format {format}")), "{said}");
        assert_eq!(fs::read_to_string(path.join("store")).unwrap(), other);
    }
}

#[tokio::test]
async fn a_store_whose_making_was_cut_short_is_made_again() {
    let (path, _keep) = place();
    with_leases(&path, 1).await;
    header::change(&path, "state ", "making");
    data(&path).set_len(100).unwrap();
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!(store.entries(WITHIN).await.unwrap(), (0, 0));
}

#[tokio::test]
async fn a_foreign_database_is_left_alone() {
    let (path, _keep) = place();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("data.mdb"), "theirs").unwrap();
    assert_eq!(refused(&path).kind(), ErrorKind::Foreign);
    assert_eq!(fs::read(path.join("data.mdb")).unwrap(), b"theirs");
}

#[tokio::test]
async fn a_restart_of_the_machine_voids_all_leases_and_keeps_fences_rising() {
    let (path, _keep) = place();
    let asked = request("k");
    let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
    let before = granted(store.acquire(&asked, WITHIN).await.unwrap());
    drop(store);
    header::change(&path, "boot ", "another-boot");
    header::change(&path, "booted-at-s ", "1600000000");
    // Unsynced data may be anything after a power failure.
    data(&path).set_len(100).unwrap();
    let store = EmbeddedStore::open(&path).unwrap();
    let after = granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    assert!(after.first() > before.last());
    let ending = ReleaseRequest::new(asked.key, asked.token, before);
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn a_container_with_a_boot_id_of_its_own_ends_no_lease() {
    let (path, _keep) = place();
    let asked = request("k");
    let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
    let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
    drop(store);
    header::change(&path, "boot ", "the-hosts");
    let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
    let answer = store.acquire(&request("k"), WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
    let ending = ReleaseRequest::new(asked.key, asked.token, fences);
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
    assert!(fs::read_to_string(path.join("store")).unwrap().contains("boot the-hosts\n"));
}

#[tokio::test]
async fn another_time_namespace_is_kept_out_while_its_leases_could_live() {
    let (path, _keep) = place();
    let holder = Child::that_says(&path, "hold k", "held");
    header::change(&path, "time-namespace ", "1 0.0");
    let error = refused(&path);
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.to_string().contains("time namespace"), "{error}");
    holder.kill();
    // The session's lease has ended with its process, so the store may be taken over.
    let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    drop(store);
    // A detached lease may still run on a clock that shows another time here.
    header::change(&path, "time-namespace ", "2 0.0");
    assert_eq!(refused(&path).kind(), ErrorKind::Misuse);
}

#[tokio::test]
async fn a_store_that_was_removed_in_use_says_so_for_good() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    fs::remove_dir_all(&path).unwrap();
    let error = loop {
        match store.acquire(&request("other"), WITHIN).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => break error,
        }
    };
    // Waiting for it would not help.
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("directory was removed"), "{error}");
    // The old one has to be closed before this process can open a new one there.
    assert_eq!(refused(&path).kind(), ErrorKind::Misuse);
    assert!(store.acquire(&request("k"), WITHIN).await.is_err());
    drop(store);
    let store = EmbeddedStore::open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
}

/// A process that may change its root: root, or otherwise a process in a new user namespace.
#[cfg(target_os = "linux")]
fn who_may_chroot() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &[] } else { &["unshare", "-Ur"] }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_that_changes_its_root_keeps_its_leases_and_sees_the_store_move() {
    let (path, _keep) = place();
    fs::create_dir(path.with_extension("empty")).unwrap();
    let mut child = Child::start_by(who_may_chroot(), &path, "chroot k");
    child.wait_for("renewed from inside");
    fs::rename(&path, path.with_extension("aside")).unwrap();
    drop(EmbeddedStore::open(&path).unwrap());
    child.wait_for("DirectoryGone");
    child.end();
}

#[cfg(target_os = "linux")]
pub(crate) async fn in_chroot(store: &EmbeddedStore, name: &str, path: &Path) {
    let asked = request(name);
    let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
    rustix::process::chroot(path.with_extension("empty")).unwrap();
    let renewal = [RenewRequest::new(asked.key, asked.token, fences, asked.ttl)];
    let mut renewed = 0;
    let reason = loop {
        // Each comes after the next check of the path.
        tokio::time::sleep(Duration::from_millis(11)).await;
        match store.renew(&renewal, WITHIN).await.pop().unwrap() {
            Ok(_) => renewed += 1,
            Err(error) => break error.reason().unwrap(),
        }
        if renewed == 3 {
            say("renewed from inside");
        }
    };
    assert!(renewed >= 3);
    say(&format!("{reason:?}"));
}
