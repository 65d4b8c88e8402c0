//! Remembers releases that did not reach a node.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{Key, LeaveRequest, Moment, ReleaseRequest, Token};
use tokio::sync::Notify;

/// How many undoings a node may owe. If there are more, the node keeps those leases until they
/// expire.
pub(crate) const OWED_MAX: usize = 1_024;

/// A request that ends a lease.
#[derive(Clone, Debug)]
pub(crate) enum Undoing {
    Leave(Arc<LeaveRequest>),
    Release(Arc<ReleaseRequest>),
}

impl Undoing {
    pub(crate) fn token(&self) -> Token {
        match self {
            Self::Leave(request) => request.token,
            Self::Release(request) => request.token,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Leave(request) => &request.key,
            Self::Release(request) => &request.key,
        }
    }
}

/// An undoing that did not reach a node.
#[derive(Debug)]
pub(crate) struct Owed {
    pub(crate) undoing: Undoing,
    /// When the lease expires, which settles the debt.
    pub(crate) until: Moment,
}

/// The undoings that a node owes.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    list: Mutex<List>,
    /// Notified when the node has answered any request.
    pub(crate) back: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) owed: VecDeque<Owed>,
    /// Whether a task is collecting.
    pub(crate) collecting: bool,
}

impl Debts {
    pub(crate) fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clears [`List::collecting`] when the collecting task is dropped, for example with its runtime.
#[derive(Debug)]
pub(crate) struct Collecting {
    pub(crate) debts: Arc<Debts>,
    /// Whether it has cleared the flag itself.
    is_over: bool,
}

impl Collecting {
    /// For the caller that has just set the flag.
    pub(crate) fn new(debts: Arc<Debts>) -> Self {
        Self { debts, is_over: false }
    }

    /// Ends collecting if the list is empty; returns whether it has ended. Checks and clears the
    /// flag in one step, so that a later debt finds it cleared.
    pub(crate) fn end_if_paid(&mut self) -> bool {
        let mut list = self.debts.list();
        if list.owed.is_empty() {
            list.collecting = false;
            self.is_over = true;
        }
        self.is_over
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        if !self.is_over {
            self.debts.list().collecting = false;
        }
    }
}
