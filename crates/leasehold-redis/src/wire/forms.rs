//! Packs numbers, tokens and texts for records and for requests.
//!
//! The forms belong to the scripts' `struct` library (by Roberto Ierusalimschy, built into Redis
//! and Valkey), all little-endian. `B`, `H` and `I` are numbers of 1, 2 and 4 bytes, `d` is a
//! double, `cN` are N bytes.

/// The version of the stored format: the upper half of a state's first byte.
pub(crate) const VERSION: u64 = 1;

/// Later than all moments, and the largest number up to which doubles are exact.
pub(crate) const FAR: u64 = (1 << 53) - 1;

/// A state's shape; each begins with the fields of the one before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Shape {
    /// A lock that is free, or has one holder.
    Plain = 1,
    /// A lock with one holder, and one range of positions in its queue.
    Line,
    /// Any other.
    All,
}

impl Shape {
    pub(crate) const fn byte(self) -> u64 {
        VERSION * 16 + self as u64
    }
}

/// Shape; expiry of the key; token; end of its lease, 0 without one; time of the last grant;
/// sequence after the last fence; epoch.
pub(crate) const PLAIN: &str = "<Bdc16dddH";
/// Adds the number of waiters; the first and the last position; the longest heartbeat timeout; a
/// time before which no position ends.
pub(crate) const LINE: &str = "<Bdc16dddHIdddd";
/// Adds these fields, and then further ranges of positions:
///
/// - how far the lock's time is ahead of the server's clock;
/// - whether a release was requested of the holder;
/// - the end of the cooldown, and the limit;
/// - where a sweep of the queue got to, and the earliest end that it met;
/// - the next positions;
/// - the number of sharers, and what they hold;
/// - a time before which no sharer's lease ends, and the sharer whose lease ends first;
/// - where a sweep of the sharers got to, and the earliest end that it met.
pub(crate) const ALL: &str = "<Bdc16dddHIdddddBdIddddIddIId";
/// A waiter: position; time of its last request; heartbeat; heartbeat timeout; number of waiters
/// behind it; arrival; number of fences; mode; permits; ticket; length of the channel. Then come
/// the channel and the label.
pub(crate) const WAITER: &str = "<c1ddIdIdIc1dc8B";
/// The fields of a waiter that each heartbeat renews, and its arrival.
pub(crate) const HEARD: &str = "<c1ddIdId";
/// A sharer: number; end of its lease; first fence and epoch; number of fences; mode; permits. Then
/// come the fields that `about` has for a holder.
pub(crate) const SHARER: &str = "<c1dddHIc1d";
/// What a request begins with: epoch; the moment after which it is refused; highest sequence seen;
/// how long a lock is remembered.
pub(crate) const CLIENT: &str = "<Hddd";
/// A lock that is wanted: token; where the request says what is wanted.
pub(crate) const WHOSE: &str = "<c16I";

/// The bytes of [`CLIENT`], and of [`WHOSE`].
pub(crate) const CLIENT_SIZE: usize = 26;
pub(crate) const WHOSE_SIZE: usize = 20;

/// How many bytes a form takes.
pub(crate) fn form_size(form: &str) -> u64 {
    let mut size: u64 = 0;
    let mut rest = form.trim_start_matches(['<', '>']);
    while let Some(field) = rest.chars().next() {
        let digits = rest.get(1..).unwrap_or_default();
        let width = digits.bytes().take_while(u8::is_ascii_digit).count();
        let (number, onward) = digits.split_at_checked(width).unwrap_or_default();
        size = size.saturating_add(match field {
            'B' => 1,
            'H' => 2,
            'I' => 4,
            'd' => 8,
            _ => number.parse().unwrap_or(0),
        });
        rest = onward;
    }
    size
}

