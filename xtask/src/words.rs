//! Counts words that hide the actor, in all source and text; no count may grow.
//!
//! Texts name the holder, the waiter, the caller: the table in CONTRIBUTING.md has the words.

use std::fs;
use std::path::Path;

use crate::hygiene;
use crate::prose::Found;

/// Where the counts are kept.
pub(crate) const COUNTS: &str = "xtask/words.txt";

/// The refused words.
const REFUSED: [&str; 5] = ["whoever", "whomever", "somebody", "anybody", "everybody"];

/// Files that have to name the words.
const NAMES_THEM: [&str; 3] = ["CONTRIBUTING.md", "xtask/src/prose.rs", "xtask/src/words.rs"];

/// The lines of each file that have such a word.
pub(crate) fn everywhere(root: &Path) -> Result<Found, String> {
    let mut files = Vec::new();
    hygiene::collect(root, &mut files)?;
    let mut found = Found::new();
    for path in files.iter().filter(|path| !path.is_symlink()) {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let lines = findings(&name, &text);
        if !lines.is_empty() {
            found.insert(format!("{name} hidden-actor"), lines);
        }
    }
    Ok(found)
}

/// The words of a file that should not be there, each with its line.
fn findings(name: &str, text: &str) -> Vec<String> {
    if NAMES_THEM.contains(&name) {
        return Vec::new();
    }
    let lines = (1..).zip(text.lines());
    lines
        .flat_map(|(number, line)| refused(line).map(move |word| (number, word)))
        .map(|(number, word)| {
            format!("line {number}: \"{word}\": name the holder, the waiter or the caller")
        })
        .collect()
}

/// An underscore is part of a word, so these words don't occur in the names of tests.
fn refused(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| REFUSED.iter().any(|refused| word.eq_ignore_ascii_case(refused)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_the_actor() {
        let found = |name: &str, text: &str| findings(name, text).len();
        assert_eq!(found("docs/design.md", "Whoever releases tells\nsomebody's waiter."), 2);
        assert_eq!(found("crates/leasehold-redis/src/scripts/a.lua", "-- For everybody."), 1);
        assert_eq!(found("crates/leasehold-redis/tests/it/a.rs", "// Whoever releases."), 1);
        assert_eq!(found("docs/design.md", "The holder tells `a_lock_of_somebody_else`."), 0);
        assert_eq!(found("CONTRIBUTING.md", "| holder | whoever |"), 0);
    }
}
