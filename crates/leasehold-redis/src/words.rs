//! Writes a script's arguments for one lock: its key, a token, and the request.

use leasehold_core::{Key, Token};

use crate::forms::Pack as _;
use crate::names::Names;

/// The key of a lock, a token, and what is asked for the token, in one buffer.
///
/// A request can so be put together by its caller, and sent with those of others by whichever task
/// sends them.
#[derive(Debug)]
pub(crate) struct Words {
    bytes: Vec<u8>,
    key_ends: usize,
}

impl Words {
    /// What most requests take.
    pub(crate) const BYTES: usize = 160;

    /// What most take that ask for a place in line.
    pub(crate) const IN_LINE: usize = 256;

    /// The bytes of a token.
    const TOKEN: usize = 16;

    /// With room for so many bytes in all, and what `ask` adds to the key and the token.
    pub(crate) fn about(
        names: &Names,
        key: &Key,
        token: &Token,
        room: usize,
        ask: impl FnOnce(&mut Vec<u8>),
    ) -> Self {
        let mut bytes = Vec::with_capacity(room);
        names.record_into(key, &mut bytes);
        let key_ends = bytes.len();
        bytes.bytes(token.as_bytes());
        ask(&mut bytes);
        Self { bytes, key_ends }
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.bytes.get(..self.key_ends).unwrap_or_default()
    }

    /// The token and what is asked, one behind the other.
    pub(crate) fn token_and_asked(&self) -> &[u8] {
        self.bytes.get(self.key_ends..).unwrap_or_default()
    }

    /// The token, and what is asked.
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        self.token_and_asked().split_at_checked(Self::TOKEN).unwrap_or_default()
    }
}
