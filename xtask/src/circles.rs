//! Modules that import each other in a circle are drawn in ARCHITECTURE.md, and no others exist.
//!
//! A room is a file or folder directly below `src` of a crate. An arrow goes from a room to each
//! room that its text names by `crate::ROOM`, or by `super::ROOM` where that is the same. Tests
//! import what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How a drawn circle begins in ARCHITECTURE.md: a line of its own in a fenced block.
const DRAWN: &str = "circle ";

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Circles that are not drawn as they are, and drawn ones that are gone.
pub(crate) fn findings(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut crates: BTreeMap<String, Arrows> = BTreeMap::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let Some((of, room)) = room(&name) else { continue };
        let Ok(text) = fs::read_to_string(path) else { continue };
        let top = name.matches('/').count() == 3;
        let arrows = crates.entry(of.to_owned()).or_default();
        arrows.entry(room.to_owned()).or_default().extend(named(&text, top));
    }
    let mut exist = BTreeSet::new();
    for (of, arrows) in &crates {
        for circle in circles(arrows) {
            let names: Vec<&str> = circle.iter().map(String::as_str).collect();
            exist.insert(format!("{of}: {}", names.join(" ")));
        }
    }
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    let drawn: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix(DRAWN)).map(str::to_owned).collect();
    let new = exist.difference(&drawn).map(|circle| {
        format!("a circle of modules that ARCHITECTURE.md does not draw: {DRAWN}{circle}")
    });
    let gone = drawn.difference(&exist).map(|circle| {
        format!("ARCHITECTURE.md draws a circle of modules that is not there: {DRAWN}{circle}")
    });
    new.chain(gone).collect()
}

/// Crate and room of `crates/CRATE/src/ROOM.rs` or `crates/CRATE/src/ROOM/…`; `None` for the roots
/// and for tests.
fn room(name: &str) -> Option<(&str, &str)> {
    let (of, path) = name.strip_prefix("crates/")?.split_once("/src/")?;
    let path = path.strip_suffix(".rs")?;
    let first = path.split('/').next()?;
    let tests = path.split('/').any(|part| part == "tests" || part.ends_with("_tests"));
    (!tests && !of.contains('/') && !matches!(first, "lib" | "main" | "bin")).then_some((of, first))
}

/// The rooms that a text names. `super` is the root of the crate in a file directly below `src`.
fn named(text: &str, top: bool) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut rooms = BTreeSet::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default();
        let roots: &[&str] = if top { &["crate::", "super::"] } else { &["crate::"] };
        for root in roots {
            for rest in code.split(root).skip(1) {
                if let Some(group) = rest.strip_prefix('{') {
                    let parts = group.split(['{', '}', ',']).map(first_word);
                    rooms.extend(parts.map(str::to_owned));
                } else {
                    rooms.insert(first_word(rest).to_owned());
                }
            }
        }
    }
    rooms
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// The sets of more than one room in which each leads to each other.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|from| (from.as_str(), reachable(arrows, from))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, to) in &reach {
        let circle: BTreeSet<String> = to
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(from)))
            .map(|other| (*other).to_owned())
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn reachable<'a>(arrows: &'a Arrows, from: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(room) = open.pop() {
        for (next, _) in
            arrows.get(room).into_iter().flatten().filter_map(|to| arrows.get_key_value(to))
        {
            if seen.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_files_and_folders_below_src() {
        assert_eq!(room("crates/a/src/b.rs"), Some(("a", "b")));
        assert_eq!(room("crates/a/src/b/c.rs"), Some(("a", "b")));
        assert_eq!(room("crates/a/src/lib.rs"), None);
        assert_eq!(room("crates/a/src/b/tests/c.rs"), None);
        assert_eq!(room("crates/a/tests/it/b.rs"), None);
    }

    #[test]
    fn arrows_are_read_from_imports_and_paths_but_not_from_comments_and_tests() {
        let text = "use crate::b::X;\nuse crate::{c, d::{E, F}};\n// crate::no\nlet x = super::g::h();\n\
                    #[cfg(test)]\nmod tests { use crate::t; }";
        let rooms = named(text, true);
        for room in ["b", "c", "d", "g"] {
            assert!(rooms.contains(room), "{room} in {rooms:?}");
        }
        assert!(!rooms.contains("no") && !rooms.contains("t"), "{rooms:?}");
        assert!(!named(text, false).contains("g"));
    }

    #[test]
    fn a_circle_is_found_and_a_tree_is_none() {
        let arrows = |list: &[(&str, &[&str])]| -> Arrows {
            let of = |to: &&[&str]| to.iter().map(|&to| to.to_owned()).collect();
            list.iter().map(|(from, to)| ((*from).to_owned(), of(to))).collect()
        };
        assert!(circles(&arrows(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
        let found = circles(&arrows(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]));
        let expected: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        assert_eq!(found, vec![expected]);
    }
}
