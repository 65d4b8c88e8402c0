//! Checks that ARCHITECTURE.md draws the circles of modules that exist, and no others.
//!
//! A room is a file below `src` of a crate, `folder/mod.rs` being the room `folder`. An arrow goes
//! from a room to each that its text names: by a path from `crate`, `super` or `self`, or by the
//! name of a module below it. The crate's root has no arrows, and tests import what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How a drawn circle begins in ARCHITECTURE.md: a line of its own in a fenced block.
const DRAWN: &str = "circle ";

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Circles that are not drawn as they are, and drawn ones that are gone.
pub(crate) fn findings(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut crates: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let Some((of, room)) = room(&name) else { continue };
        let Ok(text) = fs::read_to_string(path) else { continue };
        crates.entry(of.to_owned()).or_default().insert(room.to_owned(), code(&text));
    }
    let mut exist = BTreeSet::new();
    for (of, texts) in &crates {
        for circle in circles(&arrows(texts)) {
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

/// Crate and room of `crates/CRATE/src/PATH.rs`; `None` for the roots and for tests.
fn room(name: &str) -> Option<(&str, &str)> {
    let (of, path) = name.strip_prefix("crates/")?.split_once("/src/")?;
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let first = path.split('/').next()?;
    let tests = path.split('/').any(|part| part == "tests" || part.ends_with("_tests"));
    (!tests && !of.contains('/') && !matches!(first, "lib" | "main" | "bin")).then_some((of, path))
}

/// A text without its comments and unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).fold(
        String::new(),
        |mut code, line| {
            code.push_str(line);
            code.push('\n');
            code
        },
    )
}

fn arrows(texts: &BTreeMap<String, String>) -> Arrows {
    texts
        .iter()
        .map(|(room, text)| {
            let here: Vec<&str> = room.split('/').collect();
            let mut to = BTreeSet::new();
            for path in paths(text) {
                to.extend(target(&here, &path, texts));
            }
            to.remove(room);
            (room.clone(), to)
        })
        .collect()
}

/// The room that a path leads to, from the room `here`.
fn target(here: &[&str], path: &[String], rooms: &BTreeMap<String, String>) -> Option<String> {
    let (first, rest) = path.split_first()?;
    let mut whole: Vec<&str> = match first.as_str() {
        "crate" => Vec::new(),
        "super" => here.get(..here.len().checked_sub(1)?)?.to_vec(),
        _ => here.to_vec(),
    };
    let named = !matches!(first.as_str(), "crate" | "super" | "self");
    whole.extend(named.then_some(first.as_str()));
    let least = if named { whole.len() } else { 1 };
    for part in rest {
        match part.as_str() {
            "super" => drop(whole.pop()),
            "self" => {}
            name => whole.push(name),
        }
    }
    (least..=whole.len())
        .rev()
        .filter_map(|length| whole.get(..length).map(|parts| parts.join("/")))
        .find(|room| rooms.contains_key(room))
}

/// All paths in a text; a group such as `a::{b, c::d}` counts as several.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
        let (before, from) = rest.split_at(at);
        let (path, after) = path(from);
        // What follows `::` belongs to a path that did not begin with a word.
        if !before.ends_with("::") {
            found.extend(path.into_iter().filter(|path| path.len() > 1));
        }
        rest = after;
    }
    found
}

/// The path, or the paths of the group, at the beginning of a text, and what follows.
fn path(text: &str) -> (Vec<Vec<String>>, &str) {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let word = first_word(rest);
        if word.is_empty() {
            break;
        }
        parts.push(word.to_owned());
        rest = rest.get(word.len()..).unwrap_or_default();
        match rest.trim_start().strip_prefix("::") {
            Some(next) => rest = next.trim_start(),
            None => return (vec![parts], rest),
        }
    }
    let Some(mut group) = rest.strip_prefix('{') else { return (vec![parts], rest) };
    let mut all = Vec::new();
    loop {
        group = group.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if let Some(after) = group.strip_prefix('}') {
            return (all, after);
        }
        let (inner, after) = path(group);
        if after.len() == group.len() {
            return (all, after);
        }
        all.extend(inner.into_iter().map(|inner| [parts.clone(), inner].concat()));
        let after = after.trim_start();
        group = match after.strip_prefix("as ") {
            Some(name) => {
                let name = name.trim_start();
                name.get(first_word(name).len()..).unwrap_or_default()
            }
            None => after,
        };
    }
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// The sets of several rooms in which each leads to every other.
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

    fn texts(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(room, text)| ((*room).to_owned(), code(text))).collect()
    }

    #[test]
    fn rooms_are_files_below_src() {
        assert_eq!(room("crates/a/src/b.rs"), Some(("a", "b")));
        assert_eq!(room("crates/a/src/b/c.rs"), Some(("a", "b/c")));
        assert_eq!(room("crates/a/src/b/mod.rs"), Some(("a", "b")));
        assert_eq!(room("crates/a/src/lib.rs"), None);
        assert_eq!(room("crates/a/src/b/tests/c.rs"), None);
        assert_eq!(room("crates/a/tests/it/b.rs"), None);
    }

    #[test]
    fn arrows_are_read_from_imports_and_paths_but_not_from_comments_and_tests() {
        let text = "use crate::b::X;\nuse crate::{c, d::{self, E as _, e::F}};\n// crate::no\n\
                    let x = super::super::g::h(); let y = super::i::J { k: 1 }; z::below();\n\
                    other::b::no();\n#[cfg(test)]\nmod tests { use crate::t; }";
        let rooms = texts(&[
            ("f/a", text),
            ("b", ""),
            ("c", ""),
            ("d", ""),
            ("d/e", ""),
            ("f", ""),
            ("f/a/z", ""),
            ("f/i", ""),
            ("g", ""),
            ("no", ""),
            ("t", ""),
        ]);
        let arrows = arrows(&rooms);
        let to: Vec<&str> = arrows["f/a"].iter().map(String::as_str).collect();
        assert_eq!(to, ["b", "c", "d", "d/e", "f/a/z", "f/i", "g"]);
    }

    #[test]
    fn a_circle_inside_a_folder_is_found() {
        let rooms = texts(&[
            ("a", "mod b;\nuse b::B;\npub struct A;"),
            ("a/b", "use super::A;\npub struct B;"),
            ("a/c", "use super::b::B;"),
        ]);
        let expected: BTreeSet<String> = ["a", "a/b"].map(str::to_owned).into();
        assert_eq!(circles(&arrows(&rooms)), vec![expected]);
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
