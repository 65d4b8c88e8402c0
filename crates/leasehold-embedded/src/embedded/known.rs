//! Records as this process left them, by their bytes in the file: a record that is still so there
//! needs neither its checksum verified nor its bytes read.
//!
//! What is kept is a pair of bytes and what they say, which is true whoever writes to the file and
//! whatever becomes of a transaction; whether the file has these bytes is looked at every time.

use std::sync::{Mutex, PoisonError};

use super::record::Record;

/// How many are kept, each in the place that its name falls on.
const PLACES: usize = 64;
/// Longer ones are few, and not kept.
const BYTES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Made when there is something to keep.
    places: Vec<Place>,
    /// Memory for the next value.
    spare: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Place {
    name: Vec<u8>,
    value: Vec<u8>,
    record: Option<Record>,
}

impl Known {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes out what these bytes say under this name, and a copy of them.
    pub(super) fn take(&self, name: &[u8], value: &[u8]) -> Option<(Record, Vec<u8>)> {
        self.with(|state| {
            let place = state.places.get_mut(place_of(name))?;
            if place.name != name || place.value != value {
                return None;
            }
            Some((place.record.take()?, std::mem::take(&mut place.value)))
        })
    }

    /// Keeps what these bytes say under this name.
    pub(super) fn keep(&self, name: &[u8], value: Vec<u8>, record: Record) {
        debug_assert!(Record::decode(name, &value).is_ok_and(|read| read == record));
        if value.len() > BYTES_MAX {
            return;
        }
        self.with(|state| {
            if state.places.is_empty() {
                state.places.resize(PLACES, Place::default());
            }
            if let Some(place) = state.places.get_mut(place_of(name)) {
                if place.name != name {
                    name.clone_into(&mut place.name);
                }
                place.value = value;
                place.record = Some(record);
            }
        });
    }

    /// Memory for a value; empty.
    pub(super) fn spare(&self) -> Vec<u8> {
        let mut spare = self.with(|state| std::mem::take(&mut state.spare));
        spare.clear();
        spare
    }

    /// Gives memory back, for the next value.
    pub(super) fn give_back(&self, spare: Vec<u8>) {
        if spare.capacity() <= 2 * BYTES_MAX {
            self.with(|state| state.spare = spare);
        }
    }
}

fn place_of(name: &[u8]) -> usize {
    let hash = name
        .iter()
        .fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    hash.wrapping_add(hash >> 6) % PLACES
}

#[cfg(test)]
mod tests {
    use leasehold_core::table::StoreTime;

    use super::*;

    #[test]
    fn only_the_same_bytes_of_the_same_name_are_known() {
        let known = Known::default();
        let record = Record::default();
        let mut value = Vec::new();
        record.encode(b"k", StoreTime::from_micros(5), None, &mut value).unwrap();
        known.keep(b"k", value.clone(), record.clone());
        assert_eq!(known.take(b"l", &value), None);
        for at in 0..value.len() {
            let mut other = value.clone();
            other[at] ^= 1;
            assert_eq!(known.take(b"k", &other), None);
            assert_eq!(known.take(b"k", &value[..at]), None);
        }
        assert_eq!(known.take(b"k", &value), Some((record, value.clone())));
        // Taken out, it may be changed.
        assert_eq!(known.take(b"k", &value), None);
    }
}
