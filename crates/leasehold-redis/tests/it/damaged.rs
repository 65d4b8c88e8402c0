//! Data damaged by another program is reported as such, and a held lock is not granted again.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use leasehold_core::{
    Acquire, AcquireAll, AskRequest, ClientId, ConvertRequest, Effect, Error, ErrorKind, Fence,
    FenceBlock, ForceReleaseRequest, ListRequest, LockInfo, Mode, OwnerName, Result,
    SetLimitRequest, Store as _,
};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::server::RedisServer;
use redis::aio::MultiplexedConnection;

use crate::common::{Caller, WITHIN, all_words, connection, key, slot, ttl};

/// Longer than all of it takes.
const HOURS: u64 = 7_200;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Op {
    Inspect,
    List,
    Try,
    Wait,
    WaitOn,
    TakeAll,
    Renew,
    RenewTogether,
    Release,
    Leave,
    LeaveLine,
    Convert,
    Ask,
    SetLimit,
    ForceRelease,
}

const OPS: [Op; 15] = [
    Op::Inspect,
    Op::List,
    Op::Try,
    Op::Wait,
    Op::WaitOn,
    Op::TakeAll,
    Op::Renew,
    Op::RenewTogether,
    Op::Release,
    Op::Leave,
    Op::LeaveLine,
    Op::Convert,
    Op::Ask,
    Op::SetLimit,
    Op::ForceRelease,
];

/// The result of a successful operation.
#[derive(Debug)]
enum Done {
    /// Another caller got the lock.
    Granted,
    Shown(Option<LockInfo>),
    Answered,
}

#[derive(Clone, Debug)]
enum Damage {
    Removed,
    Written(Vec<u8>),
    /// It can be read, but has changed.
    Changed(Vec<u8>),
}

/// A held lock, with its holders and waiters.
struct Lock {
    store: RedisStore,
    raw: MultiplexedConnection,
    record: String,
    holder: Caller,
    fences: FenceBlock,
    waiter: Caller,
    /// A mode that excludes every holder of this lock.
    stranger: Mode,
    /// Another lock, which is undamaged.
    other: (Caller, FenceBlock),
    fields: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn long(mut caller: Caller) -> Caller {
    caller.request.ttl = ttl(HOURS);
    if let Some(queue) = &mut caller.request.queue {
        queue.window = ttl(HOURS);
    }
    caller
}

impl Lock {
    /// A lock with a holder for each of `modes`, and this many waiters.
    async fn new(server: &RedisServer, modes: &[Mode], stranger: Mode, waiters: usize) -> Self {
        let store = RedisStore::connect(&server.url()).await.unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let raw = connection(&client).await.unwrap();
        let key = key();
        let mut held = None;
        for mode in modes {
            let mut holder = long(Caller::new(&store, &key));
            holder.request.mode = *mode;
            holder.request.owner = OwnerName::new("web-7").unwrap();
            let fences = holder.take().await;
            held = Some((holder, fences));
        }
        let (holder, fences) = held.unwrap();
        let client = ClientId::generate().unwrap();
        let mut waiter = long(Caller::patient(&store, &key, client));
        waiter.request.mode = stranger;
        for _ in 0..waiters {
            let mut next = long(Caller::patient(&store, &key, client));
            next.request.mode = stranger;
            let place = next.wait().await.place;
            next.request.queue.as_mut().unwrap().place = Some(place);
            waiter = next;
        }
        let other = long(Caller::new(&store, &crate::common::key()));
        let others = other.take().await;
        let record = format!("leasehold:{{{key}}}");
        let mut lock = Self {
            store,
            raw,
            record,
            holder,
            fences,
            waiter,
            stranger,
            other: (other, others),
            fields: BTreeMap::new(),
        };
        lock.fields =
            redis::cmd("HGETALL").arg(&lock.record).query_async(&mut lock.raw).await.unwrap();
        lock
    }

    async fn put_back(&mut self, field: &[u8], damage: &Damage) {
        let Self { raw, record, fields, .. } = self;
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(&*record);
        pipe.cmd("HSET").arg(&*record);
        for (name, value) in fields {
            pipe.arg(name).arg(value);
        }
        pipe.cmd("PEXPIRE").arg(&*record).arg(HOURS * 1_000);
        match damage {
            Damage::Removed => pipe.cmd("HDEL").arg(&*record).arg(field),
            Damage::Written(value) | Damage::Changed(value) => {
                pipe.cmd("HSET").arg(&*record).arg(field).arg(value)
            }
        };
        let () = pipe.ignore().query_async(raw).await.unwrap();
    }

