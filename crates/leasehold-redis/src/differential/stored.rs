//! All that is stored for one lock, read from either side into one form.

use std::collections::BTreeMap;

use leasehold_core::table::{LockEntry, Now};
use leasehold_core::{Fence, Kind, Mode};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use redis::Value;
use serde_json::Value as Json;

use super::Both;
use crate::names::read_label;
use crate::reply;

/// What is stored, and until when the keys live.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) state: State,
    raw: Option<String>,
    crowd: Crowd,
    /// From now, ms: when the keys expire.
    record_ms: i64,
    crowd_ms: [i64; 2],
}

/// Who is in the crowd, and in which order.
#[derive(Debug, Default, Eq, PartialEq)]
struct Crowd {
    who: BTreeMap<String, String>,
    order: BTreeMap<String, i64>,
}

impl Crowd {
    fn is_empty(&self) -> bool {
        self.who.is_empty() && self.order.is_empty()
    }

    fn expect(&self, entry: &str, score: i64) {
        assert_eq!(self.order.get(entry), Some(&score), "{entry:?} in {self:?}");
    }
}

/// What the table has, and how long from now, ms, the lock is in use and its fences are ahead.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) state: State,
    in_use_ms: i64,
    fence_ms: i64,
}

/// What an entry holds, as text wherever that is enough to compare.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct State {
    holders: Vec<String>,
    waiters: Vec<String>,
    /// Means nothing while nobody uses the lock.
    kind: Option<u32>,
    closed_until: u64,
    last_fence: Option<Fence>,
    last_arrival: u64,
    released: Option<String>,
}

impl State {
    fn in_use(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty() || self.closed_until > 0
    }
}

/// The retention that stores have by default.
const RETENTION_MS: i64 = 600_000;
/// How long a step may take in real time, in which keys expire.
const SLACK_MS: i64 = 30_000;

impl Stored {
    /// What the server has.
    pub(super) async fn read(both: &Both<'_>) -> Self {
        let [record, crowd, order] = both.world.stores[0].shared.names.keys(&both.key);
        let mut questions = redis::pipe();
        questions.cmd("GET").arg(&record);
        questions.cmd("HGETALL").arg(&crowd);
        questions.cmd("ZRANGE").arg(&order).arg(0).arg(-1).arg("WITHSCORES");
        for key in [&record, &crowd, &order] {
            questions.cmd("PTTL").arg(key);
        }
        let mut answers = both.world.ask(&questions).await.into_iter();
        let mut next = || answers.next().unwrap();
        let raw: Option<String> = redis::from_redis_value(next()).unwrap();
        let who = redis::from_redis_value(next()).unwrap();
        let order: BTreeMap<String, f64> = redis::from_redis_value(next()).unwrap();
        let order = order.into_iter().map(|(entry, score)| (entry, exact(score))).collect();
        let crowd = Crowd { who, order };
        let mut ttl = || match next() {
            Value::Int(ms) => ms,
            other => panic!("{other:?}"),
        };
        let state = raw.as_deref().map_or_else(State::default, |raw| parse(raw, &crowd));
        Self { state, raw, crowd, record_ms: ttl(), crowd_ms: [ttl(), ttl()] }
    }

    /// What the table has.
    pub(super) fn of(entry: &LockEntry, now: Now) -> Wanted {
        let json = serde_json::to_value(entry).unwrap();
        let list = |name: &str| json[name].as_array().unwrap().clone();
        let mut state = State {
            holders: list("holders").iter().map(table_holder).collect(),
            waiters: list("waiters").iter().map(table_waiter).collect(),
            kind: None,
            closed_until: json["closed_until"].as_u64().unwrap_or(0),
            last_fence: entry.last_fence(),
            last_arrival: json["last_arrival"].as_u64().unwrap_or(0),
            released: (!json["released"].is_null()).then(|| hex(&json["released"])),
        };
        if state.in_use() {
            let kind: Kind = serde_json::from_value(json["kind"].clone()).unwrap();
            state.kind = Some(match kind {
                Kind::Semaphore { limit } => limit.get(),
                _ => 0,
            });
        }
        let ahead_ms =
            |us: u64| i64::try_from(us.saturating_sub(now.at.as_micros()).div_ceil(1_000)).unwrap();
        let fence_us =
            entry.last_fence().map_or(0, |last| last.sequence() + 1 + Fence::ORIGIN_UNIX_US);
        let in_use_us = entry.in_use_until().map_or(0, |until| until.as_micros());
        Wanted { state, in_use_ms: ahead_ms(in_use_us), fence_ms: ahead_ms(fence_us) }
    }

