//! The secret that proves an acquisition, and the name of a client.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// The secret of one acquisition: 128 bits from the operating system.
///
/// Knowing a token is enough to renew and release its lease, so `Debug` shows only a short
/// fingerprint and there is no `Display`. Each acquisition has a new one; all its retries share it,
/// which makes them idempotent.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Token([u8; 16]);

impl Token {
    /// Makes a token from the operating system's random generator.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the operating system has no randomness to give.
    pub fn generate() -> Result<Self> {
        random().map(Self)
    }

    /// The token with these bytes; for stores, and for simulations that choose their randomness.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Reads the 32 hexadecimal digits written by [`Token::to_hex`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for anything else. The message does not repeat the text.
    pub fn from_hex(text: &str) -> Result<Self> {
        let refuse = || Error::new(ErrorKind::Config, "a token is 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refuse());
        }
        let mut bytes = [0; 16];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refuse())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| refuse())?;
        }
        Ok(Self(bytes))
    }

    /// The raw bytes. Secret.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The token as 32 hexadecimal digits, the form in which stores keep it. Secret.
    #[must_use]
    pub fn to_hex(&self) -> String {
        String::from_utf8_lossy(&hex(self.0)).into_owned()
    }

    /// A number that distinguishes tokens and reveals nothing of them (FNV-1a of the token, folded
    /// to 32 bits).
    #[must_use]
    pub fn mark(&self) -> u32 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.0 {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        u32::try_from((hash >> 32) ^ (hash & 0xffff_ffff)).unwrap_or_default()
    }

    /// The [mark](Self::mark) as eight hexadecimal digits, for people.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        format!("{:08x}", self.mark())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(#{})", self.fingerprint())
    }
}

/// The public, random name of one client; its notification channel is named after it.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct ClientId([u8; 16]);

impl ClientId {
    /// Makes a new name from the operating system's random generator.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the operating system has no randomness to give.
    pub fn generate() -> Result<Self> {
        random().map(Self)
    }

    /// The name with these bytes; for stores and simulations.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Reads the 32 hexadecimal digits that `Display` writes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for anything else.
    pub fn from_hex(text: &str) -> Result<Self> {
        Token::from_hex(text)
            .map(|token| Self(token.0))
            .map_err(|_| Error::new(ErrorKind::Config, "a client id is 32 hexadecimal digits"))
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&hex(self.0)).unwrap_or_default())
    }
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the operating system gave no random bytes")
            .caused_by(std::io::Error::other(error.to_string()))
    })?;
    Ok(bytes)
}

/// Two digits for each byte.
fn hex(bytes: [u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 32];
    for (two, byte) in hex.chunks_exact_mut(2).zip(bytes) {
        two.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_shows_itself() {
        let token = Token::generate().unwrap();
        assert!(!format!("{token:?}").contains(&token.to_hex()[..8]));
        assert_ne!(token, Token::generate().unwrap());
    }

    #[test]
    fn hexadecimal_is_read_back_and_rubbish_is_refused() {
        let token = Token::from_bytes(*b"0123456789abcdef");
        assert_eq!(Token::from_hex(&token.to_hex()).unwrap(), token);
        for bad in ["", "00", &"g".repeat(32), &"é".repeat(16), "+1".repeat(16).as_str()] {
            assert!(Token::from_hex(bad).is_err(), "{bad}");
        }
    }
}
