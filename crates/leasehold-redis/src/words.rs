//! What a script is told of one lock: its key, a token, and what is asked.

use std::fmt::Display;
use std::io::Write as _;

use leasehold_core::{Key, Token};

use crate::names::Names;

/// Appends a value. Writing to bytes in memory fails only where the value itself does.
pub(crate) fn push(text: &mut Vec<u8>, value: impl Display) {
    let _written = write!(text, "{value}");
}

/// The digits of a token, eight at a time: each half of a byte in a byte of its own.
pub(crate) fn token_digits(token: &Token) -> [u8; Words::TOKEN] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut digits = [0; Words::TOKEN];
    for (eight, four) in digits.chunks_exact_mut(8).zip(token.as_bytes().as_chunks().0) {
        let all = u64::from(u32::from_be_bytes(*four));
        let all = (all | (all << 16)) & 0x0000_ffff_0000_ffff;
        let all = (all | (all << 8)) & 0x00ff_00ff_00ff_00ff;
        let all = (all | (all << 4)) & (0x0f * ONES);
        // From ten on they are letters, which do not follow the digits.
        let letters = ((all + 6 * ONES) >> 4) & ONES;
        let written = all + u64::from(b'0') * ONES + letters * u64::from(b'a' - b'0' - 10);
        eight.copy_from_slice(&written.to_be_bytes());
    }
    digits
}

/// A number with zeros before it, in so many digits, as long as it fits. What formats any value takes several
/// times as long.
pub(crate) fn digits<const WIDTH: usize>(number: u64) -> [u8; WIDTH] {
    let width = u32::try_from(WIDTH).unwrap_or(u32::MAX);
    if 10_u64.checked_pow(width).is_some_and(|end| number >= end) {
        return [b'9'; WIDTH];
    }
    let mut digits = [b'0'; WIDTH];
    let mut rest = number;
    for part in digits.rchunks_mut(8) {
        let eight = eight_digits(rest % 100_000_000);
        part.copy_from_slice(eight.get(8 - part.len()..).unwrap_or_default());
        rest /= 100_000_000;
    }
    digits
}

/// A number below a hundred million: all halves are taken apart at once, then all quarters, then all eighths, each
/// by a multiplication that is exact for numbers so small.
fn eight_digits(number: u64) -> [u8; 8] {
    let halves = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let quarters = hundreds | ((halves - 100 * hundreds) << 16);
    let tens = ((quarters * 103) >> 10) & 0x000f_000f_000f_000f;
    let eighths = tens | ((quarters - 10 * tens) << 8);
    (eighths + 0x3030_3030_3030_3030).to_le_bytes()
}

/// Appends a number in so many digits, as [`digits`].
pub(crate) fn push_digits<const WIDTH: usize>(number: u64, text: &mut Vec<u8>) {
    text.extend_from_slice(&digits::<WIDTH>(number));
}

/// A number without zeros before it: twenty digits, of which the last so many are it.
fn plain_digits(number: u64) -> ([u8; 20], usize) {
    let tens = number.checked_ilog10().and_then(|tens| usize::try_from(tens).ok());
    (digits(number), tens.unwrap_or(0).saturating_add(1))
}

/// Passes a number as it is read by people.
pub(crate) fn with_number<T>(number: u64, use_it: impl FnOnce(&[u8]) -> T) -> T {
    if let (0..=9, Ok(digit)) = (number, u8::try_from(number)) {
        return use_it(&[b'0' | digit]);
    }
    let (all, width) = plain_digits(number);
    use_it(all.get(all.len().saturating_sub(width)..).unwrap_or_default())
}

/// Appends a number.
pub(crate) fn push_number(number: u64, text: &mut Vec<u8>) {
    with_number(number, |digits| text.extend_from_slice(digits));
}

/// The key of a lock, a token, and what is asked for the token, in one text. It is UTF-8, which nothing that is
/// added has to be checked for.
///
/// A request can so be put together by its caller, and sent with those of others by whichever task
/// sends them.
#[derive(Debug)]
pub(crate) struct Words {
    text: Vec<u8>,
    key_ends: usize,
}

impl Words {
    /// What most requests take.
    pub(crate) const BYTES: usize = 192;

    /// What most take that ask for a place in line.
    pub(crate) const IN_LINE: usize = 320;

    /// The digits of a token.
    pub(crate) const TOKEN: usize = 32;

    /// The digits of a token and where its fences end.
    pub(crate) const LEASE: usize = 54;

    /// With room for so many bytes in all.
    pub(crate) fn about(names: &Names, key: &Key, token: &Token, room: usize) -> Self {
        let mut text = Vec::with_capacity(room);
        names.record_into(key, &mut text);
        let key_ends = text.len();
        text.extend_from_slice(&token_digits(token));
        Self { text, key_ends }
    }

    /// Adds to what is asked.
    pub(crate) fn add(&mut self, asked: impl Display) -> &mut Self {
        push(&mut self.text, asked);
        self
    }

    /// Adds what `write` appends to the text.
    pub(crate) fn add_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        write(&mut self.text);
        self
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.text.get(..self.key_ends).unwrap_or_default()
    }

    /// What is asked.
    pub(crate) fn asked(&self) -> &[u8] {
        self.text.get(self.key_ends.saturating_add(Self::TOKEN)..).unwrap_or_default()
    }

    /// The token, and what is asked unless it is this.
    pub(crate) fn argument(&self, shared: &[u8]) -> &[u8] {
        let argument = self.text.get(self.key_ends..).unwrap_or_default();
        let is_shared = self.asked() == shared;
        if is_shared { argument.get(..Self::TOKEN).unwrap_or_default() } else { argument }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        let numbers = [0, 1, 9, 10, 99, 4095, 9999, 1_700_000_000_000_000, 9_999_999_999_999_999];
        for number in numbers.into_iter().chain([u64::MAX]) {
            let mut text = Vec::new();
            push_number(number, &mut text);
            text.push(b' ');
            push_digits::<20>(number, &mut text);
            assert_eq!(String::from_utf8(text).unwrap(), format!("{number} {number:020}"));
        }
        assert_eq!(digits::<4>(42), *b"0042");
        assert_eq!(digits::<4>(9999), *b"9999");
        for number in (0..100_000_000).step_by(997).chain(0..10_000) {
            assert_eq!(digits::<8>(number), *format!("{number:08}").as_bytes());
            assert_eq!(
                digits::<13>(number * 99_999),
                *format!("{:013}", number * 99_999).as_bytes()
            );
        }
        // What has no such place is as late as can be said.
        assert_eq!(digits::<4>(10_000), *b"9999");
    }

    #[test]
    fn a_token_is_two_digits_for_each_byte() {
        let token = Token::from_hex("000102030405060708090a0b0c0d0eff").unwrap();
        assert_eq!(token_digits(&token), *b"000102030405060708090a0b0c0d0eff");
        for byte in 0..=255 {
            let token =
                Token::from_bytes(std::array::from_fn(|at| if at % 5 == 0 { byte } else { 0x9a }));
            assert_eq!(token_digits(&token), *token.to_hex().as_bytes());
        }
    }
}
