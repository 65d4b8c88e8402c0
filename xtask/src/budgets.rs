//! Refuses a page that has more words than its budget, so that pages are read to their end.
//!
//! Words count in prose and tables, outside of code. A budget grows in the same commit as its page,
//! for a reason that the commit gives.

use std::fs;
use std::path::Path;

/// How many words each page may have. A page of a chapter has its folder's budget.
const WORDS: &[(&str, usize)] = &[
    ("ARCHITECTURE.md", 2500),
    ("CONTRIBUTING.md", 2115),
    ("README.md", 600),
    ("SECURITY.md", 700),
    ("docs/chooser.md", 800),
    ("docs/command.md", 900),
    ("docs/comparison.md", 1100),
    ("docs/comparison-postgres.md", 600),
    ("docs/cookbook.md", 1100),
    ("docs/design.md", 4690),
    ("docs/evidence.md", 8200),
    ("docs/faults.md", 5200),
    ("docs/guarantees.md", 1170),
    ("docs/interop.md", 1200),
    ("docs/interop-calls.md", 700),
    ("docs/interop-trials.md", 1400),
    ("docs/jobs.md", 900),
    ("docs/json.md", 700),
    ("docs/lineage.md", 2100),
    ("docs/night.md", 300),
    ("docs/operations.md", 300),
    ("docs/operations/", 900),
    ("docs/performance.md", 2610),
    ("docs/programs.md", 400),
    ("docs/proof.md", 700),
    ("docs/python.md", 1000),
    ("docs/quick-start.md", 500),
    ("docs/reliability.md", 1840),
    ("docs/wire.md", 1900),
];

/// The changelog's budget is one of lines.
const CHANGELOG_LINES: usize = 80;

/// Where pages are over their budgets, and pages without one.
pub(crate) fn findings(root: &Path) -> Vec<String> {
    let folders = ["", "docs/", "docs/operations/"];
    folders.iter().flat_map(|folder| in_folder(root, folder)).collect()
}

fn in_folder(root: &Path, folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        return vec![format!("{folder}: cannot be read")];
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pages = names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}{name}"));
    pages.filter_map(|page| finding(&page, &fs::read_to_string(root.join(&page)).ok()?)).collect()
}

fn finding(page: &str, text: &str) -> Option<String> {
    if page == "CHANGELOG.md" {
        let lines = text.lines().count();
        return (lines > CHANGELOG_LINES)
            .then(|| format!("{page}: {lines} lines; its budget is {CHANGELOG_LINES}"));
    }
    if page == "docs/SUMMARY.md" {
        return None;
    }
    let of_page =
        |(of, _): &&(&str, usize)| page == *of || of.ends_with('/') && page.starts_with(of);
    let Some((_, budget)) = WORDS.iter().find(of_page) else {
        return Some(format!(
            "{page}: it has no budget of words; give it one in xtask/src/budgets.rs"
        ));
    };
    let words = words(text);
    (words > *budget)
        .then(|| format!("{page}: {words} words, and its budget is {budget}; shorten or split it"))
}

/// The words of prose and tables. Code and definitions of links have none.
pub(crate) fn words(text: &str) -> usize {
    let prose = text.split("```").step_by(2);
    let lines =
        prose.flat_map(str::lines).filter(|line| !(line.starts_with('[') && line.contains("]: ")));
    let words = lines.flat_map(str::split_whitespace);
    words.filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_prose_and_tables() {
        let text = "# One two\n\n| three | – |\n| --- | --- |\n\n```sh\nno words\n```\n\n[four](x.md#five) – `six`.\n\n[x]: y.md\n";
        assert_eq!(words(text), 5);
    }

    #[test]
    fn a_page_has_a_budget_and_keeps_to_it() {
        let text = "word ".repeat(301);
        assert_eq!(finding("docs/night.md", &text).map(|it| it.contains("301 words")), Some(true));
        assert_eq!(finding("docs/operations/ttl.md", &text), None);
        assert_eq!(finding("docs/new.md", "word").map(|it| it.contains("no budget")), Some(true));
        assert_eq!(finding("CHANGELOG.md", &text), None);
        assert!(finding("CHANGELOG.md", &"line\n".repeat(81)).is_some());
    }
}
