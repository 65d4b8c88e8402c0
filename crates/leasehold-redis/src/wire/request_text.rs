//! Writes what a script gets for one lock: its key, a token, and the request.

use leasehold_core::{Key, Token};

use crate::wire::forms::Pack as _;
use crate::wire::names::Names;

/// The key of a lock, a token, and the token's request, in one buffer.
///
/// So a caller can encode its request, and any task can send it in a batch.
#[derive(Debug)]
pub(crate) struct RequestText {
    bytes: Vec<u8>,
    key_ends: usize,
}

impl RequestText {
    /// The size of most requests.
    pub(crate) const BYTES: usize = 160;

    /// The size of most requests that queue.
    pub(crate) const IN_LINE: usize = 256;

    /// The bytes of a token.
    const TOKEN: usize = 16;

    /// A request in a buffer of `room` bytes; `ask` appends it after the key and the token.
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

    /// The token, followed by the request.
    pub(crate) fn token_and_asked(&self) -> &[u8] {
        self.bytes.get(self.key_ends..).unwrap_or_default()
    }

    /// The token, and the request.
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        self.token_and_asked().split_at_checked(Self::TOKEN).unwrap_or_default()
    }
}
