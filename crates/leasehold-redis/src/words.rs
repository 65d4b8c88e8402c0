//! What a script is told of one lock: its key, a token, and what is asked.

use std::fmt::{Display, Write as _};

use leasehold_core::{Key, Token};

use crate::names::Names;

/// Appends a value. Writing to a text fails only where the value itself does.
pub(crate) fn push(text: &mut String, value: impl Display) {
    let _written = write!(text, "{value}");
}

/// Appends the digits of a token.
pub(crate) fn push_token(token: &Token, text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; Words::TOKEN];
    for (two, byte) in digits.chunks_exact_mut(2).zip(token.as_bytes()) {
        two.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    text.push_str(std::str::from_utf8(&digits).unwrap_or_default());
}

/// The key of a lock, a token, and what is asked for the token, in one text.
///
/// A request can so be put together by its caller, and sent with those of others by whichever task
/// sends them.
#[derive(Debug)]
pub(crate) struct Words {
    text: String,
    key_ends: usize,
}

impl Words {
    /// What most requests take.
    const BYTES: usize = 192;

    /// The digits of a token.
    pub(crate) const TOKEN: usize = 32;

    /// The digits of a token and where its fences end.
    pub(crate) const LEASE: usize = 54;

    pub(crate) fn about(names: &Names, key: &Key, token: &Token) -> Self {
        let mut text = String::with_capacity(Self::BYTES);
        names.record_into(key, &mut text);
        let key_ends = text.len();
        push_token(token, &mut text);
        Self { text, key_ends }
    }

    /// Adds to what is asked.
    pub(crate) fn add(&mut self, asked: impl Display) -> &mut Self {
        push(&mut self.text, asked);
        self
    }

    /// Adds what `write` appends to the text.
    pub(crate) fn add_with(&mut self, write: impl FnOnce(&mut String)) -> &mut Self {
        write(&mut self.text);
        self
    }

    pub(crate) fn key(&self) -> &str {
        self.text.get(..self.key_ends).unwrap_or("")
    }

    /// What is asked.
    pub(crate) fn asked(&self) -> &str {
        self.text.get(self.key_ends.saturating_add(Self::TOKEN)..).unwrap_or("")
    }

    /// The token, and what is asked unless it is this.
    pub(crate) fn argument(&self, shared: &str) -> &str {
        let (_, argument) = self.text.split_at_checked(self.key_ends).unwrap_or_default();
        if self.asked() == shared { argument.get(..Self::TOKEN).unwrap_or("") } else { argument }
    }
}
