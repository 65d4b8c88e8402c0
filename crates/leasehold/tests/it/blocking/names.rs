//! Whether the blocking types have the methods of the async ones, by the listing of the public
//! surface.

use std::collections::{BTreeMap, BTreeSet};

const SURFACE: &str = include_str!("../../../../../docs/api/leasehold.txt");

/// The names of the methods of each type below a path.
fn methods(path: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut methods: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for line in SURFACE.lines() {
        let Some(item) = line.strip_prefix("fn ").and_then(|item| item.strip_prefix(path)) else {
            continue;
        };
        let Some((name, _)) = item.split_once(['(', '<']) else { continue };
        if let [of, method] = name.split("::").collect::<Vec<_>>()[..] {
            // Types, not modules.
            if of.starts_with(char::is_uppercase) {
                methods.entry(of).or_default().insert(method);
            }
        }
    }
    methods
}

#[test]
fn no_method_of_the_async_api_is_missing_here() {
    let (mut there, mut here) = (methods("leasehold::"), methods("leasehold::blocking::"));
    // A future can be given any limit from outside; a thread's wait can't.
    for view in ["HeldLease", "HeldLeases"] {
        let view = here.get_mut(view).unwrap();
        assert!(view.remove("lost_within") && view.remove("asked_within"));
    }
    // A thread has no runtime whose time a test could pause.
    assert!(there.get_mut("ClientBuilder").unwrap().remove("tokio_time"));
    // Values, which are the same for both.
    for same in ["LockEventKind", "Loss", "LossReason", "Prolonged"] {
        assert!(there.remove(same).is_some(), "{same}");
    }
    for same in ["DetachedLease", "LockOptions", "NotChanged", "Owner", "Releases", "RunError"] {
        assert!(there.remove(same).is_some(), "{same}");
    }
    assert!(there.len() >= 20, "this test has lost its eyes: {there:?}");
    assert_eq!(here, there);
}

#[test]
fn no_method_for_other_libraries_locks_is_missing_here() {
    let (there, mut here) =
        (methods("leasehold::interop::"), methods("leasehold::blocking::interop::"));
    // A future can be given any limit from outside; a thread's wait can't.
    for lease in ["PlainLease", "RedissonGuard"] {
        assert!(here.get_mut(lease).unwrap().remove("lost_within"));
    }
    assert_eq!(there.len(), 7, "this test has lost its eyes: {there:?}");
    assert_eq!(here, there);
}
