//! A connection to one server, and the supervisor that replaces it.
//!
//! All calls share one multiplexed connection. It is made when it is first needed, by one attempt
//! that all callers share, each until its own deadline. It is replaced if it breaks, if the server
//! turns out to be a read-only replica, or if the sentinels name another primary while a call
//! waits. A network that drops packets reports nothing, so two timeouts in a row also replace it.
//!
//! This module sends each request once.

use std::borrow::Cow;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use leasehold_core::{BoxFuture, Effect, Reason};
use redis::{Cmd, Value, cmd};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::classify::{Next, Verdict};
use crate::connect::access::{Access, Link};
use crate::connect::pause::pause_after;
use crate::connect::transport::{Part, Transport};
use crate::script::call::{Packed, Request};
use crate::script::request::{Answer, Deadline, Delivery, all_failed, here, judged};
use crate::topology::addresses::Heard;
use crate::topology::replication::{Age, Replication};
use crate::topology::role::Role;
use crate::topology::sentinel::{LOOK_EVERY, Said};
use crate::topology::server_clock::ServerClock;

/// After this number of timeouts in a row, the connection is replaced.
const SILENT_MAX: u32 = 2;

/// How long a caller that can try another server waits for a connection.
const HASTY_MAX: Duration = Duration::from_secs(1);

/// The number of connections for requests that wait for replicas. Requests about one lock share
/// one, and a wait on it delays the requests behind it.
const LANES: u16 = 8;

/// The number of the connection for a slot's requests.
pub(crate) fn lane_of(slot: u16) -> u16 {
    slot % LANES
}

type Attempt = watch::Receiver<Option<Result<Arc<Link>, Verdict>>>;

enum Phase {
    Idle,
    Connecting(Attempt),
    Open(Arc<Link>),
}

struct State {
    phase: Phase,
    /// Whether there was ever a connection. Then the address is right, and it is worth waiting for
    /// the server.
    was_connected: bool,
    failures: u32,
    not_before: Option<Instant>,
    last_failure: Option<Verdict>,
}

/// The connection to one server, which is replaced whenever it fails. Clones share it.
#[derive(Clone)]
pub(crate) struct Supervised {
    inner: Arc<Inner>,
}

struct Inner {
    access: Arc<Access>,
    /// Whether callers wait for a server that is away. Otherwise they get an error soon, and try
    /// another server.
    patient: bool,
    state: Mutex<State>,
    lanes: OnceLock<Vec<Supervised>>,
}

/// What a caller knows about the server to which it sends.
#[derive(Clone, Copy, Default)]
pub(crate) struct Routing {
    /// The slot is being moved to this server, which does not own it yet.
    pub(crate) asking: bool,
    /// A lower bound of the fail-over epoch.
    pub(crate) epoch: u64,
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("access", &self.inner.access).finish_non_exhaustive()
    }
}

/// What a caller without a connection has to do.
enum Step {
    Use(Arc<Link>),
    Await(Attempt),
    Sleep(Instant),
}

