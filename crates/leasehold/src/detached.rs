//! A lease without a guard: a value that can be written down and taken up elsewhere.

use std::fmt;
use std::str::FromStr;

use leasehold_core::{Error, ErrorKind, Fence, FenceBlock, Key, Result, Token, Ttl};

use crate::hold::{Hold, Proof};

/// A lease that nobody renews: it runs until its ttl ends, and whoever has this value can renew,
/// adopt or release it.
///
/// [`to_secret_text`](Self::to_secret_text) writes it as one line of text and
/// [`from_str`](str::parse) reads it back. **The text contains the lease's secret**: keep it in a
/// file that only its owner can read.
#[derive(Clone, Eq, PartialEq)]
pub struct DetachedLease {
    proof: Proof,
    ttl: Ttl,
}

/// Marks the text form; a new form gets a new mark.
const MARK: &str = "leasehold-lease-1";

impl DetachedLease {
    pub(crate) fn of(hold: &Hold) -> Self {
        Self { proof: hold.proof(), ttl: hold.ttl() }
    }

    /// The lock's name.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.proof.key
    }

    /// The lease's fencing token.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.proof.fence
    }

    /// The length for which it was last renewed.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    pub(crate) const fn proof(&self) -> &Proof {
        &self.proof
    }

    pub(crate) fn with_ttl(&self, ttl: Ttl) -> Self {
        Self { ttl, ..self.clone() }
    }

    /// The lease as one line of text: mark, token, its fence, the first fence of its grant, their
    /// number, ttl in ms, and the name, with a space between them. Secret.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        let Self { proof: Proof { key, token, fences, fence }, ttl } = self;
        let (token, first, count) = (token.to_hex(), fences.first(), fences.count());
        format!("{MARK} {token} {fence} {first} {count} {} {}", ttl.as_millis(), key.as_str())
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
        let mut parts = text.splitn(7, ' ');
        let mut next = || parts.next().ok_or_else(refuse);
        if next()? != MARK {
            return Err(refuse());
        }
        let token = Token::from_hex(next()?).map_err(|_| refuse())?;
        let mut next_fence = || {
            let value = next()?.parse().map_err(|_| refuse())?;
            Fence::from_value(value).map_err(|_| refuse())
        };
        let (fence, first) = (next_fence()?, next_fence()?);
        let count = next()?.parse().map_err(|_| refuse())?;
        let fences = FenceBlock::new(first, count);
        if !fences.contains(fence) {
            return Err(refuse());
        }
        let ttl = next()?.parse().map_err(|_| refuse())?;
        let ttl = Ttl::new(std::time::Duration::from_millis(ttl)).map_err(|_| refuse())?;
        let key = Key::new(next()?)?;
        Ok(Self { proof: Proof { key, token, fences, fence }, ttl })
    }
}

impl fmt::Debug for DetachedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proof: Proof { key, token, fences: _, fence }, ttl } = self;
        f.debug_struct("DetachedLease")
            .field("key", key)
            .field("token", token)
            .field("fence", fence)
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
            proof: Proof {
                key: Key::new("a name with spaces").unwrap(),
                token: Token::from_bytes([7; 16]),
                fences: FenceBlock::new(Fence::new(1, 9).unwrap(), 64),
                fence: Fence::new(1, 11).unwrap(),
            },
            ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
        };
        let text = lease.to_secret_text();
        assert_eq!(text.parse::<DetachedLease>().unwrap(), lease);
        assert_eq!(format!("{text}\n").parse::<DetachedLease>().unwrap(), lease);
        assert!(!format!("{lease:?}").contains(&lease.proof.token.to_hex()));
        let cut = &text[..text.len() - 19];
        let other = text.replace(MARK, "leasehold-lease-2");
        for bad in ["", cut, other.as_str()] {
            let error = bad.parse::<DetachedLease>().unwrap_err();
            assert!(!error.to_string().contains("0707"), "{error}");
        }
    }
}
