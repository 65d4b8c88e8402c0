//! Remembers what each token of this process was granted, and which tokens have ended.
//!
//! The undoing of a try (`leave`, `release`) may be under way for a long time, and a second copy
//! may arrive after the first was answered. So an abandoned token is never requested again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Fence, FenceBlock, Moment, Token};
use tokio::task::JoinHandle;

/// How long an unused token is remembered.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);
/// How many tokens are kept before old ones are removed.
const SWEEP_ABOVE: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    tokens: HashMap<Token, Page>,
    /// The fences of this process's tries without a majority, until they are undone everywhere.
    tried: HashSet<(usize, Fence)>,
    sweep_at: usize,
}

#[derive(Debug, Default)]
struct Page {
    /// One acquisition at a time for each token.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The fences granted, and the earliest end of the lease.
    granted: Option<(FenceBlock, Moment)>,
    /// How many undoings are under way, or owed.
    undoings: u32,
    /// The fences that nodes granted to a try without a majority.
    tried: Vec<(usize, Fence)>,
    /// The task that brings a granted lease to the nodes that lack it.
    completion: Option<JoinHandle<()>>,
    touched: Moment,
}

impl Tokens {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page<T>(&self, token: Token, now: Moment, change: impl FnOnce(&mut Page) -> T) -> T {
        let mut pages = self.pages();
        if pages.tokens.len() > pages.sweep_at.max(SWEEP_ABOVE) {
            let Pages { tokens, tried, .. } = &mut *pages;
            tokens.retain(|_, page| {
                let held = page.granted.is_some_and(|(_, until)| until > now);
                let kept = held || now.saturating_since(page.touched) < KEPT_FOR;
                if !kept {
                    tried.retain(|one| !page.tried.contains(one));
                }
                kept
            });
            pages.sweep_at = pages.tokens.len().saturating_mul(2);
        }
        let page = pages.tokens.entry(token).or_default();
        page.touched = now;
        change(page)
    }

    /// The turn to acquire with this token.
    pub(crate) fn turn(&self, token: Token, now: Moment) -> Arc<tokio::sync::Mutex<()>> {
        self.page(token, now, |page| Arc::clone(&page.turn))
    }

    /// The fences granted to the token, if its lease surely still holds.
    pub(crate) fn granted(&self, token: Token, now: Moment) -> Option<FenceBlock> {
        let pages = self.pages();
        let (fences, until) = pages.tokens.get(&token)?.granted?;
        (until > now).then_some(fences)
    }

    /// Records a grant, and the task that brings it to the nodes that lack it.
    pub(crate) fn enter(
        &self,
        token: Token,
        now: Moment,
        (fences, until): (FenceBlock, Moment),
        completion: Option<JoinHandle<()>>,
    ) {
        self.page(token, now, |page| {
            page.granted = Some((fences, until));
            // The earlier task would reset the count of holds.
            if let Some(earlier) = std::mem::replace(&mut page.completion, completion) {
                earlier.abort();
            }
        });
        self.is_lease(token);
    }

    /// Records what a node granted to a try without a majority so far.
    pub(crate) fn tried(&self, token: Token, now: Moment, node: usize, fences: FenceBlock) {
        let one = (node, fences.first());
        self.page(token, now, |page| page.tried.push(one));
        self.pages().tried.insert(one);
    }

    /// Whether a holder that a node shows is a try of this process, which soon ends or becomes a
    /// lease.
    pub(crate) fn is_try(&self, node: usize, fence: Fence) -> bool {
        self.pages().tried.contains(&(node, fence))
    }

    fn forget_tries(&self, token: Token, at: impl Fn(usize) -> bool) {
        let mut pages = self.pages();
        let Pages { tokens, tried, .. } = &mut *pages;
        if let Some(page) = tokens.get_mut(&token) {
            page.tried.retain(|one| {
                let over = at(one.0);
                if over {
                    tried.remove(one);
                }
                !over
            });
        }
    }

    /// Records that a grant was renewed, and possibly shortened. Ignores grants of other processes.
    pub(crate) fn renewed(
        &self,
        token: Token,
        now: Moment,
        grant: (FenceBlock, Moment),
        shorter: bool,
    ) {
        if let Some(page) = self.pages().tokens.get_mut(&token) {
            page.touched = now;
            if let Some((fences, until)) = &mut page.granted
                && *until > now
            {
                *fences = grant.0;
                *until = if shorter { grant.1 } else { grant.1.max(*until) };
            }
            // The task would acquire the lease for the former length.
            if shorter && let Some(completion) = page.completion.take() {
                completion.abort();
            }
        }
    }

    /// Whether the token is being abandoned.
    pub(crate) fn is_given_up(&self, token: Token) -> bool {
        self.pages().tokens.get(&token).is_some_and(|page| page.undoings > 0)
    }

    /// Records an undoing, before it is sent to a node.
    pub(crate) fn undoing(&self, token: Token, now: Moment) {
        self.page(token, now, |page| page.undoings = page.undoings.saturating_add(1));
    }

    /// Records the end of an undoing: this node has answered it, or nothing more is sent.
    pub(crate) fn undone(&self, token: Token, answered: Option<usize>) {
        if let Some(page) = self.pages().tokens.get_mut(&token) {
            page.undoings = page.undoings.saturating_sub(1);
        }
        if let Some(node) = answered {
            self.forget_tries(token, |at| at == node);
        }
        self.forget(token);
    }

    /// From now on the nodes show a lease of this token, instead of a try.
    pub(crate) fn is_lease(&self, token: Token) {
        self.forget_tries(token, |_| true);
    }

    /// Ends a grant. Returns how long it held, and the aborted task that was bringing it to other
    /// nodes. That task may still send a request until it ends.
    pub(crate) fn end(&self, token: Token) -> (Option<Moment>, Option<JoinHandle<()>>) {
        let mut pages = self.pages();
        let Some(page) = pages.tokens.get_mut(&token) else { return (None, None) };
        let completion = page.completion.take();
        if let Some(completion) = &completion {
            completion.abort();
        }
        (page.granted.take().map(|(_, until)| until), completion)
    }

    /// Forgets a token whose grants and undoings have ended.
    pub(crate) fn forget(&self, token: Token) {
        let mut pages = self.pages();
        let idle = pages.tokens.get(&token).is_some_and(|page| {
            let is_nothing = page.undoings == 0 && page.granted.is_none() && page.tried.is_empty();
            is_nothing && Arc::strong_count(&page.turn) == 1
        });
        if idle {
            pages.tokens.remove(&token);
        }
    }
}
