//! Checks that a seed's history is the same byte for byte, without gaps.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::profile::{Profile, Stores};
use crate::world;

/// A short run, since tests are compiled without optimisation.
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

/// The features of a profile, in words: kinds of stores and locks, non-zero rates, kinds of faults.
fn drawn(profile: &Profile) -> Vec<String> {
    let Profile { hosts, tasks, nodes, forgets, ttl, kinds, in_order, .. } = profile;
    let mut drawn = vec![
        format!("{nodes} nodes, forgets: {forgets}"),
        format!("{hosts} processes"),
        format!("{tasks} tasks"),
        format!("ttl {ttl:?}"),
        format!("{kinds:?}, in order: {in_order}"),
    ];
    let rates = format!("{:?}", profile.rates);
    let fields = rates.split(['{', ',', '}']).filter_map(|field| field.split_once(": "));
    let not_zero = fields.filter(|(_, rate)| rate.trim() != "0");
    drawn.extend(not_zero.map(|(name, _)| format!("rate{name}")));
    let faults = profile.faults.iter().map(|fault| format!("{:?}", fault.what));
    drawn.extend(faults.filter_map(|what| Some(what.split_whitespace().next()?.to_owned())));
    drawn
}

#[test]
fn the_recorded_histories_have_all_that_a_seed_can_draw() {
    let recorded = include_str!("../histories.txt").lines();
    let seeds = recorded.map(|line| line.split(' ').next().unwrap_or_default().parse().unwrap());
    let of_seed = |seed| drawn(&Profile::draw(seed, Stores::Any));
    let recorded: BTreeSet<String> = seeds.flat_map(of_seed).collect();
    let all: BTreeSet<String> = (1..=1_000).flat_map(of_seed).collect();
    assert!(all.len() > 40, "{all:?}");
    let lacking: Vec<_> = all.difference(&recorded).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}
