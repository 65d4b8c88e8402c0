//! Scripts that are stopped half-way: at each of their calls of the server, in every state that
//! random sequences of operations reach. As servers do it, `redis.call` ends the script there, and
//! `redis.pcall` tells it the error.
//!
//! Before the first write nothing may have changed. After it, holders, waiters and record fit
//! together, what was told to a waiter is in the record, no key lives for ever, nothing is called
//! undone that was done, the same operation sent again puts all in order, and nobody is kept out for
//! longer than leases, places and cool-downs last.
//!
//! A prologue in front of each script's source counts its calls; nothing else in it is changed.
//!
//! `LEASEHOLD_STOPPED_CASES` sets how many sequences each test tries.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leasehold_core::{
    AcquireAll, AcquireRequest, AskRequest, BoxFuture, Convert, Effect, Error, ForceReleaseRequest,
    LeaveRequest, Renew, SetLimitRequest,
};
use redis::{Arg, Cmd, Value};

use super::*;
use crate::classify::Verdict;
use crate::transport::{Answer, Body, Transport};

/// Longer than anything in a sequence lasts.
const ALL_OVER_US: u64 = 60_000_000;
/// What the prologue notes when it stops a script: which call it was, the calls that may have
/// changed something before it, and the command.
const NOTE: &str = "stopped";
/// What a server may raise inside a script, wherever it stands.
const RAISED: [&str; 3] = [
    "NOPERM this user has no permissions to run the 'any' command",
    "ERR Script attempted to access a non local key in a cluster node",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
];

/// Servers write a number as they like, round ones as 1e+08, and don't read that back as a length.
const NO_TEXT: &str = "not every argument is text:";

/// What makes a script fail at this call.
fn prologue(call: usize) -> String {
    let error = RAISED[call % RAISED.len()];
    format!(
        "local redis = (function(server)
               local calls, changes = 0, 0
               local reads = {{}}
               for name in string.gmatch('GET MGET HGET HMGET HGETALL HLEN HEXISTS HSTRLEN EXISTS \
             TYPE PTTL STRLEN GETRANGE TIME ZRANGE ZREVRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE ZSCORE \
             ZCARD ZCOUNT ZRANK', '%S+') do reads[name] = true end
               local function counted(pass, protected)
                 return function(command, ...)
                   calls = calls + 1
                   for i = 1, select('#', ...) do
                     if type(select(i, ...)) ~= 'string' then error('{NO_TEXT} ' .. command) end
                   end
                   if calls == {call} then
                     server.call('SET', '{NOTE}', calls .. ' ' .. changes .. ' ' .. command)
                     local raised = {{err = \"{error}\"}}
                     if protected then return raised end
                     error(raised)
                   end
                   if not reads[command] then changes = changes + 1 end
                   return pass(command, ...)
                 end
               end
               local stopped = {{call = counted(server.call), pcall = counted(server.pcall, true)}}
               return setmetatable(stopped, {{__index = server}})
             end)(redis)\n"
    )
}

/// A transport that stops scripts, when told to.
#[derive(Debug)]
struct Stopper {
    inner: Arc<dyn Transport>,
    stop: Arc<Mutex<Option<usize>>>,
    runs: Arc<AtomicU64>,
}

impl Transport for Stopper {
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        Box::pin(async move {
            let stop = *self.stop.lock().unwrap();
            let (Body::Script { call, .. }, Some(stop)) = (request.body, stop) else {
                return self.inner.one(request, deadline).await;
            };
            self.runs.fetch_add(1, Ordering::Relaxed);
            let mut stopped = Cmd::new();
            for (place, argument) in call.request(true, 0).args_iter().enumerate() {
                match argument {
                    Arg::Simple(source) if place == 1 => {
                        stopped.arg([prologue(stop).as_bytes(), source].concat())
                    }
                    Arg::Simple(bytes) => stopped.arg(bytes),
                    _ => panic!("an argument that is no text"),
                };
            }
            self.inner.one(&Request::plain(&stopped), deadline).await
        })
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for request in requests {
                answers.push(self.one(request, deadline).await);
            }
            answers
        })
    }
}

/// All that is known of one lock.
struct Kept {
    /// Its keys, what brings them back, and how long they live, ms.
    keys: Vec<(Vec<u8>, Vec<u8>, i64)>,
    /// What is in them.
    content: Vec<BTreeMap<String, String>>,
    /// The highest sequence that each store was told of.
    seen: Vec<u64>,
}

/// What a stopped script did before it was stopped.
#[derive(Debug)]
struct Noted {
    changes: u64,
    #[expect(dead_code, reason = "shown when a test fails")]
    command: String,
}

