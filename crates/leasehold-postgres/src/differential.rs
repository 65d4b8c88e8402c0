//! Compares the short ways with the lock table: random steps on a lock's row, entry by entry.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_core::table::{LockEntry, Now, Operation};
use leasehold_core::{
    Acquire, AcquireRequest, Fence, FenceBlock, Key, Metadata, OwnerName, Release, ReleaseRequest,
    Renew, RenewRequest, Store as _, Token, Ttl,
};
use leasehold_testkit::sql::PostgreSql;
use tokio_postgres::types::Type;

use crate::classify::Deadline;
use crate::row::Found;
use crate::short::Short;
use crate::store::PostgresStore;

const WITHIN: Duration = Duration::from_secs(30);
const LOCKS: u64 = 120;
const STEPS: u32 = 60;

pub(crate) static SERVER: LazyLock<PostgreSql> = LazyLock::new(|| {
    let server = PostgreSql::start();
    server.remove_at_exit();
    server
});

/// One lock under test, and what was granted last.
struct Lock {
    store: PostgresStore,
    random: fastrand::Rng,
    key: Key,
    last: FenceBlock,
}

fn deadline() -> Deadline {
    Deadline::after(WITHIN)
}

fn was_set_back(found: &Found, key: &Key) -> bool {
    let info = found.entry.inspect(key, found.now.at);
    info.is_some_and(|info| !info.clock_set_back.is_zero())
}

impl Lock {
    fn token(&mut self) -> Token {
        Token::from_bytes([self.random.u8(1..4); 16])
    }

    fn ttl(&mut self) -> Ttl {
        // The last is longer than any before it.
        let lengths = [Duration::from_millis(50), Duration::from_secs(3), Duration::from_secs(31)];
        Ttl::new(lengths[self.random.usize(..3)]).unwrap()
    }

    async fn found(&self) -> Found {
        self.store.read_one(&self.key, deadline()).await.unwrap()
    }

    /// What the table makes of the lock at the time that the row shows.
    fn by_the_table<O: Operation>(
        before: &Found,
        operation: &O,
        now: Now,
    ) -> (LockEntry, O::Answer) {
        let (mut entry, mut notices) = (before.entry.clone(), Vec::new());
        let answer = entry.perform(operation, now, &mut notices);
        assert!(notices.is_empty(), "a lock without a queue notifies nobody");
        (entry, answer)
    }

