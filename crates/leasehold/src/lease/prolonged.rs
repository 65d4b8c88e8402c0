//! The outcomes of prolonging a lease.

use crate::lease::guard::Guard;

/// How a lease was prolonged: see [`Mutex::prolong`](crate::Mutex::prolong).
#[derive(Debug)]
#[must_use = "the guard is inside"]
#[non_exhaustive]
pub enum Prolonged<G = Guard> {
    /// In time: it is the lease that it was, with the fence that it had.
    InTime(G),
    /// Too late: it had expired, and no other holder has had the lock since. This is a new lease
    /// with a new fence. The ttl was too short, and the work between the two was not protected.
    Late(G),
}

impl<G> Prolonged<G> {
    /// Whether it came too late.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(self, Self::Late(_))
    }

    /// The guard.
    #[must_use]
    pub fn into_guard(self) -> G {
        match self {
            Self::InTime(guard) | Self::Late(guard) => guard,
        }
    }
}
