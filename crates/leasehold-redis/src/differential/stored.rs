//! Reads all stored data of a lock, from either side into one form.

use std::collections::{BTreeMap, HashMap};

use leasehold_core::table::{LockEntry, Now};
use leasehold_core::{Fence, FenceBlock, Key, Kind, Mode, Token};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use redis::Value;
use serde_json::Value as Json;

use super::World;
use crate::wire::forms::{Pack as _, Packed, Shape};
use crate::wire::stored::{self, Holder, Waiter};

/// The stored data, and when the key expires.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) state: State,
    fields: BTreeMap<Vec<u8>, Vec<u8>>,
    /// How many fields a stopped script left empty.
    pub(super) emptied: usize,
    /// When the key expires, by the server, in ms from now.
    key_ms: i64,
    /// When the key should expire, by the state, in µs.
    kept: u64,
}

/// The table's data. Also for how many ms from now the lock is in use and its fences are ahead;
/// negative if that is over.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) state: State,
    in_use_ms: i64,
    fence_ms: i64,
}

/// The content of an entry, as text wherever that is enough to compare.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct State {
    holders: Vec<String>,
    waiters: Vec<String>,
    /// Meaningless while the lock is idle.
    kind: Option<u32>,
    closed_until: u64,
    last_fence: Option<Fence>,
    /// Meaningless while the queue is empty.
    next_places: [u64; 2],
    /// When a lease was last granted, and how far the lock's time is ahead of the clock.
    /// Meaningless while the lock is idle.
    time: [u64; 2],
    released: Option<String>,
    ended: Vec<String>,
}

impl State {
    fn in_use(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty() || self.closed_until > 0
    }
}

/// The default retention of stores.
const RETENTION_MS: i64 = 600_000;
/// How long a step may take in real time, in which keys expire.
const SLACK_MS: i64 = 30_000;

impl Stored {
    /// Reads the server's data: at most one key, which is a hash.
    pub(super) async fn read(world: &World, key: &Key) -> Self {
        let key = world.stores[0].shared.names.record(key);
        let mut questions = redis::pipe();
        questions.cmd("HGETALL").arg(&key);
        questions.cmd("PTTL").arg(&key);
        questions.cmd("DBSIZE");
        let mut answers = world.ask(&questions).await.into_iter();
        let bytes: HashMap<Vec<u8>, Vec<u8>> =
            redis::from_redis_value(answers.next().unwrap()).unwrap();
        let (Some(Value::Int(key_ms)), Some(Value::Int(keys))) = (answers.next(), answers.next())
        else {
            panic!("no numbers")
        };
        let locks = world.sequences.cast_signed();
        assert!(keys <= 2 + locks, "{keys} keys for {locks} locks and the clock");
        let stored = stored::read(&bytes).unwrap();
        let count = bytes.len();
        let fields: BTreeMap<_, _> =
            bytes.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let kept = stored.as_ref().map_or(0, |stored| stored.state.kept);
        let state = stored.map_or_else(State::default, |stored| parse(&stored, &fields));
        let emptied = count - fields.len();
        Self { state, fields, emptied, key_ms, kept }
    }

    /// All its bytes.
    pub(super) const fn bytes(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.fields
    }

    /// The table's data.
    pub(super) fn of(entry: &LockEntry, now: Now) -> Wanted {
        let json = serde_json::to_value(entry).unwrap();
        let list = |name: &str| json[name].as_array().unwrap().clone();
        let mut state = State {
            holders: list("holders").iter().map(table_holder).collect(),
            waiters: list("waiters").iter().map(table_waiter).collect(),
            kind: None,
            closed_until: json["closed_until"].as_u64().unwrap_or(0),
            last_fence: entry.last_fence(),
            next_places: [0, 0],
            time: ["given_at", "ahead_us"].map(|name| json["time"][name].as_u64().unwrap()),
            released: (!json["released"].is_null()).then(|| hex(&json["released"])),
            ended: list("ended").iter().map(hex).collect(),
        };
        if !state.waiters.is_empty() {
            state.next_places = [0, 1].map(|at| json["next_places"][at].as_u64().unwrap_or(0));
        }
        if state.in_use() {
            let kind: Kind = serde_json::from_value(json["kind"].clone()).unwrap();
            state.kind = Some(match kind {
                Kind::Semaphore { limit } => limit.get(),
                _ => 0,
            });
        }
        let ahead_ms = |us: u64| {
            let ahead_us = us.cast_signed() - now.at.as_micros().cast_signed();
            (ahead_us + 999).div_euclid(1_000)
        };
        let fence_us =
            entry.last_fence().map_or(0, |last| last.sequence() + 1 + Fence::ORIGIN_UNIX_US);
        let in_use_us = entry.in_use_until().map_or(0, |until| until.as_micros());
        Wanted { state, in_use_ms: ahead_ms(in_use_us), fence_ms: ahead_ms(fence_us) }
    }

