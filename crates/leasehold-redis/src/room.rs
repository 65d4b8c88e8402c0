//! Notes whether a server has room for the connections of one store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

/// The state that all connections of one store share. Requests come first: if they have no
/// connection and the server refuses one, the connections for notifications close.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Open connections for requests.
    taken: usize,
    /// Set when the server refuses a connection for requests and none is open; unset when one
    /// opens.
    is_lacking: bool,
    /// These wake the connections for notifications.
    listeners: Vec<Weak<Notify>>,
}

impl Room {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection for requests until the returned value is dropped.
    pub(crate) fn take(self: &Arc<Self>) -> Taken {
        let mut places = self.places();
        places.taken = places.taken.saturating_add(1);
        places.is_lacking = false;
        drop(places);
        Taken(Arc::clone(self))
    }

    /// Notes that the server refused a connection for requests because it is full.
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

    /// Whether requests lack a connection because the server is full.
    pub(crate) fn is_lacking(&self) -> bool {
        self.places().is_lacking
    }

    /// Notifies this listener when requests begin to lack a connection.
    pub(crate) fn tell(&self, listener: &Arc<Notify>) {
        let mut places = self.places();
        places.listeners.retain(|other| other.strong_count() > 0);
        places.listeners.push(Arc::downgrade(listener));
    }
}

/// A connection for requests, which counts until it is dropped.
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