    /// Moves the times of the row, as if time had passed or the clock had been set back.
    async fn shift(&mut self) {
        let by = ["-2 s", "-1 hour", "2 s", "1 hour"][self.random.usize(..4)];
        let sql = "UPDATE leasehold.lock SET used_until = used_until + $2::text::interval, \
                   granted_at = granted_at + $2::text::interval, renewed_at = renewed_at + $2::text::interval \
                   WHERE name = $1";
        let name = self.key.as_str();
        let params: [crate::pool::Param<'_>; 2] = [(&name, Type::TEXT), (&by, Type::TEXT)];
        self.store
            .shared
            .pool
            .ask(self.store.hash(&self.key), sql, &params, deadline())
            .await
            .unwrap();
    }

    async fn take(&mut self) -> bool {
        let mut request = AcquireRequest::new(self.key.clone(), self.token(), self.ttl());
        request.fence_block = self.random.u32(1..5).try_into().unwrap();
        request.holds = self.random.u32(1..3).try_into().unwrap();
        request.owner = OwnerName::new(["", "web-1"][self.random.usize(..2)]).unwrap();
        request.metadata = Metadata::new(["", "ü"][self.random.usize(..2)]).unwrap();
        let before = self.found().await;
        let short =
            self.store.taken(&[&request], deadline(), deadline()).await.unwrap().remove(0).unwrap();
        let after = self.found().await;
        match short {
            Short::Done(last) => {
                let last = crate::row::fence(last).unwrap();
                self.last = FenceBlock::up_to(last, request.fence_block.get());
                // At the time of the grant: the plain form has it.
                let at = after.entry.plain(after.now.at).unwrap().holder.unwrap().granted_at;
                let floor = at.as_micros() - Fence::ORIGIN_UNIX_US;
                let epoch = before.now.fence_floor.epoch();
                let now = Now::new(at, Fence::new(epoch, floor).unwrap());
                let (entry, answer) = Self::by_the_table(&before, &request, now);
                assert!(matches!(answer, Acquire::Granted(_)), "{answer:?}");
                assert_eq!(entry, after.entry);
                true
            }
            Short::Missed(_) => {
                assert_eq!(before.entry, after.entry);
                let (_, answer) = Self::by_the_table(&before, &request, before.now);
                let too_long = request.ttl.duration() > Duration::from_secs(30);
                let is_granted = matches!(answer, Acquire::Granted(_));
                assert!(too_long || !is_granted, "{:?} at {:?}", before.entry, before.now);
                false
            }
        }
    }

    async fn release(&mut self) -> bool {
        let mut request = ReleaseRequest::new(self.key.clone(), self.token(), self.last);
        request.in_time = self.random.bool();
        let before = self.found().await;
        let short = self.store.released(&[&request], deadline()).await.unwrap().remove(0).unwrap();
        let after = self.found().await;
        let is_done = matches!(short, Short::Done(_));
        // A lease that expires meanwhile may be released in time, or not.
        let now = if is_done { before.now } else { after.now };
        let (entry, answer) = Self::by_the_table(&before, &request, now);
        if is_done {
            assert_eq!(answer, Release::Released);
            assert_eq!(entry, after.entry);
        } else {
            assert_eq!(before.entry, after.entry);
            let ends_it = answer == Release::Released && entry != before.entry;
            assert!(was_set_back(&before, &self.key) || !ends_it, "{:?}", before.entry);
        }
        is_done
    }

    async fn renew(&mut self) -> bool {
        let ttl = self.ttl();
        let mut request = RenewRequest::new(self.key.clone(), self.token(), self.last, ttl);
        if self.random.u8(..4) == 0 {
            request.fences = FenceBlock::new(self.last.last().saturating_add(1), 1);
        }
        request.shorten = self.random.bool();
        let before = self.found().await;
        let requests = [request];
        let renewed = self.store.renewed(&requests, &[0], deadline()).await.unwrap();
        let [request] = requests;
        let after = self.found().await;
        if renewed.is_empty() {
            assert_eq!(before.entry, after.entry);
            let set_back = was_set_back(&before, &self.key);
            let (_, answer) = Self::by_the_table(&before, &request, after.now);
            let higher = Some(request.fences.last()) > before.entry.last_fence();
            let too_long = request.ttl.duration() > Duration::from_secs(30);
            assert!(set_back || higher || too_long || answer != Renew::Renewed, "{answer:?}");
            return false;
        }
        assert_eq!(renewed, [0]);
        let at = after.entry.plain(after.now.at).unwrap().holder.unwrap().given_at;
        let now = Now { at, ..before.now };
        let (entry, answer) = Self::by_the_table(&before, &request, now);
        assert_eq!(answer, Renew::Renewed);
        assert_eq!(entry, after.entry);
        true
    }
}

#[tokio::test]
async fn the_short_ways_do_what_the_table_does() {
    let store = PostgresStore::connect(&format!("{}?create=yes", SERVER.url())).await.unwrap();
    // The first step begins an epoch, which each grant needs.
    let first = AcquireRequest::new(Key::new("first").unwrap(), Token::from_bytes([9; 16]), {
        Ttl::new(WITHIN).unwrap()
    });
    store.acquire(&first, WITHIN).await.unwrap();
    let mut done = [0; 3];
    for seed in 0..LOCKS {
        let key = Key::new(format!("lock {seed}")).unwrap();
        let random = fastrand::Rng::with_seed(seed);
        let last = FenceBlock::new(Fence::ZERO, 1);
        let mut lock = Lock { store: store.clone(), random, key, last };
        // The clock of the server is known from here on.
        lock.found().await;
        for _ in 0..STEPS {
            match lock.random.u8(..10) {
                0..4 => done[0] += u32::from(lock.take().await),
                4..6 => done[1] += u32::from(lock.release().await),
                6..9 => done[2] += u32::from(lock.renew().await),
                _ => lock.shift().await,
            }
        }
    }
    // Each of them often enough to mean something.
    assert!(done.iter().all(|count| *count > 50), "{done:?}");
}