impl Supervised {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self::with(access, true)
    }

    /// A connection whose callers don't wait for a server that is away.
    pub(crate) fn hasty(access: Arc<Access>) -> Self {
        Self::with(access, false)
    }

    fn with(access: Arc<Access>, patient: bool) -> Self {
        let state = State {
            phase: Phase::Idle,
            was_connected: false,
            failures: 0,
            not_before: None,
            last_failure: None,
        };
        let (state, lanes) = (Mutex::new(state), OnceLock::new());
        Self { inner: Arc::new(Inner { access, patient, state, lanes }) }
    }

    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.inner.access
    }

    /// The connection for requests about this slot's locks that must keep their order.
    fn lane(&self, slot: u16) -> &Self {
        let lanes = self.inner.lanes.get_or_init(|| {
            let Inner { access, patient, .. } = &*self.inner;
            (0..LANES).map(|_| Self::with(Arc::clone(access), *patient)).collect()
        });
        lanes.get(usize::from(lane_of(slot))).unwrap_or(self)
    }

    /// Waits for a connection until the deadline.
    async fn link(&self, deadline: Deadline) -> Result<Arc<Link>, Verdict> {
        loop {
            match self.step()? {
                Step::Use(link) => return Ok(link),
                Step::Sleep(_) if !self.inner.patient => {
                    let last = self.inner.state().last_failure.clone();
                    return Err(last.unwrap_or_else(|| Verdict::nobody_yet("no connection yet")));
                }
                Step::Sleep(until) => {
                    sleep_until(until.min(deadline.at)).await;
                }
                Step::Await(mut attempt) => {
                    let hasty = Instant::now() + HASTY_MAX;
                    let until = if self.inner.patient { deadline.at } else { hasty };
                    let ended =
                        timeout_at(until.min(deadline.at), attempt.wait_for(Option::is_some))
                            .await
                            .map(|ended| ended.map(|outcome| outcome.clone()));
                    let outcome = match ended {
                        Ok(Ok(outcome)) => outcome,
                        Ok(Err(_)) => {
                            self.inner.abandon(&attempt);
                            return Err(Access::lost_runtime());
                        }
                        Err(_) => None,
                    };
                    match outcome {
                        Some(Ok(link)) => return Ok(link),
                        Some(Err(verdict)) if !self.inner.patient => return Err(verdict),
                        None if !self.inner.patient => {
                            return Err(self.reaching(Verdict::nobody_yet("does not answer")));
                        }
                        Some(Err(verdict)) if !self.inner.is_worth_waiting_for(&verdict) => {
                            return Err(verdict.give_up());
                        }
                        Some(Err(_)) | None => {}
                    }
                }
            }
            if deadline.is_over() {
                let last = self.inner.state().last_failure.clone();
                let missed = deadline.missed_unsent(last.as_ref());
                return Err(if last.is_none() { self.reaching(missed) } else { missed });
            }
        }
    }

    /// The same, for one attempt to connect: the one that is under way, or a new one. In a pause
    /// between attempts it fails at once.
    async fn link_at_once(&self, deadline: Deadline) -> Result<Arc<Link>, Verdict> {
        let mut attempt = match self.step()? {
            Step::Use(link) => return Ok(link),
            Step::Sleep(_) => {
                let last = self.inner.state().last_failure.clone();
                return Err(last.unwrap_or_else(|| Verdict::nobody_yet("no connection yet")));
            }
            Step::Await(attempt) => attempt,
        };
        let ended = timeout_at(deadline.at, attempt.wait_for(Option::is_some)).await;
        match ended.map(|ended| ended.map(|outcome| outcome.clone())) {
            Ok(Ok(Some(outcome))) => outcome,
            Ok(Err(_)) => {
                self.inner.abandon(&attempt);
                Err(Access::lost_runtime())
            }
            Ok(Ok(None)) | Err(_) => Err(deadline.missed_unsent(None)),
        }
    }

    /// Adds the server's name to a verdict, if the user has not given it.
    fn reaching(&self, verdict: Verdict) -> Verdict {
        match self.inner.access.reaching() {
            Some(server) => verdict.about(&server),
            None => verdict,
        }
    }

    /// The open connection, if it can still be used.
    fn open_link(&self, state: &State) -> Option<Arc<Link>> {
        let Phase::Open(link) = &state.phase else { return None };
        let access = &self.inner.access;
        let usable = access.is_ours() && !link.pipe.has_ended() && !access.has_left(&link.at);
        usable.then(|| Arc::clone(link))
    }

    fn step(&self) -> Result<Step, Verdict> {
        let runtime = self.inner.access.runtime()?;
        let mut state = self.inner.state();
        if let Some(link) = self.open_link(&state) {
            return Ok(Step::Use(link));
        }
        if let Phase::Open(_) = state.phase {
            state.phase = Phase::Idle;
        }
        if let Phase::Connecting(attempt) = &state.phase {
            return Ok(Step::Await(attempt.clone()));
        }
        if let Some(until) = state.not_before
            && until > Instant::now()
        {
            return Ok(Step::Sleep(until));
        }
        let (tell, attempt) = watch::channel(None);
        state.phase = Phase::Connecting(attempt.clone());
        let inner = Arc::clone(&self.inner);
        runtime.spawn(async move {
            let outcome = inner.access.open().await.map(Arc::new);
            inner.settle(&outcome);
            tell.send_replace(Some(outcome));
        });
        Ok(Step::Await(attempt))
    }

    /// Sends requests in one go, each once.
    pub(crate) async fn send(
        &self,
        requests: &[Request<'_>],
        routing: Routing,
        deadline: Deadline,
    ) -> Vec<Result<Answer, Verdict>> {
        if let Err(verdict) = here() {
            return all_failed(requests.len(), &verdict);
        }
        let (lane, spare) = (self.lane_for(requests), self.spare_for(requests));
        let link = match spare {
            Some(_) => lane.link_at_once(deadline.at_most(deadline.left() / 2)).await,
            None => lane.link(deadline).await,
        };
        match (link, spare) {
            (Ok(link), _) => lane.send_over(&link, requests, routing, deadline).await,
            (Err(_), Some((lane, link))) => {
                lane.send_over(&link, requests, routing, deadline).await
            }
            (Err(verdict), None) => all_failed(requests.len(), &verdict),
        }
    }

    /// An open connection for requests whose own connection can't be made. The requests behind them
    /// on it then wait for replicas too.
    fn spare_for(&self, requests: &[Request<'_>]) -> Option<(&Self, Arc<Link>)> {
        let own = self.lane_for(requests);
        let lanes = self.inner.lanes.get()?.iter().chain([self]);
        let mut others = lanes.filter(|lane| !Arc::ptr_eq(&lane.inner, &own.inner));
        others.find_map(|lane| Some((lane, lane.open_link(&lane.inner.state())?)))
    }

    /// The connection for these requests.
    fn lane_for(&self, requests: &[Request<'_>]) -> &Self {
        match requests.first() {
            Some(Request { delivery: Delivery::None, .. }) | None => self,
            Some(request) => self.lane(request.slot().unwrap_or(0)),
        }
    }

    /// The open connection for a request that needs no other command before or behind it.
    fn at_hand(&self, request: &Request<'_>) -> Option<Arc<Link>> {
        let alone = matches!(request.delivery, Delivery::None) && !self.inner.access.follows();
        let link = self.open_link(&self.inner.state()).filter(|_| alone)?;
        (!link.is_to_look_again()).then_some(link)
    }

    /// Sends such a request. Most requests are of this kind, so it leaves out what only others
    /// need. A change here must be made in [`Supervised::send_over`] too.
    async fn send_alone(
        &self,
        link: &Arc<Link>,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        if deadline.is_over() {
            return Err(deadline.missed_unsent(None));
        }
        let stamp = link.stamp(link.at.epoch, deadline);
        let command = request.packed(stamp);
        match timeout_at(deadline.at, link.pipe.ask(&command)).await {
            Ok(answer) => {
                link.silent.store(0, Ordering::Relaxed);
                let value = judged(answer).map_err(|verdict| self.noted(link, verdict))?;
                Ok(Answer::new(value, stamp.epoch))
            }
            Err(_) => {
                self.note_silence(link);
                Err(deadline.missed())
            }
        }
    }

    /// Sends requests over this connection and no other.
    async fn send_over(
        &self,
        link: &Arc<Link>,
        requests: &[Request<'_>],
        routing: Routing,
        deadline: Deadline,
    ) -> Vec<Result<Answer, Verdict>> {
        let mut young = None;
        if let Some(Request { delivery, .. }) = requests.first()
            && let Delivery::Confirmed { replication, keeps_place, .. } = delivery
            && let Err(verdict) = self.remembers(link, *replication, deadline).await
        {
            if !keeps_place || verdict.passes_in.is_none() {
                return all_failed(requests.len(), &verdict);
            }
            young = Some(verdict.with_effect(Effect::Applied));
        }
        let epoch = routing.epoch.max(link.at.epoch);
        let stamp = link.stamp(epoch, deadline);
        let (asks_time, asks_role) = link.looks_again();
        let mut commands = Vec::with_capacity(requests.len().saturating_add(2));
        commands.extend(asks_time.then(|| command(ServerClock::question())));
        commands.extend(asks_role.then(|| command(Role::question())));
        commands.extend(routing.asking.then(|| command(cmd("ASKING"))));
        commands.extend(requests.iter().map(|request| request.packed(stamp)));
        let mut values = self.ask(link, commands, deadline).await;
        if asks_time {
            link.clock.read(&values.remove(0));
        }
        if asks_role
            && let Ok(hello) = values.remove(0)
            && let Err(verdict) = Role::of_hello(&hello).check()
        {
            self.inner.discard(link);
            // A writable replica has carried the requests out, and its primary will not know.
            let verdict = verdict.with_effect(Effect::Unknown).give_up();
            return values
                .into_iter()
                .map(|value| Err(value.err().unwrap_or_else(|| verdict.clone())))
                .collect();
        }
        let announced = if routing.asking { values.remove(0).err() } else { None };
        // If the node refuses `ASKING` and then redirects the request, the refusal is the cause.
        let told = |verdict: Verdict| match &announced {
            Some(refused) if verdict.redirect.is_some() => refused.clone(),
            _ => verdict,
        };
        let mut answers: Vec<Result<Answer, Verdict>> =
            values.into_iter().map(|value| Ok(Answer::new(value.map_err(told)?, epoch))).collect();
        if young.is_some() {
            // These answers prove no lease, so replicas need not confirm them.
            for answer in answers.iter_mut().flatten() {
                answer.unconfirmed.clone_from(&young);
            }
        } else if let Some(Request { delivery, .. }) = requests.first()
            && let Delivery::Confirmed { replication, needed, .. } = delivery
        {
            let mut to_confirm: Vec<&mut Answer> =
                answers.iter_mut().flatten().filter(|answer| needed(&answer.value)).collect();
            if !to_confirm.is_empty() {
                // The other half is for the release of what is not confirmed.
                let wait = replication.wait(deadline.left() / 2);
                let answer = self.ask(link, vec![command(wait)], deadline).await.pop();
                let answer = answer.unwrap_or_else(|| Err(deadline.missed()));
                let missing = replication.missing(answer);
                for answer in &mut to_confirm {
                    answer.unconfirmed.clone_from(&missing);
                }
            }
        }
        answers
    }

    /// Fails if the server may have forgotten leases. Each connection reads the server's age once,
    /// since the connection ends when the server restarts.
    async fn remembers(
        &self,
        link: &Arc<Link>,
        replication: Replication,
        deadline: Deadline,
    ) -> Result<(), Verdict> {
        if replication.longest.is_none() {
            return Ok(());
        }
        let age = match link.age.get() {
            Some(age) => *age,
            None => {
                let asked_at = Instant::now();
                let question = vec![command(Age::question())];
                let answer = self.ask(link, question, deadline).await.pop();
                let answer = answer.unwrap_or_else(|| Err(deadline.missed()));
                let age = Age::read(asked_at, answer.map_err(Verdict::of_age)?)?;
                *link.age.get_or_init(|| age)
            }
        };
        replication.believes(age)
    }

    /// Sends commands on this connection and no other. One answer for each.
    async fn ask(
        &self,
        link: &Arc<Link>,
        commands: Vec<Packed<'_>>,
        deadline: Deadline,
    ) -> Vec<Result<Value, Verdict>> {
        let count = commands.len();
        let failed = |verdict: Verdict| (0..count).map(|_| Err(verdict.clone())).collect();
        if deadline.is_over() {
            return failed(deadline.missed_unsent(None));
        }
        let asked = link.pipe.ask_all(&commands);
        let answers = match self.heard(link, asked, deadline).await {
            Ok(Some(answers)) => answers,
            Ok(None) => {
                self.note_silence(link);
                return failed(deadline.missed());
            }
            Err(verdict) => return failed(verdict),
        };
        link.silent.store(0, Ordering::Relaxed);
        answers
            .into_iter()
            .map(|answer| judged(answer).map_err(|verdict| self.noted(link, verdict)))
            .collect()
    }

    /// Waits for an answer until the deadline, or until the server has been replaced.
    async fn heard<T>(
        &self,
        link: &Arc<Link>,
        answer: impl Future<Output = T>,
        deadline: Deadline,
    ) -> Result<Option<T>, Verdict> {
        let access = &self.inner.access;
        let mut answer = pin!(answer);
        if !access.follows() {
            return Ok(timeout_at(deadline.at, answer).await.ok());
        }
        loop {
            let look = (Instant::now() + LOOK_EVERY).min(deadline.at);
            let replaced = tokio::select! {
                biased;
                answer = &mut answer => return Ok(Some(answer)),
                () = access.left(&link.at) => true,
                () = sleep_until(look) => false,
            };
            if !replaced && deadline.is_over() {
                return Ok(None);
            }
            let elsewhere = timeout_at(deadline.at, access.is_elsewhere(&link.at.endpoint));
            let replaced = replaced
                || tokio::select! {
                    biased;
                    answer = &mut answer => return Ok(Some(answer)),
                    elsewhere = elsewhere => elsewhere == Ok(true),
                };
            if replaced {
                self.inner.discard(link);
                return Err(Verdict::replaced());
            }
        }
    }

    /// Stops using the connection if the error calls for it.
    fn noted(&self, link: &Arc<Link>, verdict: Verdict) -> Verdict {
        link.clock.hear(&verdict);
        let follows = self.inner.access.follows();
        if matches!(verdict.next, Next::Drop | Next::Reconnect) || follows && verdict.not_primary {
            self.inner.discard(link);
        }
        // Callers that follow a primary find the next one in time.
        if follows && verdict.next == Next::Reconnect { verdict.again() } else { verdict }
    }

    fn note_silence(&self, link: &Arc<Link>) {
        if link.silent.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= SILENT_MAX {
            self.inner.discard(link);
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn is_worth_waiting_for(&self, verdict: &Verdict) -> bool {
        verdict.next == Next::Retry || verdict.next == Next::Reconnect && self.state().was_connected
    }

    /// Notes the result of an attempt to connect.
    fn settle(&self, outcome: &Result<Arc<Link>, Verdict>) {
        if outcome.as_ref().is_err_and(|verdict| verdict.reason == Some(Reason::ServerFull)) {
            self.access.refused();
        }
        let mut state = self.state();
        match outcome {
            Ok(link) => {
                state.phase = Phase::Open(Arc::clone(link));
                state.was_connected = true;
                state.failures = 0;
                state.not_before = None;
                state.last_failure = None;
            }
            Err(verdict) => {
                state.phase = Phase::Idle;
                state.failures = state.failures.saturating_add(1);
                state.not_before = Some(Instant::now() + pause_after(state.failures));
                state.last_failure = Some(verdict.clone());
                tracing::debug!(why = verdict.message(), "no connection to the store");
            }
        }
    }

    /// Forgets an attempt whose task is gone.
    fn abandon(&self, attempt: &Attempt) {
        let mut state = self.state();
        if let Phase::Connecting(current) = &state.phase
            && current.same_channel(attempt)
        {
            state.phase = Phase::Idle;
        }
    }

    /// Stops using a connection. Calls that wait on it go on waiting.
    fn discard(&self, link: &Arc<Link>) {
        let mut state = self.state();
        if let Phase::Open(current) = &state.phase
            && Arc::ptr_eq(current, link)
        {
            state.phase = Phase::Idle;
            link.pipe.keep_nothing();
            tracing::debug!("the connection to the store was closed");
        }
    }
}

impl Transport for Supervised {
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        Box::pin(async move {
            here()?;
            if let Some(link) = self.at_hand(request) {
                return self.send_alone(&link, request, deadline).await;
            }
            let requests = std::slice::from_ref(request);
            let answer = Box::pin(self.send(requests, Routing::default(), deadline)).await;
            answer.into_iter().next().unwrap_or_else(|| Err(deadline.missed()))
        })
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        Box::pin(self.send(requests, Routing::default(), deadline))
    }

    fn at_once<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> Option<BoxFuture<'a, Result<Answer, Verdict>>> {
        if let Some(link) = self.at_hand(request) {
            return Some(Box::pin(async move { self.send_alone(&link, request, deadline).await }));
        }
        let requests = std::slice::from_ref(request);
        let lane = self.lane_for(requests);
        let link = lane.open_link(&lane.inner.state())?;
        let asks_age = matches!(request.delivery, Delivery::Confirmed { replication, .. }
            if replication.longest.is_some() && link.age.get().is_none());
        (!asks_age).then(|| -> BoxFuture<'a, _> {
            Box::pin(async move {
                let answers = lane.send_over(&link, requests, Routing::default(), deadline).await;
                answers.into_iter().next().unwrap_or_else(|| Err(deadline.missed()))
            })
        })
    }

    fn combines(&self) -> bool {
        true
    }

    fn fails_over(&self) -> bool {
        self.inner.access.follows()
    }

    fn sentinels(&self) -> BoxFuture<'_, Option<Vec<Said>>> {
        Box::pin(self.inner.access.survey())
    }

    fn addresses(&self) -> BoxFuture<'_, Option<Vec<Heard>>> {
        Box::pin(self.inner.access.survey_addresses())
    }

    fn neighbour(&self, host: &str, port: u16) -> Option<Part> {
        let access = self.inner.access.neighbour(host, port)?;
        let location = access.location()?;
        let server = Arc::new(Self::new(Arc::new(access)));
        Some(Part { server, location, slots: Vec::new() })
    }
}

fn command(cmd: Cmd) -> Packed<'static> {
    Packed::Command(Cow::Owned(cmd))
}

/// A lock that a panic elsewhere cannot make unusable: what it guards is whole at every await.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
