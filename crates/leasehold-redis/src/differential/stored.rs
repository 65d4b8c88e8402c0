//! All that is stored for one lock, read from either side into one form.

use std::collections::{BTreeMap, HashMap};

use leasehold_core::table::{LockEntry, Now};
use leasehold_core::{Fence, FenceBlock, Key, Kind, Mode};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use redis::Value;
use serde_json::Value as Json;

use super::World;
use crate::stored::{self, Holder, Waiter};

/// What is stored, and until when the key lives.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) state: State,
    fields: BTreeMap<String, String>,
    /// How many fields a stopped script left empty.
    pub(super) emptied: usize,
    /// From now, ms: when the key expires, by the server and by its record.
    key_ms: i64,
    kept_ms: u64,
}

/// What the table has, and how long from now, ms, the lock is in use and its fences are ahead; negative for what is
/// over.
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
    /// Mean nothing while nobody waits.
    next_places: [u64; 2],
    released: Option<String>,
    ended: Vec<String>,
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
    /// What the server has: one key at most, which is a hash.
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
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields: BTreeMap<_, _> = bytes
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (text(name), text(value)))
            .collect();
        let stored = stored::read(&bytes).unwrap();
        let kept_ms = stored.as_ref().map_or(0, |stored| stored.kept_ms);
        let state = stored.map_or_else(State::default, |stored| parse(&stored, &fields));
        let emptied = bytes.len() - fields.len();
        Self { state, fields, emptied, key_ms, kept_ms }
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
            next_places: [0, 0],
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

    /// The key expires, no earlier than what it says is over, and not much later.
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
        let kept_ms = self.kept_ms.cast_signed() - (now.at.as_micros() / 1_000).cast_signed();
        if self.fields != before.fields {
            let least = wanted.fence_ms.max(wanted.in_use_ms) + RETENTION_MS;
            // Nobody waits or holds for longer than ten seconds, and clocks are set back by as much
            // as two each time.
            let most = wanted.fence_ms.max(wanted.in_use_ms).max(120_000) + RETENTION_MS * 5 / 4;
            prop_assert!((least..=most + 1).contains(&kept_ms), "{kept_ms}: {self:?} {wanted:?}");
        }
        if self.kept_ms != before.kept_ms {
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

/// Owner, metadata, and who asks them to let go.
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
    holder(&of.token, letter(of.mode), of.fences, numbers, label)
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
        of.window_ms,
        of.behind.into(),
        of.block.into(),
        of.arrived,
        of.seen,
    ];
    let label = (of.owner.as_str(), of.metadata.as_str());
    waiter(&of.token, letter(of.mode), &of.channel, numbers, label)
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

/// Reads what is beside holders and waiters, and checks what can be told from them.
fn parse(stored: &stored::Stored, fields: &BTreeMap<String, String>) -> State {
    let about: Vec<&str> = fields["lock"].split(' ').collect();
    assert_eq!((about[1].len(), about[2].len()), (10, 16), "{about:?}");
    let words: Vec<&str> = fields["state"].split(' ').collect();
    let widths = words.iter().take(4).map(|word| word.len());
    assert_eq!(widths.collect::<Vec<_>>(), [13, 32, 16, 4], "{words:?}");
    let alone = words.get(4).is_some_and(|word| *word != "many");
    let mut state = State {
        holders: stored.holders.iter().map(stored_holder).collect(),
        waiters: stored.waiters.iter().map(stored_waiter).collect(),
        closed_until: stored.closed_until,
        last_fence: (words[2] != "0000000000000000").then(|| stored.fences.last()),
        ended: fields
            .get("ended")
            .map(|ended| ended.split(' ').map(str::to_owned).collect())
            .unwrap_or_default(),
        ..State::default()
    };
    if !alone && !words[1].starts_with('-') {
        state.released = Some(words[1].to_owned());
    }
    state.kind = state.in_use().then_some(stored.limit);
    assert_eq!(words.len() == 4, !state.in_use() && stored.limit == 0, "{fields:?}");
    let mut expected = vec!["lock".to_owned(), "state".to_owned()];
    expected.extend(fields.contains_key("ended").then(|| "ended".to_owned()));
    if alone {
        assert_eq!(stored.holders.len(), 1, "{fields:?}");
        assert_eq!(words[4].len(), 16, "{words:?}");
        let more = stored.closed_until > 0 || stored.holders[0].asked_by.is_some();
        let shape = if more {
            assert_eq!(words[6].len(), 16, "{words:?}");
            Some("more")
        } else {
            (!stored.waiters.is_empty() && !is_plain(&words)).then_some("line")
        };
        assert_eq!(words.get(5).copied().filter(|_| !is_plain(&words)), shape, "{fields:?}");
    } else {
        check_crowd(&words, stored, fields, &mut expected);
    }
    if !stored.waiters.is_empty() {
        state.next_places = if is_plain(&words) {
            check_plain_line(&words, stored, fields, &mut expected)
        } else {
            check_line(stored, fields, &mut expected)
        };
    }
    expected.sort_unstable();
    assert_eq!(fields.keys().cloned().collect::<Vec<_>>(), expected, "{fields:?}");
    state
}

