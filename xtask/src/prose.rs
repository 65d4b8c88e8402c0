//! `cargo xtask prose`: counts findings of style in each file's prose; no count may grow.
//!
//! Prose is the text of Markdown, and documentation and comments in Rust source: no code, tables
//! and headings. `xtask/prose.txt` keeps the counts. Other files have none.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::{budgets, hygiene, words};

/// Where the counts are kept.
const COUNTS: &str = "xtask/prose.txt";

/// How many words a sentence and a parenthesis may have.
const WORDS_MAX: usize = 30;
const ASIDE_MAX: usize = 12;

/// A name for the counts, and whether a sentence has what is counted.
type Rule = (&'static str, fn(&Sentence) -> bool);
const RULES: [Rule; 7] = [
    ("more-than-30-words", |it| it.words.len() > WORDS_MAX),
    ("more-than-one-negation", |it| it.negations() > 1),
    ("pronoun-without-noun", |it| it.has(PRONOUNS)),
    ("told-without-actor", |it| {
        BE.split('|').any(|be| TOLD.split('|').any(|told| it.has(&format!("{be} {told}"))))
    }),
    ("calque", |it| it.has(CALQUES)),
    ("nobody-as-actor", |it| it.has(NOBODY)),
    ("long-parenthesis", |it| it.asides().any(|aside| aside.split(' ').count() > ASIDE_MAX)),
];

const NEGATIONS: &str = "no|not|nor|nothing|none|nobody|never|neither|without|unless|cannot";
const PRONOUNS: &str = "that of|those of|the other's|another's|of ours|of theirs|the same of";
const BE: &str = "is|are|was|were|be|been";
const TOLD: &str = "told|given up|said|asked|taken for|found out";
const CALQUES: &str = "for so long|so many|as far as|anew|befall|befalls|what becomes of|became of|\
    all the same|for want of|is to be|are to be|told apart|comes to grief|by turns|the begin of|\
    its own accord|of itself|stands in the way|half a minute|a quarter of an hour";
const NOBODY: &str = "nobody|nothing that|nothing is|nothing else|none of|somebody";

/// Words of documents for which the table in CONTRIBUTING.md has another.
const TERMS: Rule = ("home-made-term", |it| it.has(OLD));
const OLD: &str = "in line|cool-down|cool-downs|time-out|time-outs|late holder|late holders|let go|\
    lets go|give back|gives back|given back|gave back|hand on|hands on|handed on|wake message|\
    wake messages|wake channel|runs out|ran out|takes away|taken away";

/// The sentences of each file that a rule finds, by both names with a blank between.
pub(crate) type Found = BTreeMap<String, Vec<String>>;

/// Prints the findings in some files, or writes down that there are fewer of them.
pub(crate) fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    let both = both(root)?;
    if names != ["--write"] {
        let wanted = |of: &str| names.is_empty() || names.iter().any(|part| of.contains(part));
        let found = both.iter().flat_map(|(_, found)| found);
        for (of, sentences) in found.filter(|(of, _)| wanted(of)) {
            sentences.iter().for_each(|sentence| println!("{of}: {sentence}"));
        }
        return Ok(());
    }
    for (counts, found) in both {
        // Without the file all counts are taken as they are.
        let before = fs::read_to_string(root.join(counts)).unwrap_or_else(|_| written(&found));
        let more = grown(&found, &read(&before));
        if !more.is_empty() {
            return Err(format!("more findings than before:\n{}", more.join("\n")));
        }
        let write = fs::write(root.join(counts), written(&found));
        write.map_err(|error| format!("{counts}: {error}"))?;
    }
    Ok(())
}

/// Where the findings are not those that are written down, and pages that are over their budgets.
pub(crate) fn findings(root: &Path) -> Vec<String> {
    let mut wrong = budgets::findings(root);
    for (counts, found) in both(root).into_iter().flatten() {
        let text = fs::read_to_string(root.join(counts)).unwrap_or_default();
        let more = grown(&found, &read(&text));
        if more.is_empty() && text != written(&found) {
            wrong.push(format!(
                "{counts}: there are fewer findings now: `cargo xtask prose --write`"
            ));
        }
        wrong.extend(more);
    }
    wrong
}

/// The findings in sentences and in words, each with where they are counted.
fn both(root: &Path) -> Result<[(&'static str, Found); 2], String> {
    Ok([(COUNTS, everywhere(root)?), (words::COUNTS, words::everywhere(root)?)])
}

fn everywhere(root: &Path) -> Result<Found, String> {
    let mut files = Vec::new();
    hygiene::collect(root, &mut files)?;
    let mut found = Found::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let rust = name.ends_with(".rs") && name.contains("/src/");
        if rust || name.ends_with(".md") && !path.is_symlink() && !name.contains("plots/") {
            let text = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
            if rust {
                judge(&name, Part::Documentation, &documentation(&text), &mut found);
                judge(&name, Part::Comments, &comments(&text), &mut found);
            } else {
                judge(&name, Part::Page, &text, &mut found);
            }
        }
    }
    Ok(found)
}