/// What was tried.
#[derive(Debug, Default)]
struct Tally {
    states: u64,
    stops: u64,
    after_a_write: u64,
    left_empty: u64,
    proofs: u64,
}

struct Bench {
    world: World,
    stop: Arc<Mutex<Option<usize>>>,
    runs: Arc<AtomicU64>,
    tally: Tally,
}

impl Bench {
    async fn new() -> Self {
        let mut world = World::new().await;
        let (stop, runs) = (Arc::default(), Arc::default());
        for store in &mut world.stores {
            let mut stopped = RedisStore::connect(&world.server.url()).await.unwrap();
            let shared = Arc::get_mut(&mut stopped.shared).unwrap();
            (shared.scripts, shared.epoch) = (store.shared.scripts, store.shared.epoch);
            let inner = Arc::clone(&shared.transport);
            let (stop, runs) = (Arc::clone(&stop), Arc::clone(&runs));
            shared.transport = Arc::new(Stopper { inner, stop, runs });
            *store = stopped;
        }
        Self { world, stop, runs, tally: Tally::default() }
    }

    async fn try_all(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        let Self { world, stop, runs, tally } = self;
        world.sequences += 1;
        // Of a sequence that failed.
        world.messages().await;
        let key = Key::new(format!("differential {{{}}}", world.sequences)).unwrap();
        let (entry, known) = (LockEntry::default(), Known::default());
        let both = Both { world, key, entry, at_us: START_US, known };
        let mut subject = Subject { both, stop, runs, tally };
        let mut stored = Stored::read(&subject.both).await;
        for step in steps {
            subject.stop_everywhere(step).await?;
            stored = subject.both.step(step, &stored).await?;
        }
        Ok(())
    }
}

struct Subject<'a> {
    both: Both<'a>,
    stop: &'a Mutex<Option<usize>>,
    runs: &'a AtomicU64,
    tally: &'a mut Tally,
}

