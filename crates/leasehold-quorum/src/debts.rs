//! Remembers what a node that could not be reached has to release.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{Key, LeaveRequest, Moment, ReleaseRequest, Token};
use tokio::sync::Notify;

/// How many undoings a node may owe; it keeps what exceeds that until the leases end.
pub(crate) const OWED_MAX: usize = 1_024;

/// What ends a lease.
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
    /// When there is nothing left to undo.
    pub(crate) until: Moment,
}

/// What a node owes.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    list: Mutex<List>,
    /// The node has answered something.
    pub(crate) back: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) owed: VecDeque<Owed>,
    /// Whether somebody tries to collect.
    pub(crate) collecting: bool,
}

impl Debts {
    pub(crate) fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets somebody else collect when the one who did is gone, with its runtime say.
#[derive(Debug)]
pub(crate) struct Collecting {
    pub(crate) debts: Arc<Debts>,
    /// Whether it has said itself that nobody collects any more.
    is_over: bool,
}

impl Collecting {
    /// For the one who found that nobody collects, and said that it does.
    pub(crate) fn new(debts: Arc<Debts>) -> Self {
        Self { debts, is_over: false }
    }

    /// Ends collecting if nothing is owed, in one step, so that what is owed from then on is
    /// collected by somebody else. Whether it has ended.
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
