//! Text from strangers, made safe to show.
//!
//! Names, owners and metadata come from other programs. Shown raw they could move a cursor, hide
//! a line or reverse its letters (CWE-150), so everything that prints them goes through here.

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

/// The `Display` made by [`terminal`].
#[derive(Clone, Copy, Debug)]
pub struct Terminal<'a>(&'a str);

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

/// Characters that are no control characters, yet change or hide what is around them.
fn misleads(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}
