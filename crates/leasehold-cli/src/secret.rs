//! Keeps passwords out of all output.
//!
//! There are two nets, since one may have holes. Every password that this process knows is
//! [remembered](remember) and blotted out literally. Any text between a `scheme://` and an `@` is
//! blotted out by its shape.

use std::sync::{Mutex, OnceLock, PoisonError};

use leasehold::store::StoreUrl;

/// What is printed instead.
const MASK: &str = "***";

/// Shorter passwords are only caught by their place in a URL: blotting out every `a` of a message
/// would hide the message, not the password.
const LITERAL_BYTES_MIN: usize = 4;

/// The invisible end of the password in use.
static END: OnceLock<&str> = OnceLock::new();

static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What looks like a URL with a password and is the store's without any.
static HARMLESS: OnceLock<String> = OnceLock::new();

/// Remembers a password, so that [`redact`] blots it out wherever it stands.
pub(crate) fn remember(password: &str) {
    if password.len() < LITERAL_BYTES_MIN {
        return;
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for form in [password.to_owned(), percent_decoded(password)] {
        if !known.contains(&form) {
            known.push(form);
        }
    }
}

/// Remembers the invisible end of the password in use, such as a line break from a file.
pub(crate) fn remember_end_of(password: &str) {
    let end = match password.chars().next_back() {
        Some('\n' | '\r') => "a line break",
        Some(last) if last.is_whitespace() => "a blank",
        _ => return,
    };
    // There is one password.
    let _is_known = END.set(end);
}

/// The invisible end of the password.
pub(crate) fn end() -> Option<&'static str> {
    END.get().copied()
}

/// Remembers each password of a URL, which may name several stores.
pub(crate) fn remember_those_of(url: &str) {
    for secret in secrets_of(url) {
        remember(secret);
    }
}

/// Whether a store's URL has a password, by the rules of its parser. What that refuses is used
/// nowhere, and has one if it looks like that.
pub(crate) fn is_in(url: &str) -> bool {
    match StoreUrl::read(url) {
        Ok(read) => read.has_password() || read.has_sentinel_password(),
        Err(_) => !secrets_of(url).is_empty(),
    }
}

/// Lets [`redact`] show the store of this command, which has no password, though it may look like
/// that.
pub(crate) fn allow(store: &str) {
    if blotted(store) != store {
        // There is one store.
        let _is_known = HARMLESS.set(store.to_owned());
    }
}

/// All that looks like a password in a URL, which may name several stores: between user and host,
/// and among the settings. It is for hiding alone, where too much does no harm.
fn secrets_of(url: &str) -> Vec<&str> {
    // A password that was typed unescaped may look like the end of its URL. So it is looked for in
    // the whole and in the parts.
    let whole = url.split_once("://").and_then(|(_, rest)| of_user(rest));
    let mut found: Vec<&str> =
        whole.into_iter().chain(stores_of(url).into_iter().filter_map(of_user)).collect();
    for (_, value) in settings_of(url).filter(|(name, _)| is_secret(name)) {
        found.extend([value, value.split(',').next().unwrap_or(value)]);
    }
    found.retain(|secret| !secret.is_empty());
    found
}

/// What stands between the user and the host.
fn of_user(text: &str) -> Option<&str> {
    let (user_info, _) = text.rsplit_once('@')?;
    user_info.split_once(':').map(|(_, password)| password)
}

/// What stands behind each scheme of a URL that may name several stores: it ends where the next
/// one's scheme begins, which has a comma before it.
fn stores_of(url: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = url;
    while let Some((_, after)) = rest.split_once("://") {
        let next = after.find("://").unwrap_or(after.len());
        let end = after.get(..next).and_then(|text| text.rfind(',')).filter(|_| next < after.len());
        parts.push(after.get(..end.unwrap_or(after.len())).unwrap_or(after));
        rest = after;
    }
    parts
}

/// The settings of a URL, whether or not anything knows them.
fn settings_of(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let settings = url.split_once('?').map_or("", |(_, settings)| settings);
    settings.split(['?', '&']).filter_map(|setting| setting.split_once('='))
}

/// Whether a setting of this name is a password, also an unknown one.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "secret", "token"].iter().any(|secret| name.contains(secret))
}

/// The text without any password.
pub(crate) fn redact(text: &str) -> String {
    match HARMLESS.get() {
        Some(store) => text.split(store.as_str()).map(blotted).collect::<Vec<_>>().join(store),
        None => blotted(text),
    }
}

fn blotted(text: &str) -> String {
    let mut text = mask_settings(&mask_user_info(text));
    for secret in KNOWN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), MASK);
        }
    }
    text
}

