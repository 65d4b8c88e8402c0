//! Chooses who learns of a lease's events: readers in the program, and the store's log.

use std::sync::OnceLock;
use std::time::Duration;

use leasehold_core::{Fence, Key, OwnerName};
use tokio::sync::broadcast;

use crate::audit::{KEPT, LockEvent, LockEventKind, LockEvents};
use crate::log::LogWriter;

/// The readers of a client's events. It works only for readers and a log.
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

    /// Reports an event of this owner's hold, or of the client's own, with the length of its
    /// cooldown.
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

    /// As [`tell`](Self::tell), also with the holder's note about the end of its work.
    pub(crate) fn tell_with(
        &self,
        key: &Key,
        fence: Fence,
        owner: Option<&OwnerName>,
        with: (Option<Duration>, Option<&str>),
        what: LockEventKind,
    ) {
        if let Some(readers) = self.readers.get() {
            // The readers may have gone.
            readers.send(LockEvent { key: key.clone(), fence, what }).ok();
        }
        if let Some(log) = &self.log {
            log.tell(key, fence, owner, with, what);
        }
    }
}