/// Holders are numbered without gaps, each is found by its token, and the record says how many they
/// are, what they have, and when the first of their leases ends.
fn check_crowd(
    words: &[&str],
    stored: &stored::Stored,
    fields: &BTreeMap<String, String>,
    expected: &mut Vec<String>,
) {
    let count = stored.holders.len();
    expected.extend((1..=count).map(|number| format!("@{number}")));
    for holder in &stored.holders {
        let field = &fields[&holder.token];
        assert!(fields[field].contains(&holder.token), "{fields:?}");
        expected.push(holder.token.clone());
    }
    if words.get(4) != Some(&"many") {
        assert_eq!(count, 0, "{fields:?}");
        return;
    }
    let numbers: Vec<u64> = words[6..].iter().map(|word| word.parse().unwrap()).collect();
    let [_, holders, taken, ends, nearest, cursor, _] = numbers[..] else { panic!("{words:?}") };
    assert_eq!((holders, cursor), (u64::try_from(count).unwrap(), 0), "{fields:?}");
    // A bond is taken once, however many have it.
    let all_taken = match stored.holders.first().map(|holder| holder.mode) {
        Some(Mode::Joint(bond)) => bond.number(),
        _ => stored.holders.iter().map(|holder| letter(holder.mode).1).sum::<u64>(),
    };
    assert_eq!(all_taken, taken, "{fields:?}");
    if let Some(soonest) = stored.holders.iter().min_by_key(|holder| holder.expires) {
        assert!(ends <= soonest.expires, "{fields:?}");
        if nearest > 0 {
            assert_eq!(ends, soonest.expires, "{fields:?}");
            assert_eq!(fields[&soonest.token], format!("@{nearest}"), "{fields:?}");
        }
    }
}

/// Whether the state has all of the line.
fn is_plain(words: &[&str]) -> bool {
    words.len() == 10 && words[4] != "many"
}

/// Every waiter is found by its token, and has its place kept for as long as the state says.
fn check_waiters(
    stored: &stored::Stored,
    fields: &BTreeMap<String, String>,
    expected: &mut Vec<String>,
    window: u64,
) {
    for waiter in &stored.waiters {
        let field = format!("#{}", waiter.place);
        assert_eq!(fields[&waiter.token], field, "{fields:?}");
        expected.extend([field, waiter.token.clone()]);
        assert!(window == 0 || waiter.window_ms == window, "{fields:?}");
    }
}

/// A plain line begins with the first waiter, has so many places given up as the state says, and no place ends before
/// the state says.
fn check_plain_line(
    words: &[&str],
    stored: &stored::Stored,
    fields: &BTreeMap<String, String>,
    expected: &mut Vec<String>,
) -> [u64; 2] {
    let widths: Vec<usize> = words[5..9].iter().map(|word| word.len()).collect();
    assert_eq!(widths, [16, 16, 16, 13], "{fields:?}");
    let numbers: Vec<u64> = words[5..].iter().map(|word| word.parse().unwrap()).collect();
    let [soonest, head, following, window, gone] = numbers[..] else { panic!("{words:?}") };
    check_waiters(stored, fields, expected, window);
    assert!(stored.waiters.iter().all(|waiter| waiter.ends() >= soonest), "{fields:?}");
    assert_eq!(stored.waiters[0].place, head, "{fields:?}");
    let places = following - head;
    assert_eq!(u64::try_from(stored.waiters.len()).unwrap() + gone, places, "{fields:?}");
    assert!(stored.waiters.iter().all(|waiter| waiter.place < following), "{fields:?}");
    [0, following]
}

/// Every waiter is in a range, the first range begins with the first
/// waiter, and no place ends before the record says.
fn check_line(
    stored: &stored::Stored,
    fields: &BTreeMap<String, String>,
    expected: &mut Vec<String>,
) -> [u64; 2] {
    expected.push("line".to_owned());
    let words: Vec<&str> = fields["line"].split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    assert_eq!(words[0].len(), 16);
    check_waiters(stored, fields, expected, number(5));
    assert_eq!(usize::try_from(number(6)).unwrap(), stored.waiters.len(), "{fields:?}");
    assert!(stored.waiters.iter().all(|waiter| waiter.ends() >= number(0)), "{fields:?}");
    let mut after = 0;
    for range in &words[7..] {
        let (head, rest) = range.split_once('-').unwrap();
        let (tail, count) = rest.split_once('/').unwrap();
        let [head, tail, count] = [head, tail, count].map(|text| text.parse::<u64>().unwrap());
        assert!(after <= head && head <= tail && count > 0, "{fields:?}");
        let inside =
            stored.waiters.iter().filter(|waiter| (head..=tail).contains(&waiter.place)).count();
        assert_eq!(u64::try_from(inside).unwrap(), count, "{fields:?}");
        if after == 0 {
            assert_eq!(stored.waiters[0].place, head, "{fields:?}");
        }
        after = tail + 1;
    }
    [number(3), number(4)]
}