    /// Every key expires, no earlier than what it says is over, and not much later.
    pub(super) fn check_expiry(&self, before: &Self, wanted: &Wanted) -> Result<(), TestCaseError> {
        if self.raw.is_none() {
            prop_assert!(self.crowd.is_empty(), "a crowd without a record");
            return Ok(());
        }
        prop_assert!(self.record_ms > 0, "the record never expires");
        let crowd_lives =
            |lives: &dyn Fn(&i64) -> bool| self.crowd.is_empty() || self.crowd_ms.iter().all(lives);
        prop_assert!(crowd_lives(&|ms| *ms > 0), "the crowd never expires");
        if self.raw != before.raw || self.crowd != before.crowd {
            let least = wanted.fence_ms.max(wanted.in_use_ms + RETENTION_MS) - SLACK_MS;
            // A plain release leaves the key the rest of its lease: here, up to ten seconds, and
            // as much more as clocks were set back.
            let most = wanted.fence_ms.max(wanted.in_use_ms).max(60_000) + RETENTION_MS + 2;
            prop_assert!((least..=most).contains(&self.record_ms), "record: {self:?} {wanted:?}");
            prop_assert!(
                crowd_lives(&|ms| (least..=most).contains(ms)),
                "crowd: {self:?} {wanted:?}"
            );
        }
        Ok(())
    }
}

/// Whether the clock was set back since somebody in line was heard.
pub(super) fn heard_after(entry: &LockEntry, now: Now) -> bool {
    let json = serde_json::to_value(entry).unwrap();
    let mut waiters = json["waiters"].as_array().unwrap().iter();
    waiters.any(|waiter| waiter["seen_at"].as_u64().unwrap() > now.at.as_micros())
}

fn hex(bytes: &Json) -> String {
    let bytes = bytes.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap());
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn fence(epoch: &str, sequence: &str) -> Fence {
    let sequence: u64 = sequence.parse().unwrap();
    Fence::new(epoch.parse().unwrap(), sequence - Fence::ORIGIN_UNIX_US).unwrap()
}

fn mode(json: &Json) -> (char, u32) {
    match serde_json::from_value(json.clone()).unwrap() {
        Mode::Permits { count, .. } => ('p', count.get()),
        Mode::Shared => ('s', 1),
        _ => ('x', 1),
    }
}

fn table_holder(json: &Json) -> String {
    let (mode, permits) = mode(&json["mode"]);
    let text = |name: &str| json[name].as_str().unwrap().to_owned();
    holder(
        &hex(&json["token"]),
        (mode, permits),
        Fence::from_value(json["fences"]["first"].as_u64().unwrap()).unwrap(),
        [&json["fences"]["count"], &json["holds"], &json["granted_at"], &json["expires_at"]]
            .map(|number| number.as_u64().unwrap()),
        &(text("owner"), text("metadata"), json["asked_by"].as_str().map(str::to_owned)),
    )
}

/// Owner, metadata, and who asks them to let go.
type Profile = (String, String, Option<String>);

/// What follows the number of holds.
fn read_profile(words: &[&str]) -> Profile {
    let (_, owner, metadata, asked_by) = reply::read_profile(&words.join(" ")).unwrap();
    let text = |owner: leasehold_core::OwnerName| owner.as_str().to_owned();
    (text(owner), metadata.as_str().to_owned(), asked_by.map(text))
}

fn holder(
    token: &str,
    mode: (char, u32),
    fence: Fence,
    [count, holds, granted, expires]: [u64; 4],
    profile: &Profile,
) -> String {
    format!("{fence} {count} {token} {mode:?} {holds} {granted} {expires} {profile:?}")
}

fn table_waiter(json: &Json) -> String {
    let text = |name: &str| json[name].as_str().unwrap().to_owned();
    waiter(
        &hex(&json["token"]),
        mode(&json["mode"]),
        &format!("leasehold:wake:{}", hex(&json["client"])),
        ["place", "ticket", "heartbeat", "window", "fence_block", "arrived_at", "seen_at"]
            .map(|name| json[name].as_u64().unwrap()),
        (&text("owner"), &text("metadata")),
    )
}

fn waiter(
    token: &str,
    mode: (char, u32),
    channel: &str,
    numbers: [u64; 7],
    label: (&str, &str),
) -> String {
    format!("{token} {mode:?} {channel} {numbers:?} {label:?}")
}

/// A score, all of which are whole numbers that a double holds.
fn exact(score: f64) -> i64 {
    let whole = format!("{score:.0}").parse().unwrap();
    assert!(score.abs() < 9_007_199_254_740_992.0 && score.fract() == 0.0, "{score}");
    whole
}

