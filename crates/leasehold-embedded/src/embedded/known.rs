//! Records as this process left them, by their bytes in the file: a record that is still so there
//! needs neither its checksum verified nor its bytes read.
//!
//! What is kept is a pair of bytes and what they say, which is true whoever writes to the file and
//! whatever becomes of a transaction; whether the file has these bytes is looked at every time. Where
//! it has them is known too, until a transaction of any process has changed the file's tree.

use super::pair::Place;
use super::record::Record;

/// How many are kept, each in the slot that its name falls on.
const SLOTS: usize = 64;
/// Longer ones are few, and not kept.
const BYTES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Known {
    /// Made when there is something to keep.
    slots: Vec<Slot>,
    /// Memory for the next record's bytes.
    spare: Vec<u8>,
}

/// What is known of one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    name: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    /// What the bytes say, while that is known.
    pub(super) record: Record,
    pub(super) is_known: bool,
    /// Where the value of the name is, as long as this is the last transaction.
    pub(super) found: Option<(usize, Place)>,
}

impl Slot {
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Known {
    /// What is known of a name, and memory for its next bytes, which is empty.
    pub(super) fn of(&mut self, name: &[u8]) -> Option<(&mut Slot, &mut Vec<u8>)> {
        let Self { slots, spare } = self;
        if slots.is_empty() {
            slots.resize(SLOTS, Slot::default());
        }
        let slot = slots.get_mut(slot_of(name))?;
        if slot.name != name {
            name.clone_into(&mut slot.name);
            slot.is_known = false;
            slot.found = None;
        }
        spare.clear();
        Some((slot, spare))
    }

    /// Takes out what these bytes say under this name, and a copy of them.
    pub(super) fn take(&mut self, name: &[u8], bytes: &[u8]) -> Option<(Record, Vec<u8>)> {
        let slot = self.slots.get_mut(slot_of(name))?;
        if slot.name != name || !slot.is_known || slot.bytes != bytes {
            return None;
        }
        slot.is_known = false;
        Some((std::mem::take(&mut slot.record), std::mem::take(&mut slot.bytes)))
    }

    /// Keeps what these bytes say under this name.
    pub(super) fn keep(&mut self, name: &[u8], bytes: Vec<u8>, record: Record) {
        debug_assert!(Record::decode(name, &bytes).is_ok_and(|read| read == record));
        if bytes.len() > BYTES_MAX {
            return;
        }
        if let Some((slot, _)) = self.of(name) {
            slot.bytes = bytes;
            slot.record = record;
            slot.is_known = true;
        }
    }

    /// Memory for a record's bytes; empty.
    pub(super) fn spare(&mut self) -> Vec<u8> {
        let mut spare = std::mem::take(&mut self.spare);
        spare.clear();
        spare
    }

    /// Gives memory back, for the next record.
    pub(super) fn give_back(&mut self, spare: Vec<u8>) {
        if spare.capacity() <= 2 * BYTES_MAX {
            self.spare = spare;
        }
    }
}

fn slot_of(name: &[u8]) -> usize {
    let hash = name
        .iter()
        .fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    hash.wrapping_add(hash >> 6) % SLOTS
}

#[cfg(test)]
mod tests {
    use leasehold_core::table::StoreTime;

    use super::*;

    #[test]
    fn only_the_same_bytes_of_the_same_name_are_known() {
        let mut known = Known::default();
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
