//! What the command can say, read from the sources of all that it is made of, and from its help.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use leasehold_testkit::server::RedisServer;

use crate::harness::Site;
use crate::help::COMMANDS;

/// The crates whose messages the command shows, each with whether it speaks to programmers as well.
const SPEAK: [(&str, bool); 7] = [
    ("leasehold-cli", false),
    ("leasehold-core", false),
    ("leasehold-embedded", false),
    ("leasehold-postgres", false),
    ("leasehold-quorum", false),
    ("leasehold-redis", false),
    ("leasehold", true),
];

const WORDS_MAX: usize = 30;

/// Words for which the project has another one: see the terms in CONTRIBUTING.
const OLD_TERMS: [&str; 50] = [
    "all the same",
    "anew",
    "asked for",
    "asked to",
    "asks for",
    "asks to",
    concat!("every", "body"),
    "for so long",
    "gave up",
    "give back",
    "give up",
    "given back",
    "given up",
    "gives back",
    "gives up",
    "half a minute",
    "hand on",
    "hand over",
    "handed on",
    "handed over",
    "hands on",
    "in line",
    "cool-down",
    "cool-downs",
    "it is no",
    "let go",
    "lets go",
    "nobody",
    "place in the queue",
    "quarter of an hour",
    "ran out",
    "run out",
    "runs out",
    "so many",
    concat!("some", "body"),
    "stands at",
    "take away",
    "taken away",
    "takes away",
    "tell apart",
    "tells apart",
    "this is no",
    "time-out",
    "time-outs",
    "told",
    "took away",
    "wake channel",
    "wake message",
    "what becomes of",
    concat!("who", "ever"),
];

/// Names of events in the log, which programs read.
const KEPT: [&str; 1] = ["granted, handed on, changed"];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Tests beside their code.
        let is_test = ["tests", "differential", "differential.rs"].contains(&name)
            || name.ends_with("tests.rs");
        if path.is_dir() && !is_test {
            sources(&path, into);
        } else if name.ends_with(".rs") && !is_test {
            into.push(path);
        }
    }
}

/// The texts between quotes, with their continued lines joined. Comments, attributes and the tests
/// at the end are left out.
fn texts(source: &str) -> Vec<String> {
    let source = source.split("mod tests {").next().unwrap();
    let is_text = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("//") && !line.starts_with("#[") && !line.starts_with("reason = ")
    };
    let lines = source.lines().filter(is_text);
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

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
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

/// The old terms in a text. Placeholders are names of variables, which are no prose.
fn old_terms(text: &str) -> Vec<&'static str> {
    let mut text = KEPT.iter().fold(text.to_owned(), |text, kept| text.replace(kept, ""));
    while let Some((before, behind)) = text.split_once('{') {
        let Some((_, rest)) = behind.split_once('}') else { break };
        text = format!("{before}x{rest}");
    }
    let is_in_word = |c: char| c.is_alphanumeric() || c == '-' || c == '\'';
    let plain = text.to_lowercase();
    let plain: Vec<&str> = plain.split(|c| !is_in_word(c)).filter(|it| !it.is_empty()).collect();
    let plain = format!(" {} ", plain.join(" "));
    OLD_TERMS.into_iter().filter(|term| plain.contains(&format!(" {term} "))).collect()
}

/// What is wrong with a message.
fn faults(text: &str, is_for_programmers: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let count = words(text);
    if count > WORDS_MAX {
        faults.push(format!("{count} words"));
    }
    if text.matches("; ").count() > 1 {
        faults.push("more than one semicolon".to_owned());
    }
    if !is_for_programmers && means_nothing(text) {
        faults.push("a path of the sources, or a name of the library".to_owned());
    }
    faults.extend(old_terms(text).into_iter().map(|term| format!("{term:?}")));
    faults
}

/// Each message of these crates, with its file and with whether it is for programmers.
fn messages() -> Vec<(PathBuf, bool, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut messages = Vec::new();
    for (name, is_for_programmers) in SPEAK {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        for file in files {
            for text in texts(&fs::read_to_string(&file).unwrap()) {
                // Documentation, help, statements and headers are not messages.
                let is_other = ["[`", "Exit codes:", "A lock is a name.", "-src '", "charset="]
                    .iter()
                    .any(|mark| text.contains(mark));
                let is_statement = ["BEGIN ", "CREATE ", "DO ", "INSERT ", "SELECT ", "UPDATE "]
                    .iter()
                    .any(|word| text.starts_with(word));
                let is_documentation =
                    ["cost.rs", "errors.rs", "table.rs"].iter().any(|name| file.ends_with(name));
                // A word may be part of a message.
                let is_old_word = text.contains('-') && !old_terms(&text).is_empty();
                if (text.contains(' ') || is_old_word)
                    && !(is_other || is_statement || is_documentation)
                {
                    messages.push((file.clone(), is_for_programmers, text));
                }
            }
        }
    }
    messages
}

