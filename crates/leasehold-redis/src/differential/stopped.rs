//! Stops scripts half-way: at each of their server calls, in every reached state.
//!
//! As on a server, `redis.call` ends the script there, and `redis.pcall` returns the error to it.
//!
//! Before the first write nothing may have changed. After it, these must hold:
//!
//! - Holders, waiters and the record fit together.
//! - A grant that a waiter was notified of is in the record.
//! - Every key expires.
//! - A change is never reported as undone.
//! - The same operation, sent again, repairs the rest.
//! - Other callers are kept out only until leases, positions and cooldowns end.
//!
//! A prologue in front of each script's source counts its calls. The rest of the source is
//! unchanged.
//!
//! `LEASEHOLD_STOPPED_CASES` sets how many sequences each test tries.

mod batches;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leasehold_core::{BoxFuture, Effect, Error};
use redis::{Arg, Cmd};

use self::batches::Batch;
use super::kept::{Kept, KeptLock};
use super::operation::renewal_of_what_it_hands_over;
use super::*;
use crate::classify::Verdict;
use crate::connect::transport::Transport;
use crate::script::call::Body;
use crate::script::request::{Answer, Stamp};

/// Longer than anything in a sequence lasts.
const ALL_OVER_US: u64 = 60_000_000;
/// The prologue's record of a stop: the number of the call, the calls before it that may have
/// written, and the command.
const NOTE: &str = "stopped";
/// Errors that a server may raise inside a script, at any call.
const RAISED: [&str; 3] = [
    "NOPERM this user has no permissions to run the 'any' command",
    "ERR Script attempted to access a non local key in a cluster node",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
];

/// Servers may format a number differently, such as 1e+08, and can't read that back as a length.
const NO_TEXT: &str = "not every argument is text:";

/// Makes a script fail at this call.
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

/// A transport that stops scripts on demand.
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
            for (place, argument) in call.request(true, Stamp::default()).args_iter().enumerate() {
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

/// What a script did before it was stopped.
#[derive(Debug)]
struct Noted {
    changes: u64,
    #[expect(dead_code, reason = "shown when a test fails")]
    command: String,
}

/// Counts of the trials.
#[derive(Debug, Default)]
struct Tally {
    states: u64,
    stops: u64,
    after_a_write: u64,
    left_empty: u64,
    proofs: u64,
}

/// The operation to stop: on one lock, or on several at once.
#[derive(Debug)]
enum Trial<'a> {
    Step(&'a Step, &'a Key, &'a Known),
    Batch(&'a Batch, &'a [Lock]),
}

/// An answer, and the locks that it is about.
#[derive(Debug)]
struct Answered {
    locks: Vec<usize>,
    /// Whether the answer needs confirmation by replicas.
    outcome: Result<bool, Error>,
}

impl Trial<'_> {
    /// Carries it out on the server alone.
    async fn attempt(&self, world: &World) -> Vec<Answered> {
        match self {
            Self::Step(step, key, known) => {
                let outcomes = world.attempt(step, key, known).await.into_iter();
                outcomes.map(|outcome| Answered { locks: vec![0], outcome }).collect()
            }
            Self::Batch(batch, locks) => batch.attempt(world, locks).await,
        }
    }

    /// Whether it may abandon what the waiter with this ticket has.
    fn ends(&self, ticket: u64) -> bool {
        match self {
            Self::Step(step, ..) => step.ends() == Some(ticket),
            Self::Batch(batch, ..) => batch.ends(ticket),
        }
    }

    /// Whether it ends what has one of these fences, which may be a lease that it has just granted.
    fn takes_away(&self, fences: FenceBlock) -> bool {
        match self {
            Self::Step(
                Step { operation: Operation::ForceRelease { who, later }, .. },
                _,
                known,
            ) => {
                let meant = known.fences(token(*who)).first().saturating_add(*later);
                fences.contains(meant)
            }
            _ => false,
        }
    }

    /// Whether it may raise the fences of the waiter with this ticket.
    fn renews(&self, ticket: u64) -> bool {
        match self {
            Self::Step(step, ..) => step.renews(ticket),
            Self::Batch(batch, ..) => batch.renews(ticket),
        }
    }
}

struct Stops {
    world: World,
    stop: Arc<Mutex<Option<usize>>>,
    runs: Arc<AtomicU64>,
    tally: Tally,
}

impl Bench for Stops {
    fn world(&self) -> &World {
        &self.world
    }

