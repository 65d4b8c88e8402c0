//! Parses lengths of time as people type them, and prints them in the same form.

use std::time::Duration;

use leasehold::store::length;
use leasehold::{Cooldown, PERIOD_MIN, PERIOD_RANGE, Ttl};

const GIVE: &str = "give seconds or a length with units, such as 10, 0.5, 30s, 1m30s";

/// Reads `10`, `0.5` (seconds, as flock takes them), `30s`, `1m30s`, `250ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if let Some(rest) = text.strip_prefix('-') {
        // Else it is the next option, or what ends them.
        let is_length = rest.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        let why = if is_length { "a length of time can't be negative" } else { GIVE };
        return Err(why.to_owned());
    }
    // `inf`, `nan` and `1e9` are numbers for Rust, and slips of the finger here.
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && let Ok(seconds) = text.parse::<f64>()
    {
        return Duration::try_from_secs_f64(seconds)
            .map_err(|_| "too many seconds; give fewer".to_owned());
    }
    humantime::parse_duration(text).map_err(|_| GIVE.to_owned())
}

/// Reads the length of a lease.
pub(crate) fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(parse(text)?).map_err(|error| error.to_string())
}

/// Reads a cooldown.
pub(crate) fn cooldown(text: &str) -> Result<Cooldown, String> {
    Cooldown::new(parse(text)?).map_err(|error| error.to_string())
}

/// Reads a period.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let length = parse(text)?;
    match Cooldown::new(length) {
        Ok(_) if length >= PERIOD_MIN => Ok(length),
        _ => Err(format!(
            "a period of {} is out of range; give {PERIOD_RANGE}",
            length::typed(length)
        )),
    }
}

/// Reads a longest hold.
pub(crate) fn max_hold(text: &str) -> Result<Duration, String> {
    let length = parse(text)?;
    let least = Ttl::MIN;
    match length >= least.duration() {
        true => Ok(length),
        false => {
            Err(format!("--max-hold {} is too short; give at least {least}", length::typed(length)))
        }
    }
}

/// `250ms`, `7s`, `3m 5s`: without nanoseconds.
pub(crate) fn show(time: Duration) -> String {
    match time.as_secs() {
        0 => length::typed(Duration::from_millis(u64::from(time.subsec_millis()))).to_string(),
        seconds @ 1..60 => format!("{seconds}s"),
        _ => length::measured(time).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_units_are_read() {
        for (text, ms) in [
            ("10", 10_000),
            ("0.5", 500),
            (".25", 250),
            ("0", 0),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("250ms", 250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_of_time_is_refused() {
        let endless = "9".repeat(400);
        for text in [
            "",
            "-1",
            "-1s",
            "-0.5",
            "inf",
            "nan",
            "1e3",
            "ten",
            "10 parsecs",
            ".",
            "1.2.3",
            &endless,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_option_instead_of_a_length_is_not_called_negative() {
        for text in ["--", "-n", "--ttl"] {
            assert_eq!(parse(text), Err(GIVE.to_owned()), "{text}");
        }
        assert!(parse("-.5").unwrap_err().contains("negative"));
    }

    #[test]
    fn lengths_are_shown_short() {
        assert_eq!(show(Duration::from_nanos(250_900_000)), "250ms");
        assert_eq!(show(Duration::from_millis(185_700)), "3m 5s");
        assert_eq!(show(Duration::ZERO), "0s");
        assert_eq!(show(Duration::from_secs(31 * 86_400)), "31d");
    }

    #[test]
    fn what_errors_call_a_length_can_be_typed() {
        for ms in [0, 1, 10, 1_500, 30_000, 90_000, 129_600_000, 2_678_400_000, 31_536_000_001] {
            let length = Duration::from_millis(ms);
            assert_eq!(parse(&length::typed(length).to_string()), Ok(length));
        }
        assert!(ttl("2678400").unwrap_err().contains("a ttl of 31d is out of range"));
        assert!(period("500d").unwrap_err().contains("a period of 500d is out of range"));
    }
}
