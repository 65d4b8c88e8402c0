//! Whether the blocking types have the methods of the async ones, by their source text.

use std::collections::BTreeSet;

/// The names of the public methods in a type's own `impl` blocks.
fn methods<'a>(source: &'a str, of: &str) -> BTreeSet<&'a str> {
    let opening = format!("impl {of} {{");
    let mut names = BTreeSet::new();
    let mut lines = source.lines();
    while lines.any(|line| line == opening) {
        for line in lines.by_ref().take_while(|line| *line != "}") {
            let Some(item) = line.strip_prefix("    pub ") else { continue };
            let item = item.trim_start_matches("const ").trim_start_matches("async ");
            let Some(item) = item.strip_prefix("fn ") else { continue };
            names.extend(item.split(['(', '<']).next());
        }
    }
    names
}

#[test]
fn no_method_of_the_async_api_is_missing_here() {
    const MUTEX: [&str; 2] =
        [include_str!("../../../src/mutex.rs"), include_str!("../../../src/blocking/mutex.rs")];
    const GUARD: [&str; 2] =
        [include_str!("../../../src/guard.rs"), include_str!("../../../src/blocking/guard.rs")];
    const CLIENT: [&str; 2] =
        [include_str!("../../../src/client.rs"), include_str!("../../../src/blocking/client.rs")];

    for (of, [there, here], least) in [
        ("Mutex", MUTEX, 15),
        ("Guard", GUARD, 13),
        ("HeldLease", GUARD, 9),
        ("Client", CLIENT, 15),
        ("ClientBuilder", CLIENT, 10),
    ] {
        let (there, mut here) = (methods(there, of), methods(here, of));
        assert!(
            there.len() >= least,
            "{of} has lost its methods, or this test its eyes: {there:?}"
        );
        // A future can be given any limit from outside; a thread's wait can't.
        here.remove("lost_within");
        assert_eq!(here, there, "{of}");
    }
}
