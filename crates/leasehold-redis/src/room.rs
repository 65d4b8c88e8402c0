//! Remembers for how many connections of one store a server has room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

/// What all connections of one store know of it. Requests come first: where none of them has a connection, and one is
/// refused for want of room, messages give theirs up.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Connections for requests that are there.
    taken: usize,
    /// Whether none was there when one was refused, and none has come since.
    is_lacking: bool,
    /// What tells those for messages.
    listeners: Vec<Weak<Notify>>,
}

impl Room {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection for requests, until what is returned is dropped.
    pub(crate) fn take(self: &Arc<Self>) -> Taken {
        let mut places = self.places();
        places.taken = places.taken.saturating_add(1);
        places.is_lacking = false;
        drop(places);
        Taken(Arc::clone(self))
    }

    /// Takes in that a connection for requests was refused for want of room.
    pub(crate) fn refused(&self) {
        let mut places = self.places();
        if places.taken > 0 || places.is_lacking {
            return;
        }
        places.is_lacking = true;
        let told: Vec<_> = places.listeners.iter().filter_map(Weak::upgrade).collect();
        drop(places);
        for listener in told {
            listener.notify_one();
        }
    }

    /// Whether no request has a connection, for want of room.
    pub(crate) fn is_lacking(&self) -> bool {
        self.places().is_lacking
    }

    /// Has this notified once that is so.
    pub(crate) fn tell(&self, listener: &Arc<Notify>) {
        let mut places = self.places();
        places.listeners.retain(|other| other.strong_count() > 0);
        places.listeners.push(Arc::downgrade(listener));
    }
}

/// A connection for requests.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Room>);

impl Drop for Taken {
    fn drop(&mut self) {
        let mut places = self.0.places();
        places.taken = places.taken.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_lack_room_from_when_one_is_refused_and_none_is_there_until_one_is() {
        let room = Arc::<Room>::default();
        let (first, second) = (room.take(), room.take());
        room.refused();
        drop(first);
        room.refused();
        assert!(!room.is_lacking(), "one is there");
        drop(second);
        assert!(!room.is_lacking(), "none was refused");
        room.refused();
        assert!(room.is_lacking());
        let third = room.take();
        assert!(!room.is_lacking());
        drop(third);
        assert!(!room.is_lacking());
    }
}
