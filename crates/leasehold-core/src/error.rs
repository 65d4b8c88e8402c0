//! The one error type: what went wrong, and whether the operation took effect.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::length;
use crate::reason::Reason;
use crate::store::HolderInfo;
use crate::ttl::Ttl;

/// `Result` with leasehold's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for branching.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The client was closed.
    Closed,
    /// A value given by the caller can't be used: a name, a ttl, a URL, a file.
    Config,
    /// The name is in use with another kind of lock or another limit, or its queue is full.
    Conflict,
    /// What is stored can't be read. The store guessed and changed nothing.
    Corrupt,
    /// The store refuses this user: a wrong password, or a command for which its rights don't
    /// suffice.
    Denied,
    /// The store has a value at the lock's name that is not leasehold's.
    Foreign,
    /// The store is full: its disk, its server's memory limit, or the number of files that this
    /// process may open.
    Full,
    /// The lease had expired, but no other holder has had the lock since: the ttl was too short.
    Late,
    /// The lease was lost while it was needed, and another holder may have the lock.
    Lost,
    /// Called in a way that can't work, such as blocking inside an async runtime.
    Misuse,
    /// Too few replicas confirmed the grant in time, with a store that waits for them. The client
    /// returned it; the effect is [`Effect::Unknown`] when that is not sure.
    NotReplicated,
    /// The store answered something unexpected.
    Protocol,
    /// The wait for the lock timed out.
    Timeout,
    /// The store could not be reached.
    Unavailable,
    /// The store or this build can't do this.
    Unsupported,
}

/// Whether an operation took effect on the store, if this client can know.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "there is no fourth truth")]
pub enum Effect {
    /// It did.
    Applied,
    /// It did not.
    NotApplied,
    /// It may have: the request was sent and no answer came.
    Unknown,
}

/// Why an operation failed.
///
/// Cheap to clone and one word wide. [`Error::kind`] says what to branch on, [`Error::reason`] why,
/// and [`Error::effect`] whether the operation may have happened anyway. The message names the key
/// and the store (its host, never a password or a token) and says what to do; the cause is in
/// [`source`](StdError::source).
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    reason: Option<Reason>,
    effect: Effect,
    message: String,
    operation: Option<&'static str>,
    key: Option<Key>,
    store: Option<Arc<str>>,
    contention: Option<Contention>,
    passes_in: Option<Duration>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    nodes: Vec<Error>,
}

#[derive(Clone)]
struct Contention {
    holder: Option<HolderInfo>,
    retry_after: Option<Duration>,
}

