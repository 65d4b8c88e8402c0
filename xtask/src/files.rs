//! `cargo xtask files`: prints what each source file is for, by the file's own first line.
//!
//! Pages leave these lines out, so that they are right in one place. Hygiene checks that each
//! line is a whole sentence.

use std::fs;
use std::path::Path;

use crate::hygiene;

/// The greatest width of a first line, with its marks.
const COLUMNS_MAX: usize = 100;

/// Prints each source file with its first line, if path and line contain all of the words.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let mut files = Vec::new();
    hygiene::collect(root, &mut files)?;
    files.sort();
    let mut found = Vec::new();
    for path in &files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let Some(purpose) = purpose(&name, &text) else { continue };
        let line = format!("{name}  {purpose}").to_lowercase();
        if words.iter().all(|word| line.contains(&word.to_lowercase())) {
            found.push((name, purpose.to_owned()));
        }
    }
    let widest = found.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, purpose) in &found {
        println!("{name:<widest$}  {purpose}");
    }
    if found.is_empty() { Err("no file has all of these words".to_owned()) } else { Ok(()) }
}

/// The fault in a file's first line, if any.
pub(crate) fn finding(name: &str, text: &str) -> Option<String> {
    if !is_source(name) || !name.ends_with(".rs") {
        return None;
    }
    let Some(purpose) = purpose(name, text) else {
        return Some(format!("{name}:1: no `//!` line that says what the file is for"));
    };
    if text.lines().next().is_some_and(|line| line.chars().count() > COLUMNS_MAX) {
        return Some(format!("{name}:1: wider than {COLUMNS_MAX} columns"));
    }
    let whole = purpose.ends_with('.');
    (!whole).then(|| format!("{name}:1: the line is not a whole sentence with a full stop"))
}

/// The first line after its marks; `None` if there is none, or for other files than source.
fn purpose<'a>(name: &str, text: &'a str) -> Option<&'a str> {
    let first = text.lines().next().filter(|_| is_source(name))?;
    let said = first.strip_prefix("//! ").or_else(|| first.strip_prefix("-- "))?;
    Some(said.trim_end())
}

/// Whether it is a file below `src` of a crate, or of xtask.
fn is_source(name: &str) -> bool {
    let below = name.starts_with("xtask/src/")
        || name.starts_with("bindings/python/src/")
        || name.strip_prefix("crates/").is_some_and(|rest| rest.contains("/src/"));
    below && (name.ends_with(".rs") || name.ends_with(".lua"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_file_says_in_its_first_line_what_it_is_for() {
        let said = |text: &str| finding("crates/a/src/b.rs", text);
        assert_eq!(said("//! Counts holds.\n\nfn f() {}\n"), None);
        assert!(said("use std::fs;\n").is_some());
        assert!(said("//! Counts holds: of one\n//! client.\n").is_some());
        assert!(said(&format!("//! {}.\n", "x".repeat(COLUMNS_MAX))).is_some());
    }

    #[test]
    fn tests_and_benches_of_a_crate_need_no_such_line() {
        assert_eq!(finding("crates/a/tests/it/b.rs", "use std::fs;\n"), None);
        assert_eq!(finding("README.md", "# A\n"), None);
    }

    #[test]
    fn scripts_are_listed_by_their_first_comment() {
        assert_eq!(
            purpose("crates/a/src/scripts/b.lua", "-- Renews.\nreturn 1\n"),
            Some("Renews.")
        );
        assert_eq!(purpose("crates/a/src/scripts/b.lua", "return 1\n"), None);
    }
}
