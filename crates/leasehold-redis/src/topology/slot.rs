//! Computes the slot of a key, which decides the node that keeps it.

/// The number of slots of every cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key, from its hash tag if it has one (Redis Cluster specification, "Keys
/// distribution model": CRC-16/XMODEM modulo 16384).
pub(crate) fn slot_of(key: impl AsRef<[u8]>) -> u16 {
    let key = key.as_ref();
    let after = |mark: u8, text: &'_ [u8]| text.iter().position(|byte| *byte == mark);
    let tag = after(b'{', key)
        .and_then(|open| key.get(open.saturating_add(1)..))
        .and_then(|rest| rest.get(..after(b'}', rest)?))
        .filter(|tag| !tag.is_empty());
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_servers_compute() {
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of(""), 0);
    }

    #[test]
    fn only_a_tag_that_is_not_empty_counts() {
        assert_eq!(slot_of("leasehold:{foo}"), slot_of("foo"));
        assert_ne!(slot_of("a:{}"), slot_of(""));
        assert_ne!(slot_of("a:{foo"), slot_of("foo"));
    }
}