/// What a text is part of.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Part {
    Page,
    Documentation,
    Comments,
}

fn judge(name: &str, part: Part, text: &str, found: &mut Found) {
    for sentence in paragraphs(text).iter().flat_map(|paragraph| sentences(paragraph)) {
        let terms = (part != Part::Documentation).then_some(&TERMS);
        // A comment beside the code may deny twice.
        let applies = |rule: &str| part != Part::Comments || rule != "more-than-one-negation";
        let rules = RULES.iter().chain(terms).filter(|(rule, _)| applies(rule));
        for (rule, _) in rules.filter(|(_, has)| has(&sentence)) {
            found.entry(format!("{name} {rule}")).or_default().push(sentence.text.clone());
        }
    }
}

fn grown(found: &Found, before: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (of, sentences) in found {
        let allowed = before.get(of).copied().unwrap_or(0);
        if sentences.len() > allowed {
            wrong.push(format!("{of}: {} findings, and {allowed} before", sentences.len()));
            wrong.extend(sentences.iter().map(|sentence| format!("    {sentence}")));
        }
    }
    wrong
}

fn written(found: &Found) -> String {
    found.iter().map(|(of, sentences)| format!("{of} {}\n", sentences.len())).collect()
}

fn read(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines.filter_map(|(of, count)| Some((of.to_owned(), count.parse().ok()?))).collect()
}

/// The documentation in Rust source, with a gap where code stands between, and before each entry of
/// a list in the help.
fn documentation(text: &str) -> String {
    let said = |line: &str| {
        let said = line.trim_start().strip_prefix("//").and_then(|it| it.strip_prefix(['!', '/']));
        let said = said.unwrap_or_default();
        let gap = if is_entry(said) { "\n" } else { "" };
        format!("{gap}{said}\n")
    };
    text.lines().map(said).collect()
}

/// The comments in Rust source that have lines of their own, with a gap where code stands between.
fn comments(text: &str) -> String {
    let said = |line: &str| {
        let said = line.trim_start().strip_prefix("//").filter(|it| !it.starts_with(['!', '/']));
        said.unwrap_or_default().to_owned() + "\n"
    };
    text.lines().map(said).collect()
}

/// Whether a line begins an entry: it is set off, with a name before a wider gap or a variable.
fn is_entry(line: &str) -> bool {
    let Some(entry) = line.strip_prefix("   ").filter(|it| !it.starts_with(' ')) else {
        return false;
    };
    let first = entry.split(' ').next().unwrap_or_default();
    entry.contains("  ") || first.contains('_') && !first.contains(char::is_lowercase)
}

/// The paragraphs and items of lists, each in one line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let prose = text.split("```").step_by(2).collect::<Vec<_>>().join("\n\n");
    let is_number = |mark: &str| mark.strip_suffix('.').is_some_and(|n| n.parse::<u8>().is_ok());
    for line in prose.lines().map(str::trim) {
        let is_link = line.starts_with('[') && line.contains("]: ");
        let ends = line.is_empty() || is_link || line.starts_with(['#', '|', '<', '!']);
        let marked = line.split_once(' ').filter(|(mark, _)| *mark == "-" || is_number(mark));
        let item = marked.map(|(_, rest)| rest);
        if ends || item.is_some() {
            all.push(String::new());
        }
        if let Some(last) = all.last_mut().filter(|_| !ends) {
            last.push_str(item.unwrap_or(line));
            last.push(' ');
        }
    }
    all
}

#[derive(Debug)]
struct Sentence {
    text: String,
    words: Vec<String>,
}

impl Sentence {
    /// Whether it has one of these runs of words.
    fn has(&self, phrases: &str) -> bool {
        let spaced = format!(" {} ", self.words.join(" "));
        phrases.split('|').any(|phrase| spaced.contains(&format!(" {phrase} ")))
    }

    fn negations(&self) -> usize {
        let is_one = |word: &&String| NEGATIONS.split('|').any(|no| no == *word);
        self.words.iter().filter(|word| is_one(word) || word.ends_with("n't")).count()
    }

    fn asides(&self) -> impl Iterator<Item = &str> {
        self.text.split('(').skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
    }
}

