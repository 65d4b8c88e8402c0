//! Checks links between documents: each leads to a file, and to a heading that the file has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The faults in the links of a document in `folder`.
pub(crate) fn findings(folder: &Path, text: &str) -> Vec<String> {
    targets(text).filter_map(|target| wrong(folder, text, target)).collect()
}

/// The targets of a document's inline links and pictures, except those outside the tree.
pub(crate) fn targets(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    let inline = prose.clone().flat_map(|prose| prose.split("](").skip(1));
    let inline = inline.filter_map(|rest| Some(rest.split_once(')')?.0));
    let definitions = prose.flat_map(str::lines).filter(|line| line.starts_with('['));
    let definitions = definitions.filter_map(|line| Some(line.split_once("]: ")?.1));
    inline
        .chain(definitions)
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
}

fn wrong(folder: &Path, text: &str, target: &str) -> Option<String> {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = folder.join(file);
    if !file.is_empty() && !path.exists() {
        return Some(format!(" links to {target}, which is not there"));
    }
    if heading.is_empty() || !(file.is_empty() || file.ends_with(".md")) {
        return None;
    }
    let other = if file.is_empty() { text.to_owned() } else { fs::read_to_string(path).ok()? };
    let there = headings(&other).contains(heading);
    (!there).then(|| format!(" links to {target}, and there is no such heading"))
}

/// The anchors that a document's headings get.
fn headings(text: &str) -> BTreeSet<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let lines = prose.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_a_file_and_a_heading() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found = |text: &str| findings(folder, text);
        assert_eq!(found("[a](Cargo.toml), [b](https://x/y), [c](../README.md)"), [""; 0]);
        assert_eq!(found("# A fine `thing`\n[d](#a-fine-thing)"), [""; 0]);
        assert_eq!(found("[e](nowhere.md)").len(), 1);
        assert_eq!(found("# Here\n[f](#there)").len(), 1);
        assert_eq!(found("```\n[g](nowhere.md)\n```"), [""; 0]);
    }
}
