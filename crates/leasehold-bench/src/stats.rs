//! Medians, percentiles and ratios of measurements.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// One number over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without any values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = values.len() / 2;
        let lower = (values.len() - 1) / 2;
        let median = (values.get(lower)? + values.get(upper)?) / 2.0;
        Some(Self { median, min, max })
    }

    /// The spread of the ratios within each round.
    pub(crate) fn of_ratios(above: &[f64], below: &[f64]) -> Option<Self> {
        Self::of(above.iter().zip(below).map(|(above, below)| above / below))
    }
}

/// The mean of values with their weights. NaN without any weight.
pub(crate) fn weighted(values: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) = values.fold((0.0, 0.0), |(sum, weights), (value, weight)| {
        if weight > 0.0 { (sum + value * weight, weights + weight) } else { (sum, weights) }
    });
    sum / weights
}

/// NaN without a value.
pub(crate) fn median(spread: Option<Spread>) -> f64 {
    spread.map_or(f64::NAN, |spread| spread.median)
}

/// How even shares are: 1 if all are equal, 1/n if one has it all (Jain, Chiu and Hawe, 1984).
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Durations from 100 ns to 10 minutes, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

const UNIT_NS: u64 = 100;

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 6_000_000_000, 3);
        Self(histogram.expect("BUG: the bounds are in order and the digits in range"))
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let units = duration.as_nanos() / u128::from(UNIT_NS);
        self.0.saturating_record(u64::try_from(units).unwrap_or(u64::MAX).max(1));
    }

    /// The sum of several recordings.
    pub(crate) fn joined<'l>(all: impl Iterator<Item = &'l Self>) -> Self {
        let mut joined = Self::new();
        for one in all {
            joined.0.add(&one.0).expect("BUG: all have the same bounds");
        }
        joined
    }

    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// In µs; NaN without a recording.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        if self.0.is_empty() { f64::NAN } else { us(self.0.value_at_quantile(quantile)) }
    }

    pub(crate) fn mean_us(&self) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.0.mean() * us(1) }
    }

    pub(crate) fn max_us(&self) -> f64 {
        if self.0.is_empty() { f64::NAN } else { us(self.0.max()) }
    }
}

fn us(units: u64) -> f64 {
    (units * UNIT_NS) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_between_the_two_in_the_middle() {
        let spread = Spread::of([4.0, 1.0, f64::NAN, 2.0, 100.0]).unwrap();
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 100.0 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let spread = Spread::of_ratios(&[10.0, 100.0, 30.0], &[10.0, 100.0, 10.0]).unwrap();
        assert_eq!(spread, Spread { median: 1.0, min: 1.0, max: 3.0 });
    }

    #[test]
    fn a_mean_is_nearer_to_what_weighs_more_and_leaves_out_what_weighs_nothing() {
        let mean = weighted([(1.0, 1.0), (4.0, 2.0), (f64::NAN, 0.0)].into_iter());
        assert!((mean - 3.0).abs() < 1e-9);
        assert!(weighted(std::iter::empty()).is_nan());
    }

    #[test]
    fn jain_is_1_for_equal_shares_and_a_share_for_one_who_gets_all() {
        assert!((jain(&[7, 7, 7, 7]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!(jain(&[0, 0]).abs() < 1e-9);
    }

    #[test]
    fn quantiles_come_back_within_a_tenth_of_a_percent() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        assert!((latencies.quantile_us(0.5) - 500.0).abs() < 1.0);
        assert!((latencies.quantile_us(0.99) - 990.0).abs() < 2.0);
        assert!((latencies.mean_us() - 500.5).abs() < 1.0);
        assert_eq!(latencies.count(), 1000);
        let mut more = Latencies::new();
        (1..=3000).for_each(|us| more.record(Duration::from_micros(us)));
        let both = Latencies::joined([&latencies, &more].into_iter());
        assert!((both.quantile_us(0.5) - 1000.0).abs() < 2.0);
        latencies.clear();
        assert!(latencies.quantile_us(0.5).is_nan());
    }
}
