//! Each command that a page names exists, with each of its options.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::harness::Site;
use crate::help::COMMANDS;
use crate::readme::document;

/// All pages that a user reads.
fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/operations"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    pages
}

/// The code of a page: what is typed in its blocks, and what stands between backticks.
fn code(text: &str) -> Vec<String> {
    let mut code = Vec::new();
    for (number, piece) in text.split("```").enumerate() {
        if number % 2 == 0 {
            code.extend(piece.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")));
        } else if ["sh\n", "console\n", "cron\n"].iter().any(|tag| piece.starts_with(tag)) {
            code.extend(piece.replace("\\\n", " ").lines().map(str::to_owned));
        }
    }
    code
}

/// The commands in a line of code, each as its words up to the job that it runs.
fn commands(line: &str) -> Vec<Vec<&str>> {
    let mut commands = Vec::new();
    // Within a sentence the program's name is left out.
    let words: Vec<&str> = line.split_whitespace().take_while(|word| *word != "--").collect();
    if words.len() > 1 && COMMANDS.contains(&words[0]) && words[1].starts_with('-') {
        commands.push(words);
    }
    for (at, name) in line.match_indices("leasehold ") {
        let starts =
            line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '-');
        let rest = &line[at + name.len()..];
        let end = ["#", "|", ";", ")", "&", "\"", "'", "…"];
        let words = rest.split_whitespace();
        let words =
            words.take_while(|word| *word != "--" && !end.iter().any(|end| word.starts_with(end)));
        let words: Vec<&str> = words.collect();
        if starts && words.first().is_some_and(|word| word.starts_with(char::is_lowercase)) {
            commands.push(words);
        }
    }
    commands
}

/// An option as help shows it, without its value and what ends a sentence around it.
fn option(word: &str) -> Option<&str> {
    let name = word.split('=').next()?.trim_end_matches([',', '.', ';', ')', '"', '\'']);
    let letters = name.trim_start_matches('-');
    let is_one = name.starts_with('-') && letters.starts_with(char::is_alphabetic);
    is_one.then_some(name)
}

#[test]
fn each_page_names_commands_and_options_that_there_are() {
    let site = Site::embedded();
    let mut help: BTreeMap<String, String> = BTreeMap::new();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        for line in code(&document(&page)) {
            for words in commands(&line) {
                let name = words[0].trim_end_matches([';', ',', ')']);
                let text = help.entry(name.to_owned()).or_insert_with(|| {
                    let done = site.run([name, "--help"]);
                    if done.status.success() { done.stdout } else { String::new() }
                });
                seen += 1;
                let known: Vec<&str> = text.split([' ', ',', '\n', '[', '`']).collect();
                let options = words.iter().filter_map(|word| option(word));
                let mut unknown = options.filter(|option| {
                    // A run of letters is several short options, as in -vv.
                    let short = !option.starts_with("--") && option.len() > 2;
                    !known.contains(&if short { &option[..2] } else { option })
                });
                if text.is_empty() {
                    wrong.push(format!("{page}: there is no command {name}: {line}"));
                } else if let Some(option) = unknown.next() {
                    wrong.push(format!("{page}: {name} has no option {option}: {line}"));
                }
            }
        }
    }
    assert!(seen > 100, "only {seen} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_is_read_up_to_its_job() {
    assert_eq!(commands("leasehold run k -n -- leasehold ls").len(), 2);
    assert_eq!(
        commands("fence=$(leasehold hold k --background) || exit"),
        [["hold", "k", "--background)"]]
    );
    assert_eq!(commands("run --max-hold 1h"), [["run", "--max-hold", "1h"]]);
    assert_eq!(option("--background)"), Some("--background"));
    assert_eq!(option("--ttl=10m"), Some("--ttl"));
    assert_eq!(option("-"), None);
    assert!(commands("/usr/share/doc/leasehold /tmp").is_empty());
    assert!(code("```text\nleasehold no\n```\n").is_empty());
}