impl Subject<'_> {
    /// Carries the step out to each of its calls, from the same state each time, and leaves all as
    /// it was.
    async fn stop_everywhere(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let before = self.kept().await;
        let at_us = self.both.at_us.checked_add_signed(step.pass_us).unwrap();
        self.tally.states += 1;
        self.set_clock(at_us).await;
        self.proofs_are_written(step).await?;
        for call in 1.. {
            self.put_back(&before).await;
            self.set_clock(at_us).await;
            let telling = Telling { step, call };
            let reached = self.stop_at(step, call, &before, at_us).await?;
            drop(telling);
            if !reached {
                break;
            }
        }
        // Of the run that reached no such call.
        self.both.world.messages().await;
        self.put_back(&before).await;
        Ok(())
    }

    /// Whoever waits for replicas waits for the last write of a connection: an answer that proves
    /// something without one would be confirmed by nothing.
    async fn proofs_are_written(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let before = self.changes().await;
        let answers = self.attempt(step).await;
        let wrote = self.changes().await > before;
        let proves = answers.iter().flatten().any(|proves| *proves);
        self.tally.proofs += u64::from(proves);
        prop_assert!(wrote || !proves, "an answer that proves something without a write");
        self.both.world.messages().await;
        Ok(())
    }

    async fn stop_at(
        &mut self,
        step: &Step,
        call: usize,
        before: &Kept,
        at_us: u64,
    ) -> Result<bool, TestCaseError> {
        self.runs.store(0, Ordering::Relaxed);
        *self.stop.lock().unwrap() = Some(call);
        let answers = self.attempt(step).await;
        *self.stop.lock().unwrap() = None;
        let Some(noted) = self.noted().await else {
            // Nothing stopped it.
            prop_assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            return Ok(false);
        };
        self.tally.stops += 1;
        self.tally.after_a_write += u64::from(noted.changes > 0);
        let after = self.kept().await;
        let same = after.content == before.content;
        // A group of renewals is sent again one by one when it failed as a whole.
        if self.runs.load(Ordering::Relaxed) == 1 && answers.iter().all(Result::is_err) {
            prop_assert!(noted.changes > 0 || same, "changed before the first write: {noted:?}");
        }
        let undone = |answer: &Result<bool, Error>| {
            answer.as_ref().is_err_and(|error| error.effect() == Effect::NotApplied)
        };
        if answers.iter().all(undone) {
            let (before, after) = (&before.content, &after.content);
            prop_assert!(same, "called undone: {noted:?} {answers:?}\n{before:?}\n{after:?}");
        }
        for (key, _, lives_ms) in &after.keys {
            let key = String::from_utf8_lossy(key);
            prop_assert!(*lives_ms > 0, "{key} lives for ever: {noted:?} {answers:?}");
        }
        self.what_was_told_is_so(step, &noted, &answers).await?;
        // Holders, waiters and what the record says of them fit together.
        self.tally.left_empty += u64::from(Stored::read(&self.both).await.emptied > 0);
        // In every other case nobody comes before all is over.
        if call.is_multiple_of(2) {
            for answer in self.attempt(step).await {
                prop_assert!(answer.is_ok(), "sent again: {answer:?} after {noted:?}");
            }
            self.what_was_told_is_so(step, &noted, &answers).await?;
        }
        self.set_clock(at_us + ALL_OVER_US).await;
        let stranger = Token::from_bytes([0xee; 16]);
        let ttl = leasehold_core::Ttl::new(Duration::from_secs(1)).unwrap();
        let request = AcquireRequest::new(self.both.key.clone(), stranger, ttl);
        let answer = self.both.world.stores[0].acquire(&request, WITHIN).await;
        let granted = matches!(answer, Ok(Acquire::Granted(_)));
        prop_assert!(granted, "kept out: {answer:?} after {noted:?}");
        self.both.world.messages().await;
        Ok(true)
    }

    /// Whoever was told of a grant has it, but for one who was first in line when the lock came free
    /// and gave up in the same step.
    async fn what_was_told_is_so(
        &mut self,
        step: &Step,
        noted: &Noted,
        answers: &[Result<bool, Error>],
    ) -> Result<(), TestCaseError> {
        let heard = self.both.world.messages().await;
        let told: Vec<_> = heard
            .into_iter()
            .flatten()
            .filter_map(|wake| match wake {
                Wake::Granted { ticket, fences, .. } if step.ends() != Some(ticket) => {
                    Some(fences.first())
                }
                _ => None,
            })
            .collect();
        let info = self.both.world.stores[0].inspect(&self.both.key, WITHIN).await;
        prop_assert!(info.is_ok(), "unreadable: {info:?} after {noted:?}");
        let holders = info.unwrap().map(|info| info.holders).unwrap_or_default();
        for fence in told {
            let has = holders.iter().any(|holder| holder.fence == fence);
            prop_assert!(has, "told, but not so: {fence} {holders:?} {noted:?} {answers:?}");
        }
        Ok(())
    }

    async fn set_clock(&self, at_us: u64) {
        let mut clock = redis::pipe();
        let (seconds, micros) = (at_us / 1_000_000, at_us % 1_000_000);
        clock.cmd("MSET").arg("clock:s").arg(seconds).arg("clock:us").arg(micros);
        self.both.world.ask(&clock).await;
    }

    /// How often anything at all was changed on the server.
    async fn changes(&self) -> u64 {
        let mut question = redis::pipe();
        question.cmd("INFO").arg("persistence");
        let answer = self.both.world.ask(&question).await.remove(0);
        let text: String = redis::from_redis_value(answer).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().trim().parse().unwrap()
    }

    async fn noted(&self) -> Option<Noted> {
        let mut question = redis::pipe();
        question.cmd("GETDEL").arg(NOTE);
        let answer = self.both.world.ask(&question).await.remove(0);
        let text: Option<String> = redis::from_redis_value(answer).unwrap();
        let text = text?;
        let mut words = text.split(' ').skip(1);
        let changes = words.next().unwrap().parse().unwrap();
        Some(Noted { changes, command: words.next().unwrap().to_owned() })
    }

    async fn kept(&self) -> Kept {
        let mut question = redis::pipe();
        let record = self.both.world.stores[0].shared.names.record(&self.both.key);
        question.cmd("KEYS").arg(format!("{record}*"));
        let answer = self.both.world.ask(&question).await.remove(0);
        let mut keys: Vec<Vec<u8>> = redis::from_redis_value(answer).unwrap();
        keys.sort_unstable();
        let mut questions = redis::pipe();
        for key in &keys {
            questions.cmd("DUMP").arg(key);
            questions.cmd("PTTL").arg(key);
            questions.cmd("HGETALL").arg(key);
        }
        let answers = self.both.world.ask(&questions).await;
        let (mut kept, mut content) = (Vec::new(), Vec::new());
        for (key, answer) in keys.into_iter().zip(answers.chunks(3)) {
            let [Value::BulkString(dump), Value::Int(lives_ms), fields] = answer else {
                panic!("{answer:?}");
            };
            kept.push((key, dump.clone(), *lives_ms));
            content.push(redis::from_redis_value(fields.clone()).unwrap());
        }
        let stores = self.both.world.stores.iter();
        let seen = stores.map(|store| store.shared.seen.load(Ordering::Relaxed)).collect();
        Kept { keys: kept, content, seen }
    }

    async fn put_back(&self, before: &Kept) {
        for (store, seen) in self.both.world.stores.iter().zip(&before.seen) {
            store.shared.seen.store(*seen, Ordering::Relaxed);
        }
        let mut commands = redis::pipe();
        for (key, _, _) in self.kept().await.keys {
            commands.cmd("DEL").arg(key);
        }
        for (key, dump, lives_ms) in &before.keys {
            commands.cmd("RESTORE").arg(key).arg(*lives_ms).arg(dump).arg("REPLACE");
        }
        self.both.world.ask(&commands).await;
    }

    /// The operation on the server alone. For each answer, whether it proves something.
    async fn attempt(&self, step: &Step) -> Vec<Result<bool, Error>> {
        let Both { world, key, known, .. } = &self.both;
        let store = &world.stores[usize::try_from(step.epoch).unwrap()];
        match &step.operation {
            Operation::Acquire(taking) => {
                let answer = store.acquire(&taking.request(key, known), WITHIN).await;
                vec![answer.map(|answer| answer.fences().is_some())]
            }
            Operation::AcquireAll(taking) => {
                let answer = store.acquire_all(&[taking.request(key, known)], WITHIN).await;
                vec![answer.map(|answer| matches!(answer, AcquireAll::Granted(_)))]
            }
            Operation::Convert(change) => {
                let answer = store.convert(&change.request(key, known), WITHIN).await;
                vec![answer.map(|answer| matches!(answer, Convert::Converted(_)))]
            }
            Operation::SetLimit(limit) => {
                let limit = NonZeroU32::new(*limit).unwrap();
                let request = SetLimitRequest::new(key.clone(), limit);
                vec![store.set_limit(&request, WITHIN).await.map(|_| false)]
            }
            Operation::Ask { who, later, by } => {
                let mut request = AskRequest::new(key.clone(), owner(*by));
                request.fence =
                    who.map(|who| known.fences(token(who)).first().saturating_add(*later));
                vec![store.ask(&request, WITHIN).await.map(|_| false)]
            }
            Operation::Renew(renewals) => {
                let requests: Vec<_> =
                    renewals.iter().map(|renewal| renewal.request(key, known)).collect();
                let answers = store.renew(&requests, WITHIN).await.into_iter();
                let proves = |answer| matches!(answer, Renew::Renewed | Renew::Asked);
                answers.map(|answer| answer.map(proves)).collect()
            }
            Operation::Release(ending) => {
                vec![store.release(&ending.request(key, known), WITHIN).await.map(|_| false)]
            }
            Operation::Leave { who, reopen } => {
                let mut request = LeaveRequest::new(key.clone(), token(*who));
                request.reopen = *reopen;
                vec![store.leave(&request, WITHIN).await.map(|_| false)]
            }
            Operation::ForceRelease { who, later } => {
                let fence = known.fences(token(*who)).first().saturating_add(*later);
                let request = ForceReleaseRequest::new(key.clone(), fence);
                vec![store.force_release(&request, WITHIN).await.map(|_| false)]
            }
        }
    }
}

