//! Sends requests to a server: over our connection, a borrowed one, or a pool.

use std::borrow::Cow;
use std::fmt::{self, Debug, Display};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{BoxFuture, Effect, ErrorKind, Reason, escape};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::addresses::Heard;
use crate::call::Call;
use crate::classify::{self, Stage, Verdict};
use crate::replication::Replication;
use crate::resp::Write;
use crate::role::Role;
use crate::sentinel::Said;
use crate::server_clock::ServerClock;

/// Until when a call may take, and how long that was, to say so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    within: Duration,
    /// When the first of those who asked gives up: from then on the server is to do nothing of it.
    pub(crate) not_after: Instant,
}

impl Deadline {
    pub(crate) fn after(within: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(within).unwrap_or_else(|| now + Duration::from_secs(86_400));
        Self { at, within, not_after: at }
    }

    /// That of the last of these, of which the first ends with its own.
    pub(crate) fn of_all(all: impl Iterator<Item = Self> + Clone) -> Option<Self> {
        let last = all.clone().max_by_key(|one| one.at)?;
        let not_after = all.map(|one| one.not_after).min()?;
        Some(Self { not_after, ..last })
    }

    /// The same, but at most `within` from now.
    pub(crate) fn at_most(self, within: Duration) -> Self {
        let sooner = Self::after(within);
        let not_after = sooner.at.min(self.not_after);
        if sooner.at < self.at { Self { not_after, ..sooner } } else { self }
    }

    /// The same for one of many requests: a server that is silent for a tenth of the whole time, and for a
    /// second, is taken for one that does not answer.
    pub(crate) fn of_one(self) -> Self {
        self.at_most((self.within / 10).max(Duration::from_secs(1)))
    }

    /// How much time is left.
    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    /// Nothing was sent in time.
    pub(crate) fn missed_unsent(self, last: Option<&Verdict>) -> Verdict {
        let within = self.rounded();
        let message = match last {
            // That says how long it took, as an attempt that began before this request did.
            Some(last) if last.reason == Some(Reason::NoAnswer) => last.message().to_owned(),
            Some(last) => format!("no connection within {within:?}: {}", last.message()),
            None => format!("no connection within {within:?}; is the address right"),
        };
        let verdict = Verdict::out_of_time(Effect::NotApplied, message);
        match last.and_then(|last| last.reason) {
            Some(reason) => verdict.because(reason),
            None => verdict,
        }
    }

    /// No answer came in time.
    pub(crate) fn missed(self) -> Verdict {
        let within = self.rounded();
        Verdict::out_of_time(Effect::Unknown, format!("no answer within {within:?}"))
    }

    /// The time given, for people.
    fn rounded(self) -> Duration {
        let ms = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX);
        if ms == 0 { self.within } else { Duration::from_millis(ms) }
    }
}

/// What is sent.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    /// A command that any server answers alike.
    Plain(&'a Cmd),
    /// A script, with all of it or only its digest.
    Script { call: &'a Call<'a>, whole: bool },
}

/// On which connection a request is sent, and what follows it there.
#[derive(Clone, Copy)]
pub(crate) enum Delivery {
    /// On the one that all share.
    None,
    /// Behind all requests about the same lock that were sent with [`Delivery::Confirmed`].
    InOrder,
    /// Followed, if the answer calls for it, by a wait for replicas.
    Confirmed {
        replication: Replication,
        needed: fn(&Value) -> bool,
        /// Whether it goes to a server that may have forgotten leases, too: for the place in line that
        /// it keeps there, since its answer is worth nothing.
        keeps_place: bool,
    },
}

impl Delivery {
    /// The same for a request that keeps a place in line, or not.
    pub(crate) fn keeping_place(self, keeps_place: bool) -> Self {
        match self {
            Self::Confirmed { replication, needed, keeps_place: _ } => {
                Self::Confirmed { replication, needed, keeps_place }
            }
            delivery => delivery,
        }
    }

    /// Whether what is confirmed for one request is confirmed for the other.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) | (Self::InOrder, Self::InOrder) => true,
            (
                Self::Confirmed { replication, keeps_place, .. },
                Self::Confirmed { replication: other, keeps_place: others, .. },
            ) => replication == other && keeps_place == others,
            _ => false,
        }
    }
}

/// A request, whose epoch is known only when a server was found for it.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) body: Body<'a>,
    pub(crate) delivery: Delivery,
}

impl<'a> Request<'a> {
    pub(crate) fn plain(cmd: &'a Cmd) -> Self {
        Self { body: Body::Plain(cmd), delivery: Delivery::None }
    }

    /// The slot of the keys in it, if there are any.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self.body {
            Body::Plain(_) => None,
            Body::Script { call, .. } => Some(call.slot()),
        }
    }

    /// The request as it goes to a server of which this is known.
    pub(crate) fn packed(&self, stamp: Stamp) -> Packed<'a> {
        match self.body {
            Body::Plain(cmd) => Packed::Command(Cow::Borrowed(cmd)),
            Body::Script { call, whole } => Packed::Script { call, whole, stamp },
        }
    }
}

