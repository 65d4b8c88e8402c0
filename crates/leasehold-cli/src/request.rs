//! Takes a lock for a command: at once, within a limit, or for as long as it takes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use leasehold::store::Mode;
use leasehold::{
    Client, Effect, Error, ErrorKind, Key, LockInfo, LockOptions, Metadata, OwnerName, Ttl,
    WaiterInfo,
};
use tokio::time::Instant;

use crate::arguments;
use crate::cli::Taking;
use crate::context::Context;
use crate::describe;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{self, Failure, Outcome, chain};
use crate::graph::{self, Chain};
use crate::kind::Kind;
use crate::leases::{Held, Numbers, quoted};
use crate::outer::{self, NOTE_MAX, Name, Outer};
use crate::output;
use crate::pauses::{Pauses, until};
use crate::signals::{Signals, unless_interrupted};

/// How long the error of a timed-out wait may take to find out more.
const LOOK_WITHIN: Duration = Duration::from_millis(500);

/// Locks to be taken, all of their options judged before anything is sent.
#[derive(Debug)]
pub(crate) struct Request {
    /// In the order in which they were typed.
    keys: Vec<Key>,
    kind: Kind,
    limit: Option<Duration>,
    busy: Exit,
    quiet: bool,
    numbers: Numbers,
    /// How long the lease runs.
    pub(crate) ttl: Ttl,
    /// The locks of commands around this one.
    outer: Outer,
    waits_for_outer: bool,
    owner: Option<String>,
    /// What was typed.
    notes: String,
    /// The process for which the lock is taken.
    process: Name,
}

/// What options do not say about how a lock is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether the lease is renewed, or outlives this process.
    pub(crate) renew: bool,
    /// How long before the deadline a loss is reported.
    pub(crate) grace: Option<Duration>,
    /// How long it is held at most, however well it is renewed.
    pub(crate) max_hold: Option<Duration>,
}

/// Tries, waits for a while, or waits for as long as it takes.
macro_rules! waited {
    ($limit:expr, $lock:ident, $once:ident, $for_ever:ident, $within:ident($($n:expr)?)) => {
        match $limit {
            Some(Duration::ZERO) => $lock.$once($($n)?).await?,
            Some(limit) => Some($lock.$within($($n,)? limit).await?),
            None => Some($lock.$for_ever($($n)?).await?),
        }
    };
}

impl Request {
    pub(crate) fn new(
        keys: &[OsString],
        kind: Kind,
        taking: &Taking,
        context: &Context,
    ) -> Outcome<Self> {
        let Context { settings, quiet, .. } = context;
        let argument = |error: Error| Failure::of_argument(&error);
        let Taking { waiting, ttl, meta, owner } = taking;
        let typed = ttl.or(settings.ttl());
        let ttl = typed.map_or_else(|| Ttl::new(leasehold::DEFAULT_TTL), Ok).map_err(argument)?;
        if let Some(owner) = owner {
            OwnerName::new(owner).map_err(argument)?;
        }
        let layout = settings.layout();
        let no_room = !meta.is_empty() && layout.is_some_and(|layout| !layout.has_metadata());
        let no_owner = owner.is_some() && layout.is_some_and(|layout| !layout.has_owner());
        let lacks = [
            (kind == Kind::Shared, "--shared", "shared holds"),
            (matches!(kind, Kind::Permits { .. }), "--limit", "shared holds"),
            (matches!(kind, Kind::OncePer(_)), "--once-per", "periods"),
            (no_room, "--meta", "room for metadata"),
            (no_owner, "--owner", "room for an owner"),
        ];
        arguments::refuse_for(layout, &lacks)?;
        let notes = meta.join("\n");
        let room = Metadata::MAX_BYTES.saturating_sub(NOTE_MAX);
        if notes.len() > room {
            let have = notes.len();
            return Err(Failure::usage(format!("--meta has {have} bytes; give at most {room}")));
        }
        let outer = if layout.is_none() { Outer::of_environment() } else { Outer::default() };
        Ok(Self {
            keys: arguments::keys(keys)?,
            kind,
            limit: waiting.limit(),
            busy: Exit::Busy(waiting.conflict_exit_code),
            quiet: *quiet,
            numbers: Numbers::of(layout),
            ttl,
            outer,
            waits_for_outer: waiting.wait_for_outer,
            owner: owner.clone(),
            notes,
            process: Name::own(),
        })
    }

    /// The same for another process than this one.
    pub(crate) const fn on_behalf_of(mut self, process: Name) -> Self {
        self.process = process;
        self
    }

    /// The process for which the lock is taken.
    pub(crate) const fn process(&self) -> Name {
        self.process
    }

