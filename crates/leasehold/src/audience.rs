//! Chooses who learns of a lease's events: readers in the program, and the store's log.

use std::sync::OnceLock;
use std::time::Duration;

use leasehold_core::{Fence, Key, OwnerName};
use tokio::sync::broadcast;

use crate::audit::{KEPT, LockEvent, LockEventKind, LockEvents};
use crate::log::LogWriter;

/// To whom a client's events are told. Nothing is made, and nothing kept, before there is a reader, or
/// a log.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    readers: OnceLock<broadcast::Sender<LockEvent>>,
    log: Option<LogWriter>,
}

impl Audience {
    pub(crate) fn new(log: Option<LogWriter>) -> Self {
        Self { readers: OnceLock::new(), log }
    }

    pub(crate) const fn log(&self) -> Option<&LogWriter> {
        self.log.as_ref()
    }

    pub(crate) fn listen(&self) -> LockEvents {
        let receiver = self.readers.get_or_init(|| broadcast::Sender::new(KEPT)).subscribe();
        LockEvents::of(receiver)
    }

    /// Tells of this owner's hold, or of the client's own, and for how long the lock was closed with it.
    pub(crate) fn tell(
        &self,
        key: &Key,
        fence: Fence,
        owner: Option<&OwnerName>,
        closed_for: Option<Duration>,
        what: LockEventKind,
    ) {
        self.tell_with(key, fence, owner, (closed_for, None), what);
    }

    /// Tells it with the length for which the lock was closed, and what the holder noted of its work's end.
    pub(crate) fn tell_with(
        &self,
        key: &Key,
        fence: Fence,
        owner: Option<&OwnerName>,
        with: (Option<Duration>, Option<&str>),
        what: LockEventKind,
    ) {
        if let Some(readers) = self.readers.get() {
            // Those that listened may have gone.
            readers.send(LockEvent { key: key.clone(), fence, what }).ok();
        }
        if let Some(log) = &self.log {
            log.tell(key, fence, owner, with, what);
        }
    }
}
