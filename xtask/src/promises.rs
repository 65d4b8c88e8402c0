//! Checks that every promise has a number, a test of its own, and the text of its exceptions.
//!
//! All promises are on one page, docs/guarantees.md, numbered without a gap. Each has a section in
//! docs/evidence.md, with at least one test that only that section names. Each exception that the
//! page marks has its text there.

use std::collections::{BTreeMap, BTreeSet};

/// The page with the promises.
pub(crate) const PROMISES: &str = "docs/guarantees.md";

/// The page with their tests and exceptions.
pub(crate) const EVIDENCE: &str = "docs/evidence.md";

/// The part of the page in which every list item is a promise.
const PART: &str = "## Promises";

/// The link from a promise to its exceptions.
const MARK: &str = "[†]";

/// The words before the exceptions in a section of the evidence.
const EXCEPT: &str = "**Except**";

/// The faults in the promises of one page and their sections in the other.
pub(crate) fn findings(promises: &str, evidence: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let promised = promised(promises, &mut findings);
    let sections = sections(evidence, &mut findings);
    let mut named_by: BTreeMap<&str, usize> = BTreeMap::new();
    for test in sections.values().flat_map(|section| &section.tests) {
        *named_by.entry(test).or_default() += 1;
    }
    for (name, Section { line, tests, excepts }) in &sections {
        let at = format!("{EVIDENCE}:{line}");
        if !tests.iter().any(|test| named_by.get(test) == Some(&1)) {
            findings.push(format!("{at}: {name} names no test of its own"));
        }
        match promised.get(name) {
            None => findings.push(format!("{at}: {name} is not promised")),
            Some(Promise { excepted, .. }) if excepted != excepts => {
                let lacks = if *excepted { "has no exception here" } else { "has no † there" };
                findings.push(format!("{at}: {name} {lacks}"));
            }
            Some(_) => {}
        }
    }
    let untold = promised.iter().filter(|(name, _)| !sections.contains_key(*name));
    findings.extend(untold.map(|(name, Promise { line, .. })| {
        format!("{PROMISES}:{line}: {name} has no section in {EVIDENCE}")
    }));
    findings
}

struct Promise {
    line: usize,
    /// Whether it is marked as having exceptions.
    excepted: bool,
}

/// The promises by their names, such as `G1`.
fn promised<'t>(text: &'t str, findings: &mut Vec<String>) -> BTreeMap<&'t str, Promise> {
    let mut promised = BTreeMap::new();
    let mut is_part = false;
    for (line, item) in (1..).zip(text.lines()) {
        if item.starts_with("## ") {
            is_part = item == PART;
        }
        let Some(item) = item.strip_prefix("- ").filter(|_| is_part) else { continue };
        let Some((name, rest)) = numbered(item) else {
            findings.push(format!("{PROMISES}:{line}: a promise without a number"));
            continue;
        };
        let excepted = rest.starts_with(MARK);
        let link = format!("{MARK}[evidence.md#{}] ", name.to_lowercase());
        if excepted && !rest.starts_with(&link) {
            findings.push(format!("{PROMISES}:{line}: {name}'s † does not lead to its section"));
        }
        if promised.insert(name, Promise { line, excepted }).is_some() {
            findings.push(format!("{PROMISES}:{line}: there is a {name} already"));
        }
    }
    let numbers = (1..=promised.len()).map(|number| format!("G{number}"));
    let left_out = numbers.filter(|name| !promised.contains_key(name.as_str()));
    findings.extend(left_out.map(|name| format!("{PROMISES}: the numbers leave {name} out")));
    promised
}

/// The name of a promise and what comes after it.
fn numbered(item: &str) -> Option<(&str, &str)> {
    let (name, rest) = item.strip_prefix("**")?.split_once("**")?;
    is_number(name).then_some((name, rest))
}

struct Section<'t> {
    line: usize,
    tests: BTreeSet<&'t str>,
    /// Whether it has the text of an exception.
    excepts: bool,
}