    /// Checks that the key expires after everything in it is over, and not much later.
    pub(super) fn check_expiry(
        &self,
        before: &Self,
        wanted: &Wanted,
        now: Now,
    ) -> Result<(), TestCaseError> {
        if self.fields.is_empty() {
            return Ok(());
        }
        prop_assert!(self.key_ms > 0, "the key never expires: {self:?}");
        let ahead_us = self.kept.cast_signed() - now.at.as_micros().cast_signed();
        let kept_ms = ahead_us.div_euclid(1_000);
        if self.fields != before.fields {
            // Both are rounded up.
            let least = wanted.fence_ms.max(wanted.in_use_ms) + RETENTION_MS - 1;
            // Waits and leases last ten seconds at most, and each step sets clocks back by up to
            // six.
            let most = wanted.fence_ms.max(wanted.in_use_ms).max(360_000) + RETENTION_MS * 5 / 4;
            prop_assert!((least..=most + 1).contains(&kept_ms), "{kept_ms}: {self:?} {wanted:?}");
        }
        if self.kept != before.kept {
            let range = kept_ms - SLACK_MS..=kept_ms + 1;
            prop_assert!(range.contains(&self.key_ms), "{kept_ms}: {self:?}");
        }
        Ok(())
    }
}

fn hex(bytes: &Json) -> String {
    let bytes = bytes.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap());
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn letter(mode: Mode) -> (char, u64) {
    match mode {
        Mode::Permits { count, .. } => ('p', count.get().into()),
        Mode::Joint(bond) => ('j', bond.number()),
        Mode::Shared => ('s', 1),
        _ => ('x', 1),
    }
}

fn mode(json: &Json) -> (char, u64) {
    letter(serde_json::from_value(json.clone()).unwrap())
}

fn table_holder(json: &Json) -> String {
    let text = |name: &str| json[name].as_str().unwrap().to_owned();
    let fences: FenceBlock = serde_json::from_value(json["fences"].clone()).unwrap();
    let numbers = ["holds", "granted_at", "expires_at"].map(|name| json[name].as_u64().unwrap());
    let label = (text("owner"), text("metadata"), json["asked_by"].as_str().map(str::to_owned));
    holder(&hex(&json["token"]), mode(&json["mode"]), fences, numbers, label)
}

/// Owner, metadata, and the release request's owner.
type Label = (String, String, Option<String>);

fn holder(
    token: &str,
    mode: (char, u64),
    fences: FenceBlock,
    [holds, granted, expires]: [u64; 3],
    label: Label,
) -> String {
    format!("{fences:?} {token} {mode:?} {holds} {granted} {expires} {label:?}")
}

fn stored_holder(of: &Holder) -> String {
    let asked_by = of.asked_by.as_ref().map(|by| by.as_str().to_owned());
    let label = (of.owner.as_str().to_owned(), of.metadata.as_str().to_owned(), asked_by);
    let numbers = [of.holds.into(), of.granted, of.expires];
    holder(&of.token.to_hex(), letter(of.mode), of.fences, numbers, label)
}

fn table_waiter(json: &Json) -> String {
    let text = |name: &str| json[name].as_str().unwrap().to_owned();
    waiter(
        &hex(&json["token"]),
        mode(&json["mode"]),
        &format!("leasehold:wake:{}", hex(&json["client"])),
        [
            "place",
            "ticket",
            "heartbeat",
            "window",
            "behind",
            "fence_block",
            "arrived_at",
            "seen_at",
        ]
        .map(|name| json[name].as_u64().unwrap()),
        (&text("owner"), &text("metadata")),
    )
}

fn stored_waiter(of: &Waiter) -> String {
    let numbers = [
        of.place,
        of.ticket,
        of.heartbeat.into(),
        of.window / 1_000,
        of.behind.into(),
        of.block.into(),
        of.arrived,
        of.seen,
    ];
    let label = (of.owner.as_str(), of.metadata.as_str());
    waiter(&of.token.to_hex(), letter(of.mode), &of.channel, numbers, label)
}

fn waiter(
    token: &str,
    mode: (char, u64),
    channel: &str,
    numbers: [u64; 8],
    label: (&str, &str),
) -> String {
    format!("{token} {mode:?} {channel} {numbers:?} {label:?}")
}