/// Says where a script was stopped if what follows panics.
struct Telling<'a> {
    step: &'a Step,
    call: usize,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("stopped at call {} in {:?}", self.call, self.step);
        }
    }
}

fn cases() -> u32 {
    match std::env::var("LEASEHOLD_STOPPED_CASES") {
        Ok(cases) => cases.parse().expect("LEASEHOLD_STOPPED_CASES is a number"),
        Err(_) => 8,
    }
}

fn check(home: Home) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = std::cell::RefCell::new(runtime.block_on(Bench::new()));
    let config = Config {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 100,
        ..Config::default()
    };
    let outcome = TestRunner::new(config)
        .run(&sequence(home), |steps| runtime.block_on(bench.borrow_mut().try_all(&steps)));
    println!("{home:?}: {:?}", bench.borrow().tally);
    if let Err(failure) = outcome {
        panic!("{failure}\nthe server said: {}", bench.borrow().world.server.log());
    }
    assert!(bench.borrow().tally.after_a_write > 0, "no script was stopped after a write");
}

#[test]
fn scripts_stopped_anywhere_leave_exclusive_locks_whole() {
    check(Home::Exclusive);
}

#[test]
fn scripts_stopped_anywhere_leave_shared_and_exclusive_locks_whole() {
    check(Home::Shared);
}

#[test]
fn scripts_stopped_anywhere_leave_semaphores_whole() {
    check(Home::Permits);
}

#[test]
fn scripts_stopped_anywhere_leave_names_whole_that_are_used_as_anything() {
    check(Home::Any);
}
