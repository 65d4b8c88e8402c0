//! Refuses words that hide the actor: texts name the holder, the waiter, the caller.
//!
//! The table in CONTRIBUTING.md has them.

/// What is not said.
const REFUSED: [&str; 5] = ["whoever", "whomever", "somebody", "anybody", "everybody"];

/// Where users read: documents, the client's documentation and messages, the command's help.
const READ: [&str; 7] = [
    "README.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/",
    "crates/leasehold/src/",
    "crates/leasehold-cli/src/cli/",
];

/// The words of a file that users read that should not be there, with their lines.
pub(crate) fn findings(name: &str, text: &str) -> Vec<String> {
    if !READ.iter().any(|read| name.starts_with(read)) {
        return Vec::new();
    }
    let lines = (1..).zip(text.lines());
    lines
        .flat_map(|(number, line)| refused(line).map(move |word| (number, word)))
        .map(say)
        .collect()
}

fn say((number, word): (usize, &str)) -> String {
    format!("{number}: \"{word}\": name the actor, such as the holder, the waiter or the caller")
}

/// An underscore is a part of a word, so the names of tests have none of these.
fn refused(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| REFUSED.iter().any(|refused| word.eq_ignore_ascii_case(refused)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_for_users_names_the_actor() {
        let found = |name: &str, text: &str| findings(name, text).len();
        assert_eq!(found("docs/design.md", "Whoever releases tells\nsomebody's waiter."), 2);
        assert_eq!(found("crates/leasehold/src/lib.rs", "/// For everybody."), 1);
        assert_eq!(found("docs/design.md", "The holder tells `a_lock_of_somebody_else`."), 0);
        assert_eq!(found("crates/leasehold-redis/src/store.rs", "// Whoever releases."), 0);
    }
}
