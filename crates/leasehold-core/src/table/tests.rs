//! The rules of the table, one claim per test, and its invariants under random use.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Bury, LockEntry, Notice, Now, Obstacle, StoreTime};
use crate::cooldown::Cooldown;
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;
use crate::label::{Metadata, OwnerName};
use crate::store::{
    Acquire, AcquireRequest, Already, Ask, AskRequest, Bond, Busy, Convert, ConvertRequest,
    ForceRelease, ForceReleaseRequest, Kind, Leave, LeaveRequest, LockInfo, Mode, Place,
    QueueRequest, Refusal, Release, ReleaseRequest, Renew, RenewRequest, SetLimit, SetLimitRequest,
    Waiting, Wake,
};
use crate::token::{ClientId, Token};
use crate::ttl::Ttl;

mod changing;
mod holding;
mod no_grants;
mod properties;
mod queue;
mod set_back;

/// A waiter's heartbeat timeout here, and so how long a lease handed to it runs.
const WINDOW: u64 = 300;

fn cool(length_ms: u64) -> Cooldown {
    Cooldown::new(ms(length_ms)).unwrap()
}

/// An entry with a clock, and requests by small numbers instead of tokens.
#[derive(Clone, Debug)]
struct Lock {
    entry: LockEntry,
    at_us: u64,
    floor: Fence,
    grants_from_us: u64,
    notices: Vec<Notice>,
}

impl Lock {
    fn new() -> Self {
        let floor = Fence::new(0, 1_000).unwrap();
        Self {
            entry: LockEntry::default(),
            at_us: 5_000_000,
            floor,
            grants_from_us: 0,
            notices: Vec::new(),
        }
    }

    fn at(&self) -> StoreTime {
        StoreTime::from_micros(self.at_us)
    }

    fn now(&self) -> Now {
        let grants_from = StoreTime::from_micros(self.grants_from_us);
        Now { grants_from, ..Now::new(self.at(), self.floor) }
    }

    /// Lets time pass for leases, and not for fences.
    fn pass(&mut self, span: u64) {
        self.at_us += span * 1_000;
    }

    fn pass_us(&mut self, us: u64) {
        self.at_us += us;
    }

    fn acquire(&mut self, request: &AcquireRequest) -> Acquire {
        self.entry.perform(request, self.now(), &mut self.notices)
    }

    fn take(&mut self, who: u8, ttl_ms: u64) -> FenceBlock {
        granted(&self.acquire(&request(who, ttl_ms)))
    }

    fn wait(&mut self, who: u8) -> Waiting {
        waiting(&self.acquire(&queued(who, 0)))
    }

    fn heartbeat(&mut self, who: u8, number: u32) -> Acquire {
        self.acquire(&queued(who, number))
    }

    fn renew(&mut self, who: u8, fences: FenceBlock, ttl_ms: u64) -> Renew {
        self.renew_with(&RenewRequest::new(key(), token(who), fences, ttl(ttl_ms)))
    }

    fn renew_with(&mut self, request: &RenewRequest) -> Renew {
        self.entry.perform(request, self.now(), &mut self.notices)
    }

    fn release_with(&mut self, request: &ReleaseRequest) -> Release {
        self.entry.perform(request, self.now(), &mut self.notices)
    }

    fn release(&mut self, who: u8, fences: FenceBlock) -> Release {
        self.release_with(&ReleaseRequest::new(key(), token(who), fences))
    }

    fn release_and_close(&mut self, who: u8, fences: FenceBlock, cooldown: u64) -> Release {
        let mut request = ReleaseRequest::new(key(), token(who), fences);
        request.cooldown = cool(cooldown);
        self.release_with(&request)
    }

    fn leave(&mut self, who: u8) -> Leave {
        let request = LeaveRequest::new(key(), token(who));
        self.entry.perform(&request, self.now(), &mut self.notices)
    }

    fn force_release(&mut self, fence: Fence) -> ForceRelease {
        let request = ForceReleaseRequest::new(key(), fence);
        self.entry.perform(&request, self.now(), &mut self.notices)
    }

    fn bury(&mut self, dead: &[u8]) {
        let dead: Vec<Token> = dead.iter().copied().map(token).collect();
        self.entry.perform(&Bury(&dead), self.now(), &mut self.notices);
    }

    fn inspect(&self) -> Option<LockInfo> {
        self.entry.inspect(&key(), self.at())
    }

    fn holders(&self) -> Vec<u8> {
        let info = self.inspect();
        let owners = info.iter().flat_map(|info| &info.holders).map(|holder| &holder.owner);
        owners.map(number).collect()
    }

    fn waiters(&self) -> Vec<u8> {
        let info = self.inspect();
        let owners = info.iter().flat_map(|info| &info.waiters).map(|waiter| &waiter.owner);
        owners.map(number).collect()
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}

fn key() -> Key {
    Key::new("k").unwrap()
}

fn token(who: u8) -> Token {
    Token::from_bytes([who; 16])
}

fn client(who: u8) -> ClientId {
    ClientId::from_bytes([100 + who; 16])
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ttl(length: u64) -> Ttl {
    Ttl::new(ms(length)).unwrap()
}

fn count(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn permits(n: u32, limit: u32) -> Mode {
    Mode::Permits { count: count(n), limit: count(limit) }
}

/// An acquisition whose owner is named after its token, so that it can be seen from outside.
fn request(who: u8, ttl_ms: u64) -> AcquireRequest {
    let mut request = AcquireRequest::new(key(), token(who), ttl(ttl_ms));
    request.owner = OwnerName::new(who.to_string()).unwrap();
    request
}

fn with_mode(who: u8, ttl_ms: u64, mode: Mode) -> AcquireRequest {
    AcquireRequest { mode, ..request(who, ttl_ms) }
}

fn queued(who: u8, heartbeat: u32) -> AcquireRequest {
    let mut queue = QueueRequest::new(client(who), u64::from(who), ttl(WINDOW));
    queue.heartbeat = heartbeat;
    AcquireRequest { queue: Some(queue), ..request(who, 10_000) }
}

fn queued_with_mode(who: u8, mode: Mode) -> AcquireRequest {
    AcquireRequest { mode, ..queued(who, 0) }
}

fn number(owner: &OwnerName) -> u8 {
    owner.as_str().parse().unwrap()
}

#[track_caller]
fn granted(answer: &Acquire) -> FenceBlock {
    match answer {
        Acquire::Granted(granted) => granted.fences,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn already(answer: &Acquire) -> Already {
    match answer {
        Acquire::Already(already) => *already,
        other => panic!("not held already: {other:?}"),
    }
}

#[track_caller]
fn waiting(answer: &Acquire) -> Waiting {
    match answer {
        Acquire::Waiting(waiting) => waiting.clone(),
        other => panic!("not waiting: {other:?}"),
    }
}

#[track_caller]
fn busy(answer: &Acquire) -> Busy {
    match answer {
        Acquire::Busy(busy) => busy.clone(),
        other => panic!("not busy: {other:?}"),
    }
}

#[track_caller]
fn refused(answer: &Acquire) -> Refusal {
    match answer {
        Acquire::Refused(refusal) => *refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn grants(notices: &[Notice]) -> Vec<(ClientId, u64, u32)> {
    let grant = |notice: &Notice| match notice.wake {
        Wake::Granted { ticket, heartbeat, .. } => Some((notice.client, ticket, heartbeat)),
        _ => None,
    };
    notices.iter().filter_map(grant).collect()
}
