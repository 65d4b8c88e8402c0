//! Encodes fences, kinds and labels for scripts and for records.

use std::num::NonZeroU32;

use leasehold_core::{Fence, FenceBlock, Kind, Metadata, OwnerName};

use crate::wire::names::{read_asker, read_metadata, read_owner};

/// What is stored about a holder for people, and when its lease was granted.
#[derive(Debug)]
pub(crate) struct About {
    /// µs since the Unix epoch.
    pub(crate) granted: u64,
    pub(crate) count: u32,
    pub(crate) holds: u32,
    pub(crate) owner: OwnerName,
    pub(crate) metadata: Metadata,
    pub(crate) asked_by: Option<OwnerName>,
}

/// Reads `SECONDS MICROS COUNT HOLDS OWNER METADATA [ASKER]`. Labels are for people, so an
/// unreadable one counts as empty.
pub(crate) fn read_about(text: &[u8]) -> Option<About> {
    let text = String::from_utf8_lossy(text);
    let mut words = text.splitn(7, ' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (seconds, micros) = (number()?, number()?);
    let (count, holds) = (u32::try_from(number()?).ok()?, u32::try_from(number()?).ok()?);
    let granted = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    let owner = read_owner(words.next()?);
    let metadata = read_metadata(words.next().unwrap_or_default());
    let asked_by = words.next().and_then(read_asker);
    Some(About { granted, count, holds, owner, metadata, asked_by })
}

/// Reads `COUNT HOLDS OWNER METADATA`, the label of a waiter.
pub(crate) fn read_label(text: &[u8]) -> (OwnerName, Metadata) {
    let text = String::from_utf8_lossy(text);
    let mut words = text.splitn(4, ' ').skip(2);
    let owner = words.next().map(read_owner).unwrap_or_default();
    (owner, words.next().map(read_metadata).unwrap_or_default())
}

/// The fence of a sequence that counts from the Unix epoch.
pub(crate) fn fence(epoch: u64, sequence: u64) -> Option<Fence> {
    Fence::new(epoch, sequence.checked_sub(Fence::ORIGIN_UNIX_US)?).ok()
}

/// The block of `count` fences from `first` on; [`Fence::ZERO`] if none was issued.
pub(crate) fn block(epoch: u64, first: u64, count: u32) -> Option<FenceBlock> {
    let first = if first == 0 { Fence::ZERO } else { fence(epoch, first)? };
    Some(FenceBlock::new(first, count))
}

/// The epoch of a fence, and its sequence, counted from the Unix epoch.
pub(crate) fn unix_parts(fence: Fence) -> (u64, u64) {
    (fence.epoch(), fence.sequence().saturating_add(Fence::ORIGIN_UNIX_US))
}

pub(crate) fn kind(limit: u32) -> Kind {
    NonZeroU32::new(limit).map_or(Kind::Lock, |limit| Kind::Semaphore { limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_holder_is_numbers_and_labels_of_which_the_last_may_be_missing() {
        let owner = |name: &str| OwnerName::new(name).unwrap();
        let none = (owner(""), Metadata::default(), None);
        let full = (owner("a b"), Metadata::new("ü").unwrap(), Some(owner("%")));
        let empty = (owner(""), Metadata::default(), Some(owner("")));
        for (text, labels) in [
            ("7 5 2 3 a%20b ü %25", full),
            ("7 5 2 3 a%2 \u{1}%", none.clone()),
            ("7 5 2 3  ", none.clone()),
            ("7 5 2 3 ", none),
            ("7 5 2 3   ", empty),
        ] {
            let about = read_about(text.as_bytes()).unwrap();
            assert_eq!((about.granted, about.count, about.holds), (7_000_005, 2, 3), "{text:?}");
            assert_eq!((about.owner, about.metadata, about.asked_by), labels, "{text:?}");
        }
        for odd in ["", "7 5 2 3", "7 5 2 x a b", "7 5 4294967296 1 a b", "-7 5 2 3 a b"] {
            assert!(read_about(odd.as_bytes()).is_none(), "{odd:?}");
        }
    }
}
