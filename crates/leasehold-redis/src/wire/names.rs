//! Names keys and channels, and escapes text for records.
//!
//! Only this file computes names; scripts get them as `KEYS` and `ARGV`.

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::Arc;

use leasehold_core::escape::{from_percent, percent_into};
use leasehold_core::{ClientId, Error, ErrorKind, Key, Metadata, OwnerName, Result};

/// The prefix of all keys and channels.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Names {
    prefix: Arc<str>,
}

impl Names {
    /// Enough for an organisation's path, and a small part of a key.
    pub(crate) const PREFIX_MAX_BYTES: usize = 64;

    /// The default prefix.
    pub(crate) fn standard() -> Self {
        Self { prefix: "leasehold".into() }
    }

    /// Validates a prefix. Braces would move the hash tag, and blanks would end a field.
    pub(crate) fn new(prefix: &str) -> Result<Self> {
        let fits = (1..=Self::PREFIX_MAX_BYTES).contains(&prefix.len());
        let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '{' | '}' | '%');
        if !fits || prefix.contains(odd) {
            return Err(Error::new(
                ErrorKind::Config,
                "a prefix must have 1 to 64 bytes without blanks, control characters, braces and \
                 percent signs",
            ));
        }
        Ok(Self { prefix: prefix.into() })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of a lock.
    pub(crate) fn record(&self, key: &Key) -> String {
        let mut name = Vec::with_capacity(self.prefix.len() + key.as_str().len() + 12);
        self.record_into(key, &mut name);
        text_of(name)
    }

    /// As [`record`](Self::record), appended to a text.
    pub(crate) fn record_into(&self, key: &Key, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(b":{");
        put_name(key.as_str(), out);
        out.push(b'}');
    }

    /// The log of a lock, in the slot of its record.
    pub(crate) fn log(&self, key: &Key) -> String {
        let mut name = self.record(key);
        name.push_str(":log");
        name
    }

    /// The channel for a client's notifications.
    pub(crate) fn channel(&self, client: ClientId) -> String {
        let mut channel = Vec::new();
        self.channel_into(client, &mut channel);
        text_of(channel)
    }

    /// As [`channel`](Self::channel), appended to a text.
    pub(crate) fn channel_into(&self, client: ClientId, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(b":wake:");
        // Writing to memory fails only if the value itself fails.
        let _written = write!(out, "{client}");
    }

    /// A pattern for `SCAN` that matches the records of all names that start with `start`.
    pub(crate) fn pattern(&self, start: &str) -> String {
        let mut literal = format!("{}:{{", self.prefix);
        percent_into(&mut literal, start, in_name);
        let mut pattern = String::with_capacity(literal.len() + 8);
        for c in literal.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push_str("*}");
        pattern
    }

    /// The lock whose record has this key, if [`Names::record`] made it.
    pub(crate) fn lock(&self, record: &[u8]) -> Option<Key> {
        let record = std::str::from_utf8(record).ok()?;
        let name = record.strip_prefix(&*self.prefix)?.strip_prefix(":{")?.strip_suffix('}')?;
        let key = Key::new(from_percent(name)?).ok()?;
        // Another spelling of the name makes another key, which is foreign.
        (self.record(&key) == record).then_some(key)
    }
}

/// The text of bytes that were assembled from texts.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|odd| String::from_utf8_lossy(odd.as_bytes()).into_owned())
}

/// Appends a text, and escapes its special characters.
#[inline]
fn put(text: &str, special: impl Fn(u8) -> bool, escape: fn(&mut String, &str), out: &mut Vec<u8>) {
    // Looks at all bytes, so that the compiler can check many at once.
    if text.bytes().fold(false, |odd, byte| odd | special(byte)) {
        let mut escaped = String::new();
        escape(&mut escaped, text);
        out.extend_from_slice(escaped.as_bytes());
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}

fn put_name(name: &str, out: &mut Vec<u8>) {
    put(name, in_name, |escaped, name| percent_into(escaped, name, in_name), out);
}

fn put_label(text: &str, out: &mut Vec<u8>) {
    put(text, in_text, |escaped, text| percent_into(escaped, text, in_text), out);
}

fn in_name(byte: u8) -> bool {
    matches!(byte, b'%' | b'{' | b'}')
}

fn in_text(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b'%' | 0x7f)
}

/// Owner and metadata as one part of a record, separated by a blank, which neither contains.
pub(crate) fn label_into(owner: &OwnerName, metadata: &Metadata, out: &mut Vec<u8>) {
    put_label(owner.as_str(), out);
    out.push(b' ');
    put_label(metadata.as_str(), out);
}