/// The sentences of a paragraph. Code and an address count as one word, a link as its text.
fn sentences(paragraph: &str) -> Vec<Sentence> {
    let mut text = String::new();
    for (number, piece) in paragraph.split('`').enumerate() {
        text.push_str(if number % 2 == 1 { "Code" } else { piece });
    }
    for (opens, closes) in [("](", ')'), ("][", ']')] {
        while let Some((before, rest)) = text.split_once(opens) {
            text = format!("{before}{}", rest.split_once(closes).map_or("", |(_, after)| after));
        }
    }
    let text = text.replace(['[', ']', '*'], "");
    let mut all = Vec::new();
    let mut sentence = String::new();
    let mut pieces = text.split_whitespace().peekable();
    while let Some(piece) = pieces.next() {
        sentence.push_str(piece);
        let ended = piece.trim_end_matches(['"', ')']).ends_with(['.', '!', '?']);
        if pieces.peek().is_none_or(|next| ended && !next.starts_with(char::is_lowercase)) {
            let word = |c: char| !c.is_alphanumeric() && c != '\'' && c != '-' && c != '%';
            let words = sentence.split(' ').flat_map(|piece| {
                let is_address = piece.contains(":/");
                piece.split(move |c| !is_address && word(c)).filter(|word| !word.is_empty())
            });
            let words: Vec<String> = words.map(str::to_lowercase).collect();
            // A list of names of tests is no sentence.
            if words.iter().filter(|word| *word == "code").count() * 2 <= words.len() {
                all.push(Sentence { text: sentence.clone(), words });
            }
            sentence.clear();
        } else {
            sentence.push(' ');
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        found(text).into_keys().map(|of| of.replace("a.md ", "")).collect()
    }

    fn found(text: &str) -> Found {
        let mut found = Found::new();
        judge("a.md", Part::Page, text, &mut found);
        found
    }

    #[test]
    fn each_rule_finds_its_sentence_and_leaves_plain_ones() {
        assert_eq!(names(&"word ".repeat(31)), ["more-than-30-words"]);
        assert_eq!(names("No caller waits without a limit."), ["more-than-one-negation"]);
        assert_eq!(names("The key is that of the lock."), ["pronoun-without-noun"]);
        assert_eq!(names("The holder is told\nof it."), ["told-without-actor"]);
        assert_eq!(names("The lock is made anew."), ["calque"]);
        assert_eq!(names("Nobody has the lock."), ["nobody-as-actor"]);
        assert_eq!(names(&format!("It waits ({}).", "word ".repeat(13))), ["long-parenthesis"]);
        assert_eq!(names("The second waiter stands in line."), ["home-made-term"]);
        assert!(names("The store notifies the next waiter. It then waits.").is_empty());
    }

    #[test]
    fn code_tables_headings_and_links_are_no_prose() {
        let text = "# Nobody\n\n| nobody | x |\n\n```text\nnobody\n```\n\nSee [it](a-nobody.md), [it][nobody], `nobody` too.\n";
        assert!(names(text).is_empty());
        assert!(names("- The holder `is told` by `x`.\n- It waits.\n").is_empty());
        let addresses = "redis://h,h/name ".repeat(29);
        assert_eq!(names(&format!("One of {addresses}")).len(), 1);
        assert!(names(&format!("One {addresses}")).is_empty());
        let half = "word ".repeat(20);
        let list = format!("///   NAME  {half}\n///         {half}\n");
        assert_eq!(names(&documentation(&list)).len(), 1);
        let entries = format!("///   NAME  {half}\n///   A_B, C_D\n///         {half}\n");
        assert!(names(&documentation(&entries)).is_empty());
        assert_eq!(names(&documentation(&format!("/// - {half}\n///   {half}\n"))).len(), 1);
        let code = "fn nobody() {}\n/// Nobody waits.\n// Nobody else.\n";
        assert_eq!(names(&documentation(code)), ["nobody-as-actor"]);
    }

    #[test]
    fn comments_are_judged_but_for_their_negations() {
        let code = "/// Nobody waits.\n// Not without a lock,\n// which nobody has.\nfn f() {}\n";
        let mut found = Found::new();
        judge("a.rs", Part::Comments, &comments(code), &mut found);
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a.rs nobody-as-actor"]);
    }

    #[test]
    fn a_count_may_fall_and_not_grow() {
        let one = found("Nobody waits.\n");
        let counts = read(&written(&one));
        assert!(grown(&one, &counts).is_empty());
        assert!(grown(&found("It waits.\n"), &counts).is_empty());
        assert_eq!(grown(&found("Nobody waits.\n\nNobody holds.\n"), &counts).len(), 3);
        assert_eq!(grown(&one, &BTreeMap::new()).len(), 2);
    }
}
