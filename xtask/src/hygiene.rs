//! `cargo xtask hygiene`: checks what compilers don't.
//!
//! It has only rules that a text search can decide; for all others there are lints.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{book, circles, commits, files as purposes, links, promises, prose, tests_named};

/// Text that must not be committed in Rust source, and why. Split, so that this file passes.
const LEFTOVERS: &[(&str, &str)] = &[
    (concat!("#[ig", "nore"), "a test that does not run proves nothing"),
    (concat!("to", "do!("), "unfinished"),
    (concat!("unimpl", "emented!("), "unfinished"),
    (concat!("db", "g!("), "a debugging aid"),
];

/// Expressions for the words of an error. Split, so that this file passes.
const WORDS_OF_ERRORS: &[&str] =
    &["error.to_string()", ".message()", ".message", "stderr", "chain(&error)"];
const READ_BY: &[&str] =
    &[concat!(".cont", "ains("), concat!(".starts", "_with("), concat!(".ends", "_with(")];

/// The one file that turns the words of other programs into reasons.
const CLASSIFIES: &str = "crates/leasehold-redis/src/classify.rs";

/// What takes the lock of Python's interpreter. Split, so that this file passes.
const TAKES_INTERPRETER: &[&str] =
    &[concat!("Python::att", "ach("), concat!("Python::try_att", "ach("), concat!("with_", "gil(")];

/// The one file that takes it, on Python's own threads.
const CALLS_PYTHON: &str = "bindings/python/src/calls.rs";

/// Files that are read, by the end of their name.
const TEXT: &[&str] = &["rs", "toml", "md", "lua", "sh", "yml", "yaml", "tla", "cfg"];

/// Folders with files of other projects.
const SKIPPED: &[&str] = &["target", ".git"];

/// As rustfmt's `max_width`, which leaves comments alone.
const COMMENT_WIDTH: usize = 100;

/// A longer file has more than one concept; comments and blank lines don't count.
const CODE_LINES_MAX: usize = 800;

#[derive(Debug, Default, Eq, PartialEq)]
struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut findings = Findings::default();
    for path in &files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => {
                inspect(&name, &text, &mut findings);
                findings.errors.extend(purposes::finding(&name, &text));
            }
            Err(error) => findings.errors.push(format!("{name}: {error}")),
        }
    }
    findings.errors.extend(circles::findings(root, &files));
    let tests = tests_named::names(root, &files);
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let name = path.strip_prefix(root).unwrap_or(path).display();
        let text = fs::read_to_string(path).unwrap_or_default();
        findings.errors.extend(tests.missing(&text).iter().map(|what| format!("{name}:{what}")));
        let links = links::findings(path.parent().unwrap_or(root), &text);
        findings.errors.extend(links.iter().map(|what| format!("{name}:{what}")));
    }
    let read = |document| fs::read_to_string(root.join(document)).unwrap_or_default();
    let evidence = read(promises::EVIDENCE);
    findings.errors.extend(promises::findings(&read(promises::PROMISES), &evidence));
    findings.errors.extend(prose::findings(root));
    findings.errors.extend(book::findings(root));
    match commits::findings(root) {
        Ok(wrong) => findings.errors.extend(wrong),
        Err(reason) => {
            findings.warnings.push(format!("commit messages are not checked: {reason}"));
        }
    }
    for warning in &findings.warnings {
        println!("    warning: {warning}");
    }
    for error in &findings.errors {
        println!("    error: {error}");
    }
    match findings.errors.len() {
        0 => Ok(()),
        count => Err(format!("{count} in {} files", files.len())),
    }
}

pub(crate) fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let fail = |error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Not `is_dir`, which follows links, perhaps in circles.
        if entry.file_type().map_err(fail)?.is_dir() {
            if !SKIPPED.contains(&&*name) && !name.starts_with("target-") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|end| TEXT.iter().any(|text| end == *text)) {
            files.push(path);
        }
    }
    Ok(())
}

fn inspect(name: &str, text: &str, findings: &mut Findings) {
    if !text.is_empty() && !text.ends_with('\n') {
        findings.errors.push(format!("{name}: no line end at the end"));
    }
    let rust = name.ends_with(".rs");
    let mut is_example = false;
    let mut code_lines = 0;
    let mut may_read_words = !is_product(name);
    for (number, line) in (1..).zip(text.lines()) {
        let at = format!("{name}:{number}");
        // Two spaces at the end of a line are a line break in Markdown.
        if line.trim_end() != line && !name.ends_with(".md") {
            findings.errors.push(format!("{at}: white space at the end of the line"));
        }
        if line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ") {
            findings.errors.push(format!("{at}: a merge conflict"));
        }
        let code = line.trim_start();
        is_example ^= code.starts_with("/") && code.contains(" ```");
        if rust && !is_example && code.starts_with("//") && is_wide(line) {
            findings.errors.push(format!("{at}: a comment of more than {COMMENT_WIDTH} columns"));
        }
        if !rust || code.is_empty() || code.starts_with("//") {
            continue;
        }
        code_lines += 1;
        may_read_words |= line.starts_with("mod tests");
        if !may_read_words && !code.contains("assert") && reads_words(code) {
            findings.errors.push(format!(
                "{at}: decides by the words of an error; branch on its `reason()` or `kind()`"
            ));
        }
        if name != CALLS_PYTHON && TAKES_INTERPRETER.iter().any(|takes| code.contains(takes)) {
            findings.errors.push(format!(
                "{at}: takes the interpreter's lock; only {CALLS_PYTHON} may, since a thread of \
                 leasehold that waits for it renews no lease"
            ));
        }
        if !may_read_words && names_a_document(code) {
            findings.errors.push(format!("{at}: a message names a file that its reader lacks"));
        }
        for (leftover, reason) in LEFTOVERS {
            if code.contains(leftover) {
                findings.errors.push(format!("{at}: `{leftover}`: {reason}"));
            }
        }
    }
    if code_lines > CODE_LINES_MAX {
        findings.errors.push(format!(
            "{name}: {code_lines} lines of code, and {CODE_LINES_MAX} are the limit; split it"
        ));
    }
}