/// The owner of a release request, as a further part of a record after its label.
pub(crate) fn asker(owner: &OwnerName) -> String {
    let mut text = String::new();
    percent_into(&mut text, owner.as_str(), in_text);
    text
}

/// Reads what [`asker`] wrote.
pub(crate) fn read_asker(text: &str) -> Option<OwnerName> {
    OwnerName::new(unescaped(text)?).ok()
}

/// Reads an owner that [`label_into`] wrote; anything else counts as no label. Labels are for
/// people, so they are no reason to refuse a lock.
pub(crate) fn read_owner(text: &str) -> OwnerName {
    read_asker(text).unwrap_or_default()
}

/// As [`read_owner`], for metadata.
pub(crate) fn read_metadata(text: &str) -> Metadata {
    if text.is_empty() {
        return Metadata::default();
    }
    let metadata = unescaped(text).and_then(|metadata| Metadata::new(metadata).ok());
    metadata.unwrap_or_default()
}

/// Most labels have no escapes.
fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if text.bytes().fold(false, |escaped, byte| escaped | (byte == b'%')) {
        return from_percent(text).map(Cow::Owned);
    }
    Some(Cow::Borrowed(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new("leasehold").unwrap()
    }

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn the_hash_tag_is_the_whole_name_and_gives_it_back() {
        for name in ["a", "}", "{", "{}", "a}b", "%7D", "%", "ü{ü", "a:crowd", "}:crowd", "*?[x]\\"]
        {
            let record = names().record(&key(name));
            let tag = record.split_once('{').unwrap().1.split_once('}').unwrap();
            assert!(!tag.0.is_empty() && tag.1.is_empty(), "{record}");
            assert_eq!(names().lock(record.as_bytes()), Some(key(name)), "{record}");
        }
        assert_eq!(names().record(&key("a}b")), "leasehold:{a%7Db}");
    }

    #[test]
    fn keys_that_are_not_records_are_no_locks() {
        for other in [
            "leasehold:{a}:crowd",
            "leasehold:{a}:log",
            "leasehold:a",
            "lease:{a}",
            "leasehold:{a%41}",
            "leasehold:{a%7d}",
            "leasehold:{a%}",
            "leasehold:{}",
            "leasehold:{a{b}",
        ] {
            assert_eq!(names().lock(other.as_bytes()), None, "{other}");
        }
        assert_eq!(names().lock(b"leasehold:{\xff}"), None);
    }

    #[test]
    fn patterns_of_users_are_taken_literally() {
        let names = Names::new("a*b").unwrap();
        assert_eq!(names.pattern("x?[{"), "a\\*b:{x\\?\\[%7B*}");
    }

    #[test]
    fn labels_are_one_line_of_two_words_and_come_back() {
        for (owner, metadata) in
            [("web-7_12", "host=a b"), ("", ""), ("a b%", "\n\u{7f}é\0"), ("", " ")]
        {
            let owner = OwnerName::new(owner).unwrap();
            let metadata = Metadata::new(metadata).unwrap();
            let mut text = Vec::new();
            label_into(&owner, &metadata, &mut text);
            let text = String::from_utf8(text).unwrap();
            assert_eq!(text.matches(' ').count(), 1, "{text:?}");
            assert!(!text.contains(|c: char| c.is_ascii_control()), "{text:?}");
            let (its_owner, its_metadata) = text.split_once(' ').unwrap();
            assert_eq!((read_owner(its_owner), read_metadata(its_metadata)), (owner, metadata));
        }
    }

    #[test]
    fn a_label_that_can_not_be_read_is_none() {
        let long = "x".repeat(257);
        for (text, owner) in [(&*long, ""), ("a%4", ""), ("%zz", ""), ("a", "a")] {
            assert_eq!(read_owner(text).as_str(), owner, "{text}");
        }
        assert_eq!(read_metadata("b").as_str(), "b");
        assert_eq!(read_metadata(&"x".repeat(1_025)).as_str(), "");
    }

    #[test]
    fn prefixes_that_would_break_a_key_are_refused() {
        for bad in ["", "a b", "a{", "}", "a%", "a\n", &"x".repeat(65)] {
            assert_eq!(Names::new(bad).unwrap_err().kind(), ErrorKind::Config, "{bad:?}");
        }
        assert!(Names::new("app:locks").is_ok());
    }
}