    async fn attempt(&self, op: Op) -> Result<Done> {
        let Self { store, holder, fences, waiter, .. } = self;
        let key = &holder.request.key;
        let mut stranger = long(Caller::new(store, key));
        stranger.request.mode = self.stranger;
        let taken = |answer: Acquire| match answer {
            Acquire::Granted(_) => Done::Granted,
            _ => Done::Answered,
        };
        match op {
            Op::Inspect => store.inspect(key, WITHIN).await.map(Done::Shown),
            Op::List => {
                let mut listing = store.list(&ListRequest::new(key.as_str()), WITHIN).await?;
                match listing.unreadable.pop() {
                    Some(error) => Err(error),
                    None => Ok(Done::Shown(listing.locks.pop())),
                }
            }
            Op::Try => stranger.try_take().await.map(taken),
            Op::Wait => {
                stranger = long(Caller::patient(store, key, ClientId::generate().unwrap()));
                stranger.request.mode = self.stranger;
                stranger.try_take().await.map(taken)
            }
            Op::WaitOn => waiter.try_take().await.map(taken),
            Op::TakeAll => {
                let both =
                    [long(Caller::new(store, &crate::common::key())).request, stranger.request];
                store.acquire_all(&both, WITHIN).await.map(|answer| match answer {
                    AcquireAll::Granted(_) => Done::Granted,
                    _ => Done::Answered,
                })
            }
            Op::Renew => store
                .renew(&[holder.renewal(*fences)], WITHIN)
                .await
                .remove(0)
                .map(|_| Done::Answered),
            Op::RenewTogether => {
                let (other, others) = &self.other;
                let both = [holder.renewal(*fences), other.renewal(*others)];
                let mut answers = store.renew(&both, WITHIN).await;
                answers.pop().unwrap().expect("the other lock is whole");
                answers.remove(0).map(|_| Done::Answered)
            }
            Op::Release => {
                store.release(&holder.ending(*fences), WITHIN).await.map(|_| Done::Answered)
            }
            Op::Leave => store.leave(&holder.leaving(), WITHIN).await.map(|_| Done::Answered),
            Op::LeaveLine => store.leave(&waiter.leaving(), WITHIN).await.map(|_| Done::Answered),
            Op::Convert => {
                let mode = holder.request.mode;
                let request = ConvertRequest::new(key.clone(), holder.request.token, *fences, mode);
                store.convert(&request, WITHIN).await.map(|_| Done::Answered)
            }
            Op::Ask => {
                let request = AskRequest::new(key.clone(), OwnerName::new("anna").unwrap());
                store.ask(&request, WITHIN).await.map(|_| Done::Answered)
            }
            Op::SetLimit => {
                let request = SetLimitRequest::new(key.clone(), NonZeroU32::new(9).unwrap());
                store.set_limit(&request, WITHIN).await.map(|_| Done::Answered)
            }
            Op::ForceRelease => {
                let request = ForceReleaseRequest::new(key.clone(), fences.first());
                store.force_release(&request, WITHIN).await.map(|_| Done::Answered)
            }
        }
    }

    /// Every damage of each field.
    fn damages(&self) -> Vec<(Vec<u8>, Damage)> {
        let mut damages = Vec::new();
        for (name, value) in &self.fields {
            damages.push((name.clone(), Damage::Removed));
            for odd in ["garbage", " ", "0", "1 1 1 1 x"] {
                damages.push((name.clone(), Damage::Written(odd.into())));
            }
            // One waiter and one sharer stand for all.
            for end in 1..value.len() {
                damages.push((name.clone(), Damage::Written(value[..end].to_owned())));
            }
            for at in 0..value.len() {
                for byte in [0, 0x7f, 0xff] {
                    let mut other = value.clone();
                    other[at] = byte;
                    damages.push((name.clone(), Damage::Changed(other)));
                }
            }
        }
        damages
    }

