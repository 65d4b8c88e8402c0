//! Commands that are printed to be typed: the one place that makes them.

use std::sync::OnceLock;

use leasehold::Key;
use leasehold::store::escape;

/// The store's URL, where it was typed: a command without it would ask another store. Where the environment
/// or a config file names the store, the next command finds it there as well. It has its user and no
/// password, and is `None` where no parser takes it.
static STORE: OnceLock<Option<String>> = OnceLock::new();

/// Takes in that the store was given on the command line, and how it reads without a password.
pub(crate) fn remember_store(public: Option<&String>) {
    // There is one command line.
    let _is_known = STORE.set(public.cloned());
}

/// `leasehold` with these words, for the store of this command.
pub(crate) fn command(words: &str) -> String {
    of_store(words, STORE.get().map(Option::as_deref))
}

/// The same about one lock.
pub(crate) fn command_on(words: &str, key: &Key) -> String {
    format!("{} {}", command(words), last(key.as_str()))
}

fn of_store(words: &str, typed: Option<Option<&str>>) -> String {
    let store = match typed {
        None => String::new(),
        Some(Some(url)) => format!(" --store {}", quoted(url)),
        Some(None) => " --store …".to_owned(),
    };
    format!("leasehold {words}{store}")
}

/// A word as a shell reads it back. One that can't be shown as it is needs bash, zsh or ksh.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@+,".contains(&byte);
    if word.bytes().all(plain) {
        return word.to_owned();
    }
    if escape::terminal(word).to_string() == word {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    let mut text = OF_SOME_SHELLS.to_owned();
    for c in word.chars() {
        let mut bytes = [0; 4];
        let shown = &*c.encode_utf8(&mut bytes);
        if matches!(c, '\'' | '\\') {
            text.push('\\');
        }
        if escape::terminal(shown).to_string() == shown {
            text.push(c);
        } else {
            // What \u stands for depends on the locale.
            shown.bytes().for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
        }
    }
    text.push('\'');
    text
}

/// How a word begins that not every shell reads back.
const OF_SOME_SHELLS: &str = "$'";

/// Which shells read this command, where it is not every one.
pub(crate) fn shells_for(command: &str) -> &'static str {
    if command.contains(OF_SOME_SHELLS) { "in bash, zsh or ksh " } else { "" }
}

/// A name as the last argument of a command.
fn last(name: &str) -> String {
    let word = quoted(name);
    // Else it would be taken for an option.
    if name.starts_with('-') { format!("-- {word}") } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_typed_is_named_again_as_a_shell_reads_it() {
        for (url, expected) in [
            (Some("redis://h:7000"), "leasehold why --store redis://h:7000"),
            (Some("redis://u@h"), "leasehold why --store redis://u@h"),
            (Some("redis://h?log=9&prefix=x"), "leasehold why --store 'redis://h?log=9&prefix=x'"),
            (Some("embedded:/it's"), "leasehold why --store 'embedded:/it'\\''s'"),
            (Some("redis://h?prefix=l@"), "leasehold why --store 'redis://h?prefix=l@'"),
            (
                Some("embedded:/a'\u{202e}"),
                "leasehold why --store $'embedded:/a\\'\\342\\200\\256'",
            ),
            (None, "leasehold why --store …"),
        ] {
            assert_eq!(of_store("why", Some(url)), expected);
        }
        assert_eq!(of_store("why", None), "leasehold why");
    }
}
