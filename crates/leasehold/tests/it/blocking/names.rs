//! Whether the blocking types have the methods of the async ones, by their source text.

use std::collections::BTreeSet;

/// The names of the public methods in a type's own `impl` blocks.
fn methods<'a>(source: &'a str, of: &str) -> BTreeSet<&'a str> {
    let opening = format!("impl {of} {{");
    let mut names = BTreeSet::new();
    let mut lines = source.lines();
    while let Some(indent) = lines.find_map(|line| line.strip_suffix(&opening)) {
        let (end, start) = (format!("{indent}}}"), format!("{indent}    pub "));
        for line in lines.by_ref().take_while(|line| *line != end) {
            let Some(item) = line.strip_prefix(&start) else { continue };
            let item = item.trim_start_matches("const ").trim_start_matches("async ");
            let Some(item) = item.strip_prefix("fn ") else { continue };
            names.extend(item.split(['(', '<']).next());
        }
    }
    names
}

/// Which setters a file gives to which types.
fn setters(source: &str) -> BTreeSet<&str> {
    source
        .lines()
        .filter(|line| line.contains("_setters!(") || line.contains("_setter!("))
        .collect()
}

#[test]
fn no_method_of_the_async_api_is_missing_here() {
    macro_rules! twins {
        ($file:literal) => {
            [
                include_str!(concat!("../../../src/", $file)),
                include_str!(concat!("../../../src/blocking/", $file)),
            ]
        };
    }

    let (guards, clients) = (twins!("guard.rs"), twins!("client.rs"));
    let builders = [include_str!("../../../src/builder.rs"), clients[1]];
    let (elections, rwlocks) = (twins!("election.rs"), twins!("rwlock.rs"));
    let (multis, onces, reentrants) =
        (twins!("multi.rs"), twins!("once.rs"), twins!("reentrant.rs"));
    for (of, [there, here], least) in [
        ("$type", twins!("value.rs"), 11),
        ("Mutex", twins!("mutex.rs"), 8),
        ("Semaphore", twins!("semaphore.rs"), 9),
        ("Reentrant", reentrants, 4),
        ("ReentrantGuard", reentrants, 3),
        ("RwLock", rwlocks, 8),
        ("ReadGuard", rwlocks, 3),
        ("WriteGuard", rwlocks, 3),
        ("Multi", multis, 4),
        ("MultiGuard", multis, 9),
        ("OncePer", onces, 4),
        ("OnceGuard", onces, 3),
        ("Election", elections, 9),
        ("Leadership", elections, 2),
        ("Observer", elections, 1),
        ("Guard", guards, 17),
        ("HeldLease", guards, 12),
        ("Client", clients, 22),
        ("ClientBuilder", builders, 10),
    ] {
        let (in_there, in_here) = (there, here);
        let (mut there, mut here) = (methods(there, of), methods(here, of));
        assert!(
            there.len() >= least,
            "{of} has lost its methods, or this test its eyes: {there:?}"
        );
        // A future can be given any limit from outside; a thread's wait can't.
        here.remove("lost_within");
        here.remove("asked_within");
        // A thread has no runtime whose time a test could pause.
        there.remove("tokio_time");
        assert_eq!(here, there, "{of}");
        assert_eq!(setters(in_here), setters(in_there), "the setters of {of}");
    }
}