/// A whole number as a double, limited to [`FAR`].
fn double(number: u64) -> f64 {
    let number = number.min(FAR);
    let [high, low] =
        [number >> 32, number & 0xffff_ffff].map(|half| u32::try_from(half).unwrap_or(0));
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// As [`double`], packed.
pub(crate) fn double_bytes(number: u64) -> [u8; 8] {
    double(number).to_le_bytes()
}

/// The whole number that a double is, if it is one up to [`FAR`].
fn whole(double: f64) -> Option<u64> {
    /// The bits of a fraction, and the bias of the exponent.
    const FRACTION: u64 = 52;
    const EXPONENT: u64 = 1_023;
    let bits = double.to_bits();
    if bits == 0 {
        return Some(0);
    }
    // A negative number has the first bit set, and so a larger exponent than fits.
    let exponent =
        (bits >> FRACTION).checked_sub(EXPONENT).filter(|exponent| *exponent <= FRACTION)?;
    let digits = bits & ((1 << FRACTION) - 1) | (1 << FRACTION);
    let behind = FRACTION - exponent;
    (digits.trailing_zeros() >= u32::try_from(behind).ok()?).then_some(digits >> behind)
}

/// Packs values.
pub(crate) trait Pack {
    fn byte(&mut self, number: u8) -> &mut Self;
    fn short(&mut self, number: u64) -> &mut Self;
    fn int(&mut self, number: u32) -> &mut Self;
    fn double(&mut self, number: u64) -> &mut Self;
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self;
    /// A negative number stands for `None`.
    fn number_or_none(&mut self, number: Option<u64>) -> &mut Self;
}

impl Pack for Vec<u8> {
    fn byte(&mut self, number: u8) -> &mut Self {
        self.push(number);
        self
    }

    fn short(&mut self, number: u64) -> &mut Self {
        self.bytes(&u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes())
    }

    fn int(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn double(&mut self, number: u64) -> &mut Self {
        self.bytes(&double_bytes(number))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.extend_from_slice(bytes);
        self
    }

    fn number_or_none(&mut self, number: Option<u64>) -> &mut Self {
        self.bytes(&number.map_or(-1.0, double).to_le_bytes())
    }
}

/// Takes packed values one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed<'a>(pub(crate) &'a [u8]);

impl<'a> Packed<'a> {
    pub(crate) fn array<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn short(&mut self) -> Option<u64> {
        self.array().map(u16::from_le_bytes).map(u64::from)
    }

    pub(crate) fn int(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn double(&mut self) -> Option<u64> {
        self.array().map(f64::from_le_bytes).and_then(whole)
    }

    pub(crate) fn text(&mut self, length: usize) -> Option<&'a str> {
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_come_back_from_doubles_and_nothing_else_is_taken_for_one() {
        let powers = (0..53).map(|power| 1_u64 << power);
        let near = powers.flat_map(|power| [power - 1, power, power + 1]);
        let random = (0..100_000).map(|_| fastrand::u64(..=FAR) >> fastrand::u32(..53));
        for number in near.chain(random).chain([0, FAR, 1_800_000_000_123_457]) {
            let number = number.min(FAR);
            assert_eq!(whole(double(number)), Some(number));
        }
        assert_eq!(double(u64::MAX), double(FAR));
        for odd in [
            -1.0,
            -0.0,
            0.5,
            1.25,
            f64::NAN,
            f64::INFINITY,
            9_007_199_254_740_992.0,
            1e300,
            f64::MIN_POSITIVE,
        ] {
            assert_eq!(whole(odd), None, "{odd}");
        }
    }

    #[test]
    fn forms_have_the_sizes_that_the_format_says() {
        let sizes = [PLAIN, LINE, ALL, WAITER, HEARD, SHARER, CLIENT, WHOSE].map(form_size);
        assert_eq!(sizes, [51, 87, 176, 63, 41, 40, CLIENT_SIZE as u64, WHOSE_SIZE as u64]);
        for (shape, longer) in [(PLAIN, LINE), (LINE, ALL), (HEARD, WAITER)] {
            assert!(longer.starts_with(shape));
        }
    }

    #[test]
    fn what_is_packed_is_taken_out_again_in_order() {
        let mut bytes = Vec::new();
        bytes.byte(7).short(300).int(70_000).double(1 << 52).bytes(&[9; 16]).bytes("ü".as_bytes());
        let mut packed = Packed(&bytes);
        assert_eq!(
            (packed.byte(), packed.short(), packed.int()),
            (Some(7), Some(300), Some(70_000))
        );
        assert_eq!((packed.double(), packed.array()), (Some(1 << 52), Some([9; 16])));
        assert_eq!((packed.text(2), packed.byte()), (Some("ü"), None));
    }
}