/// Reads the fields other than holders and waiters, and checks them against those.
fn parse(stored: &stored::Stored, fields: &BTreeMap<Vec<u8>, Vec<u8>>) -> State {
    let its = &stored.state;
    let past = fields.get(&b"ended"[..]).map(Vec::as_slice).unwrap_or_default();
    assert_eq!(past.len() % 16, 0, "{stored:?}");
    let past = past.chunks(16).map(|token| Token::from_bytes(token.try_into().unwrap()));
    let mut state = State {
        holders: stored.holders.iter().map(stored_holder).collect(),
        waiters: stored.waiters.iter().map(stored_waiter).collect(),
        closed_until: its.closed,
        last_fence: stored.last_fence(),
        ended: past.map(|token| token.to_hex()).collect(),
        ..State::default()
    };
    if its.ends == 0 {
        state.released = its.token.map(|token| token.to_hex());
    }
    state.kind = state.in_use().then_some(its.limit);
    if state.in_use() {
        state.time = [its.given, its.offset];
    }
    let mut expected = vec![b"state".to_vec()];
    for name in [&b"about"[..], b"ended"] {
        expected.extend(fields.contains_key(name).then(|| name.to_vec()));
    }
    let shape = u64::from(fields[&b"state"[..]][0]);
    let is_simple = its.closed + its.offset == 0 && !its.asked;
    let is_plain = its.waiters + its.holders + its.limit == 0 && is_simple;
    assert_eq!(shape == Shape::Plain.byte(), is_plain, "{stored:?}");
    if its.ends > 0 {
        assert_eq!((stored.holders.len(), its.holders), (1, 0), "{stored:?}");
        assert_eq!(its.asked, stored.holders[0].asked_by.is_some(), "{stored:?}");
    } else {
        check_crowd(stored, fields, &mut expected);
    }
    if !stored.waiters.is_empty() {
        check_line(stored, fields, &mut expected);
        state.next_places = its.next_places;
    }
    let (head, next) = (its.ranges.first().copied().unwrap_or_default(), its.next_places);
    let in_one = its.ranges.len() == 1 && next == [0, head.1 + 1] && its.walked == 0;
    let is_line = its.waiters > 0 && in_one && its.holders + its.limit == 0 && is_simple;
    assert_eq!(shape == Shape::Line.byte(), is_line, "{stored:?}");
    expected.sort_unstable();
    assert_eq!(fields.keys().cloned().collect::<Vec<_>>(), expected, "{stored:?}");
    state
}

/// Checks the sharers: they are numbered without gaps, and each is found by its token. The state
/// has their number, their permits, and the first end of their leases.
fn check_crowd(
    stored: &stored::Stored,
    fields: &BTreeMap<Vec<u8>, Vec<u8>>,
    expected: &mut Vec<Vec<u8>>,
) {
    let its = &stored.state;
    let count = u32::try_from(stored.holders.len()).unwrap();
    assert_eq!((its.holders, its.cursor, its.asked), (count, 0, false), "{stored:?}");
    let mut tokens = Vec::new();
    for number in 1..=count {
        let mut slot = b"@".to_vec();
        slot.int(number);
        tokens.push(fields[&slot].clone());
        // Its record must lead back to it.
        let mut packed = Packed(&fields[&tokens[tokens.len() - 1]][1..]);
        assert_eq!(packed.double(), Some(number.into()), "{stored:?}");
        expected.push(slot);
    }
    expected.extend(tokens.iter().cloned());
    // A bond counts once, however many sharers have it.
    let all_taken = match stored.holders.first().map(|holder| holder.mode) {
        Some(Mode::Joint(bond)) => bond.number(),
        _ => stored.holders.iter().map(|holder| letter(holder.mode).1).sum::<u64>(),
    };
    assert_eq!(all_taken, its.taken, "{stored:?}");
    if let Some(soonest) = stored.holders.iter().min_by_key(|holder| holder.expires) {
        assert!(its.first_end <= soonest.expires, "{stored:?}");
        if let Some(at) = usize::try_from(its.nearest).unwrap().checked_sub(1) {
            assert_eq!(its.first_end, soonest.expires, "{stored:?}");
            assert_eq!(tokens[at], soonest.token.as_bytes(), "{stored:?}");
        }
    }
}

/// Checks the queue: every waiter is found by its token and by its position, and all are in a
/// range. The first range begins with the first waiter. Positions end no earlier than the state has
/// it.
fn check_line(
    stored: &stored::Stored,
    fields: &BTreeMap<Vec<u8>, Vec<u8>>,
    expected: &mut Vec<Vec<u8>>,
) {
    let its = &stored.state;
    for waiter in &stored.waiters {
        let mut name = Vec::new();
        name.double(waiter.place);
        name.reverse();
        assert_eq!(fields[&name], waiter.token.as_bytes(), "{stored:?}");
        expected.extend([name, waiter.token.as_bytes().to_vec()]);
        assert!(waiter.window <= its.longest && waiter.ends() >= its.soonest, "{stored:?}");
        let inside =
            its.ranges.iter().filter(|(head, tail)| (head..=tail).contains(&&waiter.place));
        assert_eq!(inside.count(), 1, "{stored:?}");
    }
    assert_eq!(usize::try_from(its.waiters).unwrap(), stored.waiters.len(), "{stored:?}");
    assert_eq!(its.ranges[0].0, stored.waiters[0].place, "{stored:?}");
    let in_order = its.ranges.windows(2).all(|two| two[0].1 < two[1].0);
    assert!(in_order && its.ranges.iter().all(|(head, tail)| head <= tail), "{stored:?}");
}
