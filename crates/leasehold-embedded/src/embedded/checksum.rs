//! Computes the checksum of records and of the header.

/// A checksum against accidents, not attacks. Like wyhash (Wang Yi), it mixes sixteen bytes at a
/// time by folding the halves of a 128-bit product, and folds the result to 32 bits. The last bytes
/// are read as whole words too, so some count twice.
pub(crate) fn checksum(name: &[u8], version: u8, rest: &[u8]) -> u32 {
    /// Digits of pi: numbers without a pattern.
    const START: u64 = 0x243f_6a88_85a3_08d3;
    const OTHER: u64 = 0x1319_8a2e_0370_7344;

    #[expect(clippy::cast_possible_truncation, reason = "each half by itself")]
    fn step(hash: u64, [first, last]: [u64; 2]) -> u64 {
        let product = u128::from(first ^ hash).wrapping_mul(u128::from(last ^ OTHER));
        product as u64 ^ (product >> 64) as u64
    }

    /// At most sixteen bytes as two words.
    fn words(part: &[u8]) -> [u64; 2] {
        if let (Some(first), Some(last)) = (part.first_chunk(), part.last_chunk()) {
            [first, last].map(|word| u64::from_le_bytes(*word))
        } else if let (Some(first), Some(last)) = (part.first_chunk(), part.last_chunk()) {
            [first, last].map(|word| u64::from(u32::from_le_bytes(*word)))
        } else {
            [part.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0]
        }
    }

    let mut hash = START ^ u64::from(version);
    for part in [name, rest] {
        let (whole, _) = part.as_chunks::<16>();
        hash = whole.iter().fold(hash, |hash, sixteen| step(hash, words(sixteen)));
        hash = step(hash, words(part.last_chunk::<16>().map_or(part, |last| last)));
        hash = step(hash, [part.len() as u64, 0]);
    }
    let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) ^ u32::from_le_bytes([e, f, g, h])
}