impl Error {
    /// An error of this kind; its effect is [`Effect::NotApplied`] until it is set.
    #[must_use]
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                reason: None,
                effect: Effect::NotApplied,
                message: message.into(),
                operation: None,
                key: None,
                store: None,
                contention: None,
                passes_in: None,
                source: None,
                nodes: Vec::new(),
            }),
        }
    }

    /// Sets whether the operation took effect.
    #[must_use]
    pub fn with_effect(self, effect: Effect) -> Self {
        self.change(|inner| inner.effect = effect)
    }

    /// Sets why it failed.
    #[must_use]
    pub fn with_reason(self, reason: Reason) -> Self {
        self.change(|inner| inner.reason = Some(reason))
    }

    /// Names the operation, such as `acquire`, unless a deeper layer has.
    #[must_use]
    pub fn during(self, operation: &'static str) -> Self {
        self.change(|inner| {
            inner.operation.get_or_insert(operation);
        })
    }

    /// Names the lock, unless a deeper layer has.
    #[must_use]
    pub fn on_key(self, key: &Key) -> Self {
        self.change(|inner| {
            inner.key.get_or_insert_with(|| key.clone());
        })
    }

    /// Names the store, unless a deeper layer has. The name must hold no secret.
    #[must_use]
    pub fn at_store(self, store: impl Into<Arc<str>>) -> Self {
        self.change(|inner| {
            inner.store.get_or_insert_with(|| store.into());
        })
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.change(|inner| inner.source = Some(Arc::new(source)))
    }

    /// Adds the error of each node of a store that consists of several.
    #[must_use]
    pub fn at_nodes(self, nodes: Vec<Self>) -> Self {
        self.change(|inner| inner.nodes = nodes)
    }

    /// Names the holder that has the lock, and after how long it is worth trying again.
    #[must_use]
    pub fn held_by(self, holder: Option<HolderInfo>, retry_after: Option<Duration>) -> Self {
        self.change(|inner| inner.contention = Some(Contention { holder, retry_after }))
    }

    /// Sets after how long the store, which has answered, can serve the request.
    #[must_use]
    pub fn passes_in(self, retry_after: Duration) -> Self {
        self.change(|inner| inner.passes_in = Some(retry_after))
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Why it went wrong, if more than the kind is known: the reason of this error, of all
    /// [nodes](Self::nodes) that failed, or of its cause.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        let Inner { kind, reason, nodes, source, .. } = &*self.inner;
        let of_kind = match kind {
            ErrorKind::Corrupt => Some(Reason::Damaged),
            ErrorKind::NotReplicated => Some(Reason::ReplicasMissing),
            _ => None,
        };
        let of_nodes = || {
            let (first, rest) = nodes.split_first()?;
            let reason = first.reason()?;
            rest.iter().all(|node| node.reason() == Some(reason)).then_some(reason)
        };
        let of_cause = || {
            let cause = source.as_deref()?;
            let ours = cause.downcast_ref::<Self>().and_then(Self::reason);
            ours.or_else(|| Reason::of_system(cause.downcast_ref::<io::Error>()?))
        };
        reason.or(of_kind).or_else(of_nodes).or_else(of_cause)
    }

    /// Whether the operation took effect on the store.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.inner.effect
    }

    /// The lock, if there was one.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.inner.key.as_ref()
    }

    /// The store, by scheme and host.
    #[must_use]
    pub fn store(&self) -> Option<&str> {
        self.inner.store.as_deref()
    }

    /// The error of each node that failed, if the store consists of several.
    #[must_use]
    pub fn nodes(&self) -> &[Self] {
        &self.inner.nodes
    }

    /// For [`ErrorKind::Timeout`]: the holder of the lock when last seen.
    #[must_use]
    pub fn holder(&self) -> Option<&HolderInfo> {
        self.inner.contention.as_ref().and_then(|contention| contention.holder.as_ref())
    }

    /// For [`ErrorKind::Timeout`]: when the lock could come free at the earliest, as last seen. For
    /// [`ErrorKind::Unavailable`]: when the store can serve the request by its own words. A quorum
    /// says this while its nodes warm up, and so does a server with `replicas=`.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let free = self.inner.contention.as_ref().and_then(|contention| contention.retry_after);
        free.or(self.inner.passes_in)
    }

    /// Whether the lock could not be acquired, and all else is in order: another holder has it, it
    /// is cooling down, or enough callers wait for it. A call that tries once returns `None` in
    /// this case, a wait returns such an error.
    #[must_use]
    pub fn is_not_obtained(&self) -> bool {
        match self.inner.kind {
            ErrorKind::Timeout => true,
            // Of the conflicts, only a full queue has a contention.
            ErrorKind::Conflict => self.inner.contention.is_some(),
            _ => false,
        }
    }

    /// Whether the same call may succeed later without any change of setup.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.inner.kind,
            ErrorKind::Full
                | ErrorKind::NotReplicated
                | ErrorKind::Timeout
                | ErrorKind::Unavailable
        )
    }

    /// Whether a wait for a lock goes on after this error, since it may pass meanwhile: the rule of
    /// all stores. A full store ends a wait, since it takes no heartbeats. It would skip the
    /// waiters, or hand them a lock without an answer to their requests. It still records that they
    /// leave.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.is_retryable() && self.inner.kind != ErrorKind::Full
    }
}

