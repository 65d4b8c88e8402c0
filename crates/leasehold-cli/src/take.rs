//! Taking a lock, for every command that does: once, for a while, or for as long as it takes.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use leasehold::{
    Client, Effect, Error, ErrorKind, Guard, Key, LockInfo, Metadata, Mutex, OwnerName, Ttl,
};

use crate::cli::{Taking, Waiting};
use crate::context::Context;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::output;
use crate::signals::{self, Signals};

/// A wait on a terminal is explained after this time.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);
/// How long an interrupted command tries to leave nothing behind.
const TIDY_WITHIN: Duration = Duration::from_secs(2);

/// Judges a name.
pub(crate) fn key(typed: &OsStr) -> Outcome<Key> {
    Key::from_bytes(typed.as_bytes()).map_err(|error| Failure::of_argument(&error))
}

/// Judges a length of time that a store has to keep, such as a ttl.
pub(crate) fn ttl(typed: Duration) -> Outcome<Ttl> {
    Ttl::new(typed).map_err(|error| Failure::of_argument(&error))
}

/// Judges a cool-down; none is as good as zero.
pub(crate) fn cooldown(typed: Option<Duration>) -> Outcome<Option<Duration>> {
    match typed.filter(|length| !length.is_zero()) {
        None => Ok(None),
        Some(length) => Ttl::new(length).map(|_| Some(length)).map_err(|_| {
            Failure::usage(format!("a cool-down of {length:?} is out of range; give up to 30 days"))
        }),
    }
}

/// A lock to be taken, all of its options judged before anything is sent.
#[derive(Debug)]
pub(crate) struct Request {
    key: Key,
    limit: Option<Duration>,
    busy: Exit,
    quiet: bool,
    explain: bool,
    /// How long the lease runs.
    pub(crate) ttl: Ttl,
    owner: Option<String>,
    metadata: Metadata,
}

impl Request {
    pub(crate) fn new(key: &OsStr, taking: &Taking, context: &Context) -> Outcome<Self> {
        let Context { settings, quiet, explain, .. } = context;
        let argument = |error: Error| Failure::of_argument(&error);
        let Taking { waiting, ttl: length, meta, owner } = taking;
        let length = length.or(settings.ttl()).unwrap_or(leasehold::DEFAULT_TTL);
        if let Some(owner) = owner {
            OwnerName::new(owner).map_err(argument)?;
        }
        Ok(Self {
            key: self::key(key)?,
            limit: waiting.limit(),
            busy: busy(waiting),
            quiet: *quiet,
            explain: *explain,
            ttl: ttl(length)?,
            owner: owner.clone(),
            metadata: Metadata::new(meta.join(" ")).map_err(argument)?,
        })
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Takes the lock. `adapt` may change what the options do not say.
    ///
    /// Errors are also a lock that is busy, with a message unless that is unwanted, and a wait that
    /// was cut short by a signal.
    pub(crate) async fn take(
        &self,
        client: &Client,
        signals: &mut Signals,
        adapt: impl FnOnce(Mutex) -> Mutex,
    ) -> Outcome<Guard> {
        let mutex = client.mutex_of(self.key.clone()).ttl(self.ttl.duration());
        let mutex = adapt(mutex.metadata(self.metadata.as_str()));
        let taken = unless_interrupted(client, signals, async {
            tokio::select! {
                taken = self.attempt(&mutex) => taken,
                never = self.explain_the_wait(client) => match never {},
            }
        });
        match taken.await? {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(self.busy(&self.describe_holder(client).await)),
            Err(error) if is_wait_ran_out(&error) => Err(self.busy(&chain(&error))),
            Err(error) if error.kind() == ErrorKind::Config => Err(Failure::of_argument(&error)),
            Err(error) => Err(error.into()),
        }
    }

    async fn attempt(&self, mutex: &Mutex) -> leasehold::Result<Option<Guard>> {
        match self.limit {
            Some(Duration::ZERO) => mutex.try_lock().await,
            Some(limit) => mutex.lock_within(limit).await.map(Some),
            None => mutex.lock().await.map(Some),
        }
    }

    fn busy(&self, message: &str) -> Failure {
        if self.quiet { Failure::silent(self.busy) } else { Failure::new(self.busy, message) }
    }

    async fn describe_holder(&self, client: &Client) -> String {
        let key = &self.key;
        if self.quiet {
            return String::new();
        }
        match client.inspect(key).await {
            Ok(Some(info)) => format!("\"{key}\" at {} is {}", client.location(), state(&info)),
            // It came free in between, or the store can't say.
            _ => format!("\"{key}\" at {} was held by somebody else", client.location()),
        }
    }

    /// Says once who is waited for, if there is a person to read it.
    async fn explain_the_wait(&self, client: &Client) -> std::convert::Infallible {
        if self.explain {
            tokio::time::sleep(EXPLAIN_AFTER).await;
            if let Ok(Some(info)) = client.inspect(&self.key).await {
                let mine = info.waiters.iter().position(|waiter| waiter.owner == *client.owner());
                let place = mine.map_or_else(String::new, |place| {
                    format!("; this is number {} in line", place.saturating_add(1))
                });
                output::message(&format!("waiting: \"{}\" is {}{place}", self.key, state(&info)));
            }
        }
        std::future::pending().await
    }
}

/// The code for a lock that is busy.
pub(crate) const fn busy(waiting: &Waiting) -> Exit {
    match waiting.conflict_exit_code {
        75 => Exit::Busy,
        other => Exit::Code(other),
    }
}

/// A wait that ran out is certain not to have taken anything; a store that did not answer in time
/// is another matter, though its errors are of the same kind.
fn is_wait_ran_out(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout && error.effect() == Effect::NotApplied
}

/// Who holds a lock, in words: `held by web-7_123 for 3m 5s (job=report)`.
pub(crate) fn state(info: &LockInfo) -> String {
    let mut text = match (info.holders.first(), info.closed_for) {
        (Some(holder), _) => {
            let note = match holder.metadata.as_str() {
                "" => String::new(),
                _ => format!(" ({})", holder.metadata),
            };
            format!(
                "held by {}{note} for {}, its lease ends in {} unless renewed",
                holder.owner,
                duration::show(holder.held_for),
                duration::show(holder.remaining),
            )
        }
        (None, Some(left)) => {
            format!("closed for another {} after a release", duration::show(left))
        }
        (None, None) => "free".to_owned(),
    };
    if !info.waiters.is_empty() {
        text.push_str(&format!("; {} waiting", info.waiters.len()));
    }
    text
}

/// Does some work unless a signal asks to end first; then what the work has begun is given up.
pub(crate) async fn unless_interrupted<T>(
    client: &Client,
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Outcome<T> {
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal,
        done = work => return Ok(done),
    };
    tidy(client).await;
    Err(Failure::silent(Exit::Signal(signals::number(signal))))
}

/// Gives up what is left behind: places in line, leases that could not be released.
pub(crate) async fn tidy(client: &Client) {
    // What can't be given up in time ends with its ttl.
    drop(tokio::time::timeout(TIDY_WITHIN, client.close()).await);
}
