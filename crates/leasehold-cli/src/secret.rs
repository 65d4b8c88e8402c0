//! Keeps passwords out of everything that is printed.
//!
//! Two nets, since one may have holes: every password that this process gets to know is
//! [remembered](remember) and blotted out literally, and whatever stands between a `scheme://`
//! and an `@` is blotted out by its shape, known or not.

use std::sync::{Mutex, PoisonError};

/// What is printed instead.
const MASK: &str = "***";

/// Shorter passwords are only caught by their place in a URL: blotting out every `a` of a message
/// would hide the message, not the password.
const LITERAL_BYTES_MIN: usize = 4;

static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

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

/// Remembers each password of a URL, which may name several stores.
pub(crate) fn remember_those_of(url: &str) {
    if let Some(all) = password_of(url) {
        remember(all);
    }
    // Sockets and sentinels have theirs among the settings.
    for setting in url.split(['?', '&', ',']) {
        if let Some(("pass" | "sentinel_password", password)) = setting.split_once('=') {
            remember(password);
        }
    }
    // Each store's URL ends where the next one's scheme begins, which has a comma before it.
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = url;
    while let Some((_, after)) = rest.split_once("://") {
        let next = after.find("://").unwrap_or(after.len());
        let end = after.get(..next).and_then(|text| text.rfind(',')).filter(|_| next < after.len());
        parts.push(after.get(..end.unwrap_or(after.len())).unwrap_or(after));
        rest = after;
    }
    for part in parts {
        let user_info = part.rsplit_once('@').map(|(user_info, _)| user_info);
        if let Some((_, password)) = user_info.and_then(|it| it.split_once(':')) {
            remember(password);
        }
    }
}

/// The text without any password.
pub(crate) fn redact(text: &str) -> String {
    let mut text = mask_user_info(text);
    for secret in KNOWN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), MASK);
        }
    }
    text
}

/// The password of a URL, as it is written there.
pub(crate) fn password_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let (user_info, _) = rest.rsplit_once('@')?;
    let (_, password) = user_info.split_once(':')?;
    (!password.is_empty()).then_some(password)
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
    fn the_password_of_a_url_is_found() {
        assert_eq!(password_of("redis://:pw@h"), Some("pw"));
        assert_eq!(password_of("redis://u:p@w@h"), Some("p@w"));
        assert_eq!(password_of("redis+unix://:pw@/run/r.sock"), Some("pw"));
        for none in ["redis://h", "redis://u@h", "redis://u:@h", "embedded:/a:b@c"] {
            assert_eq!(password_of(none), None, "{none}");
        }
    }
}
