//! The clock of leases and the time of day when a store was last used.
//!
//! After a restart of the machine they show what the old clock would be by now. So the note must be
//! recent: some machines get the right time of day from a network only after the start. With an
//! older note, that step would count as time that has passed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::Fence;
use leasehold_core::table::{Now, StoreTime};

/// How old a note may get while the store is used.
const EVERY: Duration = Duration::from_secs(60);
/// By how much the time of day may differ from the note before it is renewed at once.
const STEP: Duration = Duration::from_secs(1);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Clocks {
    /// The clock of leases.
    at: StoreTime,
    /// The time of day at that clock's zero, in microseconds since 1970; 0 if it was not set.
    origin_us: u64,
}

impl Clocks {
    pub(super) fn at(now: Now) -> Self {
        let origin_us = time_of_day(now).map_or(0, |us| us.saturating_sub(now.at.as_micros()));
        Self { at: now.at, origin_us }
    }

    /// What the clock of leases would show by the time of day of `now`, whose own clock may be
    /// another one. At least what it once showed.
    pub(super) fn stand(self, now: Now) -> StoreTime {
        let by_the_day = time_of_day(now).filter(|_| self.origin_us > 0);
        by_the_day.map_or(self.at, |us| {
            StoreTime::from_micros(us.saturating_sub(self.origin_us)).max(self.at)
        })
    }

    /// The stored form, with the clock's time namespace.
    pub(super) fn encode(self, namespace: &str) -> Vec<u8> {
        let numbers = [self.at.as_micros(), self.origin_us].map(u64::to_le_bytes);
        [numbers.as_flattened(), namespace.as_bytes()].concat()
    }

    pub(super) fn decode(value: &[u8]) -> Option<(Self, &str)> {
        let (at, rest) = value.split_first_chunk()?;
        let (origin_us, namespace) = rest.split_first_chunk()?;
        let at = StoreTime::from_micros(u64::from_le_bytes(*at));
        let clocks = Self { at, origin_us: u64::from_le_bytes(*origin_us) };
        Some((clocks, str::from_utf8(namespace).ok()?))
    }
}

/// In microseconds since 1970; `None` if it was not set.
fn time_of_day(now: Now) -> Option<u64> {
    let since_origin = now.fence_floor.sequence();
    (since_origin > 1).then(|| since_origin.saturating_add(Fence::ORIGIN_UNIX_US))
}

/// What this process knows about the stored note.
#[derive(Debug, Default)]
pub(super) struct Noted {
    at_us: AtomicU64,
    origin_us: AtomicU64,
}

impl Noted {
    pub(super) fn know(&self, noted: Clocks) {
        self.at_us.store(noted.at.as_micros(), Ordering::Relaxed);
        self.origin_us.store(noted.origin_us, Ordering::Relaxed);
    }

