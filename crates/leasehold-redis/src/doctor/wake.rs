//! Tests that a notification reaches its waiter.

use std::time::Duration;

use leasehold_core::doctor::{Finding, Severity, WAKE};
use leasehold_core::{ClientId, ErrorKind, Wake};
use tokio::time::timeout_at;

use super::facts::word;
use super::rights::{Lacking, Spare};
use crate::classify::Lack;
use crate::connect::listen::first_in_line;
use crate::script::asking::publish;
use crate::script::call::{Body, Request};
use crate::script::request::{Deadline, Delivery};
use crate::script::unsent::Messages;
use crate::store::RedisStore;

/// A number that waiters never have: clients count theirs from 0.
const TICKET: u64 = u64::MAX;

/// Whether this store has failed to send notifications.
pub(super) fn lost(messages: u64) -> Option<Finding> {
    let finding = Finding::new(
        Severity::Warning,
        WAKE,
        format!("the server refused {messages} notifications since the store was opened"),
        "those waiters polled, so they got free locks later",
    );
    (messages > 0).then(|| finding.advise("allow PUBLISH; the log has the server's error"))
}

/// A notification arrived; `unsent` if scripts can't send them.
fn woken(unsent: Option<&Messages>) -> Finding {
    let Some(messages) = unsent else {
        return Finding::new(
            Severity::Fine,
            WAKE,
            "a notification of a script arrived",
            "a waiter is notified when the lock is free",
        );
    };
    let finding = Finding::new(
        Severity::Note,
        WAKE,
        format!("the server lets no script send notifications: {}", word(&messages.why)),
        "the releasing client sends them, which costs a command; if that fails, the waiter polls",
    );
    finding.advise("allow PUBLISH in scripts, if the server can")
}

impl RedisStore {
    /// Subscribes like a waiting client, publishes like a script, and checks whether the
    /// notification arrives.
    pub(super) async fn try_wake(
        &self,
        client: ClientId,
        spare: &Spare,
        lacking: &mut Vec<Lacking>,
        deadline: Deadline,
    ) -> Option<Finding> {
        let Some(source) = &self.shared.wake else {
            let finding = Finding::new(
                Severity::Note,
                WAKE,
                "a store on a lent connection has no notifications",
                "waiters poll, so they get a free lock later",
            );
            return Some(finding.advise("give the store's builder a client for subscriptions"));
        };
        let silent = |why: String| {
            let finding = Finding::new(
                Severity::Warning,
                WAKE,
                why,
                "waiters get no notification and poll, so they get a free lock later",
            );
            Some(finding.advise("let clients subscribe and publish, and use no proxy that can't"))
        };
        let within = Deadline::after(deadline.left() / 2);
        let mut listener = match self.listen_at(source, client, within).await {
            Ok(listener) => listener,
            Err(verdict) if verdict.kind == ErrorKind::Denied => {
                lacking.push(("subscribe", verdict.lack.unwrap_or(Lack::Command)));
                return None;
            }
            Err(verdict) => {
                let error = self.error(&verdict, "listen", None);
                return silent(format!("no subscription could be made: {error}"));
            }
        };
        if lacking.iter().any(|(command, _)| *command == "publish") {
            return None;
        }
        let message = first_in_line(TICKET, Duration::ZERO);
        let call = self.publish_call(&spare.key, &spare.channel, &message);
        let request =
            Request { body: Body::Script { call: &call, whole: true }, delivery: Delivery::None };
        let transport = &*self.shared.transport;
        let mut answer = match transport.one(&request, deadline).await {
            Ok(answer) => answer,
            Err(verdict) => {
                return silent(format!("no notification could be sent: {}", verdict.message()));
            }
        };
        let unsent = Messages::take_from(&mut answer.value);
        if let Some(messages) = &unsent {
            let sent = publish(messages, transport, deadline).await;
            if sent.iter().any(Result::is_err) {
                let why = word(&messages.why);
                return silent(format!("the server refuses notifications: {why}"));
            }
        }
        loop {
            match timeout_at(deadline.at, listener.next()).await {
                Ok(Wake::First { ticket: TICKET, .. }) => return Some(woken(unsent.as_ref())),
                Ok(_) => {}
                Err(_) => {
                    return silent("a published notification did not arrive".to_owned());
                }
            }
        }
    }
}
