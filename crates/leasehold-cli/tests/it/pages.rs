//! Each command that a page names exists, with each of its options.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use leasehold_testkit::server::RedisServer;

use crate::harness::Site;
use crate::help::COMMANDS;
use crate::readme::{document, script, typed};

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

/// What lines print when the holder of this lock types them, and `free` if the lock is free after
/// them.
fn typed_by_a_holder(key: &str, lines: &str) -> String {
    let take =
        format!("fence=$(leasehold hold {key} --while-pid $$ --background --owner me) || exit\n");
    typed(&format!("{take}{lines}\nleasehold run {key} -n -q -- echo free || true\n")).stdout
}

#[test]
fn the_commands_of_the_page_for_the_night_do_what_it_says() {
    let page = document("docs/night.md");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let typed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let of = |begin: &str| {
        let found = typed.iter().find(|line| line.starts_with(begin));
        let found = found.unwrap_or_else(|| panic!("the page has no {begin}"));
        found.replace("NAME", "job").replace("--fence N", "--fence $fence").replace("OWNER", "me")
    };
    let look = ["leasehold why", "leasehold ls", "leasehold release --all"].map(of).join("\n");
    let seen = typed_by_a_holder("job", &look);
    assert!(seen.contains("job") && seen.contains("me"), "{seen}");
    assert!(!seen.ends_with("free\n"), "what only looks frees nothing: {seen}");
    let asked = typed_by_a_holder(
        "job",
        &[of("leasehold ask"), "leasehold show job".to_owned()].join("\n"),
    );
    assert!(asked.contains("asked"), "{asked}");
    for end in [of("leasehold force-release"), of("leasehold release --all") + " --yes"] {
        let seen = typed_by_a_holder("job", &end);
        assert!(seen.ends_with("free\n"), "{end}: {seen}");
    }
}

#[test]
fn the_commands_for_a_stuck_lock_and_those_of_the_doctor_work_as_they_are_typed() {
    let page = document("docs/operations/stuck.md");
    let seen = typed_by_a_holder("reports/daily", script(&page, "leasehold why"));
    assert!(seen.contains("reports/daily") && !seen.ends_with("free\n"), "{seen}");
    let force = script(&page, "leasehold force-release");
    let (begin, _) = force.split_once("--fence").unwrap();
    let seen = typed_by_a_holder("reports/daily", &format!("{begin}--fence $fence"));
    assert!(seen.ends_with("free\n"), "{seen}");

    let server = RedisServer::start();
    let site = Site::at(server.url());
    let page = document("docs/operations/doctor.md");
    // The probe has tests of its own, and takes some seconds.
    let lines = script(&page, "leasehold doctor").lines();
    for line in lines.filter(|line| !line.contains("--probe")) {
        let line = line.split('#').next().unwrap().trim();
        let done = site.line(line.strip_prefix("leasehold ").unwrap());
        // A server for tests keeps nothing, which is a warning.
        assert!([0, 79].contains(&done.status.code().unwrap()), "{line}: {done:?}");
        assert!(!done.stdout.is_empty(), "{line}: {done:?}");
    }
}