/// The sections of the evidence that are about a promise.
fn sections<'t>(text: &'t str, findings: &mut Vec<String>) -> BTreeMap<&'t str, Section<'t>> {
    let mut sections: BTreeMap<&str, Section<'_>> = BTreeMap::new();
    let (mut current, mut is_exception) = ("", false);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(heading) = line.strip_prefix("## ") {
            (current, is_exception) = (heading, false);
            let section = Section { line: number, tests: BTreeSet::new(), excepts: false };
            if is_number(heading) && sections.insert(heading, section).is_some() {
                findings.push(format!("{EVIDENCE}:{number}: there is a section {heading} already"));
            }
        }
        let Some(section) = sections.get_mut(current) else { continue };
        if line.starts_with("**") {
            is_exception = line == EXCEPT;
        }
        section.excepts |= is_exception && line.starts_with("- ");
        section.tests.extend(line.split('`').skip(1).step_by(2).filter(|code| is_test(code)));
    }
    sections
}

fn is_number(name: &str) -> bool {
    let digits = name.strip_prefix('G').unwrap_or_default();
    !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

/// Tests are claims, so their names have many words.
fn is_test(code: &str) -> bool {
    let name = code.rsplit("::").next().unwrap_or(code);
    name.split('_').count() >= 4
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISED: &str = "- **G1** It holds.\n";
    const SHOWN: &str = "## G1\n\n**Tests**\n\n- `core::lease::a_lost_lease_stays_lost`\n";

    fn found(promises: &str, evidence: &str) -> Vec<String> {
        let findings = findings(&format!("{PART}\n{promises}"), evidence);
        let short = |finding: &String| finding.replace(PROMISES, "P").replace(EVIDENCE, "E");
        findings.iter().map(short).collect()
    }

    #[test]
    fn a_section_names_a_test_that_no_other_names() {
        assert_eq!(found(PROMISED, SHOWN), [""; 0]);
        let bare = "## G1\n\nSee `LeaseState`.\n\n## Shared\n\n`a_lost_lease_stays_lost`\n";
        assert_eq!(found(PROMISED, bare), ["E:1: G1 names no test of its own"]);
        let two = format!("{PROMISED}- **G2** It holds.\n");
        let shared = format!("{SHOWN}\n## G2\n\n`core::lease::a_lost_lease_stays_lost`\n");
        let own = ["E:1: G1 names no test of its own", "E:7: G2 names no test of its own"];
        assert_eq!(found(&two, &shared), own);
    }

    #[test]
    fn a_promise_has_a_section_and_a_section_its_promise() {
        assert_eq!(found(PROMISED, ""), ["P:2: G1 has no section in E"]);
        assert_eq!(found("", SHOWN), ["E:1: G1 is not promised"]);
        let twice = format!("{SHOWN}\n{SHOWN}");
        assert_eq!(found(PROMISED, &twice), ["E:7: there is a section G1 already"]);
    }

    #[test]
    fn the_numbers_of_promises_have_no_gap() {
        let twice = format!("{PROMISED}{PROMISED}");
        assert_eq!(found(&twice, SHOWN), ["P:3: there is a G1 already"]);
        let unnumbered = format!("{PROMISED}- **It** holds.\n");
        assert_eq!(found(&unnumbered, SHOWN), ["P:3: a promise without a number"]);
        let gap = found("- **G2** It holds.\n", &SHOWN.replace("G1", "G2"));
        assert_eq!(gap, ["P: the numbers leave G1 out"]);
        let elsewhere = format!("{PROMISED}\n## Other\n\n- Not a promise.\n");
        assert_eq!(found(&elsewhere, SHOWN), [""; 0]);
    }

    #[test]
    fn an_exception_is_marked_here_and_told_there() {
        let marked = "- **G1**[†][evidence.md#g1] It holds.\n";
        let told = SHOWN.replace("**Tests**", "**Except**\n\n- On Sundays.\n\n**Tests**");
        assert_eq!(found(marked, &told), [""; 0]);
        assert_eq!(found(marked, SHOWN), ["E:1: G1 has no exception here"]);
        assert_eq!(found(PROMISED, &told), ["E:1: G1 has no † there"]);
        let empty = SHOWN.replace("**Tests**", "**Except**\n\n**Tests**");
        assert_eq!(found(marked, &empty), ["E:1: G1 has no exception here"]);
        let astray = "- **G1**[†][evidence.md#g2] It holds.\n";
        assert_eq!(found(astray, &told), ["P:2: G1's † does not lead to its section"]);
    }
}
