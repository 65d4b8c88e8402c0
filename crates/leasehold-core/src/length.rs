//! Prints lengths of time in the units in which people type them.

use std::fmt;
use std::time::Duration;

/// Below this many of a unit people use that unit alone.
const FEW: u128 = 100;

/// From the largest down: how many nanoseconds, and the name.
const UNITS: [(u128, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// A length that a person has chosen, as it would be typed.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_core::length::typed;
///
/// let seconds = |n| typed(Duration::from_secs(n)).to_string();
/// assert_eq!([90, 129_600, 2_678_400].map(seconds), ["90s", "36h", "31d"]);
/// assert_eq!(seconds(3_661), "1h 1m 1s");
/// assert_eq!(typed(Duration::from_millis(1_500)).to_string(), "1s 500ms");
/// ```
#[must_use]
pub const fn typed(length: Duration) -> Typed {
    Typed(length)
}

/// A length that was measured: whole seconds from a minute on, below that one decimal.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_core::length::measured;
///
/// assert_eq!(measured(Duration::from_millis(7_240)).to_string(), "7.2s");
/// assert_eq!(measured(Duration::from_millis(5_405_900)).to_string(), "1h 30m 5s");
/// ```
#[must_use]
pub const fn measured(length: Duration) -> Measured {
    Measured(length)
}

/// The `Display` made by [`typed`].
#[derive(Clone, Copy, Debug)]
pub struct Typed(Duration);

/// The `Display` made by [`measured`].
#[derive(Clone, Copy, Debug)]
pub struct Measured(Duration);

impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.as_nanos();
        let alone = UNITS.iter().find(|(unit, _)| whole.is_multiple_of(*unit));
        match alone.map(|(unit, name)| (whole.checked_div(*unit).unwrap_or(whole), name)) {
            _ if whole == 0 => f.write_str("0s"),
            Some((count, name)) if count < FEW => write!(f, "{count}{name}"),
            _ => in_units(whole, f),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0..60 => write!(f, "{:.1?}", self.0),
            seconds => in_units(Duration::from_secs(seconds).as_nanos(), f),
        }
    }
}

/// As many of each unit as fit.
fn in_units(whole: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut left = whole;
    for (unit, name) in UNITS {
        let count = left.checked_div(unit).unwrap_or_default();
        if count > 0 {
            let blank = if left == whole { "" } else { " " };
            write!(f, "{blank}{count}{name}")?;
        }
        left = left.checked_rem(unit).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_shown_in_the_unit_in_which_it_is_short() {
        for (ms, shown) in [
            (0, "0s"),
            (10, "10ms"),
            (250, "250ms"),
            (30_000, "30s"),
            (99_000, "99s"),
            (100_000, "1m 40s"),
            (120_000, "2m"),
            (5_400_000, "90m"),
            (31_536_000_000, "365d"),
            (86_461_000, "1d 1m 1s"),
        ] {
            assert_eq!(typed(Duration::from_millis(ms)).to_string(), shown);
        }
        assert_eq!(typed(Duration::from_nanos(10_000_700)).to_string(), "10ms 700ns");
        assert!(typed(Duration::MAX).to_string().starts_with("213503982334601d "));
    }

    #[test]
    fn a_measured_length_has_no_more_digits_than_are_read() {
        for (ms, shown) in
            [(0, "0.0ns"), (59_940, "59.9s"), (60_999, "1m"), (90_000, "1m 30s"), (7_200_000, "2h")]
        {
            assert_eq!(measured(Duration::from_millis(ms)).to_string(), shown);
        }
    }
}