/// What a request says that depends on the server which gets it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    /// The fail-over epoch in which it was found.
    pub(crate) epoch: u64,
    /// When the request is to be refused as late: µs since the Unix epoch by the server's clock, 0 where
    /// that is not known.
    pub(crate) not_after: u64,
}

/// What goes to a server.
pub(crate) enum Packed<'a> {
    Command(Cow<'a, Cmd>),
    Script { call: &'a Call<'a>, whole: bool, stamp: Stamp },
}

impl Packed<'_> {
    /// As a command of the client library.
    pub(crate) fn into_cmd(self) -> Cmd {
        match self {
            Self::Command(cmd) => cmd.into_owned(),
            Self::Script { call, whole, stamp } => call.request(whole, stamp),
        }
    }
}

impl Write for Packed<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Command(cmd) => cmd.write(out),
            Self::Script { call, whole, stamp } => call.write(*whole, *stamp, out),
        }
    }
}

/// What a server said.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// The fail-over epoch in which the server was asked.
    pub(crate) epoch: u64,
    /// Why it proves nothing: replicas that were waited for lack it, or the server may have forgotten
    /// leases.
    pub(crate) unconfirmed: Option<Verdict>,
}

impl Answer {
    pub(crate) fn new(value: Value, epoch: u64) -> Self {
        Self { value, epoch, unconfirmed: None }
    }
}

/// Carries requests to a server. Sends each once, and again only to another server when the first
/// said that it had not carried it out.
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// One request, one answer; an error that the server answers with is judged.
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>>;

    /// Several requests in one go, one answer for each in order.
    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>>;

    /// One request on a connection that is there already; `None`, and nothing is sent, when there
    /// is none. The request keeps its place among others from the first poll on.
    fn at_once<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _deadline: Deadline,
    ) -> Option<BoxFuture<'a, Result<Answer, Verdict>>> {
        None
    }

    /// Whether it has [connections](Self::at_once) over which all locks are reached.
    fn combines(&self) -> bool {
        false
    }

    /// Whether locks are spread over servers, so that no script can be about several.
    fn is_spread(&self) -> bool {
        false
    }

    /// Whether another server may take the place of one, and may have forgotten what that one kept.
    fn fails_over(&self) -> bool {
        false
    }

    /// The servers that together keep all locks, where they are spread.
    fn parts(&self, _deadline: Deadline) -> BoxFuture<'_, Result<Option<Parts>, Verdict>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// What the sentinels say that were named, where there are some.
    fn sentinels(&self) -> BoxFuture<'_, Option<Vec<Said>>> {
        Box::pin(std::future::ready(None))
    }

    /// What is at each address of the server that was named, where its name has several.
    fn addresses(&self) -> BoxFuture<'_, Option<Vec<Heard>>> {
        Box::pin(std::future::ready(None))
    }

    /// Another server, reached and logged in to in the same way as this one.
    fn neighbour(&self, _host: &str, _port: u16) -> Option<Part> {
        None
    }
}

/// The servers of a cluster.
pub(crate) struct Parts {
    pub(crate) servers: Vec<Part>,
    /// Whether every slot is with one of them.
    pub(crate) whole: bool,
    /// What each server that was named answers to `CLUSTER NODES`, if it does.
    pub(crate) views: Vec<(String, String)>,
    /// Those that were named and say that they are no node of any cluster.
    pub(crate) loners: Vec<String>,
}

/// One server of several.
pub(crate) struct Part {
    pub(crate) server: Arc<dyn Transport>,
    pub(crate) location: String,
    /// In order; none of a server that may be about to get some.
    pub(crate) slots: Vec<u16>,
}

/// The runtime of the caller, whose timers every request needs.
pub(crate) fn here() -> Result<Handle, Verdict> {
    Handle::try_current().map_err(|_| {
        Verdict::refused(
            ErrorKind::Misuse,
            classify::Next::Fail,
            "a Redis store works inside a tokio runtime only",
        )
    })
}

/// Judges an answer to one request.
pub(crate) fn judged(answer: RedisResult<Value>) -> Result<Value, Verdict> {
    match answer {
        Ok(Value::ServerError(error)) => {
            Err(classify::server(error.code(), error.details().unwrap_or("")))
        }
        Ok(value) => Ok(value),
        Err(error) => Err(classify::judge(&error, Stage::Asked)),
    }
}

/// The same outcome for every request.
pub(crate) fn all_failed(requests: usize, verdict: &Verdict) -> Vec<Result<Answer, Verdict>> {
    (0..requests).map(|_| Err(verdict.clone())).collect()
}

