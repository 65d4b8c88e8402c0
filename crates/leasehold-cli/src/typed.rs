//! Makes the commands that messages print for their reader to type.

use std::path::Path;
use std::sync::OnceLock;

use leasehold::Key;
use leasehold::store::escape;

/// The options that were typed and decide which store a command asks and whether it is let in: a
/// command without them would ask another one, or in vain. What the environment or the default
/// config file says, the next command finds there as well.
static TYPED: OnceLock<Vec<(&str, Option<String>)>> = OnceLock::new();

/// Takes in the typed options, each with its value if it can be typed again.
pub(crate) fn remember(typed: Vec<(&'static str, Option<String>)>) {
    // There is one command line.
    TYPED.set(typed).ok();
}

/// The absolute path of a regular file, if it is text. A shell's `<(…)` is another kind of file.
pub(crate) fn readable_elsewhere(path: &Path) -> Option<String> {
    let path = std::path::absolute(Some(path).filter(|path| path.is_file())?).ok()?;
    path.into_os_string().into_string().ok()
}

/// `leasehold` with these words, for the store of this command.
pub(crate) fn command(words: &str) -> String {
    of_store(words, TYPED.get().map_or(&[], Vec::as_slice))
}

/// The same about one lock.
pub(crate) fn command_on(words: &str, key: &Key) -> String {
    format!("{} {}", command(words), last(key.as_str()))
}

fn of_store(words: &str, typed: &[(&str, Option<String>)]) -> String {
    let mut command = format!("leasehold {words}");
    for (name, value) in typed {
        let value = value.as_deref().map_or_else(|| "…".to_owned(), quoted);
        command.push_str(&format!(" {name} {value}"));
    }
    command
}

/// A word as a shell reads it back. One that can't be shown as it is needs bash, zsh or ksh.
pub(crate) fn quoted(word: &str) -> String {
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
    // Else it would be read as an option.
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
            let typed = [("--store", url.map(ToOwned::to_owned))];
            assert_eq!(of_store("why", &typed), expected);
        }
        assert_eq!(of_store("why", &[]), "leasehold why");
    }
}
