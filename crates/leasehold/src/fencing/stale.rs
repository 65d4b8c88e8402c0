//! The refusal of a late holder.

use std::fmt;

use leasehold_core::{Error, ErrorKind, Fence};

/// A resource has seen a higher fence than the one given: the lease it came with is over, and
/// somebody else has worked under a later one.
///
/// Nothing was done. Whoever gets this must stop; trying again with the same fence is refused for
/// ever. It turns into an [`Error`] of kind [`ErrorKind::Lost`] with `?`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct StaleFence {
    seen: Fence,
    given: Fence,
}

impl StaleFence {
    /// The refusal of `given` by a resource that has seen `seen`.
    #[must_use]
    pub const fn new(seen: Fence, given: Fence) -> Self {
        Self { seen, given }
    }

    /// The highest fence that the resource has seen.
    #[must_use]
    pub const fn seen(self) -> Fence {
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
        let Self { seen, given } = self;
        write!(
            f,
            "fence {given} is stale, the resource has seen {seen}; stop what was done under its \
             lease"
        )
    }
}

impl std::error::Error for StaleFence {}

impl From<StaleFence> for Error {
    fn from(stale: StaleFence) -> Self {
        Self::new(ErrorKind::Lost, "the lease is over; the protected resource refused its fence")
            .caused_by(stale)
    }
}
