//! What a history is like: the same for the same seed, byte for byte, and without gaps.

use std::time::Duration;

use crate::profile::{Profile, Stores};
use crate::world;

/// A short one, since tests are compiled without optimisation.
fn history(stores: Stores) -> Vec<String> {
    let mut profile = Profile::draw(1, stores);
    (profile.lasts, profile.ttl) = (5_000_000, Duration::from_secs(1));
    world::run(&profile, true).books.history
}

#[test]
fn a_seed_given_twice_has_the_same_history() {
    for stores in [Stores::Memory, Stores::Quorum] {
        let (first, second) = (history(stores), history(stores));
        assert!(first.len() > 100, "{stores:?}: {} lines", first.len());
        let differs = first.iter().zip(&second).find(|(first, second)| first != second);
        assert_eq!(differs, None, "{stores:?}");
        assert_eq!(first.len(), second.len(), "{stores:?}");
    }
}

#[test]
fn a_process_that_closes_its_client_has_another_soon() {
    let mut profile = Profile::draw(1, Stores::Memory);
    (profile.lasts, profile.ttl) = (20_000_000, Duration::from_secs(1));
    (profile.rates.closes, profile.rates.unpolled) = (1, 90);
    profile.faults.clear();
    let history = world::run(&profile, true).books.history;
    let moments = |what: &str| -> Vec<f64> {
        let lines = history.iter().filter(|line| line.ends_with(what) && line.contains("host 0."));
        lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
    };
    let (closed, begun) = (moments("closes its client"), moments("has a client"));
    assert!(!closed.is_empty());
    for at in closed {
        let next = begun.iter().find(|begun| **begun > at);
        assert!(next.is_some_and(|next| next - at < 5.0), "closed at {at}: {begun:?}");
    }
}
