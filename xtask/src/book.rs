//! `cargo xtask book`: makes a book of the documents with mdBook, installed if need be.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::links;

const VERSION: &str = "0.5.4";

/// Documents outside of the book's folder that its pages link to.
const BESIDE: &[&str] = &["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Files of the book's folder that are not pages, but that pages show or link to.
const FILES: &[&str] = &["documents.schema.json", "picture.svg"];

/// The folder of pages that are a chapter.
const CHAPTER: &str = "operations";

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let staged = target.join("book-source");
    stage(root, &staged)?;
    let mdbook = mdbook(&target)?;
    let book = target.join("book");
    let mut command = Command::new(&mdbook);
    command.arg("build").arg(&staged).arg("--dest-dir").arg(&book);
    let status = command.status().map_err(|error| format!("cannot run mdbook: {error}"))?;
    if !status.success() {
        return Err(format!("mdbook: {status}"));
    }
    println!("    {}", book.join("index.html").display());
    Ok(())
}

/// What the book's table of contents leaves out.
pub(crate) fn findings(root: &Path) -> Vec<String> {
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap_or_default();
    let listed: Vec<_> = links::targets(&summary).collect();
    let Ok(pages) = pages(&root.join("docs")) else {
        return vec!["docs: cannot be read".to_owned()];
    };
    let left_out = pages.iter().filter(|page| !listed.contains(&page.as_str()));
    left_out.map(|page| format!("docs/SUMMARY.md: {page} is not in it")).collect()
}

/// The pages in the book's folder and its chapter's, as its table of contents names them.
fn pages(folder: &Path) -> Result<Vec<String>, String> {
    let fail = |error| format!("{}: {error}", folder.display());
    let mut pages = Vec::new();
    for (inside, before) in [(folder.to_owned(), ""), (folder.join(CHAPTER), "operations/")] {
        for entry in fs::read_dir(inside).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                pages.push(format!("{before}{name}"));
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// The plots that pages show, as they name them.
fn plots(root: &Path) -> Result<Vec<String>, String> {
    let folder = root.join("docs/plots");
    let fail = |error| format!("{}: {error}", folder.display());
    let mut plots = Vec::new();
    for entry in fs::read_dir(&folder).map_err(fail)? {
        plots.push(format!("plots/{}", entry.map_err(fail)?.file_name().to_string_lossy()));
    }
    Ok(plots)
}

/// Lays out what mdBook reads: all pages in one folder and its chapter, and no link that leads out
/// of it.
fn stage(root: &Path, staged: &Path) -> Result<(), String> {
    let fail = |error| format!("{}: {error}", staged.display());
    let source = staged.join("docs");
    if staged.exists() {
        fs::remove_dir_all(staged).map_err(fail)?;
    }
    fs::create_dir_all(&source).map_err(fail)?;
    fs::copy(root.join("book.toml"), staged.join("book.toml")).map_err(fail)?;
    for file in FILES {
        fs::copy(root.join("docs").join(file), source.join(file)).map_err(fail)?;
    }
    let plots = plots(root)?;
    fs::create_dir_all(source.join("plots")).map_err(fail)?;
    fs::create_dir_all(source.join(CHAPTER)).map_err(fail)?;
    for plot in &plots {
        fs::copy(root.join("docs").join(plot), source.join(plot)).map_err(fail)?;
    }
    let pages = pages(&root.join("docs"))?;
    let beside = BESIDE.iter().chain(FILES).copied();
    let known: Vec<&str> = pages.iter().chain(&plots).map(String::as_str).chain(beside).collect();
    let from = pages.iter().map(|page| (root.join("docs").join(page), page.as_str()));
    for (path, name) in from.chain(BESIDE.iter().map(|name| (root.join(name), *name))) {
        let text = fs::read_to_string(&path).map_err(fail)?;
        // A chapter's links are definitions, which are right in the book as they stand.
        let text = if name.starts_with(CHAPTER) && name.contains('/') {
            text
        } else {
            flattened(&text, &known)
        };
        fs::write(source.join(name), text).map_err(fail)?;
    }
    let mut summary = fs::read_to_string(root.join("docs/SUMMARY.md")).map_err(fail)?;
    for (title, name) in
        ["Architecture", "Changelog", "Contributing", "Security"].iter().zip(BESIDE)
    {
        summary.push_str(&format!("- [{title}]({name})\n"));
    }
    fs::write(source.join("SUMMARY.md"), summary).map_err(fail)
}

/// A page whose links lead to pages in the same folder, or become plain text if that page does not
/// exist.
fn flattened(text: &str, known: &[&str]) -> String {
    let mut out = text.replace("](../", "](").replace("](docs/", "](");
    let targets: Vec<String> = links::targets(&out).map(str::to_owned).collect();
    for target in targets {
        let file = target.split('#').next().unwrap_or_default();
        if !file.is_empty() && !known.contains(&file) {
            out = unlinked(&out, &target);
        }
    }
    out
}

fn unlinked(text: &str, target: &str) -> String {
    let end = format!("]({target})");
    let Some((before, after)) = text.split_once(&end) else { return text.to_owned() };
    let Some((before, label)) = before.rsplit_once('[') else { return text.to_owned() };
    format!("{before}{label}{after}")
}

fn mdbook(target: &Path) -> Result<PathBuf, String> {
    let ours = target.join("tools/bin/mdbook");
    let on_path = Command::new("mdbook").arg("--version").output();
    if on_path.is_ok_and(|found| found.status.success()) {
        return Ok("mdbook".into());
    }
    if !ours.exists() {
        println!("    installing mdbook {VERSION} into target/tools");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["install", "mdbook", "--version", VERSION, "--locked", "--quiet"]);
        command.args(["--no-default-features", "--features", "search", "--root"]);
        let status = command.arg(target.join("tools")).status();
        let status = status.map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err(format!("cargo install mdbook: {status}"));
        }
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_has_what_its_pages_lead_to() {
        let staged = env::temp_dir().join(format!("leasehold-book-{}", std::process::id()));
        stage(crate::root(), &staged).unwrap();
        let docs = staged.join("docs");
        let read = |page: &str| fs::read_to_string(docs.join(page)).unwrap();
        for page in pages(&docs).unwrap() {
            for target in links::targets(&read(&page)) {
                let file = target.split('#').next().unwrap_or_default();
                let inside = !file.is_empty() && !file.contains(':');
                let folder = docs.join(&page).parent().unwrap().to_owned();
                assert!(!inside || folder.join(file).exists(), "{page}: {target}");
            }
        }
        let schema = "(documents.schema.json)";
        assert!(read("json.md").contains(schema), "json.md does not lead to the schema");
        fs::remove_dir_all(&staged).unwrap();
    }

    #[test]
    fn links_of_a_page_stay_inside_the_book() {
        let page = "[a](../SECURITY.md), [b](guarantees.md#x), [c](../check) and [d](docs/wire.md)";
        let known = ["SECURITY.md", "guarantees.md", "wire.md"];
        let flat = "[a](SECURITY.md), [b](guarantees.md#x), c and [d](wire.md)";
        assert_eq!(flattened(page, &known), flat);
    }
}