/// Whether a comment is wider than code may be. A row of a table can't be broken.
fn is_wide(line: &str) -> bool {
    line.chars().count() > COMMENT_WIDTH && !line.contains(" | ")
}

/// Whether it is code that runs outside tests, or judges such code.
fn is_product(name: &str) -> bool {
    let of_tests = name.contains("/tests/") || name.ends_with("tests.rs");
    name.starts_with("crates/") && name.contains("/src/") && !of_tests && name != CLASSIFIES
}

/// Whether a decision hangs on how an error is worded.
fn reads_words(code: &str) -> bool {
    let mut readings = WORDS_OF_ERRORS.iter().flat_map(|of| READ_BY.iter().map(move |by| (of, by)));
    readings.any(|(of, by)| code.contains(&format!("{of}{by}")))
}

/// Whether a text for users names a file of this repository.
fn names_a_document(code: &str) -> bool {
    let of_users = !code.contains("include_str!") && !code.contains("https://");
    of_users && code.contains("docs/") && code.contains(".md") && code.contains('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspected(name: &str, text: &str) -> Findings {
        let mut findings = Findings::default();
        inspect(name, text, &mut findings);
        findings
    }

    #[test]
    fn leftovers_are_errors_in_code_but_not_in_comments() {
        let leftover = LEFTOVERS[1].0;
        let code = format!("fn f() {{ {leftover}) }}\n");
        assert_eq!(inspected("a.rs", &code).errors.len(), 1);
        assert_eq!(inspected("a.rs", &format!("// {code}")), Findings::default());
        assert_eq!(inspected("a.md", &code), Findings::default());
    }

    #[test]
    fn no_decision_hangs_on_the_words_of_an_error() {
        let decides = format!("if error.to_string(){}\"ACL\") {{}}\n", READ_BY[0]);
        let found = |name, text: &str| inspected(name, text).errors.len();
        assert_eq!(found("crates/a/src/b.rs", &decides), 1);
        assert_eq!(found("crates/a/src/b.rs", &format!("mod tests {{\n{decides}}}\n")), 0);
        assert_eq!(found("crates/a/src/b.rs", &format!("assert!({decides}")), 0);
        assert_eq!(found("crates/a/tests/it/b.rs", &decides), 0);
        assert_eq!(found(CLASSIFIES, &decides), 0);
    }

    #[test]
    fn one_file_takes_the_interpreters_lock() {
        let code = format!("    {}|py| wake(py));\n", TAKES_INTERPRETER[0]);
        assert_eq!(inspected("bindings/python/src/bell.rs", &code).errors.len(), 1);
        assert_eq!(inspected(CALLS_PYTHON, &code), Findings::default());
    }

    #[test]
    fn no_message_names_a_file_that_its_reader_lacks() {
        let says = "let why = \"docs/wire.md lists them\";\n";
        assert_eq!(inspected("crates/a/src/b.rs", says).errors.len(), 1);
        assert_eq!(inspected("crates/a/tests/b.rs", says), Findings::default());
    }

    #[test]
    fn white_space_matters_outside_markdown() {
        assert_eq!(inspected("a.lua", "return 1 \n").errors.len(), 1);
        assert_eq!(inspected("a.md", "break  \n"), Findings::default());
        assert_eq!(inspected("a.toml", "a = 1").errors.len(), 1);
    }

    #[test]
    fn a_wide_comment_is_an_error_unless_it_is_a_table_or_an_example() {
        let long = "word ".repeat(20);
        assert_eq!(inspected("a.rs", &format!("/// {long}end\n")).errors.len(), 1);
        assert_eq!(inspected("a.rs", &format!("/// | a | {long}end |\n")), Findings::default());
        let example = format!("/// ```\n/// {long}end\n/// ```\n");
        assert_eq!(inspected("a.rs", &example), Findings::default());
    }

    #[test]
    fn a_long_file_is_an_error() {
        let long = "let x = 1;\n".repeat(CODE_LINES_MAX + 1);
        let findings = inspected("a.rs", &long);
        assert_eq!((findings.errors.len(), findings.warnings.len()), (1, 0));
        assert_eq!(inspected("a.rs", &"// x\n".repeat(CODE_LINES_MAX + 1)), Findings::default());
    }
}
