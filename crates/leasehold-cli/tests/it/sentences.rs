//! What the command can say, read from the sources of all that it is made of.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose messages the command shows, each with whether it speaks to programmers as well.
const SPEAK: [(&str, bool); 6] = [
    ("leasehold-cli", false),
    ("leasehold-core", false),
    ("leasehold-embedded", false),
    ("leasehold-quorum", false),
    ("leasehold-redis", false),
    ("leasehold", true),
];

const WORDS_MAX: usize = 30;

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Tests, beside the code that they are of.
        let is_test = ["tests.rs", "tests", "differential.rs", "differential"].contains(&name);
        if path.is_dir() && !is_test {
            sources(&path, into);
        } else if name.ends_with(".rs") && !is_test {
            into.push(path);
        }
    }
}

/// The texts between quotes, lines that go on put together, without comments and the tests at the end.
fn texts(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let source = lines.collect::<Vec<_>>().join("\n").replace("'\"'", "' '").replace("b'\\''", "");
    let mut texts = Vec::new();
    let mut rest = source.as_str();
    while let Some((_, behind)) = rest.split_once('"') {
        let (mut text, mut chars) = (String::new(), behind.char_indices());
        let end = loop {
            match chars.next() {
                Some((at, '"')) => break at + 1,
                Some((_, '\\')) => match chars.next() {
                    Some((_, '\n')) => {
                        let blank = behind[chars.offset()..].trim_start();
                        chars = behind.char_indices();
                        let _skipped =
                            chars.nth(behind[..behind.len() - blank.len()].chars().count() - 1);
                    }
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, other)) => text.push(other),
                    None => break behind.len(),
                },
                Some((_, other)) => text.push(other),
                None => break behind.len(),
            }
        };
        texts.push(text);
        rest = &behind[end..];
    }
    texts
}

/// A sentence ends with a stop or a line.
fn longest_sentence(text: &str) -> usize {
    let sentences = text.split(['\n', '!', '?']).flat_map(|line| line.split(". "));
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    sentences.map(|it| it.split_whitespace().filter(is_word).count()).max().unwrap_or_default()
}

/// What the reader of a message does not have, or can't type.
fn means_nothing(text: &str) -> bool {
    let is_path = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        word.ends_with(".md")
            || ["docs/", "crates/", "xtask/"].iter().any(|at| word.starts_with(at))
    };
    // The settings of a config file are written like that too.
    let is_setting = |name: &str| ["default_store", "password_file", "retry_store"].contains(&name);
    let is_rust = |(number, name): (usize, &str)| {
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        number % 2 == 1 && name.contains('_') && name.chars().all(is_name) && !is_setting(name)
    };
    text.contains("::")
        || text.split_whitespace().any(is_path)
        || text.split('`').enumerate().any(is_rust)
}

#[test]
fn no_message_has_a_long_sentence_a_path_of_the_sources_or_a_name_of_the_library() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut read, mut wrong) = (0, Vec::new());
    for (name, is_library) in SPEAK {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        for file in files {
            for text in texts(&fs::read_to_string(&file).unwrap()) {
                // Help, documentation and statements are no messages.
                let is_other = text.contains("[`")
                    || text.contains("Exit codes:")
                    || text.contains("CREATE TABLE");
                if is_other || text.matches(' ').count() < 3 || file.ends_with("cost.rs") {
                    continue;
                }
                read += 1;
                let words = longest_sentence(&text);
                if words > WORDS_MAX || !is_library && means_nothing(&text) {
                    wrong.push(format!("{}: {words} words: {text:?}", file.display()));
                }
            }
        }
    }
    assert!(read > 800, "only {read} messages were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_message_may_not_have_is_seen() {
    let source = "// \"of a comment\"\nf(\"one two \\\n     three\", '\"', \"four\\n\");\n#[cfg(test)]\nmod tests { \"x\" }";
    assert_eq!(texts(source), ["one two three", "four\n"]);
    assert_eq!(longest_sentence("a b c. d e\nf"), 3);
    for text in
        ["see docs/wire.md for that", "call `set_limit` then", "use leasehold::blocking here"]
    {
        assert!(means_nothing(text), "{text}");
    }
    assert!(!means_nothing("name it in `password_file`, or in LEASEHOLD_PASSWORD"));
}
