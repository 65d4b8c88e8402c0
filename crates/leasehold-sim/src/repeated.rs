//! The same seed gives the same history, byte for byte.

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