/// How often a borrowed connection is asked what it is to.
const ROLE_EVERY: Duration = Duration::from_secs(2);

/// Connections that somebody else looks after.
pub(crate) struct Borrowed<F> {
    provide: F,
    /// When a server last said that it is a primary.
    known: Mutex<Option<Instant>>,
    clock: ServerClock,
}

impl<F> Borrowed<F> {
    pub(crate) fn new(provide: F) -> Self {
        Self { provide, known: Mutex::new(None), clock: ServerClock::unknown() }
    }

    fn known(&self) -> MutexGuard<'_, Option<Instant>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Debug for Borrowed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Borrowed")
    }
}

impl<F, Fut, C, E> Borrowed<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send,
    C: ConnectionLike + Send,
    E: Display,
{
    async fn connection(&self, deadline: Deadline) -> Result<C, Verdict> {
        here()?;
        let mut connection = self.lent(deadline).await?;
        if self.known().is_none_or(|since| since.elapsed() >= ROLE_EVERY) {
            let asking = timeout_at(deadline.at, Role::ask(&mut connection)).await;
            let role = asking.unwrap_or_else(|_| Err(deadline.missed_unsent(None)))?;
            role.check_borrowed()?;
            let question = ServerClock::question();
            let asking = connection.req_packed_command(&question);
            let time = timeout_at(deadline.at, asking).await;
            self.clock.read(&time.map_err(|_| deadline.missed_unsent(None))?);
            *self.known() = Some(Instant::now());
        }
        Ok(connection)
    }

    fn stamp(&self, deadline: Deadline) -> Stamp {
        Stamp { epoch: 0, not_after: self.clock.late_after(deadline.not_after) }
    }

    fn noted(&self, answer: RedisResult<Value>) -> Result<Answer, Verdict> {
        let value = judged(answer).inspect_err(|verdict| self.clock.hear(verdict))?;
        Ok(Answer::new(value, 0))
    }

    async fn lent(&self, deadline: Deadline) -> Result<C, Verdict> {
        match timeout_at(deadline.at, (self.provide)()).await {
            Ok(Ok(_)) if deadline.is_over() => Err(deadline.missed_unsent(None)),
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => {
                let said = error.to_string();
                Err(Verdict::unconnected(format!(
                    "the pool gave no connection: {}",
                    escape::terminal(&said)
                ))
                .give_up())
            }
            Err(_) => Err(deadline.missed_unsent(None)),
        }
    }
}

fn confirms_nothing(request: &Request<'_>) -> Result<(), Verdict> {
    match request.delivery {
        Delivery::None | Delivery::InOrder => Ok(()),
        Delivery::Confirmed { .. } => Err(Verdict::refused(
            ErrorKind::Unsupported,
            classify::Next::Fail,
            "waiting for replicas would hold up a connection that others share; let the store \
             make its own, with a URL",
        )),
    }
}

impl<F, Fut, C, E> Transport for Borrowed<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: ConnectionLike + Send + 'static,
    E: Display + Send + 'static,
{
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        Box::pin(async move {
            confirms_nothing(request)?;
            let mut connection = self.connection(deadline).await?;
            let cmd = request.packed(self.stamp(deadline)).into_cmd();
            match timeout_at(deadline.at, connection.req_packed_command(&cmd)).await {
                Ok(answer) => self.noted(answer),
                Err(_) => Err(deadline.missed()),
            }
        })
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        Box::pin(async move {
            if let Err(verdict) = requests.iter().try_for_each(confirms_nothing) {
                return all_failed(requests.len(), &verdict);
            }
            let mut connection = match self.connection(deadline).await {
                Ok(connection) => connection,
                Err(verdict) => return all_failed(requests.len(), &verdict),
            };
            let mut pipeline = Pipeline::with_capacity(requests.len());
            for request in requests {
                pipeline.add_command(request.packed(self.stamp(deadline)).into_cmd());
            }
            let answers = connection.req_packed_commands(&pipeline, 0, pipeline.len());
            match timeout_at(deadline.at, answers).await {
                Ok(Ok(answers)) => answers.into_iter().map(|value| self.noted(Ok(value))).collect(),
                Ok(Err(error)) => {
                    all_failed(requests.len(), &classify::judge(&error, Stage::Asked))
                }
                Err(_) => all_failed(requests.len(), &deadline.missed()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_not_sent_names_one_limit() {
        let told = |last: &Verdict| {
            let missed = Deadline::after(Duration::from_millis(1666)).missed_unsent(Some(last));
            missed.message().to_owned()
        };
        let silent = Verdict::unconnected("the server did not answer within 2s");
        let silent = silent.because(Reason::NoAnswer);
        assert_eq!(told(&silent), "the server did not answer within 2s");
        let refused = Verdict::unconnected("nobody listens there").because(Reason::Disconnected);
        assert_eq!(told(&refused), "no connection within 1.666s: nobody listens there");
    }
}
