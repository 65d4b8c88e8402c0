//! The owner of a lock and its notes: text for people, never used for decisions.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::escape;

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, Default, Eq, Hash, PartialEq)]
        pub struct $name(Option<Arc<str>>);

        impl $name {
            /// The longest text, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// The text as it is.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Config`] when it is longer than `MAX_BYTES` bytes.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                let text = text.as_ref();
                if text.len() > Self::MAX_BYTES {
                    let (len, max) = (text.len(), Self::MAX_BYTES);
                    return Err(Error::new(
                        ErrorKind::Config,
                        format!("{} has {len} bytes; give at most {max}", $what),
                    ));
                }
                Ok(Self::of(text))
            }

            /// Empty text is stored as `None`, so that equal labels have equal values.
            fn of(text: &str) -> Self {
                Self((!text.is_empty()).then(|| text.into()))
            }

            /// The text as it was given. Escape it before showing it to a terminal.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_deref().unwrap_or_default()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}(\"{}\")", stringify!($name), escape::name(self.as_str()))
            }
        }

        impl fmt::Display for $name {
            /// The text, with backslashes and what could mislead a terminal escaped.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", escape::name(self.as_str()))
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                Ok(Self::of(&text))
            }
        }
    };
}

label! {
    /// The owner of a lock, for people: by default `host_pid_tag`.
    OwnerName, "an owner's name", 256
}

label! {
    /// A holder's notes about its hold, for people.
    Metadata, "metadata", 1024
}
