//! Makes text from strangers safe to show.
//!
//! Names, owners and metadata come from other programs. Shown raw they could move a cursor, hide a
//! line or reverse its letters (CWE-150), so all code that prints them goes through here.

//!
//! Stores that separate texts by marks of their own (a blank, a brace) write these marks in a text
//! as `%` and two digits: see [`percent_into`].

use std::fmt::{self, Write as _};

/// Wraps `text` so that its `Display` escapes control, bidirectional and invisible characters.
///
/// ```
/// let shown = leasehold_core::escape::terminal("host\u{1b}[2J").to_string();
/// assert_eq!(shown, "host\\u{1b}[2J");
/// ```
#[must_use]
pub const fn terminal(text: &str) -> Terminal<'_> {
    Terminal(text)
}

/// As [`terminal`], with each backslash doubled: two texts that differ are shown differently.
///
/// ```
/// let shown = |name| leasehold_core::escape::name(name).to_string();
/// assert_eq!(shown("a\u{202e}b"), "a\\u{202e}b");
/// assert_eq!(shown("a\\u{202e}b"), "a\\\\u{202e}b");
/// ```
#[must_use]
pub const fn name(text: &str) -> Name<'_> {
    Name(text)
}

/// The `Display` made by [`terminal`].
#[derive(Clone, Copy, Debug)]
pub struct Terminal<'a>(&'a str);

/// The `Display` made by [`name`].
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, part) in self.0.split('\\').enumerate() {
            if n > 0 {
                f.write_str("\\\\")?;
            }
            Terminal(part).fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Terminal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() || misleads(c) {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Characters, other than control characters, that change or hide what is around them.
fn misleads(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// Appends `text` to `out`, with each ASCII byte that is `special` as `%` and two hexadecimal
/// digits.
///
/// Unlike in URLs (RFC 3986) all other characters stay as they are, so that people can read them.
/// [`from_percent`] returns the original text only if `%` is special.
///
/// ```
/// use leasehold_core::escape::{from_percent, percent_into};
///
/// let mut out = String::new();
/// percent_into(&mut out, "a ü%", |byte| matches!(byte, b' ' | b'%'));
/// assert_eq!(out, "a%20ü%25");
/// assert_eq!(from_percent(&out).as_deref(), Some("a ü%"));
/// ```
pub fn percent_into(out: &mut String, text: &str, special: fn(u8) -> bool) {
    if !text.bytes().any(special) {
        out.push_str(text);
        return;
    }
    for c in text.chars() {
        match u8::try_from(c) {
            Ok(byte) if byte.is_ascii() && special(byte) => {
                out.push_str(&format!("%{byte:02X}"));
            }
            _ => out.push(c),
        }
    }
}

/// Reads what [`percent_into`] wrote; `None` for a `%` without the digits of an ASCII byte.
#[must_use]
pub fn from_percent(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let digits = part.get(..2).filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()))?;
        let byte = u8::from_str_radix(digits, 16).ok()?;
        out.push(byte.is_ascii().then(|| char::from(byte))?);
        out.push_str(part.get(2..)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_escaped_comes_back_and_nothing_else_is_read() {
        for text in ["", "%", "a b", "ü %", "%20", "\u{7f}\u{80}\n"] {
            let mut out = "before ".to_owned();
            percent_into(&mut out, text, |byte| byte <= b' ' || matches!(byte, b'%' | 0x7f));
            let escaped = out.strip_prefix("before ").unwrap();
            assert!(!escaped.contains([' ', '\n']), "{escaped}");
            assert_eq!(from_percent(escaped).as_deref(), Some(text));
        }
        for broken in ["%", "%2", "%zz", "%+5", "%80", "a%", "%2ü"] {
            assert_eq!(from_percent(broken), None, "{broken}");
        }
    }
}
