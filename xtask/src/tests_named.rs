//! Checks that every test that a document names exists.
//!
//! Documents name tests as `crate::file::test`, or, for cases of the conformance suite, by the bare
//! name. A text search decides: the name must occur as a word in a Rust file of that crate, or of
//! the conformance suite.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The first word of a path, and the folder in which its test must be.
const CRATES: &[(&str, &str)] = &[
    ("bench", "crates/leasehold-bench"),
    ("cli", "crates/leasehold-cli"),
    ("client", "crates/leasehold"),
    ("core", "crates/leasehold-core"),
    ("embedded", "crates/leasehold-embedded"),
    ("examples", "crates/leasehold-examples"),
    ("macros", "crates/leasehold-macros"),
    ("postgres", "crates/leasehold-postgres"),
    ("quorum", "crates/leasehold-quorum"),
    ("redis", "crates/leasehold-redis"),
    ("testkit", "crates/leasehold-testkit"),
    ("xtask", "xtask"),
];

/// A bare name of fewer words counts as a field, a function or a setting.
const WORDS_MIN: usize = 4;

/// The words of all Rust files, by folder of [`CRATES`].
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<&'static str, Vec<String>>);

impl Names {
    /// Collects the words of a Rust file.
    pub(crate) fn read(&mut self, name: &str, text: &str) {
        let of = CRATES.iter().find(|(_, folder)| {
            name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        });
        if let Some((_, folder)) = of {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let words = words.filter(|word| word.contains('_')).map(str::to_owned);
            self.0.entry(folder).or_default().extend(words);
        }
    }

    /// Sorts the words, for the search in [`missing`](Self::missing).
    pub(crate) fn sort(&mut self) {
        for words in self.0.values_mut() {
            words.sort_unstable();
            words.dedup();
        }
    }

    fn has(&self, folder: &str, word: &str) -> bool {
        let words = self.0.get(folder);
        words.is_some_and(|words| words.binary_search_by(|known| (**known).cmp(word)).is_ok())
    }

    /// The tests that a Markdown text names and that do not exist.
    pub(crate) fn missing(&self, text: &str) -> Vec<String> {
        let mut missing = Vec::new();
        for (number, quoted) in code_spans(text) {
            let mut parts: Vec<&str> = quoted.split("::").collect();
            let Some(test) = parts.pop() else { continue };
            if !is_test(test) {
                continue;
            }
            let exists = match parts.first() {
                None if words(test) < WORDS_MIN => continue,
                None => CRATES.iter().any(|(_, folder)| self.has(folder, test)),
                Some(name) => match CRATES.iter().find(|(known, _)| known == name) {
                    Some((_, folder)) => self.has(folder, test),
                    None => continue,
                },
            };
            if !exists {
                missing.push(format!("{number}: no test or item is called `{quoted}`"));
            }
        }
        missing
    }
}

/// The `code` of a Markdown text with its line numbers, fenced blocks left out.
fn code_spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..)
        .zip(text.lines())
        .filter(move |(_, line)| {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                return false;
            }
            !fenced
        })
        .flat_map(|(number, line)| {
            line.split('`').skip(1).step_by(2).map(move |span| (number, span))
        })
}

fn words(name: &str) -> usize {
    name.split('_').filter(|word| !word.is_empty()).count()
}

fn is_test(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && words(name) >= 2
        && name.chars().all(letters)
}

/// Reads all Rust files below `root`.
pub(crate) fn names(root: &Path, files: &[std::path::PathBuf]) -> Names {
    let mut names = Names::default();
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        if let Ok(text) = fs::read_to_string(path) {
            names.read(&name, &text);
        }
    }
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Names {
        let mut names = Names::default();
        names.read("crates/leasehold-core/src/lease.rs", "fn a_lease_that_ends_says_so() {}");
        names.read("crates/leasehold/tests/it/hold.rs", "async fn it_is_held() {}");
        names.sort();
        names
    }

    #[test]
    fn a_test_that_exists_is_found_in_its_crate_only() {
        let names = known();
        assert!(names.missing("`core::lease::tests::a_lease_that_ends_says_so`").is_empty());
        assert!(names.missing("`a_lease_that_ends_says_so` (every store)").is_empty());
        assert_eq!(names.missing("`client::hold::a_lease_that_ends_says_so`").len(), 1);
    }

    #[test]
    fn a_test_that_does_not_exist_is_named_with_its_line() {
        let missing = known().missing("one\n`core::lease::tests::nobody_wrote_this`\n");
        assert_eq!(missing.len(), 1);
        assert!(
            missing.iter().all(|text| text.starts_with("2: ") && text.contains("nobody_wrote"))
        );
    }

    #[test]
    fn settings_types_and_fenced_blocks_are_no_tests() {
        let text = "`min_ttl` `Guard::renew_to` `std::thread::sleep_ms`\n```\n`core::x::not_a_test`\n```\n";
        assert_eq!(known().missing(text), Vec::<String>::new());
    }
}