    fn tried(&self) -> String {
        format!("{:?}", self.tally)
    }
}

impl Stops {
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

    /// Carries out a sequence; before each step, stops that step everywhere.
    async fn try_all(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        self.world.sequences += 1;
        // Left over from a failed sequence.
        self.world.messages().await;
        let mut lock = Lock::new(self.world.sequences);
        let mut stored = Stored::read(&self.world, &lock.key).await;
        let mut at_us = START_US;
        for step in steps {
            let keys = [lock.key.clone()];
            let then_us = at_us.checked_add_signed(step.pass_us).unwrap();
            let (key, known) = (&lock.key, &lock.known);
            self.stop_everywhere(&keys, &Trial::Step(step, key, known), then_us).await?;
            let mut both = Both { world: &mut self.world, lock, at_us };
            stored = both.step(step, &stored).await?;
            (at_us, lock) = (both.at_us, both.lock);
        }
        Ok(())
    }

    /// Stops it at each of its calls, from the same state each time, and restores the state.
    async fn stop_everywhere(
        &mut self,
        keys: &[Key],
        trial: &Trial<'_>,
        at_us: u64,
    ) -> Result<(), TestCaseError> {
        let before = self.world.kept(keys).await;
        self.tally.states += 1;
        self.world.set_clock(at_us).await;
        self.proofs_are_written(trial).await?;
        for call in 1.. {
            self.world.put_back(&before).await;
            self.world.set_clock(at_us).await;
            let telling = Telling { trial, call };
            let reached = self.stop_at(trial, call, keys, &before, at_us).await?;
            drop(telling);
            if !reached {
                break;
            }
        }
        // Left over from the last run, which reached no such call.
        self.world.messages().await;
        self.world.put_back(&before).await;
        Ok(())
    }

    /// Waiting for replicas means waiting for the last write of a connection. So an answer that
    /// needs confirmation must have a write.
    async fn proofs_are_written(&mut self, trial: &Trial<'_>) -> Result<(), TestCaseError> {
        let before = self.changes().await;
        let answers = trial.attempt(&self.world).await;
        let wrote = self.changes().await > before;
        let proves = answers.iter().any(|answer| matches!(answer.outcome, Ok(true)));
        self.tally.proofs += u64::from(proves);
        prop_assert!(wrote || !proves, "an answer that proves something without a write");
        self.world.messages().await;
        Ok(())
    }

    async fn stop_at(
        &mut self,
        trial: &Trial<'_>,
        call: usize,
        keys: &[Key],
        before: &Kept,
        at_us: u64,
    ) -> Result<bool, TestCaseError> {
        self.runs.store(0, Ordering::Relaxed);
        *self.stop.lock().unwrap() = Some(call);
        let answers = trial.attempt(&self.world).await;
        *self.stop.lock().unwrap() = None;
        let Some(noted) = self.noted().await else {
            // The script has fewer calls, so it ran to its end.
            prop_assert!(answers.iter().all(|answer| answer.outcome.is_ok()), "{answers:?}");
            return Ok(false);
        };
        self.tally.stops += 1;
        self.tally.after_a_write += u64::from(noted.changes > 0);
        let after = self.world.kept(keys).await;
        let same: Vec<bool> =
            after.locks.iter().zip(&before.locks).map(|(a, b)| a.content == b.content).collect();
        // A batch of renewals that failed as a whole is sent again one by one.
        let failed = answers.iter().all(|answer| answer.outcome.is_err());
        if self.runs.load(Ordering::Relaxed) == 1 && failed && noted.changes == 0 {
            let changed = same.iter().any(|same| !same);
            prop_assert!(!changed, "changed before the first write: {noted:?} {answers:?}");
        }
        for (number, same) in same.iter().enumerate() {
            let mut about = answers.iter().filter(|answer| answer.locks.contains(&number));
            let undone = |answer: &Answered| {
                answer.outcome.as_ref().is_err_and(|error| error.effect() == Effect::NotApplied)
            };
            if about.clone().next().is_some() && about.all(undone) {
                let [before, after] = [before, &after].map(|kept| &kept.locks[number].content);
                prop_assert!(same, "called undone: {noted:?} {answers:?}\n{before:?}\n{after:?}");
            }
        }
        for KeptLock { lives_ms, content, .. } in &after.locks {
            let ends = content.is_empty() || *lives_ms > 0;
            prop_assert!(ends, "{content:?} lives for ever: {noted:?} {answers:?}");
        }
        self.what_was_told_is_so(trial, keys, &noted, &answers).await?;
        // Reading checks that holders, waiters and the record fit together.
        for key in keys {
            let stored = Stored::read(&self.world, key).await;
            self.tally.left_empty += u64::from(stored.emptied > 0);
        }
        // In every second case, no request comes before all leases are over.
        if call.is_multiple_of(2) {
            for Answered { outcome, .. } in trial.attempt(&self.world).await {
                prop_assert!(outcome.is_ok(), "sent again: {outcome:?} after {noted:?}");
            }
            self.what_was_told_is_so(trial, keys, &noted, &answers).await?;
        }
        self.world.set_clock(at_us + ALL_OVER_US).await;
        for key in keys {
            let answer = self.world.stranger(key, Mode::Exclusive).await;
            let granted = matches!(answer, Ok(Acquire::Granted(_)));
            prop_assert!(granted, "kept out: {answer:?} after {noted:?}");
        }
        self.world.messages().await;
        Ok(true)
    }

