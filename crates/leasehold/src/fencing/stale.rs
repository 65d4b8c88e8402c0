//! The error with which a resource rejects a stale holder.

use std::fmt;

use leasehold_core::{Error, ErrorKind, Fence};

/// A resource refused a fencing token (fence), since a later holder has touched it. The lease of
/// the fence has ended.
///
/// No work was done. Stop what you do under that lease; the resource refuses the same fence for
/// ever. It turns into an [`Error`] of kind [`ErrorKind::Lost`] with `?`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct StaleFence {
    seen: Option<Fence>,
    given: Fence,
}

impl StaleFence {
    /// The refusal of `given` by a resource that has seen `seen`.
    #[must_use]
    pub const fn new(seen: Fence, given: Fence) -> Self {
        Self { seen: Some(seen), given }
    }

    /// The refusal of `given` by a resource that did not say what it has seen.
    #[must_use]
    pub const fn refused(given: Fence) -> Self {
        Self { seen: None, given }
    }

    /// The highest fence that the resource has seen, if it said so.
    #[must_use]
    pub const fn seen(self) -> Option<Fence> {
        self.seen
    }

    /// The fence that was refused.
    #[must_use]
    pub const fn given(self) -> Fence {
        self.given
    }
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} is stale: a later holder", self.given)?;
        if let Some(seen) = self.seen {
            write!(f, ", with fence {seen},")?;
        }
        f.write_str(" has touched the resource; stop the work under its lease")
    }
}

impl std::error::Error for StaleFence {}

impl From<StaleFence> for Error {
    fn from(stale: StaleFence) -> Self {
        Self::new(ErrorKind::Lost, "the lease is over; the protected resource refused its fence")
            .caused_by(stale)
    }
}

/// Judges the number of rows that a touch changed or returned: one when the fence passed, none when
/// it is stale. For [`postgresql`](super::postgresql) and [`sqlite`](super::sqlite);
/// [`mysql::check`](super::mysql::check) is for MySQL and MariaDB.
///
/// Takes the numbers of drivers: `u64` (sqlx, postgres) or `usize` (rusqlite).
///
/// # Errors
///
/// [`StaleFence`] for no row: roll back and stop.
///
/// # Examples
///
/// ```
/// use leasehold::Fence;
/// use leasehold::fencing::passed;
///
/// let fence = Fence::from_value(7)?;
/// assert!(passed(1_u64, fence).is_ok());
/// assert!(passed(0_usize, fence).is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn passed(rows: impl TryInto<u64>, given: Fence) -> Result<(), StaleFence> {
    match rows.try_into() {
        Ok(0) | Err(_) => Err(StaleFence::refused(given)),
        Ok(_) => Ok(()),
    }
}
