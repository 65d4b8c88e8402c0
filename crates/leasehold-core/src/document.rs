//! The documents about a lock, in the one form that library and command write.
//!
//! A length of time is in whole milliseconds and says so in its name. A fence is text, since many
//! readers of JSON round numbers above 2⁵³. A kind and a mode are objects with a `name`.

use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::fence::Fence;
use crate::store::{HolderInfo, Kind, LockInfo, Mode, WaiterInfo};

fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A fence in a document.
struct Text(Fence);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

/// The mode of a hold, in a document.
struct ModeObject(Mode);

impl Serialize for ModeObject {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Mode::Exclusive | Mode::Shared | Mode::Joint(_) => {
                let mut object = to.serialize_struct("Mode", 1)?;
                let shared = self.0 == Mode::Shared;
                object.serialize_field("name", if shared { "shared" } else { "exclusive" })?;
                object.end()
            }
            Mode::Permits { count, limit } => {
                let mut object = to.serialize_struct("Mode", 3)?;
                object.serialize_field("name", "permits")?;
                object.serialize_field("count", &count)?;
                object.serialize_field("limit", &limit)?;
                object.end()
            }
        }
    }
}

/// The kind of a lock, in a document.
struct KindObject<'a>(&'a LockInfo);

impl Serialize for KindObject<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.kind {
            Kind::Lock => {
                let mut object = to.serialize_struct("Kind", 1)?;
                object.serialize_field("name", "lock")?;
                object.end()
            }
            Kind::Semaphore { limit } => {
                let mut object = to.serialize_struct("Kind", 4)?;
                object.serialize_field("name", "semaphore")?;
                object.serialize_field("limit", &limit)?;
                object.serialize_field("held", &self.0.permits_held())?;
                object.serialize_field("free", &self.0.permits_free())?;
                object.end()
            }
        }
    }
}

impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut document = to.serialize_struct("LockInfo", 7)?;
        document.serialize_field("key", &self.key)?;
        document.serialize_field("kind", &KindObject(self))?;
        document.serialize_field("holders", &self.holders)?;
        document.serialize_field("waiters", &self.waiters)?;
        document.serialize_field("closed_for_ms", &self.closed_for.map(ms))?;
        document.serialize_field("clock_set_back_ms", &ms(self.clock_set_back))?;
        document.serialize_field("last_fence", &Text(self.last_fence))?;
        document.end()
    }
}

impl Serialize for HolderInfo {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut document = to.serialize_struct("HolderInfo", 8)?;
        document.serialize_field("owner", &self.owner)?;
        document.serialize_field("metadata", &self.metadata)?;
        document.serialize_field("mode", &ModeObject(self.mode))?;
        document.serialize_field("fence", &Text(self.fence))?;
        document.serialize_field("holds", &self.holds)?;
        document.serialize_field("held_for_ms", &ms(self.held_for))?;
        document.serialize_field("remaining_ms", &ms(self.remaining))?;
        document.serialize_field("asked_by", &self.asked_by)?;
        document.end()
    }
}

impl Serialize for WaiterInfo {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut document = to.serialize_struct("WaiterInfo", 5)?;
        document.serialize_field("owner", &self.owner)?;
        document.serialize_field("metadata", &self.metadata)?;
        document.serialize_field("mode", &ModeObject(self.mode))?;
        document.serialize_field("waited_ms", &ms(self.waited))?;
        document.serialize_field("behind", &self.behind)?;
        document.end()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use serde_json::json;

    use super::*;
    use crate::key::Key;
    use crate::label::{Metadata, OwnerName};

    #[test]
    fn a_lock_is_a_document_with_units_in_its_names() {
        let permits = |n| NonZeroU32::new(n).unwrap();
        let fence = Fence::from_value(9_007_199_254_740_993).unwrap();
        let kind = Kind::Semaphore { limit: permits(5) };
        let mut info = LockInfo::new(Key::new("floor").unwrap(), kind, fence);
        let mode = Mode::Permits { count: permits(2), limit: permits(5) };
        let length = Duration::from_micros(1_500_900);
        let mut holder = HolderInfo::new(mode, fence, length, length);
        holder.owner = OwnerName::new("web-7").unwrap();
        holder.metadata = Metadata::new("a=1\nb=x y").unwrap();
        info.holders.push(holder);
        info.waiters.push(WaiterInfo::new(Mode::Shared, length));
        info.closed_for = Some(length);
        assert_eq!(
            serde_json::to_value(&info).unwrap(),
            json!({
                "key": "floor",
                "kind": { "name": "semaphore", "limit": 5, "held": 2, "free": 3 },
                "holders": [{
                    "owner": "web-7",
                    "metadata": "a=1\nb=x y",
                    "mode": { "name": "permits", "count": 2, "limit": 5 },
                    "fence": "9007199254740993",
                    "holds": 1,
                    "held_for_ms": 1500,
                    "remaining_ms": 1500,
                    "asked_by": null,
                }],
                "waiters": [{
                    "owner": "",
                    "metadata": "",
                    "mode": { "name": "shared" },
                    "waited_ms": 1500,
                    "behind": 0,
                }],
                "closed_for_ms": 1500,
                "clock_set_back_ms": 0,
                "last_fence": "9007199254740993",
            })
        );
        info.kind = Kind::Lock;
        assert_eq!(serde_json::to_value(&info).unwrap()["kind"], json!({ "name": "lock" }));
    }
}
