//! Gets user and password from the program; they may change while it runs.

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::escape;

use crate::classify::Verdict;

/// A user name and a password for a server, with their validity.
///
/// `Debug` shows neither.
///
/// ```
/// use std::time::Duration;
/// use leasehold_redis::Credentials;
///
/// let token = Credentials::new("a token").user("app").valid_for(Duration::from_secs(15 * 60));
/// assert!(!format!("{token:?}").contains("token\""));
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// A password for the user in the store's URL, valid until a server refuses it.
    #[must_use]
    pub fn new(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into(), valid_for: None }
    }

    /// Sets the user, which replaces the one in the store's URL.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Valid for this long, counted from the call that returned them. After three quarters of it,
    /// and at least a second, the store calls the program again, and open connections log in again.
    #[must_use]
    pub const fn valid_for(mut self, length: Duration) -> Self {
        self.valid_for = Some(length);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("valid_for", &self.valid_for).finish_non_exhaustive()
    }
}

/// The credentials of a program, or the reason why it has none, for people.
pub type CredentialsResult = Result<Credentials, Box<dyn StdError + Send + Sync>>;

/// Provides the credentials. May block.
#[derive(Clone)]
pub(crate) struct Provide(Arc<dyn Fn() -> Result<Credentials, Verdict> + Send + Sync>);

impl Provide {
    /// Calls a program's function.
    pub(crate) fn by(provide: impl Fn() -> CredentialsResult + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || {
            provide().map_err(|error| {
                let said = error.to_string();
                let said = escape::terminal(&said);
                Verdict::unconnected(format!("no credentials: {said}"))
            })
        }))
    }

    /// Reads the password from the first line of a file.
    pub(crate) fn file(path: PathBuf) -> Self {
        Self(Arc::new(move || first_line(&path).map(Credentials::new)))
    }

    pub(crate) fn ask(&self) -> Result<Credentials, Verdict> {
        (self.0)()
    }
}

/// A password is short, so a larger file must be a mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

fn first_line(path: &Path) -> Result<String, Verdict> {
    use std::io::Read as _;

    let shown = path.to_string_lossy();
    let shown = escape::terminal(&shown);
    let unread = |error: std::io::Error| {
        Verdict::misconfigured(format!("can't read the password file {shown}: {error}"))
    };
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unread)?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Verdict::misconfigured(format!(
            "the first line of the password file {shown} is empty; write the password there"
        ))),
    }
}