#[test]
fn each_message_is_short_plain_and_in_the_words_of_its_reader() {
    let messages = messages();
    let wrong: Vec<String> = messages
        .iter()
        .filter_map(|(file, is_for_programmers, text)| {
            let faults = faults(text, *is_for_programmers);
            let found = !faults.is_empty();
            found.then(|| format!("{}: {}: {text:?}", file.display(), faults.join(", ")))
        })
        .collect();
    assert!(messages.len() > 1_000, "only {} messages were found", messages.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The words of a message without names: quoted ones, addresses, and the name of a setting that was
/// typed.
fn own_words(message: &str) -> usize {
    let is_name = |word: &str| word.contains(":/") || word.contains("embedded:");
    let without_quoted = message.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let own = without_quoted.split_whitespace().filter(|word| !is_name(word));
    words(&own.collect::<Vec<_>>().join(" "))
}

#[test]
fn a_message_made_of_parts_has_at_most_30_words_besides_names() {
    let server = RedisServer::builder()
        .password("open-sesame")
        .acl_user("reader on >reads ~* &* +@read +hello +ping +auth")
        .start();
    let at = server.addr();
    let site = Site::at(server.url_for("", ""));
    let semaphore = Site::at(server.url_for("", "open-sesame"));
    let (long, owner) = ("long/".repeat(50), "web-".repeat(60));
    let of_long = format!("hold {long} --owner {owner} --meta job={}", "report".repeat(20));
    let mut holders = ["hold many --limit 3", "hold one --owner web-7 --meta job=report", &of_long]
        .map(|line| semaphore.start(line.split(' ').chain(["--ignore-stdin"])));
    holders.iter_mut().for_each(|holder| drop(holder.line()));
    fs::create_dir(site.path("other")).unwrap();
    fs::write(site.path("other/file"), "").unwrap();
    let other = format!("embedded:{}", site.path("other").display());
    let open = semaphore.store();
    let five = [1, 2, 3, 4, 5].map(|port| format!("127.0.0.1:{port}")).join(",");
    let unlike = format!("quorum:redis://127.0.0.1:1,redis+unix:///no/socket,redis://{at}");
    let shards =
        format!("spread:{}", [1, 2, 3].map(|p| format!("s{p}=redis://127.0.0.1:{p}")).join(","));
    let (far, word) = (format!("{}example.com", "far-away.".repeat(20)), "colour".repeat(30));
    // A limit that is over before the first answer has the message of a busy lock.
    let (busy, timed_out) = (format!("run {long} -n -- true"), format!("run {long} -w 2s -- true"));
    let limit = format!("run {long} -n --limit 4 -- true");
    for (store, line, part) in [
        ("redis://h?colour=a", "run k -- true", "unknown setting colour"),
        ("redis://h?prefx=a", "run k -- true", "did you mean prefix?"),
        ("redis://h?hunter2", "run k -- true", "unknown setting"),
        ("embedded:/tmp/x?colour=a", "run k -- true", "unknown setting"),
        (&other, "run k -- true", "has no store, but another file"),
        (open, "run many -n --limit 4 -- true", "in use with limit 3"),
        (open, "run many -n -- true", "use another name"),
        (open, "run one -n --limit 4 -- true", "use another name"),
        (open, "wait many --permits 4", "never free"),
        (open, "run one -n -- true", "is held by"),
        (open, "run one -w 2s -- true", "timed out"),
        (open, &busy, "is held by"),
        (open, &timed_out, "timed out"),
        (open, &limit, "use another name"),
        (&format!("redis://{far}?{word}=a&colour=b"), "run k -- true", "unknown setting"),
        (&format!("redis://{far}?colours=a"), "run k -- true", "unknown setting colours"),
        (&shards, "run k -- true", "check that the server is running"),
        (&format!("redis://{at}"), "run k -- true", "LEASEHOLD_PASSWORD"),
        (&format!("redis://:open@{at}"), "run k -- true", "LEASEHOLD_PASSWORD"),
        (&format!("redis://reader:reads@{at}"), "run k -n -- true", "leasehold doctor --acl"),
        (&format!("quorum+redis://{five}"), "run k -- true", "check that the server is running"),
        (&unlike, "run k -- true", "redis+unix:///no/socket: no such socket"),
    ] {
        let done = site
            .run(line.split(' ').take(1).chain(["--store", store]).chain(line.split(' ').skip(1)));
        // A warning about a password in the arguments comes before.
        let message = done.stderr.lines().last().unwrap_or_default();
        let message = message.trim_start_matches("leasehold: ");
        assert!(message.contains(part), "{line} at {store}: {done:?}");
        let (count, more) = (own_words(message), message.matches("; ").count());
        assert!(count <= WORDS_MAX, "{count} words: {message}");
        assert!(more <= 1 || store.starts_with("quorum"), "{more} semicolons: {message}");
    }
    assert_eq!(own_words("acquire \"a b\" at redis://h/1: in use; run `leasehold ls`"), 7);
}

/// Its help is the page for the night.
#[test]
fn each_message_about_a_loss_ends_with_the_advice_that_names_why() {
    let is_of_a_loss = |text: &str| text.starts_with("lost ") || text.contains("have been lost");
    let of_losses: Vec<_> = messages()
        .into_iter()
        .filter(|(file, _, text)| {
            file.components().any(|part| part.as_os_str() == "leasehold-cli") && is_of_a_loss(text)
        })
        .collect();
    assert!(of_losses.len() >= 4, "{of_losses:?}");
    for (file, _, text) in of_losses {
        assert!(text.ends_with("{next}"), "{}: {text}", file.display());
    }
}

#[test]
fn one_event_has_one_message_in_the_command() {
    let mut places = BTreeMap::<String, Vec<PathBuf>>::new();
    for (file, _, text) in messages() {
        let is_of_the_command = file.components().any(|part| part.as_os_str() == "leasehold-cli");
        if is_of_the_command && words(&text) >= 5 {
            places.entry(text).or_default().push(file);
        }
    }
    let twice: Vec<_> = places.into_iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

#[test]
fn help_has_short_sentences_in_the_words_of_its_reader() {
    let site = Site::embedded();
    let mut wrong = Vec::new();
    for command in COMMANDS {
        for option in ["--help", "-h"] {
            let help = site.run([command, option]).expect(0).stdout;
            for paragraph in help.split("\n\n").flat_map(|part| part.split("\n  -")) {
                // A line that is set off is an example, or an entry of a list.
                let is_prose = |line: &&str| !line.trim_start().starts_with("leasehold ");
                let prose: Vec<&str> = paragraph.lines().filter(is_prose).collect();
                let is_set_off = |line: &&str| line.starts_with("          ");
                let is_list = paragraph.contains("Possible values:")
                    || prose.iter().any(|line| line.starts_with("  "))
                        && !prose.iter().all(is_set_off);
                let text = prose.join(" ");
                let longest = text.split(". ").map(words).max().unwrap_or_default();
                let is_long = !is_list && longest > WORDS_MAX;
                let old = old_terms(&text);
                if is_long || !old.is_empty() || means_nothing(&text) {
                    wrong.push(format!("{command} {option}: {longest} words, {old:?}: {text}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_fault_of_a_message_is_seen() {
    let source = "// \"of a comment\"\nf(\"one two \\\n     three\", '\"', \"four\\n\");\nmod tests { \"x\" }";
    assert_eq!(texts(source), ["one two three", "four\n"]);
    for (text, fault) in [
        ("see docs/wire.md for that", "a path"),
        ("call `set_limit` then", "a path"),
        ("use leasehold::store here", "a path"),
        ("one; two; three", "semicolon"),
        ("Nobody holds it", "nobody"),
        ("the wait ran out; wait longer", "ran out"),
        ("2 waiters stand in line", "in line"),
        (&"word ".repeat(31), "31 words"),
    ] {
        let found = faults(text, false);
        assert!(found.len() == 1 && found[0].contains(fault), "{text}: {found:?}");
    }
    for text in [
        "name it in `password_file`, or in LEASEHOLD_PASSWORD",
        "{told}, as the page requested; look again",
        &"word ".repeat(30),
    ] {
        assert_eq!(faults(text, false), [""; 0], "{text}");
    }
    assert_eq!(faults("use leasehold::store here", true), [""; 0]);
}
