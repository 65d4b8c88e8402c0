//! Leads from a client's leases to the contenders of its process.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::lease::handle::LeaseHandle;

/// The contenders of a client for its locks, one of which may take a lease over from its holder.
pub(crate) trait Successors: fmt::Debug + Send + Sync {
    /// Hands the lease off to the first of them, if there is one and the lease may be handed off.
    /// `false` when it has to be released.
    fn hand_on(&self, handle: &Arc<LeaseHandle>) -> bool;

    /// Hands a lease off that its contender did not take, or releases it.
    fn take_back(&self, handle: &Arc<LeaseHandle>);
}

/// The way from a client's leases to their contenders in its process.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// For how many locks there are any, so that a release without a successor only reads a number.
    lines: AtomicUsize,
    successors: OnceLock<Weak<dyn Successors>>,
}

impl Succession {
    /// Sets the successors, once.
    pub(crate) fn leads_to(&self, successors: Weak<dyn Successors>) {
        self.successors.get_or_init(|| successors);
    }

    /// Sets for how many locks there are any. A release at the same moment may miss a new
    /// contender, which then gets the lock from the store.
    pub(crate) fn count(&self, lines: usize) {
        self.lines.store(lines, Ordering::Relaxed);
    }

    /// Hands the lease off to the next contender of this process. `false` when it has to be
    /// released.
    pub(crate) fn hand_on(&self, handle: &Arc<LeaseHandle>) -> bool {
        self.lines.load(Ordering::Relaxed) > 0
            && handle.state().may_be_handed_on()
            && self.successors().is_some_and(|successors| successors.hand_on(handle))
    }

    /// Takes a lease that its contender did not take.
    pub(crate) fn take_back(&self, handle: &Arc<LeaseHandle>) {
        if let Some(successors) = self.successors() {
            successors.take_back(handle);
        }
    }

    fn successors(&self) -> Option<Arc<dyn Successors>> {
        self.successors.get().and_then(Weak::upgrade)
    }
}
