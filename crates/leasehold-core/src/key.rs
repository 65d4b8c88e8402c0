//! The name of a lock, validated when it is made.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::escape;

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Key(Arc<str>);

impl Key {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Validates a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] when the name is empty, longer than [`Key::MAX_BYTES`] bytes, or has
    /// a control character in it.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let refuse = |why: String| Err(Error::new(ErrorKind::Config, why));
        if name.is_empty() {
            return refuse("a lock's name is empty; give 1 to 512 bytes".into());
        }
        if name.len() > Self::MAX_BYTES {
            let len = name.len();
            return refuse(format!("a lock's name has {len} bytes; give at most 512"));
        }
        if let Some((at, _)) = name.char_indices().find(|(_, c)| c.is_control()) {
            let shown = escape::terminal(name);
            return refuse(format!(
                "the lock name \"{shown}\" has a control character at byte {at}; remove it"
            ));
        }
        Ok(Self(name.into()))
    }

    /// Validates a name that arrives as bytes, such as a command line argument.
    ///
    /// # Errors
    ///
    /// As [`Key::new`], and [`ErrorKind::Config`] when the bytes are not UTF-8.
    pub fn from_bytes(name: &[u8]) -> Result<Self> {
        match std::str::from_utf8(name) {
            Ok(name) => Self::new(name),
            Err(error) => {
                let at = error.valid_up_to();
                Err(Error::new(
                    ErrorKind::Config,
                    format!("a lock's name is not UTF-8 (first bad byte at {at}); correct it"),
                ))
            }
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A lock's name: text, which is validated, or a [`Key`], which has been already.
///
/// All that makes a lock takes this, so that a name is validated once and used often.
pub trait IntoKey {
    /// The name.
    ///
    /// # Errors
    ///
    /// As [`Key::new`].
    fn into_key(self) -> Result<Key>;
}

impl IntoKey for Key {
    fn into_key(self) -> Result<Key> {
        Ok(self)
    }
}

impl IntoKey for &str {
    fn into_key(self) -> Result<Key> {
        Key::new(self)
    }
}

impl IntoKey for String {
    fn into_key(self) -> Result<Key> {
        Key::new(self)
    }
}

impl IntoKey for Cow<'_, str> {
    fn into_key(self) -> Result<Key> {
        Key::new(self)
    }
}

impl<T: IntoKey + Clone> IntoKey for &T {
    fn into_key(self) -> Result<Key> {
        self.clone().into_key()
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", escape::name(&self.0))
    }
}

impl fmt::Display for Key {
    /// The name, with backslashes and what could mislead a terminal escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", escape::name(&self.0))
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        Self::new(name).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_the_limits_are_taken_and_beyond_them_refused() {
        assert!(Key::new("a").is_ok());
        assert!(Key::new("x".repeat(512)).is_ok());
        for bad in ["", "a\nb", "a\0b", "\u{7f}", "\u{85}"] {
            assert_eq!(Key::new(bad).unwrap_err().kind(), ErrorKind::Config, "{bad:?}");
        }
        assert_eq!(Key::new("x".repeat(513)).unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(Key::from_bytes(b"a\xff").unwrap_err().kind(), ErrorKind::Config);
    }

    #[test]
    fn whatever_names_a_lock_is_validated_once() {
        let key = Key::new("a").unwrap();
        let again = (&key).into_key().unwrap();
        assert!(Arc::ptr_eq(&key.0, &again.0), "a validated name is not looked at again");
        let text = String::from("a");
        let all = ["a".into_key(), (&text).into_key(), text.into_key(), Cow::from("a").into_key()];
        assert!(all.into_iter().all(|one| one.unwrap() == key));
        assert_eq!("".into_key().unwrap_err().kind(), ErrorKind::Config);
    }

    #[test]
    fn shown_names_cannot_steer_a_terminal() {
        let key = Key::new("a\u{202e}b").unwrap();
        assert_eq!(key.to_string(), "a\\u{202e}b");
        assert_eq!(key.as_str(), "a\u{202e}b");
    }
}
