//! How fences, kinds and profiles are spelt: in what scripts take and answer, and in what is stored.

use std::num::NonZeroU32;

use leasehold_core::{Fence, Kind, Metadata, OwnerName};

use crate::names::{read_asker, read_metadata, read_owner};

/// The words of a value, taken one after the other. Answers to waiters are made of a dozen of them, for which
/// the standard library's searching and parsing take several times as long.
pub(crate) struct Words<'a>(pub(crate) &'a str);

impl<'a> Words<'a> {
    pub(crate) fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = until(b' ', self.0);
        self.0 = rest.unwrap_or_default();
        Some(word).filter(|word| !word.is_empty())
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        // So many digits fit into 64 bits whatever they are.
        const FIT: usize = 19;
        let mut number = 0_u64;
        let mut digits = 0_usize;
        let (eights, _) = self.0.as_bytes().as_chunks();
        for eight in eights {
            let Some(value) = eight_digits(*eight) else { break };
            number = number.wrapping_mul(100_000_000).wrapping_add(value);
            digits = digits.wrapping_add(8);
        }
        for byte in self.0.as_bytes().get(digits..).unwrap_or_default() {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            number = number.wrapping_mul(10).wrapping_add(digit.into());
            digits = digits.wrapping_add(1);
        }
        let (text, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest.strip_prefix(' ').or_else(|| rest.is_empty().then_some(rest))?;
        match digits {
            0 => None,
            1..=FIT => T::try_from(number).ok(),
            _ => T::try_from(text.parse().ok()?).ok(),
        }
    }
}

/// The number that so many digits are which begin there.
pub(crate) fn digits_at<const WIDTH: usize>(text: &[u8], at: usize) -> Option<u64> {
    let digits: &[u8; WIDTH] = text.get(at..)?.first_chunk()?;
    let (eights, rest) = digits.as_chunks();
    let mut number = 0_u64;
    for eight in eights {
        number = number.wrapping_mul(100_000_000).wrapping_add(eight_digits(*eight)?);
    }
    for byte in rest {
        let digit = Some(byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9)?;
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    Some(number)
}

/// Eight digits as a number: neighbours are put together at once, then pairs, then fours.
fn eight_digits(digits: [u8; 8]) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let digits = u64::from_le_bytes(digits);
    // A digit's upper half is three, and stays that when six is added to the lower one.
    let is_digit = |halves: u64| halves & (0xf0 * ONES) == 0x30 * ONES;
    if !is_digit(digits) || !is_digit(digits.wrapping_add(6 * ONES)) {
        return None;
    }
    let digits = digits & (0x0f * ONES);
    let pairs = (digits.wrapping_mul(10).wrapping_add(digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100).wrapping_add(pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours.wrapping_mul(10_000).wrapping_add(fours >> 32)) & 0xffff_ffff)
}

/// A text up to an ASCII character, and what is behind that, if it is there.
pub(crate) fn until(end: u8, text: &str) -> (&str, Option<&str>) {
    match text.bytes().position(|byte| byte == end) {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at.saturating_add(1)..)),
        None => (text, None),
    }
}

/// Reads `holds owner metadata [asker]`. Labels are for people: one that can't be read is none.
pub(crate) fn read_profile(text: &str) -> Option<(u32, OwnerName, Metadata, Option<OwnerName>)> {
    let (holds, rest) = until(b' ', text);
    let (owner, rest) = until(b' ', rest?);
    let (metadata, asker) = until(b' ', rest.unwrap_or_default());
    let asker = asker.and_then(read_asker);
    Some((Words(holds).number()?, read_owner(owner), read_metadata(metadata), asker))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_one_after_the_other_and_numbers_are_digits_that_fit() {
        let mut words = Words("7 0012 ü 18446744073709551615 4294967296 ");
        assert_eq!(words.number(), Some(7_u32));
        assert_eq!(words.number(), Some(12_u64));
        assert_eq!(words.word(), Some("ü"));
        assert_eq!(words.number(), Some(u64::MAX));
        assert_eq!(words.number::<u32>(), None);
        assert_eq!((words.word(), words.number::<u64>()), (None, None));
        for odd in ["", " ", "-1", "+1", "1x", "x1", "ü", "1.5", "18446744073709551616"] {
            assert_eq!(Words(odd).number::<u64>(), None, "{odd:?}");
        }
    }

    #[test]
    fn numbers_are_read_as_the_standard_library_reads_them() {
        for _ in 0..20_000 {
            let number = fastrand::u64(..) >> fastrand::u32(..64);
            let width = fastrand::usize(..24);
            let text = format!("{number:0width$} next");
            let mut words = Words(&text);
            assert_eq!(words.number(), Some(number), "{text}");
            assert_eq!(words.word(), Some("next"), "{text}");
            let at = fastrand::usize(..text.len() - 5);
            let odd = char::from(fastrand::u8(33..127));
            let text = format!("{}{odd}{}", &text[..at], &text[at + 1..]);
            let plain =
                text.split(' ').next().filter(|it| it.bytes().all(|it| it.is_ascii_digit()));
            let expected = plain.and_then(|plain| plain.parse::<u64>().ok());
            assert_eq!(Words(&text).number(), expected, "{text}");
        }
    }

    #[test]
    fn digits_are_read_where_they_are_and_nothing_else_is_taken_for_them() {
        let text = b"at 1795378205340951 0042;";
        assert_eq!(digits_at::<16>(text, 3), Some(1_795_378_205_340_951));
        assert_eq!(digits_at::<4>(text, 20), Some(42));
        assert_eq!((digits_at::<16>(text, 2), digits_at::<16>(text, 4)), (None, None));
        assert_eq!((digits_at::<5>(text, 20), digits_at::<4>(text, 22)), (None, None));
        assert_eq!((digits_at::<4>(text, 24), digits_at::<4>(text, 99)), (None, None));
    }

    #[test]
    fn a_profile_is_a_number_and_labels_of_which_the_last_may_be_missing() {
        let owner = |name: &str| OwnerName::new(name).unwrap();
        let none = (owner(""), Metadata::default(), None);
        let full = (owner("a b"), Metadata::new("ü").unwrap(), Some(owner("%")));
        let empty = (owner(""), Metadata::default(), Some(owner("")));
        for (text, labels) in [
            ("3 a%20b ü %25", full),
            ("3 a%2 \u{1}%", none.clone()),
            ("3  ", none.clone()),
            ("3 ", none),
            ("3   ", empty),
        ] {
            let (owner, metadata, asker) = labels;
            assert_eq!(read_profile(text), Some((3, owner, metadata, asker)), "{text:?}");
        }
        for odd in ["", "3", " a b", "x a b", "4294967296 a b"] {
            assert_eq!(read_profile(odd), None, "{odd:?}");
        }
    }
}