impl Error {
    /// Writes what failed: the operation, the lock and the store.
    fn write_subject(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, key, store, .. } = &*self.inner;
        if let Some(operation) = operation {
            write!(f, "{operation}")?;
        }
        if let Some(key) = key {
            if operation.is_some() {
                f.write_str(" ")?;
            }
            write!(f, "\"{key}\"")?;
        }
        if let Some(store) = store {
            let at = if operation.is_some() || key.is_some() { " at " } else { "" };
            write!(f, "{at}{store}")?;
        }
        if operation.is_some() || key.is_some() || store.is_some() {
            // `memory:` ends in a colon of its own.
            let colon =
                if store.as_ref().is_some_and(|store| store.ends_with(':')) { "" } else { ":" };
            write!(f, "{colon} ")?;
        }
        Ok(())
    }

    /// When the store can do what was requested, unless the errors of its nodes or the cause have
    /// it.
    fn ready_in(&self) -> Option<Duration> {
        let Inner { passes_in, nodes, source, .. } = &*self.inner;
        let is_said = !nodes.is_empty()
            || source.as_ref().is_some_and(|source| source.downcast_ref::<Self>().is_some());
        passes_in.filter(|_| !is_said)
    }
}

/// The alternate form (`{:#}`) leaves out the operation, the lock and the store, for a sentence
/// that names them already.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { message, contention, nodes, .. } = &*self.inner;
        if !f.alternate() {
            self.write_subject(f)?;
        }
        f.write_str(message)?;
        if let Some(left) = self.ready_in() {
            write!(f, "; ready in {}", length::measured(whole_ms(left)))?;
        }
        if let Some(contention) = contention {
            write!(f, "{contention}")?;
        }
        write_nodes(nodes, f)?;
        Ok(())
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = &self.holder else {
            return match self.retry_after {
                Some(left) if !left.is_zero() => {
                    let left = left.max(Duration::from_millis(1));
                    write!(f, "; cooling down for another {}", length::measured(left))
                }
                _ => Ok(()),
            };
        };
        match holder.owner.as_str() {
            "" if holder.is_foreign() => f.write_str("; held by another program")?,
            _ => write!(f, "; held by {}", holder.owner)?,
        }
        if !holder.is_foreign() {
            let held_for = whole_ms(holder.held_for).max(Duration::from_millis(1));
            write!(f, " for {}", length::measured(held_for))?;
        }
        if !holder.metadata.as_str().is_empty() {
            write!(f, " ({})", holder.metadata)?;
        }
        match self.retry_after.map(whole_ms) {
            None => Ok(()),
            Some(Duration::ZERO) => f.write_str(", lease expires now unless renewed"),
            Some(left) if left > Ttl::MAX.duration() => {
                f.write_str(", lease without end: its key has no expiry")
            }
            Some(left) => write!(f, ", lease expires in {} unless renewed", length::measured(left)),
        }
    }
}

/// Writes each cause once, behind the nodes that have it. Where the nodes differ, the causes stand
/// without their remedies, which are in the errors of the nodes: else the message is too long to be
/// read.
fn write_nodes(nodes: &[Error], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut causes: Vec<(&str, Vec<&Error>)> = Vec::new();
    for node in nodes {
        let message = node.inner.message.as_str();
        match causes.iter_mut().find(|(cause, _)| *cause == message) {
            Some((_, of)) => of.push(node),
            None => causes.push((message, vec![node])),
        }
    }
    let are_alike = causes.len() == 1;
    for (message, of) in causes {
        let cause = message.split("; ").next().filter(|_| !are_alike).unwrap_or(message);
        for (number, node) in of.iter().enumerate() {
            f.write_str(if number == 0 { "; " } else { ", " })?;
            f.write_str(node.store().unwrap_or("one node"))?;
        }
        write!(f, ": {cause}")?;
        if let Some(left) = of.iter().filter_map(|node| node.inner.passes_in).max() {
            write!(f, ", ready in {}", length::measured(whole_ms(left)))?;
        }
    }
    Ok(())
}

