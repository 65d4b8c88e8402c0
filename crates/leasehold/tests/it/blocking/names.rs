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
    const MUTEX: [&str; 2] =
        [include_str!("../../../src/mutex.rs"), include_str!("../../../src/blocking/mutex.rs")];
    const GUARD: [&str; 2] =
        [include_str!("../../../src/guard.rs"), include_str!("../../../src/blocking/guard.rs")];
    const VALUE: [&str; 2] =
        [include_str!("../../../src/value.rs"), include_str!("../../../src/blocking/value.rs")];
    const REENTRANT: [&str; 2] = [
        include_str!("../../../src/reentrant.rs"),
        include_str!("../../../src/blocking/reentrant.rs"),
    ];
    const SEMAPHORE: [&str; 2] = [
        include_str!("../../../src/semaphore.rs"),
        include_str!("../../../src/blocking/semaphore.rs"),
    ];
    const CLIENT: [&str; 2] =
        [include_str!("../../../src/client.rs"), include_str!("../../../src/blocking/client.rs")];

    for (of, [there, here], least) in [
        ("$type", VALUE, 11),
        ("Mutex", MUTEX, 7),
        ("Reentrant", REENTRANT, 4),
        ("ReentrantGuard", REENTRANT, 3),
        ("Semaphore", SEMAPHORE, 8),
        ("Guard", GUARD, 13),
        ("HeldLease", GUARD, 9),
        ("Client", CLIENT, 15),
        ("ClientBuilder", CLIENT, 10),
    ] {
        let (in_there, in_here) = (there, here);
        let (there, mut here) = (methods(there, of), methods(here, of));
        assert!(
            there.len() >= least,
            "{of} has lost its methods, or this test its eyes: {there:?}"
        );
        // A future can be given any limit from outside; a thread's wait can't.
        here.remove("lost_within");
        assert_eq!(here, there, "{of}");
        assert_eq!(setters(in_here), setters(in_there), "the setters of {of}");
    }
}
