//! Checks that every promise has a number and a test of its own.

use std::collections::{BTreeMap, BTreeSet};

/// The document with the promises.
pub(crate) const DOCUMENT: &str = "docs/guarantees.md";

/// The part of it in which every paragraph that begins in bold is a promise.
const PART: &str = "## Promises";

/// What is wrong with the promises of that document.
pub(crate) fn findings(text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let promises = promises(text, &mut findings);
    let mut named_by: BTreeMap<&str, usize> = BTreeMap::new();
    for test in promises.iter().flat_map(|promise| &promise.tests) {
        *named_by.entry(test).or_default() += 1;
    }
    let mut line_of: BTreeMap<&str, usize> = BTreeMap::new();
    for Promise { line, name, tests } in &promises {
        if !tests.iter().any(|test| named_by.get(test) == Some(&1)) {
            findings.push(format!("{line}: {name} names no test of its own"));
        }
        if line_of.insert(name, *line).is_some() {
            findings.push(format!("{line}: there is a {name} already"));
        }
    }
    findings
}

struct Promise<'t> {
    line: usize,
    /// `G1`.
    name: &'t str,
    tests: BTreeSet<&'t str>,
}

/// The promises, each up to the next one or the next heading.
fn promises<'t>(text: &'t str, findings: &mut Vec<String>) -> Vec<Promise<'t>> {
    let mut promises: Vec<Promise<'t>> = Vec::new();
    let (mut is_part, mut is_promise, mut before) = (false, false, "");
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("## ") {
            is_part = line == PART;
        }
        let begins = line.strip_prefix("**").filter(|_| is_part && before.is_empty());
        if let Some(rest) = begins {
            let name = rest.split('.').next().unwrap_or_default();
            is_promise = is_number(name);
            if is_promise {
                promises.push(Promise { line: number, name, tests: BTreeSet::new() });
            } else {
                findings.push(format!("{number}: a promise without a number"));
            }
        }
        is_promise &= !line.starts_with('#');
        if let Some(promise) = promises.last_mut().filter(|_| is_promise) {
            let code = line.split('`').skip(1).step_by(2);
            promise.tests.extend(code.filter(|code| is_test(code)));
        }
        before = line;
    }
    promises
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

    fn found(promises: &str) -> Vec<String> {
        findings(&format!("{PART}\n\n{promises}"))
    }

    #[test]
    fn a_promise_names_a_test_that_no_other_names() {
        let tested = "**G1. It holds.** Always:\n- `core::lease::a_lost_lease_stays_lost`\n";
        assert_eq!(found(tested), [""; 0]);
        let bare =
            "**G2. It holds.** See `LeaseState`.\n\n### Other\n\n`a_lost_lease_stays_lost`\n";
        assert_eq!(found(bare), ["3: G2 names no test of its own"]);
        let shared = "**G2. It holds.** `core::lease::a_lost_lease_stays_lost`\n";
        let findings = found(&format!("{tested}\n{shared}"));
        assert_eq!(findings, ["3: G1 names no test of its own", "6: G2 names no test of its own"]);
    }

    #[test]
    fn a_promise_has_a_number_of_its_own() {
        let one = "**G3. It holds.** `a_lost_lease_stays_lost`\n";
        let again = "**G3. It holds.** `another_lease_stays_lost_too`\n";
        assert_eq!(found(&format!("{one}\n{again}")), ["5: there is a G3 already"]);
        let unnumbered = "**It holds.** `another_lease_stays_lost_too`\n";
        assert_eq!(found(&format!("{one}\n{unnumbered}")), ["5: a promise without a number"]);
        let elsewhere = "## Other\n\n**Not a promise.**\n";
        assert_eq!(found(&format!("{one}\n{elsewhere}")), [""; 0]);
    }
}