fn mask_user_info(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at.saturating_add("://".len()));
        masked.push_str(before);
        let end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (word, tail) = after.split_at(end);
        rest = tail;
        // The last `@`: passwords are typed unescaped more often than hosts contain one.
        match word.rsplit_once('@') {
            Some((user_info, host)) => {
                let user = user_info.split_once(':').map_or("", |(user, _)| user);
                masked.push_str(user);
                masked.push(':');
                masked.push_str(MASK);
                masked.push('@');
                masked.push_str(host);
            }
            None => masked.push_str(word),
        }
    }
    masked.push_str(rest);
    masked
}

/// Blots out what a word says after `pass=` and the like, where it is a URL's setting.
fn mask_settings(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end_matches(char::is_whitespace);
        let secrets: Vec<&str> = settings_of(word)
            .filter(|(name, value)| is_secret(name) && !value.is_empty())
            .map(|(_, value)| value)
            .collect();
        let mut piece = piece.to_owned();
        for secret in secrets {
            piece = piece.replace(&format!("={secret}"), &format!("={MASK}"));
        }
        masked.push_str(&piece);
    }
    masked
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escape = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) if byte == b'%' => {
                bytes.push(decoded);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_shows_its_host_and_not_its_password() {
        for (text, shown) in [
            ("at redis://:hunter2@db:6379/1 now", "at redis://:***@db:6379/1 now"),
            ("redis://bob:p@ss/w:rd@db", "redis://bob:***@db"),
            ("'rediss://token@db'", "'rediss://:***@db'"),
            ("redis://db:6379 and redis://:x@db", "redis://db:6379 and redis://:***@db"),
            ("no url: a@b", "no url: a@b"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    #[test]
    fn a_known_password_is_blotted_out_wherever_it_stands_and_however_it_is_written() {
        remember("s3%2Fcret%21");
        assert_eq!(redact("AUTH s3/cret! refused"), "AUTH *** refused");
        assert_eq!(redact("AUTH s3%2Fcret%21 refused"), "AUTH *** refused");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%zz%c3%a9"), "%zzé");
    }

    #[test]
    fn each_password_of_several_stores_is_remembered() {
        remember_those_of("quorum:redis://:sesame1@a,rediss://u:open,2@b:7000,embedded:/x");
        assert_eq!(redact("sesame1 open,2 a,b"), "*** *** a,b");
    }

    #[test]
    fn passwords_among_the_settings_are_remembered() {
        remember_those_of("redis+sentinel://h1,h2/m?db=2&sentinel_password=s3sam%2Fe");
        remember_those_of("redis+unix:///run/r.sock?pass=s0cket");
        assert_eq!(redact("s3sam/e s3sam%2Fe s0cket"), "*** *** ***");
    }

    #[test]
    fn every_password_of_a_url_is_found_wherever_it_stands() {
        for (url, secret) in [
            ("redis://:pw@h", "pw"),
            ("redis://u:p@w@h", "p@w"),
            ("redis://u:p/w@h", "p/w"),
            ("redis+unix://:pw@/run/r.sock", "pw"),
            ("redis+unix:///run/r.sock?pass=pw", "pw"),
            ("redis+unix:///run/r.sock?db=1&pass=pw", "pw"),
            ("redis+sentinel://h1,h2/m?sentinel_password=pw", "pw"),
            ("quorum:redis://h1,redis+unix:///r?pass=pw,redis://h2", "pw"),
            ("quorum:redis://h1,redis://u:pw@h2,embedded:/x", "pw"),
            ("redis://h?Password=pw", "pw"),
        ] {
            let found = secrets_of(url);
            assert!(found.contains(&secret) && is_in(url), "{url}: {found:?}");
        }
        for none in
            ["redis://h", "redis://u@h", "redis://u:@h", "embedded:/a:b@c", "redis://h?db=2"]
        {
            assert!(secrets_of(none).is_empty() && !is_in(none), "{none}");
        }
    }

    #[test]
    fn what_only_looks_like_a_password_decides_nothing() {
        for url in ["redis://h:6379?prefix=lock@", "quorum:redis://a?prefix=b:c@,redis://d"] {
            assert!(!secrets_of(url).is_empty() && !is_in(url), "{url}");
        }
    }

    #[test]
    fn passwords_among_settings_are_blotted_out_by_their_shape() {
        for (text, shown) in [
            ("at redis+unix:///r?pass=s3same now", "at redis+unix:///r?pass=*** now"),
            (
                "redis+sentinel://h/m?sentinel_password=a&db=1",
                "redis+sentinel://h/m?sentinel_password=***&db=1",
            ),
            ("is pass=word a word?", "is pass=word a word?"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }
}