    /// Damages each field in each way, and tries every operation.
    async fn check(mut self) {
        let mut wrong = Vec::new();
        for (field, damage) in self.damages() {
            for op in OPS {
                // These visit all sharers up to the stored number, so a huge number takes long.
                let looks_through = matches!(op, Op::Ask | Op::ForceRelease);
                if looks_through && matches!(damage, Damage::Changed(_)) {
                    continue;
                }
                self.put_back(&field, &damage).await;
                // A list only contains locks, so it can't report a key without a state.
                let unlisted = op == Op::List && field == b"state";
                let free = unlisted && matches!(damage, Damage::Removed);
                let free = free || matches!(damage, Damage::Changed(_));
                let fault = match self.attempt(op).await {
                    Err(error) => is_no_damage(&error),
                    Ok(Done::Granted) if !free => Some("a second holder".to_owned()),
                    Ok(Done::Shown(info))
                        if !free && info.as_ref().is_none_or(|info| info.holders.is_empty()) =>
                    {
                        Some(format!("{info:?}"))
                    }
                    Ok(_) => None,
                };
                let field = field.escape_ascii();
                wrong.extend(fault.map(|fault| format!("{op:?}, {field} {damage:?}: {fault}")));
            }
        }
        let some: Vec<_> = wrong.iter().take(30).collect();
        assert!(wrong.is_empty(), "{} wrong, such as {some:#?}", wrong.len());
    }
}

/// Why an error is not one about a damaged lock, if so.
fn is_no_damage(error: &Error) -> Option<String> {
    let text = all_words(error);
    let said = text.contains("delete its key") && !text.contains("user_script");
    let damaged = error.kind() == ErrorKind::Corrupt && error.effect() != Effect::Applied && said;
    // A lock without its state looks like foreign data, or like another version.
    let other = matches!(error.kind(), ErrorKind::Foreign | ErrorKind::Unsupported);
    let damaged = damaged || other && error.effect() == Effect::NotApplied;
    (!damaged).then(|| format!("{:?} {:?} {error}", error.kind(), error.effect()))
}

fn permits(count: u32) -> Mode {
    let [count, limit] = [count, 3].map(|number| NonZeroU32::new(number).unwrap());
    Mode::Permits { count, limit }
}

#[tokio::test]
async fn a_record_or_a_state_that_can_not_be_read_is_damaged_for_all_that_read_it() {
    let server = RedisServer::start();
    let removed = Damage::Removed;
    let written = |bytes: &[u8]| Damage::Written(bytes.to_owned());
    let mut lock = Lock::new(&server, &[Mode::Exclusive], Mode::Exclusive, 2).await;
    let state = lock.fields[&b"state"[..]].clone();
    // Cut off at the size of a smaller shape, a state still has its own first byte.
    let cuts = [&state[..30], &state[..51], &state[..74], &state[..86]].map(written);
    let longer = [&state[..], b"x"].concat();
    let states = cuts.into_iter().chain([written(&longer), written(b"\x11"), written(b"")]);
    let states = states.map(|damage| (&b"state"[..], damage, ErrorKind::Corrupt));
    let gone = (&b"state"[..], removed.clone(), ErrorKind::Foreign);
    // An operation that only reads the state succeeds without it.
    let abouts = [removed, written(b"garbage"), written(b"")];
    let abouts = abouts.map(|it| (&b"about"[..], it, ErrorKind::Corrupt));
    let tells = [Op::Inspect, Op::Try, Op::Wait, Op::WaitOn, Op::TakeAll];
    for (field, damage, kind) in states.chain([gone]).chain(abouts) {
        for op in OPS {
            lock.put_back(field, &damage).await;
            let outcome = lock.attempt(op).await;
            let what = format!("{op:?}, {} {damage:?}: {outcome:?}", field.escape_ascii());
            let told = outcome.as_ref().err().map(Error::kind);
            match (field, op, kind) {
                // A list only contains locks, so it can't report a key without a state.
                (_, Op::List, ErrorKind::Foreign) => assert_eq!(told, None, "{what}"),
                (b"about", op, _) if op != Op::List && !tells.contains(&op) => {
                    assert_eq!(told, None, "{what}");
                }
                _ => assert_eq!(told, Some(kind), "{what}"),
            }
        }
    }
}

#[tokio::test]
async fn a_hold_that_was_removed_is_shown_before_and_after_it_is_written_again() {
    let server = RedisServer::start();
    for (modes, stranger) in [
        (&[Mode::Shared] as &[Mode], Mode::Exclusive),
        (&[Mode::Shared; 2], Mode::Exclusive),
        (&[permits(2)], permits(2)),
        (&[permits(1), permits(2)], permits(1)),
    ] {
        let mut lock = Lock::new(&server, modes, stranger, 0).await;
        lock.put_back(&slot(1), &Damage::Removed).await;
        let shown = async |lock: &Lock| match lock.attempt(Op::Inspect).await.unwrap() {
            Done::Shown(info) => info.unwrap(),
            done => panic!("{done:?}"),
        };
        let before = shown(&lock).await;
        assert!(matches!(lock.attempt(Op::Try).await.unwrap(), Done::Answered));
        // This one visits each of them.
        lock.attempt(Op::Ask).await.unwrap();
        let after = shown(&lock).await;
        assert_eq!(before.holders.len(), modes.len(), "{before:?}");
        assert!(before.holders.iter().any(|holder| holder.fence == Fence::ZERO), "{before:?}");
        for (before, after) in before.holders.iter().zip(&after.holders) {
            assert_eq!((before.mode, before.fence), (after.mode, after.fence));
            assert!(before.remaining >= after.remaining, "{before:?} {after:?}");
        }
    }
}

#[tokio::test]
async fn a_damaged_lock_is_reported_as_such_and_granted_to_no_other() {
    let server = RedisServer::start();
    Lock::new(&server, &[Mode::Exclusive], Mode::Exclusive, 0).await.check().await;
}

#[tokio::test]
async fn a_damaged_lock_that_is_waited_for_is_reported_as_such_and_granted_to_no_other() {
    let server = RedisServer::start();
    Lock::new(&server, &[Mode::Exclusive], Mode::Exclusive, 2).await.check().await;
}

#[tokio::test]
async fn a_damaged_shared_lock_is_reported_as_such_and_granted_to_no_other() {
    let server = RedisServer::start();
    Lock::new(&server, &[Mode::Shared; 2], Mode::Exclusive, 1).await.check().await;
}

#[tokio::test]
async fn a_damaged_semaphore_is_reported_as_such_and_granted_to_no_other() {
    let server = RedisServer::start();
    Lock::new(&server, &[permits(2)], permits(2), 1).await.check().await;
}
