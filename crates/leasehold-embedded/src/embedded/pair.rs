//! A value with room for two [records](super::record), of which one counts: the next one is written
//! beside it, in place, and counts from the store of one byte on. So most changes of a record need no
//! transaction of LMDB's.
//!
//! Layout: version (1 byte), which of the two counts (1 byte), then two halves of equal size, each
//! the length of its record (2 bytes), the record, and unused bytes. What the bytes of a
//! process that is killed say, is what it stored last: so wherever it is killed, one whole record
//! counts. The one that no longer counts loses its length right after, so that a damaged byte never
//! brings it back.
//!
//! A crash of the machine may leave anything, and voids the store anyway.

use std::ops::Range;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

/// Beyond all versions of single records.
const VERSION: u8 = 0x80;
/// Where it stands which half counts, and where the halves begin.
const WHICH: usize = 1;
const HEAD: usize = 2;
/// What stands there for each: more than one bit apart, so that no damaged bit makes the other of it.
const MARKS: [u8; 2] = [0x35, 0xca];
/// The length of a record, before it.
const LENGTH: usize = 2;
/// What a half is a multiple of. The record of a lock with a holder has about 130 bytes.
const GRAIN: usize = 32;
/// Longer records are of locks with many holders and waiters, and stand alone.
const RECORD_MAX: usize = 320;

/// Where in memory a value is that has room for two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    address: usize,
    bytes: usize,
}

impl Place {
    pub(super) fn of(value: &[u8]) -> Option<Self> {
        let paired = value.first() == Some(&VERSION);
        paired.then(|| Self { address: value.as_ptr().expose_provenance(), bytes: value.len() })
    }

    /// The value there.
    ///
    /// # Safety
    ///
    /// It is where it was, and nobody writes to it for as long as it is looked at.
    pub(super) unsafe fn value<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(with_exposed_provenance(self.address), self.bytes) }
    }
}

/// Where the next record goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Of the value, in memory.
    address: usize,
    half: usize,
    counts: usize,
}

/// The record that counts in a value, which may be a record alone. `None` where it can't be told.
pub(super) fn record(value: &[u8]) -> Option<&[u8]> {
    if value.first() != Some(&VERSION) {
        return Some(value);
    }
    let (half, counts) = halves(value)?;
    record_in(value, half, counts)
}

/// Both records of a value in which it can't be told which one counts.
pub(super) fn both(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let half = value.len().saturating_sub(HEAD) / 2;
    [0, 1].into_iter().filter_map(move |which| value.get(range(half, which))?.get(LENGTH..))
}

/// Makes of memory that is empty a value with room for two, in which this record counts; where it is
/// too long for one, the record alone.
pub(super) fn make(record: &[u8], value: &mut Vec<u8>) {
    let Ok(length) = u16::try_from(record.len()) else { return value.extend(record) };
    if record.len() > RECORD_MAX {
        return value.extend(record);
    }
    let half = LENGTH.saturating_add(record.len()).next_multiple_of(GRAIN);
    value.extend([VERSION, MARKS[0]]);
    value.extend(length.to_le_bytes());
    value.extend(record);
    value.resize(HEAD.saturating_add(half.saturating_mul(2)), 0);
}

fn halves(value: &[u8]) -> Option<(usize, usize)> {
    let mark = value.get(WHICH)?;
    let counts = MARKS.iter().position(|other| other == mark)?;
    Some((value.len().checked_sub(HEAD)? / 2, counts))
}

fn range(half: usize, which: usize) -> Range<usize> {
    let from = HEAD.saturating_add(half.saturating_mul(which));
    from..from.saturating_add(half)
}

fn record_in(value: &[u8], half: usize, which: usize) -> Option<&[u8]> {
    let (length, room) = value.get(range(half, which))?.split_first_chunk::<LENGTH>()?;
    room.get(..usize::from(u16::from_le_bytes(*length)))
}

impl Pair {
    /// Where the next record of this value goes, which has room for two.
    pub(super) fn of(value: &[u8]) -> Option<Self> {
        if value.first() != Some(&VERSION) {
            return None;
        }
        let (half, counts) = halves(value)?;
        Some(Self { address: value.as_ptr().expose_provenance(), half, counts })
    }

