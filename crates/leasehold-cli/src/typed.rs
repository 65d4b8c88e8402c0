//! Commands that are printed to be typed: the one place that makes them.

use std::sync::OnceLock;

use leasehold::Key;
use leasehold::store::escape;

use crate::secret;

/// The store's URL, where it was typed: a command without it would ask another store. Where the environment
/// or a config file names the store, the next command finds it there as well.
static STORE: OnceLock<String> = OnceLock::new();

/// Takes in that the store was given on the command line.
pub(crate) fn remember_store(url: &str) {
    // There is one command line.
    let _is_known = STORE.set(url.to_owned());
}

/// `leasehold` with these words, for the store of this command.
pub(crate) fn command(words: &str) -> String {
    of_store(words, STORE.get().map(String::as_str))
}

/// The same about one lock.
pub(crate) fn command_on(words: &str, key: &Key) -> String {
    let name = key.to_string();
    format!("{} {}", command(words), last(&name))
}

fn of_store(words: &str, url: Option<&str>) -> String {
    let store = match url {
        None => String::new(),
        // The reader has the password, and the text may be anyone's.
        Some(url) if secret::is_in(url) => " --store …".to_owned(),
        Some(url) if escape::terminal(url).to_string() != url => " --store …".to_owned(),
        Some(url) => format!(" --store {}", quoted(url)),
    };
    format!("leasehold {words}{store}")
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@+,".contains(&byte);
    if word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
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
    fn a_store_that_was_typed_is_named_again_and_its_password_is_not() {
        for (url, expected) in [
            (None, "leasehold why"),
            (Some("redis://h:7000"), "leasehold why --store redis://h:7000"),
            (Some("redis://h?log=9&prefix=x"), "leasehold why --store 'redis://h?log=9&prefix=x'"),
            (Some("embedded:/it's"), "leasehold why --store 'embedded:/it'\\''s'"),
            (Some("redis://u:word@h"), "leasehold why --store …"),
            (Some("redis://h?prefix=l@"), "leasehold why --store 'redis://h?prefix=l@'"),
            (Some("redis+unix:///s?pass=word"), "leasehold why --store …"),
            (Some("embedded:/a\u{202e}"), "leasehold why --store …"),
        ] {
            assert_eq!(of_store("why", url), expected);
        }
    }
}