    /// The note to store now, if it is due.
    pub(super) fn due(&self, now: Now) -> Option<Clocks> {
        let clocks = Clocks::at(now);
        let age = now.at.as_micros().abs_diff(self.at_us.load(Ordering::Relaxed));
        let moved = clocks.origin_us.abs_diff(self.origin_us.load(Ordering::Relaxed));
        (Duration::from_micros(age) >= EVERY || Duration::from_micros(moved) > STEP)
            .then_some(clocks)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use leasehold_core::{
        Acquire, AcquireRequest, Cooldown, ErrorKind, FenceBlock, Key, Store as _, Token, Ttl,
    };

    use super::super::EmbeddedStore;
    use super::super::header::Header;
    use super::super::table::CLOCKS;
    use super::*;

    const HOUR: u64 = 3_600_000_000;
    /// 2026, by a correct clock.
    const DAY: u64 = Fence::ORIGIN_UNIX_US + 50_000 * HOUR;

    /// The clock of leases, and the time of day, in hours after [`DAY`].
    fn now(at: u64, day: i64) -> Now {
        let day = DAY.checked_add_signed(day * HOUR.cast_signed()).unwrap();
        now_us(at * HOUR, day)
    }

    fn now_us(at_us: u64, unix_us: u64) -> Now {
        let fence_floor = leasehold_clock::wall::fence_floor_at(unix_us);
        Now::new(StoreTime::from_micros(at_us), fence_floor)
    }

    fn hours(at: StoreTime) -> u64 {
        at.as_micros() / HOUR
    }

    #[test]
    fn the_old_clock_goes_on_by_the_time_of_day() {
        let noted = Clocks::at(now(30, 0));
        assert_eq!(hours(noted.stand(now(0, 5))), 35);
        assert_eq!(hours(noted.stand(now(90, 5))), 35, "whatever the new clock shows");
    }

    #[test]
    fn a_time_of_day_that_is_behind_or_not_set_leaves_the_old_clock_where_it_stood() {
        let noted = Clocks::at(now(30, 0));
        for after in [now(0, -5), now_us(0, 0), now_us(0, Fence::ORIGIN_UNIX_US)] {
            assert_eq!(hours(noted.stand(after)), 30, "{after:?}");
        }
        let never_set = Clocks::at(now_us(30 * HOUR, 40 * HOUR));
        for after in [now(0, 0), now_us(0, 41 * HOUR)] {
            assert_eq!(hours(never_set.stand(after)), 30, "{after:?}");
        }
    }

    #[test]
    fn it_is_noted_each_minute_and_when_the_time_of_day_was_set() {
        let noted = Noted::default();
        let due = |at_s: u64, day_s: u64| {
            noted.due(now_us(at_s * 1_000_000, DAY + day_s * 1_000_000)).is_some()
        };
        noted.know(Clocks::at(now_us(7_000_000, DAY)));
        assert!(!due(7, 0) && !due(66, 59) && !due(8, 2));
        assert!(due(67, 60) && due(8, 3) && due(2_000, 3_000));
        // Set back, and a different clock.
        assert!(noted.due(now(0, -5)).is_some() && noted.due(now_us(8_000_000, 0)).is_some());
    }

    #[test]
    fn it_is_read_back_as_it_was_noted() {
        let noted = Clocks::at(now(30, 0));
        assert_eq!(Clocks::decode(&noted.encode("7 0.0")), Some((noted, "7 0.0")));
        assert_eq!(Clocks::decode(&noted.encode("")[..15]), None);
    }

    /// A store with three locks: one cooling down for two hours, one held, and one free.
    struct Closed {
        path: PathBuf,
        last: FenceBlock,
        _keep: tempfile::TempDir,
    }

    const LENGTH: Duration = Duration::from_secs(2 * 3_600);
    const WITHIN: Duration = Duration::from_secs(30);
    /// Longer than any test takes.
    const SOON: Duration = Duration::from_secs(60);

    fn open(path: &Path) -> EmbeddedStore {
        EmbeddedStore::options().detached(true).open(path).unwrap()
    }

    fn request(name: &str) -> AcquireRequest {
        let ttl = Ttl::new(LENGTH).unwrap();
        AcquireRequest::new(Key::new(name).unwrap(), Token::generate().unwrap(), ttl)
    }

    async fn take(store: &EmbeddedStore, request: &AcquireRequest) -> FenceBlock {
        match store.acquire(request, WITHIN).await.unwrap() {
            Acquire::Granted(granted) => granted.fences,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn noted_in(store: &EmbeddedStore) -> Clocks {
        let store = &*store.environment;
        let pass = store.enter(WITHIN).unwrap();
        let txn = store.read_txn(&pass).unwrap();
        Clocks::decode(store.records.get(&txn, CLOCKS).unwrap().unwrap()).unwrap().0
    }

    fn change_noted(path: &Path, change: impl FnOnce(&mut Clocks), namespace: Option<&str>) {
        let store = open(path);
        let mut clocks = noted_in(&store);
        change(&mut clocks);
        let store = &*store.environment;
        let pass = store.enter(WITHIN).unwrap();
        let mut txn = store.write_txn(&pass).unwrap();
        let value = clocks.encode(namespace.unwrap_or(&store.time_namespace));
        store.records.put(&mut txn, CLOCKS, &value).unwrap();
        store.commit(txn).unwrap();
    }

    fn change_header(path: &Path, change: impl FnOnce(&mut Header)) {
        let mut header = Header::read(path).unwrap();
        change(&mut header);
        header.write(path).unwrap();
    }

    impl Closed {
        async fn new() -> Self {
            let keep = tempfile::tempdir().unwrap();
            let path = keep.path().join("locks");
            let store = open(&path);
            let mut closing = request("closed");
            closing.cooldown = Cooldown::new(LENGTH).unwrap();
            take(&store, &closing).await;
            let last = take(&store, &request("held")).await;
            Self { path, last, _keep: keep }
        }

        /// Restarts the machine, after changing the stored note.
        fn restart(&self, change: impl FnOnce(&mut Clocks)) {
            change_noted(&self.path, change, None);
            change_header(&self.path, |header| {
                "another".clone_into(&mut header.machine.boot);
                header.booted_at_s -= 1_000;
            });
        }

        /// How long the cooldown lasts, once the lease is gone.
        async fn left(&self) -> Option<Duration> {
            let info = open(&self.path).inspect(&request("closed").key, WITHIN).await.unwrap()?;
            assert!(info.holders.is_empty(), "{info:?}");
            assert_eq!(info.clock_set_back, Duration::ZERO);
            info.closed_for
        }

        /// Checks how long the cooldown lasts, allowing for the time that the test takes.
        #[track_caller]
        fn check(left: Option<Duration>, about: Duration) {
            let left = left.expect("it is closed");
            assert!(left <= about && left + SOON > about, "{left:?} instead of {about:?}");
        }
    }

    #[tokio::test]
    async fn a_lock_that_is_closed_stays_so_over_a_restart_by_the_time_of_day_and_nothing_else_does()
     {
        let closed = Closed::new().await;
        closed.restart(|clocks| clocks.origin_us -= HOUR);
        Closed::check(closed.left().await, LENGTH / 2);
        let store = open(&closed.path);
        let answer = store.acquire(&request("closed"), WITHIN).await.unwrap();
        assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
        assert!(take(&store, &request("held")).await.first() > closed.last.last());
        drop(store);
        closed.restart(|clocks| clocks.origin_us -= HOUR);
        assert_eq!(closed.left().await, None);
        let store = open(&closed.path);
        for name in ["closed", "held"] {
            assert!(take(&store, &request(name)).await.first() > closed.last.last(), "{name}");
        }
    }

    #[tokio::test]
    async fn with_a_time_of_day_that_is_behind_a_lock_stays_closed_for_its_length_of_use() {
        for unset in [false, true] {
            let closed = Closed::new().await;
            let behind = |clocks: &mut Clocks| {
                clocks.origin_us = if unset { 0 } else { clocks.origin_us + 5 * HOUR };
            };
            for _ in 0..3 {
                closed.restart(behind);
                Closed::check(closed.left().await, LENGTH);
            }
            // Each time it was in use for half an hour.
            for used in 1..4 {
                closed.restart(|clocks| {
                    behind(clocks);
                    clocks.at = clocks.at.saturating_add(LENGTH / 4);
                });
                Closed::check(closed.left().await, LENGTH - used * LENGTH / 4);
            }
            closed.restart(|clocks| {
                behind(clocks);
                clocks.at = clocks.at.saturating_add(LENGTH / 4);
            });
            assert_eq!(closed.left().await, None);
        }
    }

    #[tokio::test]
    async fn a_time_of_day_that_is_set_forward_counts_as_time_that_passed() {
        let closed = Closed::new().await;
        closed.restart(|clocks| clocks.origin_us -= 5 * HOUR);
        assert_eq!(closed.left().await, None);
    }

    /// As on a machine that gets its time from a network after the start.
    #[tokio::test]
    async fn a_wrong_time_of_day_is_noted_again_by_the_next_open_or_use() {
        let closed = Closed::new().await;
        let store = open(&closed.path);
        let right = noted_in(&store);
        let is_right = |store: &_| noted_in(store).origin_us.abs_diff(right.origin_us) < 1_000_000;
        drop(store);
        for wrong in [right.origin_us - 8 * HOUR, right.origin_us + 8 * HOUR, 0] {
            change_noted(&closed.path, |clocks| clocks.origin_us = wrong, None);
            let store = open(&closed.path);
            assert!(is_right(&store));
            drop(store);
            change_noted(&closed.path, |clocks| clocks.origin_us = wrong, None);
            let store = open(&closed.path);
            store.environment.noted.know(Clocks { origin_us: wrong, ..right });
            take(&store, &request(&wrong.to_string())).await;
            assert!(is_right(&store));
            drop(store);
            // So the step does not count as time that has passed.
            closed.restart(|_| {});
            Closed::check(closed.left().await, LENGTH);
        }
    }

    #[tokio::test]
    async fn who_is_killed_while_it_takes_a_store_over_carries_nothing_over_twice() {
        let closed = Closed::new().await;
        closed.restart(|clocks| clocks.origin_us -= HOUR);
        let before = Header::read(&closed.path).unwrap();
        drop(open(&closed.path));
        // Killed before it wrote the header.
        before.write(&closed.path).unwrap();
        Closed::check(closed.left().await, LENGTH / 2);
    }

    #[tokio::test]
    async fn a_lock_that_is_closed_stays_so_in_another_time_namespace() {
        for came_to_header in [true, false] {
            let closed = Closed::new().await;
            // Without leases.
            closed.restart(|_| {});
            drop(open(&closed.path));
            // As if all times were by a clock that is ahead by an hour.
            let ahead = |clocks: &mut Clocks| {
                clocks.at = clocks.at.saturating_add(LENGTH / 2);
                clocks.origin_us -= HOUR;
            };
            change_noted(&closed.path, ahead, Some("1 0.0"));
            if came_to_header {
                change_header(&closed.path, |header| {
                    "1 0.0".clone_into(&mut header.machine.time_namespace);
                });
            }
            for _ in 0..2 {
                Closed::check(closed.left().await, LENGTH / 2);
            }
        }
    }

    #[tokio::test]
    async fn a_store_that_is_full_of_closed_locks_opens_after_a_restart() {
        let keep = tempfile::tempdir().unwrap();
        let path = keep.path().join("locks");
        let store = EmbeddedStore::options().bytes_max(4 << 20).open(&path).unwrap();
        for n in 0_u32.. {
            let mut closing = request(&format!("{n:0200}"));
            closing.cooldown = Cooldown::new(LENGTH).unwrap();
            match store.acquire(&closing, WITHIN).await {
                Ok(_) => {}
                Err(full) => {
                    assert_eq!(full.kind(), ErrorKind::Full);
                    break;
                }
            }
        }
        let last = store.entries(WITHIN).await.unwrap();
        assert!(last.1 > 1_000, "{last:?}");
        drop(store);
        change_header(&path, |header| {
            "another".clone_into(&mut header.machine.boot);
            header.booted_at_s -= 1_000;
        });
        let store = open(&path);
        assert_eq!(store.entries(WITHIN).await.unwrap(), (0, 0));
        take(&store, &request("k")).await;
    }
}