/// Reads a record and its crowd as `docs/wire.md` has them.
fn parse(record: &str, crowd: &Crowd) -> State {
    let words: Vec<&str> = record.split(' ').collect();
    assert_eq!(words[0], "leasehold/1", "{record}");
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let [place, soonest, latest, closed_until, ttl_ms] = [4, 5, 6, 7, 8].map(number);
    let [first, count] = [10, 11].map(number);
    let first_fence = fence(words[9], words[10]);
    let mut state = State {
        last_fence: Some(fence(words[9], &(first + count - 1).to_string())),
        last_arrival: place,
        ..State::default()
    };
    let mut waiters = Vec::new();
    let mut holders = Vec::new();
    let mut taken = 0;
    for (token, entry) in &crowd.who {
        let words: Vec<&str> = entry.split(' ').collect();
        match words[0] {
            "waits" => waiters.push(read_waiter(token, &words, crowd)),
            "holds" => holders.push(read_holder(token, &words, crowd, &mut taken)),
            other => panic!("{other}"),
        }
    }
    waiters.sort_unstable();
    let held_here = holders.len();
    assert_eq!(crowd.order.len(), 2 * waiters.len() + held_here, "left over: {crowd:?}");
    match words[1] {
        "held" | "want" => {
            assert!(holders.is_empty(), "{crowd:?}");
            let ends = number(3) + ttl_ms * 1_000;
            let profile = read_profile(&words[13..]);
            assert_eq!(words[1] == "want", profile.2.is_some(), "{record}");
            let numbers = [count, number(13), number(12), ends];
            let text = holder(words[2], ('x', 1), first_fence, numbers, &profile);
            holders.push((first_fence, text));
            (state.kind, state.closed_until) = (Some(0), closed_until);
        }
        "many" => {
            assert_eq!(u64::from(taken), number(13), "{record} {crowd:?}");
            (state.kind, state.closed_until) = (Some(words[12].parse().unwrap()), closed_until);
        }
        "free" => assert!(holders.is_empty() && waiters.is_empty(), "{record} {crowd:?}"),
        other => panic!("{other}"),
    }
    if !matches!(words[1], "held" | "want") && !words[2].starts_with('-') {
        state.released = Some(words[2].to_owned());
    }
    if words[1] != "free" {
        let outside = |(_, end, _): &&(_, u64, _)| !(soonest..=latest).contains(end);
        assert_eq!(waiters.iter().find(outside), None, "{record} {crowd:?}");
    }
    holders.sort_unstable();
    state.holders = holders.into_iter().map(|(_, holder)| holder).collect();
    state.waiters = waiters.into_iter().map(|(_, _, waiter)| waiter).collect();
    if !state.in_use() {
        state.kind = None;
    }
    state
}

fn read_waiter(token: &str, words: &[&str], crowd: &Crowd) -> (u64, u64, String) {
    let [_, mode, permits, block, channel, ticket, beat, window, seen, arrived, ..] = *words else {
        panic!("{words:?}")
    };
    let label = read_label(&words[11..].join(" ")).unwrap();
    let numbers =
        [ticket, beat, window, block, arrived, seen].map(|number| number.parse::<u64>().unwrap());
    let [ticket, beat, window, block, arrived, seen] = numbers;
    let place = u64::try_from(crowd.order[token]).unwrap();
    let end = seen + window * 1_000;
    crowd.expect(&format!("till {token}"), -i64::try_from(end).unwrap());
    let mode = (mode.chars().next().unwrap(), permits.parse().unwrap());
    let label = (label.0.as_str(), label.1.as_str());
    let numbers = [place, ticket, beat, window, block, arrived, seen];
    (place, end, waiter(token, mode, channel, numbers, label))
}

fn read_holder(token: &str, words: &[&str], crowd: &Crowd, taken: &mut u32) -> (Fence, String) {
    let [_, mode, permits, expires, granted, epoch, first, count, holds, ..] = *words else {
        panic!("{words:?}")
    };
    let profile = read_profile(&words[8..]);
    let numbers = [count, holds, granted, expires].map(|number| number.parse::<u64>().unwrap());
    let ends = i64::try_from(numbers[3]).unwrap() - (1 << 53);
    crowd.expect(&format!("{first:0>16} {epoch:0>4} {permits} {token}"), ends);
    *taken += permits.parse::<u32>().unwrap();
    let mode = (mode.chars().next().unwrap(), permits.parse().unwrap());
    let first = fence(epoch, first);
    (first, holder(token, mode, first, numbers, &profile))
}
