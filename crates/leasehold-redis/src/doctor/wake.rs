//! Whether who waits is woken.

use std::sync::LazyLock;

use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::{ClientId, ErrorKind, Store as _, Wake};
use tokio::time::timeout_at;

use super::rights::{Lacking, Spare};
use crate::call::Call;
use crate::classify::Lack;
use crate::script::Script;
use crate::store::RedisStore;
use crate::transport::{Body, Care, Deadline, Request};

/// A number that no waiter has: clients count theirs from 0.
const TICKET: u64 = u64::MAX;

/// Publishes as every script does that tells a waiter: about one lock, to a channel that is no key.
/// Some servers, and some users of them, may publish in a command of their own only.
static PUBLISH: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('PUBLISH', ARGV[1], ARGV[2])".to_owned()));

impl RedisStore {
    /// Subscribes as a client that waits does, publishes as a script does, and sees whether the
    /// message arrives.
    pub(super) async fn try_wake(
        &self,
        client: ClientId,
        spare: &Spare,
        lacking: &mut Vec<Lacking>,
        deadline: Deadline,
    ) -> Option<Finding> {
        if !self.capability().wake {
            let finding = Finding::new(
                Severity::Note,
                "wake",
                "a store on a lent connection has no wake channel",
                "who waits finds out by asking, so hand-overs take longer",
            );
            return Some(finding.advise("give the store's builder a client for subscriptions"));
        }
        let silent = |why: String| {
            let finding = Finding::new(
                Severity::Warning,
                "wake",
                why,
                "who waits is not woken and finds out by asking, so hand-overs take longer",
            );
            Some(
                finding.advise("let clients subscribe and scripts publish, and keep proxies that can't out of the way"),
            )
        };
        let mut listener = match self.listen(client, deadline.left() / 2).await {
            Ok(listener) => listener,
            Err(error) if error.kind() == ErrorKind::Denied => {
                let by_channel = error.to_string().contains("channel");
                lacking
                    .push(("subscribe", if by_channel { Lack::Channels } else { Lack::Command }));
                return None;
            }
            Err(error) => return silent(format!("no subscription could be made: {error}")),
        };
        if lacking.iter().any(|(command, _)| *command == "publish") {
            return None;
        }
        let mut call = Call::new(&PUBLISH, [spare.record.clone()]);
        call.arg(&spare.channel).arg(format!("first {TICKET} 0"));
        let request = Request { body: Body::Script { call: &call, whole: true }, care: Care::None };
        if let Err(verdict) = self.shared.transport.one(&request, deadline).await {
            return silent(format!("a script could publish no message: {}", verdict.message()));
        }
        loop {
            match timeout_at(deadline.at, listener.next()).await {
                Ok(Wake::First { ticket: TICKET, .. }) => {
                    return Some(Finding::new(
                        Severity::Fine,
                        "wake",
                        "a message of a script came through a subscription",
                        "who waits is woken when the lock comes free",
                    ));
                }
                Ok(_) => {}
                Err(_) => {
                    return silent("a message that a script published did not arrive".to_owned());
                }
            }
        }
    }
}
