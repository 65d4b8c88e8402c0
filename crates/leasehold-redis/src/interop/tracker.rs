//! Keeps a key-tracking connection to one server for as long as a caller needs it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Wake;
use redis::aio::ConnectionLike as _;
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::layout::Shape;
use super::watch::{Seen, Watches};
use crate::classify::Verdict;
use crate::connect::access::{Access, Tracking};
use crate::connect::pause::pause_after;
use crate::topology::address::Endpoint;

/// How often an idle connection gets a request for a sign of life, and how long the answer may
/// take.
const PING_EVERY: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How many keys are read at once.
const LOOK_MAX: usize = 100;

/// The keys for one server to track.
#[derive(Debug, Default)]
pub(super) struct TrackedKeys {
    keys: Mutex<Keys>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Keys {
    /// The keys. `true` if the key needs `ASKING`, since its slot still belongs to another server.
    all: HashMap<String, bool>,
    /// The keys to read next.
    fresh: HashSet<String>,
}

impl TrackedKeys {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a key, which is tracked from then on.
    pub(super) fn put(&self, key: String, asking: bool) {
        {
            let mut keys = self.keys();
            keys.fresh.insert(key.clone());
            keys.all.insert(key, asking);
        }
        self.changed.notify_one();
    }

    /// Reads all keys again.
    pub(super) fn doubt(&self) {
        {
            let mut keys = self.keys();
            keys.fresh = keys.all.keys().cloned().collect();
        }
        self.changed.notify_one();
    }

    /// Whether a key needs `ASKING`.
    pub(super) fn is_moving(&self, key: &str) -> bool {
        self.keys().all.get(key) == Some(&true)
    }

    /// All keys that are still watched.
    fn all(&self, watches: &Watches) -> Vec<String> {
        let mut keys = self.keys();
        keys.fresh.clear();
        let known = watches.known(keys.all.keys().cloned());
        keys.all.retain(|key, _| known.binary_search(key).is_ok());
        known
    }

    fn take_fresh(&self) -> Vec<String> {
        std::mem::take(&mut self.keys().fresh).into_iter().collect()
    }

    fn one(&self) -> Option<String> {
        let keys = self.keys();
        let place = fastrand::usize(..keys.all.len().max(1));
        keys.all.keys().nth(place).cloned()
    }

    fn drop_key(&self, key: &str) {
        self.keys().all.remove(key);
    }
}

/// What a tracker reports.
#[derive(Debug)]
pub(super) enum Report {
    /// It has read all its keys, which are now tracked.
    Tracks {
        /// Whether some were tracked before.
        again: bool,
    },
    /// It fails for now, and keeps trying.
    Fails(Verdict),
    /// A key is no longer on this server.
    Elsewhere {
        key: String,
        /// The server that imports the key's slot.
        moving_to: Option<Endpoint>,
    },
}

/// Why a connection was abandoned.
enum End {
    /// It has ended, or does not answer.
    Silent,
    /// The server refuses to return the keys' values.
    Refused(Verdict),
    /// The listener is gone.
    Unwanted,
}

/// The server; `None` if there is only one.
pub(super) type Place = Option<Endpoint>;

/// Tracks keys at one server.
pub(super) struct Tracker {
    pub(super) place: Place,
    pub(super) access: Arc<Access>,
    pub(super) watches: Arc<Watches>,
    pub(super) keys: Arc<TrackedKeys>,
    pub(super) messages: mpsc::Sender<Wake>,
    pub(super) reports: mpsc::Sender<(Place, Report)>,
}

impl Tracker {
    /// Connects, retrying as long as needed, and reports changes.
    pub(super) async fn run(self) {
        let (mut failures, mut again) = (0_u32, false);
        loop {
            let verdict = match self.access.open_tracking().await {
                Ok(tracking) => match self.follow(tracking, again).await {
                    End::Silent => {
                        (failures, again) = (0, true);
                        continue;
                    }
                    End::Refused(verdict) => verdict,
                    End::Unwanted => return,
                },
                Err(verdict) => verdict,
            };
            failures = failures.saturating_add(1);
            again = true;
            tracing::debug!(
                why = verdict.message(),
                "the server does not track keys; waiters poll"
            );
            if self.report(Report::Fails(verdict)).await.is_err() {
                return;
            }
            sleep(pause_after(failures)).await;
        }
    }

    async fn report(&self, report: Report) -> Result<(), End> {
        self.reports.send((self.place.clone(), report)).await.map_err(|_| End::Unwanted)
    }