    pub(super) const fn fits(self, record: &[u8]) -> bool {
        record.len() <= self.half.saturating_sub(LENGTH)
    }

    /// Has another record count, if it [fits](Self::fits).
    ///
    /// # Safety
    ///
    /// The value is where it was and as it was, in memory that may be written, and nobody else
    /// reads or writes it meanwhile.
    pub(super) unsafe fn replace(self, record: &[u8]) -> bool {
        let Ok(length) = u16::try_from(record.len()) else { return false };
        if !self.fits(record) {
            return false;
        }
        let next = 1 - self.counts;
        let value = with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: both halves, and the byte before them, are in the value, of which the caller says
        // that nobody else has a reference to it; the record is not longer than the half has room.
        unsafe {
            let to = value.add(range(self.half, next).start);
            to.copy_from_nonoverlapping(length.to_le_bytes().as_ptr(), LENGTH);
            to.add(LENGTH).copy_from_nonoverlapping(record.as_ptr(), record.len());
            AtomicU8::from_ptr(value.add(WHICH)).store(MARKS[next], Ordering::Release);
            // Earlier, it would leave nothing that counts.
            compiler_fence(Ordering::SeqCst);
            value.add(range(self.half, self.counts).start).write_bytes(0, LENGTH);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(first: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        make(first, &mut value);
        value
    }

    fn replace(value: &mut Vec<u8>, record: &[u8]) -> bool {
        let address = value.as_mut_ptr().expose_provenance();
        let pair = Pair { address, ..Pair::of(value).unwrap() };
        // SAFETY: the vector is not touched meanwhile.
        unsafe { pair.replace(record) }
    }

    #[test]
    fn the_record_that_was_written_last_counts() {
        let mut value = value(&[1; 100]);
        let length = value.len();
        for n in 2..50 {
            let next = vec![n; usize::from(n)];
            assert!(replace(&mut value, &next));
            assert_eq!(record(&value), Some(&*next));
        }
        let room = length / 2 - HEAD / 2 - LENGTH;
        assert!(!replace(&mut value, &vec![7; room + 1]));
        assert_eq!(record(&value), Some(&*vec![49; 49]));
        assert!(replace(&mut value, &vec![7; room]));
        assert_eq!((record(&value), value.len()), (Some(&*vec![7; room]), length));
    }

    #[test]
    fn wherever_writing_ends_one_whole_record_counts() {
        let (old, new) = ([1; 90], [3; 110]);
        for turns in [0, 1] {
            let mut begun = value(&[9; 110]);
            for _ in 0..=turns {
                assert!(replace(&mut begun, &old));
            }
            let mut done = begun.clone();
            assert!(replace(&mut done, &new));
            let pair = Pair::of(&begun).unwrap();
            let (now, next) = (range(pair.half, pair.counts), range(pair.half, 1 - pair.counts));
            // The half that does not count yet is written, in whatever order.
            let mut at = begun.clone();
            for byte in next {
                at[byte] = done[byte];
                assert_eq!(record(&at), Some(&old[..]), "{byte}");
            }
            at[WHICH] = done[WHICH];
            assert_eq!(record(&at), Some(&new[..]));
            for byte in now {
                at[byte] = done[byte];
                assert_eq!(record(&at), Some(&new[..]), "{byte}");
            }
            assert_eq!(at, done);
        }
    }

    #[test]
    fn no_damage_brings_back_what_counted_before() {
        let mut value = value(&[1; 90]);
        assert!(replace(&mut value, &[2; 90]));
        for at in 0..value.len() {
            for other in 0..=u8::MAX {
                let mut damaged = value.clone();
                damaged[at] = other;
                assert_ne!(record(&damaged), Some(&[1; 90][..]), "{at}: {other}");
            }
        }
    }

    #[test]
    fn a_long_record_stands_alone() {
        let long = vec![1; RECORD_MAX + 1];
        let value = value(&long);
        assert_eq!((record(&value), value.len()), (Some(&*long), long.len()));
        assert!(Pair::of(&value).is_none());
    }
}