/// Nanoseconds are of no use to people.
fn whole_ms(length: Duration) -> Duration {
    let ms = Duration::from_millis(u64::from(length.subsec_millis()));
    ms.saturating_add(Duration::from_secs(length.as_secs()))
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, effect, source, .. } = &*self.inner;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("effect", effect)
            .field("message", &format_args!("{self}"))
            .field("source", source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fence, Mode};

    #[test]
    fn the_message_names_operation_key_and_store() {
        let key = Key::new("reports/daily").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "no answer within 2s")
            .during("acquire")
            .on_key(&key)
            .at_store("redis://127.0.0.1:6379")
            .with_effect(Effect::Unknown);
        assert_eq!(
            error.to_string(),
            "acquire \"reports/daily\" at redis://127.0.0.1:6379: no answer within 2s"
        );
        assert_eq!(error.effect(), Effect::Unknown);
        assert!(error.is_retryable());
        assert_eq!(std::mem::size_of::<Error>(), std::mem::size_of::<usize>());
    }

    #[test]
    fn an_end_that_is_near_is_printed_without_nanoseconds() {
        for (ns, told) in
            [(0, "expires now"), (999_999, "expires now"), (1_499_999, "expires in 1.0ms")]
        {
            let left = Duration::from_nanos(ns);
            let holder = HolderInfo::new(Mode::Exclusive, Fence::new(0, 1).unwrap(), left, left);
            let error = Error::new(ErrorKind::Timeout, "why").held_by(Some(holder), Some(left));
            assert!(error.to_string().contains(told), "{error}");
            assert!(!error.to_string().contains("0.0ns"), "{error}");
        }
        let closed =
            Error::new(ErrorKind::Timeout, "why").held_by(None, Some(Duration::from_nanos(1)));
        assert!(closed.to_string().ends_with("; cooling down for another 1.0ms"), "{closed}");
    }

    #[test]
    fn the_alternate_form_leaves_out_operation_key_and_store() {
        let error = Error::new(ErrorKind::Timeout, "no answer within 2s");
        let error = error.during("acquire").on_key(&Key::new("k").unwrap()).at_store("redis://h");
        assert_eq!(format!("{error:#}"), "no answer within 2s");
    }

    #[test]
    fn when_a_store_is_ready_is_said_once_by_the_error_that_knows_why() {
        let left = Duration::from_secs(47);
        let error = Error::new(ErrorKind::Unavailable, "warming up").passes_in(left);
        assert_eq!(error.to_string(), "warming up; ready in 47.0s");
        let wait = Error::new(ErrorKind::Unavailable, "timed out").passes_in(left);
        assert_eq!(wait.caused_by(error).to_string(), "timed out");
    }

    #[test]
    fn the_message_of_several_nodes_has_each_cause_once() {
        let node = |store: &'static str, why: &str| {
            Error::new(ErrorKind::Unavailable, why).during("acquire").at_store(store)
        };
        let of =
            |nodes| Error::new(ErrorKind::Unavailable, "1 of 4 nodes answered").at_nodes(nodes);
        let refused = "refused; start it";
        let error = of(vec![
            node("redis://b", refused),
            node("redis://c", "no answer within 1s"),
            node("redis://d", refused),
        ]);
        assert_eq!(
            error.to_string(),
            "1 of 4 nodes answered; redis://b, redis://d: refused; redis://c: no answer within 1s"
        );
        assert_eq!(error.nodes().len(), 3);
        // With one cause there is room for its remedy.
        let error = of(vec![node("redis://b", refused), node("redis://c", refused)]);
        assert_eq!(
            error.to_string(),
            "1 of 4 nodes answered; redis://b, redis://c: refused; start it"
        );
        let warming_up =
            |store, left| node(store, "warming up").passes_in(Duration::from_secs(left));
        let error = of(vec![warming_up("redis://b", 40), warming_up("redis://c", 47)]);
        assert!(error.to_string().ends_with("redis://b, redis://c: warming up, ready in 47.0s"));
    }
}