    /// Reports changes until the connection ends or stops answering.
    async fn follow(&self, tracking: Tracking, again: bool) -> End {
        match self.follow_on(tracking, again).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn follow_on(
        &self,
        mut tracking: Tracking,
        again: bool,
    ) -> Result<std::convert::Infallible, End> {
        let from = tracking.from.clone();
        let mut keys = self.keys.all(&self.watches);
        let mut has_told = false;
        loop {
            for some in keys.chunks(LOOK_MAX) {
                self.look(&mut tracking, some).await?;
            }
            if !has_told {
                has_told = true;
                self.report(Report::Tracks { again }).await?;
            }
            keys = tokio::select! {
                push = tracking.pushes.recv() => self.changed(push)?,
                () = self.keys.changed.notified() => self.keys.take_fresh(),
                () = self.access.left(&from) => return Err(End::Silent),
                () = sleep(PING_EVERY) => match self.keys.one() {
                    // The answer also shows whether the key's slot is still there.
                    Some(key) => vec![key],
                    None => {
                        let ping = redis::cmd("PING");
                        let answer = tracking.connection.req_packed_command(&ping);
                        match timeout(ANSWER_WITHIN, answer).await {
                            Ok(Ok(_)) => Vec::new(),
                            _ => return Err(End::Silent),
                        }
                    }
                },
            };
            // Reads simultaneous changes together.
            while let Ok(push) = tracking.pushes.try_recv() {
                keys.extend(self.changed(Some(push))?);
            }
            keys = self.watches.known(keys);
        }
    }

    /// The keys that a push reports as changed.
    fn changed(&self, push: Option<PushInfo>) -> Result<Vec<String>, End> {
        let Some(push) = push else { return Err(End::Silent) };
        match push.kind {
            PushKind::Disconnection => Err(End::Silent),
            PushKind::Invalidate => Ok(match push.data.into_iter().next() {
                Some(Value::Array(keys)) => {
                    let text = |key| match key {
                        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
                        Value::SimpleString(text) => Some(text),
                        _ => None,
                    };
                    keys.into_iter().filter_map(text).collect()
                }
                // The server has dropped all keys.
                _ => self.keys.all(&self.watches),
            }),
            _ => Ok(Vec::new()),
        }
    }

    /// Reads some locks and reports the results.
    async fn look(&self, tracking: &mut Tracking, keys: &[String]) -> Result<(), End> {
        let shape = self.watches.layout.shape();
        let mut pipeline = Pipeline::with_capacity(keys.len().saturating_mul(2));
        // The positions of each key's two answers.
        let mut places = Vec::with_capacity(keys.len());
        for key in keys {
            let asking = self.keys.is_moving(key);
            for command in question(shape, key) {
                if asking {
                    pipeline.add_command(redis::cmd("ASKING"));
                }
                pipeline.add_command(command);
            }
            let last = pipeline.len().saturating_sub(1);
            places.push((last.saturating_sub(1 + usize::from(asking)), last));
        }
        let begun = self.watches.begun();
        let answers = tracking.connection.req_packed_commands(&pipeline, 0, pipeline.len());
        let Ok(Ok(answers)) = timeout(ANSWER_WITHIN, answers).await else {
            return Err(End::Silent);
        };
        for (key, (value, left)) in keys.iter().zip(places) {
            let (Some(value), Some(left)) = (answers.get(value), answers.get(left)) else {
                return Err(End::Silent);
            };
            let seen = match Seen::read(value, left) {
                Ok(seen) => seen,
                Err(verdict) => {
                    self.refused(key, verdict, &tracking.from.endpoint).await?;
                    continue;
                }
            };
            for wake in self.watches.tell(key, &seen, begun) {
                self.messages.send(wake).await.map_err(|_| End::Unwanted)?;
            }
        }
        Ok(())
    }

    /// The server refuses to return a key's value; another one may return it.
    async fn refused(&self, key: &str, verdict: Verdict, from: &Endpoint) -> Result<(), End> {
        let Some(redirect) = &verdict.redirect else { return Err(End::Refused(verdict)) };
        let host = if redirect.host.is_empty() { from.host() } else { &redirect.host };
        let moving_to = redirect.ask.then(|| from.sibling(host, redirect.port));
        self.keys.drop_key(key);
        self.report(Report::Elsewhere { key: key.to_owned(), moving_to }).await
    }
}

/// Reads a key's value, which the server tracks from then on.
fn question(shape: Shape, key: &str) -> [Cmd; 2] {
    let mut value = match shape {
        Shape::Text => redis::cmd("GET"),
        Shape::Hash => redis::cmd("HKEYS"),
        Shape::Set => redis::cmd("ZRANGE"),
    };
    value.arg(key);
    if shape == Shape::Set {
        value.arg(0).arg(-1);
    }
    let mut left = redis::cmd("PTTL");
    left.arg(key);
    [value, left]
}
