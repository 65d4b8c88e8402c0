//! How fences, kinds and profiles are spelt: in what scripts take and answer, and in what is stored.

use std::num::NonZeroU32;

use leasehold_core::{Fence, Kind, Metadata, OwnerName};

use crate::names::{read_asker, read_label};

/// Reads `holds owner metadata [asker]`. Labels are for people: one that can't be read is none.
pub(crate) fn read_profile(text: &str) -> Option<(u32, OwnerName, Metadata, Option<OwnerName>)> {
    let (holds, rest) = text.split_once(' ')?;
    let label_end = rest.match_indices(' ').nth(1).map_or(rest.len(), |(at, _)| at);
    let (label, asker) = rest.split_at_checked(label_end)?;
    let (owner, metadata) = read_label(label);
    let asker = asker.strip_prefix(' ').and_then(read_asker);
    Some((holds.parse().ok()?, owner, metadata, asker))
}

/// The fence of a sequence that counts from the Unix epoch.
pub(crate) fn fence(epoch: u64, sequence: u64) -> Option<Fence> {
    Fence::new(epoch, sequence.checked_sub(Fence::ORIGIN_UNIX_US)?).ok()
}

/// The epoch and the sequence, counted from the Unix epoch, of a fence.
pub(crate) fn unix_parts(fence: Fence) -> (u64, u64) {
    (fence.epoch(), fence.sequence().saturating_add(Fence::ORIGIN_UNIX_US))
}

pub(crate) fn kind(limit: u32) -> Kind {
    NonZeroU32::new(limit).map_or(Kind::Lock, |limit| Kind::Semaphore { limit })
}
