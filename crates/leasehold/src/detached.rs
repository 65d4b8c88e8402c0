//! A lease without a guard: a value that can be written down and taken up elsewhere.

use std::fmt;
use std::str::FromStr;

use leasehold_core::{Error, ErrorKind, Fence, FenceBlock, Key, Result, Token, Ttl};

use crate::hold::Hold;

/// A lease that nobody renews: it runs until its ttl ends, and whoever has this value can renew,
/// adopt or release it.
///
/// [`to_secret_text`](Self::to_secret_text) writes it as one line of text and
/// [`from_str`](str::parse) reads it back. **The text contains the lease's secret**: keep it in a
/// file that only its owner can read.
#[derive(Clone, Eq, PartialEq)]
pub struct DetachedLease {
    key: Key,
    token: Token,
    fences: FenceBlock,
    ttl: Ttl,
}

/// Marks the text form; a new form gets a new mark.
const MARK: &str = "leasehold-lease-1";

impl DetachedLease {
    pub(crate) fn of(hold: &Hold) -> Self {
        Self { key: hold.key.clone(), token: hold.token, fences: hold.fences, ttl: hold.ttl() }
    }

    /// The lock's name.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The lease's fencing token.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.fences.first()
    }

    /// The length for which it was last renewed.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    pub(crate) const fn fences(&self) -> FenceBlock {
        self.fences
    }

    pub(crate) fn with_ttl(&self, ttl: Ttl) -> Self {
        Self { ttl, ..self.clone() }
    }

    /// The lease as one line of text: mark, token, first fence, number of fences, ttl in ms, and
    /// the name, with a space between them. Secret.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        let Self { key, token, fences, ttl } = self;
        let (token, first, count) = (token.to_hex(), fences.first(), fences.count());
        format!("{MARK} {token} {first} {count} {} {}", ttl.as_millis(), key.as_str())
    }
}

impl FromStr for DetachedLease {
    type Err = Error;

    /// Reads what [`to_secret_text`](Self::to_secret_text) wrote.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for anything else; the message does not repeat the text.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            Error::new(ErrorKind::Config, "this is no lease; give what `acquire` wrote, unchanged")
        };
        let text = text.strip_suffix('\n').unwrap_or(text);
        let mut parts = text.splitn(6, ' ');
        let mut next = || parts.next().ok_or_else(refuse);
        if next()? != MARK {
            return Err(refuse());
        }
        let token = Token::from_hex(next()?).map_err(|_| refuse())?;
        let first = next()?.parse().map_err(|_| refuse())?;
        let first = Fence::from_value(first).map_err(|_| refuse())?;
        let count = next()?.parse().map_err(|_| refuse())?;
        let ttl = next()?.parse().map_err(|_| refuse())?;
        let ttl = Ttl::new(std::time::Duration::from_millis(ttl)).map_err(|_| refuse())?;
        let key = Key::new(next()?)?;
        Ok(Self { key, token, fences: FenceBlock::new(first, count), ttl })
    }
}

impl fmt::Debug for DetachedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, token, fences, ttl } = self;
        f.debug_struct("DetachedLease")
            .field("key", key)
            .field("token", token)
            .field("fence", &fences.first())
            .field("ttl", ttl)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_text_is_read_back_and_nothing_else_is() {
        let lease = DetachedLease {
            key: Key::new("a name with spaces").unwrap(),
            token: Token::from_bytes([7; 16]),
            fences: FenceBlock::new(Fence::new(1, 9).unwrap(), 64),
            ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
        };
        let text = lease.to_secret_text();
        assert_eq!(text.parse::<DetachedLease>().unwrap(), lease);
        assert_eq!(format!("{text}\n").parse::<DetachedLease>().unwrap(), lease);
        assert!(!format!("{lease:?}").contains(&lease.token.to_hex()));
        let cut = &text[..text.len() - 19];
        let other = text.replace(MARK, "leasehold-lease-2");
        for bad in ["", cut, other.as_str()] {
            let error = bad.parse::<DetachedLease>().unwrap_err();
            assert!(!error.to_string().contains("0707"), "{error}");
        }
    }
}