    /// Checks that a waiter that was notified of a grant has it. The step itself may have ended the
    /// grant, if the waiter was the head of the queue when the lock became free. If the step also
    /// renewed it, its fences are higher.
    async fn what_was_told_is_so(
        &mut self,
        trial: &Trial<'_>,
        keys: &[Key],
        noted: &Noted,
        answers: &[Answered],
    ) -> Result<(), TestCaseError> {
        let heard = self.world.messages().await;
        let told: Vec<_> = heard
            .into_iter()
            .flatten()
            .filter_map(|wake| match wake {
                Wake::Granted { ticket, fences, .. }
                    if !trial.ends(ticket) && !trial.takes_away(fences) =>
                {
                    Some((fences.first(), trial.renews(ticket)))
                }
                _ => None,
            })
            .collect();
        let mut holders = Vec::new();
        for key in keys {
            let info = self.world.stores[0].inspect(key, WITHIN).await;
            prop_assert!(info.is_ok(), "unreadable: {info:?} after {noted:?}");
            holders.extend(info.unwrap().map(|info| info.holders).unwrap_or_default());
        }
        for (fence, raised) in told {
            let has = holders
                .iter()
                .any(|holder| holder.fence == fence || raised && holder.fence > fence);
            prop_assert!(has, "told, but not so: {fence} {holders:?} {noted:?} {answers:?}");
        }
        Ok(())
    }

    /// How many changes the server has made so far.
    async fn changes(&self) -> u64 {
        let mut question = redis::pipe();
        question.cmd("INFO").arg("persistence");
        let answer = self.world.ask(&question).await.remove(0);
        let text: String = redis::from_redis_value(answer).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().trim().parse().unwrap()
    }

    async fn noted(&self) -> Option<Noted> {
        let mut question = redis::pipe();
        question.cmd("GETDEL").arg(NOTE);
        let answer = self.world.ask(&question).await.remove(0);
        let text: Option<String> = redis::from_redis_value(answer).unwrap();
        let text = text?;
        let mut words = text.split(' ').skip(1);
        let changes = words.next().unwrap().parse().unwrap();
        Some(Noted { changes, command: words.next().unwrap().to_owned() })
    }
}

/// Prints where a script was stopped, if the code after it panics.
struct Telling<'a> {
    trial: &'a Trial<'a>,
    call: usize,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("stopped at call {} in {:?}", self.call, self.trial);
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
    run(sequence(home), async |stops, steps| stops.try_all(&steps).await);
}

/// Tries random sequences, and prints how many states and stops there were.
fn run<S: Strategy>(
    sequences: S,
    try_all: impl AsyncFn(&mut Stops, S::Value) -> Result<(), TestCaseError>,
) {
    let (stops, _) = try_sequences(cases(), sequences, Stops::new(), try_all);
    assert!(stops.tally.after_a_write > 0, "no script was stopped after a write");
}

#[test]
fn scripts_stopped_in_a_renewal_leave_a_lock_whole_that_they_transfer() {
    run(Just(renewal_of_what_it_hands_over()), async |stops, steps| stops.try_all(&steps).await);
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
fn scripts_stopped_anywhere_leave_locks_of_owners_in_several_processes_whole() {
    check(Home::Joint);
}

#[test]
fn scripts_stopped_anywhere_leave_names_whole_that_are_used_as_anything() {
    check(Home::Any);
}
