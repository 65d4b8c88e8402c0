//! Checks the links of the built documentation that rustdoc does not follow.
//!
//! They lead to a file in the same folder or to an anchor in a page, or came out as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// How the names of this project's pages begin.
const OURS: &str = "leasehold";

/// The forms of a link to an item that stayed text.
const UNLINKED: [&str; 3] = ["(Self::", "(crate::", "(super::"];

/// Checks the documentation in `folder`, where cargo has put it.
pub(crate) fn run(folder: &Path) -> Result<(), String> {
    let mut pages = BTreeMap::new();
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(OURS) && entry.path().is_dir() {
            collect(&entry.path(), &mut pages)?;
        }
    }
    let findings = findings(&pages, &|path| path.exists());
    let count = findings.len();
    for finding in findings {
        println!("    error: {finding}");
    }
    if count == 0 { Ok(()) } else { Err(format!("{count} links in {} pages", pages.len())) }
}

fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<(), String> {
    let fail = |error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let text = fs::read_to_string(&path).map_err(fail)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// The faults in the links of these pages, by their paths.
fn findings(pages: &BTreeMap<PathBuf, String>, exists: &dyn Fn(&Path) -> bool) -> BTreeSet<String> {
    let places: BTreeMap<&Path, BTreeSet<&str>> =
        pages.iter().map(|(path, page)| (path.as_path(), values(page, "id").collect())).collect();
    let mut findings = BTreeSet::new();
    for (path, page) in pages {
        let links = values(page, "href").filter(|link| is_beside(link) && !is_guessed(link));
        for target in links {
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let other = if file.is_empty() { path.clone() } else { beside(path, file) };
            let there = match places.get(other.as_path()) {
                Some(places) => place.is_empty() || places.contains(place),
                None => exists(&other),
            };
            if !there {
                findings.insert(format!("{} links to {target}", path.display()));
            }
        }
        let text = text(page);
        for unlinked in UNLINKED.iter().filter(|unlinked| text.contains(*unlinked)) {
            findings.insert(format!("{} has a link as text: {unlinked}…", path.display()));
        }
    }
    findings
}

/// Whether a target is a file of this project; other crates' documentation is not checked.
fn is_beside(target: &str) -> bool {
    let file = target.split('#').next().unwrap_or_default();
    let foreign = target.contains(":") || target.contains('$');
    !foreign && !target.is_empty() && (file.is_empty() || file.contains('.'))
}

fn beside(page: &Path, file: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(page).to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

fn values<'a>(page: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let start = format!(" {attribute}=\"");
    let mut rest = page;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&start)?;
        let (value, after) = after.split_once('"')?;
        rest = after;
        Some(value)
    })
}

/// The text of a page, without its tags and its code.
fn text(page: &str) -> String {
    let mut text = String::new();
    let mut code = 0_u32;
    for piece in page.split('<') {
        let (mark, after) = piece.split_once('>').unwrap_or(("", piece));
        match mark.split_whitespace().next().unwrap_or_default() {
            "code" | "pre" | "script" => code = code.saturating_add(1),
            "/code" | "/pre" | "/script" => code = code.saturating_sub(1),
            _ => {}
        }
        if code == 0 {
            text.push_str(after);
        }
    }
    text
}

/// Whether rustdoc made the link up. If a trait's module is private, rustdoc can't name its page
/// when it shows another crate's implementations.
fn is_guessed(link: &str) -> bool {
    let (file, place) = link.split_once('#').unwrap_or((link, ""));
    let name = file.rsplit('/').next().unwrap_or(file);
    name.starts_with("foreigntype.") && !place.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let other = "<h2 id=\"there\">There</h2>".to_owned();
        let pages = [("doc/a/index.html", page.to_owned()), ("doc/b.html", other)];
        let pages = pages.map(|(path, page)| (PathBuf::from(path), page));
        let exists = |path: &Path| path == Path::new("doc/static.css");
        findings(&pages.into_iter().collect(), &exists).into_iter().collect()
    }

    #[test]
    fn a_link_leads_to_a_file_and_a_place_in_it() {
        for target in [
            "../b.html",
            "../b.html#there",
            "../static.css",
            "https://x.y/z#there",
            "#here",
            "../x/foreigntype.store.html#tymethod.ask",
        ] {
            let page = format!("<p id=\"here\"><a href=\"{target}\">a</a></p>");
            assert_eq!(found(&page), [""; 0], "{target}");
        }
        for target in
            ["../c.html", "../b.html#nowhere", "#nowhere", "cookbook.md", "foreigntype.c.html"]
        {
            let page = format!("<a href=\"{target}\">a</a>");
            assert_eq!(found(&page), [format!("doc/a/index.html links to {target}")]);
        }
    }

    #[test]
    fn a_link_that_came_out_as_text_is_found() {
        assert_eq!(found("<p><a href=\"#x\" id=\"x\"><code>a</code></a> (Self::a)</p>").len(), 1);
        assert_eq!(found("<pre>f(Self::a)</pre><code>(crate::b)</code>"), [""; 0]);
    }
}