    /// The typed notes, followed by the notes of this command if there is room.
    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new(&self.notes).unwrap_or_default();
        if self.numbers == Numbers::Fences {
            for note in [self.process.note()].into_iter().chain(self.outer.notes()) {
                let longer = format!("{}\n{note}", metadata.as_str());
                metadata = Metadata::new(longer.trim_start_matches('\n')).unwrap_or(metadata);
            }
        }
        metadata
    }

    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The names, quoted.
    pub(crate) fn names(&self) -> String {
        quoted(self.keys.iter())
    }

    /// Connects and takes the locks, all or none, within the limit.
    ///
    /// Errors are also a lock that is busy, with a message unless that is unwanted, and a wait that
    /// was cut short by a signal.
    pub(crate) async fn take(
        &self,
        context: &Context,
        signals: &mut Signals,
        manner: Manner,
    ) -> Outcome<(Client, Held)> {
        let begun = Instant::now();
        let detached = !manner.renew;
        let client = unless_interrupted(signals, self.connect(context, detached, begun)).await??;
        let taken = self.attempt(context, &client, signals, manner, begun).await?;
        let held = self.judge(taken, &client).await?;
        Ok((client, held))
    }

    /// Connects within the limit, counted from `begun`.
    pub(crate) async fn connect(
        &self,
        context: &Context,
        detached: bool,
        begun: Instant,
    ) -> leasehold::Result<Client> {
        // A try without a wait still has the time of one request.
        let limit = self.left(begun).filter(|_| self.limit != Some(Duration::ZERO));
        context.connect_as(self.owner(), detached, limit).await
    }

    /// What is left of the limit.
    fn left(&self, begun: Instant) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(begun.elapsed()))
    }

    /// Whether the limit has passed, counted from `begun`.
    pub(crate) fn is_over(&self, begun: Instant) -> bool {
        self.left(begun).is_some_and(|left| left.is_zero())
    }

    /// Takes the locks within the limit, counted from `begun`, without a judgement of what the
    /// store said.
    pub(crate) async fn attempt(
        &self,
        context: &Context,
        client: &Client,
        signals: &mut Signals,
        manner: Manner,
        begun: Instant,
    ) -> Outcome<leasehold::Result<Option<Held>>> {
        let answer_by = context.answer_by(self.limit, begun);
        let taken = unless_interrupted(signals, async {
            tokio::select! {
                taken = self.ask_store(client, manner, self.left(begun)) => Ok(taken),
                () = until(answer_by) => Ok(Err(context.silent())),
                why = self.explain_the_wait(client) => Err(self.busy(&why)),
            }
        });
        let taken = taken.await.and_then(|taken| taken);
        // A request without an answer and the cleanup have one limit together.
        let came_to_nothing = !matches!(taken, Ok(Ok(Some(_))));
        context.close_by(answer_by.filter(|_| came_to_nothing));
        taken
    }

    pub(crate) async fn judge(
        &self,
        taken: leasehold::Result<Option<Held>>,
        client: &Client,
    ) -> Outcome<Held> {
        match taken {
            Ok(Some(held)) => Ok(held),
            Ok(None) => Err(self.busy(&self.describe_obstacle(client).await)),
            Err(error) if is_wait_ran_out(&error) => {
                let error = for_people(error);
                let until = Instant::now() + LOOK_WITHIN;
                let obstacle = self.obstacle(client).await;
                if let Ok(Some(info)) = &obstacle {
                    self.refuse_itself(info).map_err(|why| self.busy(&why))?;
                }
                match obstacle {
                    Ok(obstacle) => {
                        // Of another library's lock nothing knows more.
                        let told = self.numbers == Numbers::Fences && !self.quiet;
                        let more = match obstacle.filter(|_| told) {
                            Some(info) => self.in_the_way(&info, client, until).await,
                            None => String::new(),
                        };
                        Err(self.busy(&format!("{}{more}", chain(&error))))
                    }
                    Err(damaged) if damaged.kind() == ErrorKind::Corrupt => Err(damaged.into()),
                    Err(refused) if !refused.passes() => Err(self.busy(&chain(&error))),
                    // Whether it is busy is unknown.
                    Err(down) => Err(Failure::new(
                        Exit::Store,
                        format!(
                            "{}: timed out while the store was away, so the state of the lock is \
                             unknown: {}",
                            self.names(),
                            chain(&down)
                        ),
                    )
                    .because_of(&down)),
                }
            }
            Err(error) if failure::is_of_argument(&error) => Err(Failure::of_argument(&error)),
            Err(error) => Err(error.into()),
        }
    }

    async fn ask_store(
        &self,
        client: &Client,
        manner: Manner,
        limit: Option<Duration>,
    ) -> leasehold::Result<Option<Held>> {
        let options = LockOptions::new()
            .ttl(self.ttl.duration())
            .metadata(self.metadata().as_str())
            .renew(manner.renew)
            .max_hold(manner.max_hold);
        let options = match manner.grace {
            Some(grace) => options.stop_grace(grace),
            None => options,
        };
        let Some(key) = self.keys.first() else {
            return Err(Error::new(ErrorKind::Config, "no lock is named; name at least one"));
        };
        let guard = match self.kind {
            Kind::Exclusive if self.keys.len() > 1 => {
                let locks = client.multi(&self.keys).options(&options);
                let taken = waited!(limit, locks, try_lock, lock, lock_within());
                return Ok(taken.map(|all| {
                    let mut guards = all.into_guards();
                    let typed: HashMap<_, _> = self.keys.iter().zip(0..self.keys.len()).collect();
                    guards.sort_by_key(|guard| typed.get(guard.key()).copied());
                    Held::new(client, guards, self.numbers)
                }));
            }
            Kind::Exclusive => {
                let lock = client.mutex(key).options(&options);
                waited!(limit, lock, try_lock, lock, lock_within())
            }
            Kind::Shared => {
                let lock = client.rwlock(key).options(&options);
                waited!(limit, lock, try_read, read, read_within())
                    .map(leasehold::ReadGuard::into_guard)
            }
            Kind::Permits { count, limit: all, stored_limit } => {
                let lock = client.semaphore(key, all).stored_limit(stored_limit).options(&options);
                waited!(limit, lock, try_acquire_many, acquire_many, acquire_many_within(count))
                    .map(leasehold::SemaphoreGuard::into_guard)
            }
            Kind::OncePer(period) => {
                let job = client.once_per(key, period).options(&options);
                return Ok(job.try_start().await?.map(|guard| Held::once(client, guard)));
            }
        };
        Ok(guard.map(|guard| Held::new(client, vec![guard], self.numbers)))
    }

    fn busy(&self, message: &str) -> Failure {
        if self.quiet { Failure::silent(self.busy) } else { Failure::new(self.busy, message) }
    }

    /// The lock was free, and was not taken.
    pub(crate) fn in_vain(&self, why: &str) -> Failure {
        self.busy(why)
    }

    /// Refuses to wait for a command around this one.
    fn refuse_itself(&self, info: &LockInfo) -> Result<(), String> {
        if self.waits_for_outer { Ok(()) } else { self.outer.judge(info, self.kind) }
    }

    async fn describe_obstacle(&self, client: &Client) -> String {
        if self.quiet {
            return String::new();
        }
        let at = client.location();
        match self.obstacle(client).await {
            Ok(Some(info)) => {
                if let Err(why) = self.refuse_itself(&info) {
                    return why;
                }
                let mut more = self.came_early(Some(&info));
                // `why` does not know locks of other libraries.
                if more.is_empty() && self.numbers == Numbers::Fences {
                    more = describe::see_why(&info.key);
                }
                format!("\"{}\" at {at} is {}{more}", info.key, describe::state(&info))
            }
            Ok(None) if matches!(self.kind, Kind::OncePer(_)) => {
                format!("{} at {at} was cooling down{}", self.names(), self.came_early(None))
            }
            // It came free in between, or the store can't say.
            _ => format!("{} at {at} was held by another holder", self.names()),
        }
    }

    /// What to say of a start that came just before its period was over: a schedule of the same
    /// length comes like that again and again.
    fn came_early(&self, info: Option<&LockInfo>) -> String {
        let Kind::OncePer(period) = self.kind else { return String::new() };
        let is_held = info.is_some_and(|info| !info.holders.is_empty());
        let left = info.and_then(|info| info.closed_for).unwrap_or_default();
        if is_held || left >= period / 20 {
            return String::new();
        }
        let period = duration::show(period);
        format!(
            ". Less than 5 % of the period of {period} was left; give a period clearly shorter \
             than the interval of the schedule"
        )
    }

    /// The first of the locks that a command around this one has, or else another holder, or else
    /// the first in use.
    async fn obstacle(&self, client: &Client) -> leasehold::Result<Option<LockInfo>> {
        let (mut taken, mut in_use) = (None, None);
        if self.numbers != Numbers::Fences && self.keys.len() > 1 {
            // Another library's record does not distinguish this command's hold from others.
            // Several are taken in the order of their names, so the last in use is not this one's.
            let mut keys: Vec<&Key> = self.keys.iter().collect();
            keys.sort_unstable_by(|a, b| b.cmp(a));
            for key in keys {
                if let Some(info) = client.inspect(key).await? {
                    return Ok(Some(info));
                }
            }
            return Ok(None);
        }
        for key in &self.keys {
            let Some(info) = client.inspect(key).await? else { continue };
            let mut holders = info.holders.iter();
            let is_taken =
                info.closed_for.is_some() || holders.any(|holder| !client.is_own(holder.mark));
            if is_taken && self.refuse_itself(&info).is_err() {
                return Ok(Some(info));
            }
            let first = if is_taken { &mut taken } else { &mut in_use };
            first.get_or_insert(info);
        }
        Ok(taken.or(in_use))
    }

    /// Whether it asks once, and does not wait for the lock.
    fn is_try(&self) -> bool {
        self.limit == Some(Duration::ZERO) || matches!(self.kind, Kind::OncePer(_))
    }

    /// Says who is waited for, or that the store is. Returns why where that is a command around
    /// this one.
    async fn explain_the_wait(&self, client: &Client) -> String {
        let mut pauses = Pauses::default();
        loop {
            tokio::time::sleep(pauses.next()).await;
            match self.obstacle(client).await {
                // It may be this very try, which is not proven yet.
                Ok(Some(_)) if self.is_try() => {}
                Ok(Some(info)) => {
                    if let Err(why) = self.refuse_itself(&info) {
                        return why;
                    }
                    if self.quiet {
                        continue;
                    }
                    let mut line = info.waiters.iter();
                    let mine = line.position(|waiter| client.is_own(waiter.mark));
                    let place = mine.map_or_else(String::new, |place| {
                        format!(", this one at position {}", place.saturating_add(1))
                    });
                    let mut holders = info.holders.iter();
                    let unconfirmed = holders.len() > 0
                        && info.closed_for.is_none()
                        && holders.all(|holder| client.is_own(holder.mark));
                    if unconfirmed {
                        describe::tell_of_grant(&info);
                        continue;
                    }
                    // `why` does not know locks of other libraries.
                    let is_long = pauses.is_again() && self.numbers == Numbers::Fences;
                    describe::tell_of_wait(&info, &place, is_long);
                }
                // It comes free just now.
                Ok(None) => {}
                Err(_) if self.quiet => {}
                Err(error) => {
                    let next = if error.passes() { "; trying again" } else { "" };
                    output::message(&format!(
                        "waiting for {}: {}{next}",
                        self.names(),
                        chain(&error)
                    ));
                }
            }
        }
    }

    /// What else the error of a timed-out wait has: other waiters, and a circle of holders that
    /// wait for each other. It looks for that until a moment, and no longer.
    async fn in_the_way(&self, info: &LockInfo, client: &Client, until: Instant) -> String {
        let mut text = describe::others_in_line(info, client);
        // Without an owner name, a command around it and a script, it holds no lock that others
        // could wait for. So a crowd of waits that time out together does not list a large store.
        let listing = async {
            if self.owner().is_none() && self.outer.is_empty() && self.process == Name::own() {
                return None;
            }
            // Users who may look at one lock need not be allowed to list all.
            tokio::time::timeout_at(until, client.list("")).await.ok()?.ok()
        };
        if let Some(listing) = listing.await {
            let mut locks = listing.locks;
            locks.retain(|lock| lock.key != info.key);
            // With this wait, whose position may be abandoned by now.
            let mut info = info.clone();
            let mut mine = WaiterInfo::new(Mode::Exclusive, Duration::ZERO);
            mine.owner = client.owner().clone();
            mine.metadata = self.metadata();
            info.waiters.push(mine);
            locks.push(info.clone());
            for circle in graph::chains(&info, &locks, &Name::around) {
                if matches!(circle, Chain::Circle(_)) {
                    let steps: Vec<String> = circle.steps().collect();
                    text.push_str(&format!(". Deadlock: {}", steps.join(", and ")));
                }
            }
        }
        text + &describe::see_why(&info.key)
    }
}

/// The same error, whose holder says what was typed for it and nothing of where it stands.
fn for_people(error: Error) -> Error {
    let Some(mut holder) = error.holder().cloned() else { return error };
    let said = outer::said(&holder.metadata).collect::<Vec<_>>().join(", ");
    holder.metadata = Metadata::new(said).unwrap_or_default();
    let free_in = error.retry_after();
    error.held_by(Some(holder), free_in)
}

/// A wait that timed out has certainly taken no lock. A store that did not answer has an error of
/// the same kind, and may have granted it.
fn is_wait_ran_out(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout && error.effect() == Effect::NotApplied
}
