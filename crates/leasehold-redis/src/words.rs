//! What a script is told of one lock: its key, and the words that the script takes for it.

use std::fmt::{Display, Write as _};

use leasehold_core::{Key, Token};

use crate::names::Names;

/// Appends a value. Writing to a text fails only where the value itself does.
pub(crate) fn push(text: &mut String, value: impl Display) {
    let _written = write!(text, "{value}");
}

/// The key of a lock, and up to five words, in one text.
///
/// A request can so be put together by its caller, and sent with those of others by whichever task
/// sends them.
#[derive(Debug)]
pub(crate) struct Words {
    text: String,
    ends: [usize; Self::MOST],
    number: usize,
}

impl Words {
    /// The key, and as many words as any script takes for one lock.
    const MOST: usize = 6;

    /// What most requests take.
    const BYTES: usize = 192;

    pub(crate) fn about(names: &Names, key: &Key) -> Self {
        let text = String::with_capacity(Self::BYTES);
        let mut words = Self { text, ends: [0; Self::MOST], number: 0 };
        words.add_with(|text| names.record_into(key, text));
        words
    }

    pub(crate) fn add(&mut self, word: impl Display) -> &mut Self {
        self.add_with(|text| push(text, word))
    }

    pub(crate) fn add_token(&mut self, token: &Token) -> &mut Self {
        self.add_with(|text| {
            for byte in token.as_bytes() {
                for digit in [byte >> 4, byte & 0xf] {
                    text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
                }
            }
        })
    }

    /// Adds what `write` appends to the text.
    pub(crate) fn add_with(&mut self, write: impl FnOnce(&mut String)) -> &mut Self {
        write(&mut self.text);
        if let Some(end) = self.ends.get_mut(self.number) {
            *end = self.text.len();
        }
        self.number += 1;
        self
    }

    pub(crate) fn key(&self) -> &str {
        self.all().next().unwrap_or("")
    }

    /// All but the key.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.all().skip(1)
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().take(self.number).map(move |end| {
            let word = self.text.get(start..*end).unwrap_or("");
            start = *end;
            word
        })
    }
}
