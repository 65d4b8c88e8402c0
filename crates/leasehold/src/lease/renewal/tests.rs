//! Tests of the renewer and its schedule.

use leasehold_embedded::MemoryStore;

use super::*;
use crate::Client;

mod model;

/// The most leases that fall due in one moment, of this many that were taken over a twelfth of
/// their ttl.
fn most_at_once(held: u32) -> usize {
    let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
    let mut moments: BTreeMap<Moment, usize> = BTreeMap::new();
    for number in 0..held {
        let sent_at = ttl.duration() / 12 * number / held;
        let due = renewal_due(Moment::from_origin(sent_at), ttl, held as usize);
        let early = (sent_at + ttl.part(3)).checked_sub(due.since_origin()).unwrap();
        assert!(early <= ttl.duration() / 64);
        *moments.entry(due).or_default() += 1;
    }
    moments.into_values().max().unwrap_or_default()
}

#[test]
fn few_leases_are_renewed_together_and_many_in_small_groups() {
    assert_eq!(most_at_once(1), 1);
    assert!((10..=100).contains(&most_at_once(100)));
    for held in [1000, 10_000, 100_000] {
        let most = most_at_once(held);
        assert!((32..=200).contains(&most), "{held}: {most}");
    }
}

/// A lock is taken and released time and again, each time before the renewer has its turn.
#[tokio::test]
async fn the_renewer_is_not_woken_again_for_leases_that_are_gone_when_it_looks() {
    let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
    let guard = client.mutex("held").try_lock().await.unwrap().unwrap();
    let (handle, inner) = (guard.handle(), client.inner());
    inner.schedule.remove(handle);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let schedule = RenewalSchedule::new(store, Arc::clone(&inner.clock), Arc::default());
    let mut woken = 0;
    for _ in 0..1000 {
        let now = inner.clock.now();
        schedule.add(handle, now, now);
        schedule.remove(handle);
        if std::pin::pin!(schedule.sooner.notified()).enable() {
            woken += 1;
            assert!(schedule.turn().is_some(), "it looks when the first was due");
        }
    }
    assert!((1..10).contains(&woken), "{woken}");
}

/// Leases that are put in, moved and taken out at random, beside a list of what is where.
#[tokio::test]
async fn every_lease_is_at_the_moment_to_which_it_was_put_last() {
    let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
    let (mut guards, mut leases) = (Vec::new(), Vec::new());
    for number in 0..40 {
        let guard = client.mutex(number.to_string()).try_lock().await.unwrap().unwrap();
        client.inner().schedule.remove(guard.handle());
        leases.push(Arc::clone(guard.handle()));
        guards.push(guard);
    }
    let mut random = fastrand::Rng::with_seed(11);
    let mut due = Due::default();
    let moment = |ns| Moment::from_nanos(ns);
    let mut expected: BTreeMap<usize, Moment> = BTreeMap::new();
    for _ in 0..10_000 {
        let number = random.usize(..leases.len());
        let lease = leases.get(number).unwrap();
        assert_eq!(due.remove(lease.id).is_some(), expected.remove(&number).is_some());
        if random.bool() {
            let at = moment(random.u64(1..10));
            due.insert(Arc::clone(lease), at);
            expected.insert(number, at);
        }
        // Together, as what falls due in one moment is.
        let to = moment(random.u64(1..10));
        let from = random.bool().then(|| moment(random.u64(1..10)));
        for (number, lease) in leases.iter().enumerate() {
            if random.u8(..3) == 0 {
                due.put_off(&Move { lease: lease.id, from, to });
                if let Some(at) = expected.get_mut(&number)
                    && from.is_none_or(|from| from == *at)
                {
                    *at = to;
                }
            }
        }
        let until = moment(random.u64(..12));
        let place =
            |lease: &Arc<_>| leases.iter().position(|other| Arc::ptr_eq(other, lease)).unwrap();
        let mut found: Vec<usize> =
            due.until(until).iter().map(|found| place(&found.lease)).collect();
        found.sort_unstable();
        let there = expected.iter().filter(|(_, at)| **at <= until);
        assert_eq!(found, there.map(|(number, _)| *number).collect::<Vec<_>>());
        assert_eq!(due.held(), expected.len());
        assert_eq!(due.moments.len(), expected.len());
    }
}
