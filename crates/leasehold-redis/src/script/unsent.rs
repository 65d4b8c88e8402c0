//! Counts the notifications that a server lets no script publish, and those that get lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leasehold_core::ErrorKind;
use redis::{Cmd, Value};

/// The metric of messages to waiters that could not be published.
#[cfg(feature = "metrics")]
const LOST: &str = "leasehold.store.messages.lost";

/// The word that scripts put in front of what they could not send.
const WORD: &[u8] = b"unsent";

/// What a script could not send, and the server's reason.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) why: String,
    pub(crate) commands: Vec<Cmd>,
}

impl Messages {
    /// Takes from an answer what stands behind it.
    pub(crate) fn take_from(answer: &mut Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let Some(Value::Array(words)) = parts.last() else { return None };
        let text = |word: &Value| match word {
            Value::BulkString(bytes) => Some(bytes.clone()),
            _ => None,
        };
        let words: Vec<_> = words.iter().map_while(text).collect();
        let [word, why, messages @ ..] = &*words else { return None };
        if word != WORD {
            return None;
        }
        let why = String::from_utf8_lossy(why).into_owned();
        let commands = messages.chunks_exact(2).map(|message| {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(message);
            publish
        });
        let messages = Self { why, commands: commands.collect() };
        parts.pop();
        Some(messages)
    }
}

/// Counts the notifications of a store's scripts that did not go out with them.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    lost: AtomicU64,
    noticed: AtomicBool,
    /// The user lacks the right, so a command of its own is refused as well.
    denied: AtomicBool,
}

impl Unsent {
    /// How many messages could be sent in no way.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Records that a script could not send these. Returns whether commands of their own are worth
    /// a try.
    pub(crate) fn notice(&self, messages: &Messages) -> bool {
        if !self.noticed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why = messages.why,
                "the server lets no script send notifications; each costs a command more, or the \
                 waiter polls"
            );
        }
        !self.denied.load(Ordering::Relaxed)
    }

    /// Records the results of those commands, if they were sent. A notification without a success
    /// is lost.
    pub(crate) fn settle(&self, messages: &Messages, sent: &[Result<(), ErrorKind>]) {
        if sent.contains(&Err(ErrorKind::Denied)) {
            self.denied.store(true, Ordering::Relaxed);
        }
        let arrived = sent.iter().filter(|sent| sent.is_ok()).count();
        let lost = messages.commands.len().saturating_sub(arrived);
        if lost > 0 {
            tracing::debug!(why = messages.why, lost, "notifications could not be sent");
            let lost = u64::try_from(lost).unwrap_or(u64::MAX);
            self.lost.fetch_add(lost, Ordering::Relaxed);
            #[cfg(feature = "metrics")]
            metrics::counter!(LOST).increment(lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold_core::doctor::Severity;
    use leasehold_core::{
        Acquire, AcquireRequest, ClientId, Key, LeaveRequest, QueueRequest, Store as _, Token, Ttl,
        Wake,
    };
    use leasehold_testkit::server::RedisServer;
    use leasehold_testkit::server::cluster::Cluster;
    use tokio::time::timeout;

    use super::*;
    use crate::script::Scripts;
    use crate::store::RedisStore;

    const WITHIN: Duration = Duration::from_secs(20);

    async fn store_whose_scripts_publish_by(command: &str, url: &str) -> RedisStore {
        let mut store = RedisStore::connect(url).await.unwrap();
        let scripts = Box::leak(Box::new(Scripts::publishing_by(command, None)));
        Arc::get_mut(&mut store.shared).unwrap().scripts = scripts;
        store
    }

    /// Hands a lock on to a client, and hears of it.
    async fn hand_on(store: &RedisStore, key: &Key, client: ClientId) {
        let mut listener = store.listen(client, WITHIN).await.unwrap();
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
        let request = || AcquireRequest::new(key.clone(), Token::generate().unwrap(), ttl);
        let (holder, mut waiter) = (request(), request());
        waiter.queue = Some(QueueRequest::new(client, 7, ttl));
        let granted = store.acquire(&holder, WITHIN).await.unwrap();
        assert!(granted.fences().is_some(), "{granted:?}");
        let waits = store.acquire(&waiter, WITHIN).await.unwrap();
        assert!(matches!(waits, Acquire::Waiting(_)), "{waits:?}");
        let leave = LeaveRequest::new(key.clone(), holder.token);
        store.leave(&leave, WITHIN).await.unwrap();
        let wake = timeout(WITHIN, listener.next()).await.unwrap();
        assert!(matches!(wake, Wake::Granted { ticket: 7, .. }), "{wake:?}");
    }

    /// A service that checks the slot of what scripts publish treats `PUBLISH` as `SPUBLISH`.
    #[tokio::test]
    async fn waiters_are_notified_where_the_server_checks_the_slot_of_what_scripts_publish() {
        let start = || Cluster::builder().replicas(0).start();
        let cluster = tokio::task::spawn_blocking(start).await.unwrap();
        let store = store_whose_scripts_publish_by("SPUBLISH", &cluster.url()).await;
        let node_of = |text: &str| cluster.master_of(cluster.slot_of(text)).port();
        let client = ClientId::generate().unwrap();
        let channels_node = node_of(&store.shared.names.channel(client));
        let mut keys = (0..).map(|number| Key::new(format!("slot {number}")).unwrap());
        let key = keys.find(|key| node_of(&store.shared.names.record(key)) != channels_node);
        hand_on(&store, &key.unwrap(), client).await;
        assert!(store.shared.unsent.noticed.load(Ordering::Relaxed), "nothing was refused");
        assert_eq!(store.messages_lost(), 0);
    }

    #[tokio::test]
    async fn doctor_reports_that_no_script_can_publish_and_that_waiters_are_still_notified() {
        let server = RedisServer::start();
        let store = store_whose_scripts_publish_by("FORBIDDEN", &server.url()).await;
        hand_on(&store, &Key::new("forbidden").unwrap(), ClientId::generate().unwrap()).await;
        let findings = store.examine(WITHIN).await.unwrap();
        let wake: Vec<_> = findings.iter().filter(|finding| finding.topic == "wake").collect();
        assert!(matches!(&*wake, [note] if note.severity == Severity::Note), "{wake:?}");
        assert!(wake[0].found.contains("lets no script send notifications"), "{wake:?}");
    }
}
