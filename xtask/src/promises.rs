//! Every promise of docs/guarantees.md has a number of its own, and names the tests that show it.

use std::collections::BTreeMap;

/// The document with the promises.
pub(crate) const DOCUMENT: &str = "docs/guarantees.md";

/// What is wrong with the promises of that document.
pub(crate) fn findings(text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut lines_of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut promise: Option<(usize, &str, bool)> = None;
    let mut end = |promise: &mut Option<(usize, &str, bool)>| {
        if let Some((number, name, false)) = promise.take() {
            findings.push(format!("{number}: {name} names no test"));
        }
    };
    for (number, line) in (1..).zip(text.lines()) {
        let name = line.strip_prefix("**G").and_then(|rest| rest.split('.').next());
        if let Some(name) = name {
            end(&mut promise);
            promise = Some((number, &line[2..3 + name.len()], false));
            lines_of.entry(name).or_default().push(number);
        } else if line.starts_with('#') {
            end(&mut promise);
        }
        if let Some((_, _, tested)) = &mut promise {
            *tested |= line.split('`').skip(1).step_by(2).any(is_test);
        }
    }
    end(&mut promise);
    for (name, lines) in lines_of {
        if let [_, again, ..] = lines.as_slice() {
            findings.push(format!("{again}: there is a G{name} already"));
        }
    }
    findings
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

    #[test]
    fn a_promise_names_a_test() {
        let tested = "**G1. It holds.** Always:\n- `core::lease::a_lost_lease_stays_lost`\n";
        assert_eq!(findings(tested), [""; 0]);
        let bare = "**G2. It holds.** See `LeaseState`.\n\n## Other\n\n`a_lost_lease_stays_lost`\n";
        assert_eq!(findings(bare), ["1: G2 names no test"]);
        assert_eq!(findings(&format!("{bare}\n{tested}")), ["1: G2 names no test"]);
    }

    #[test]
    fn a_promise_has_a_number_of_its_own() {
        let one = "**G3. It holds.** `a_lost_lease_stays_lost`\n";
        assert_eq!(findings(&format!("{one}\n{one}")), ["3: there is a G3 already"]);
    }
}
