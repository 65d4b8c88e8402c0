//! Runs a script at a server: by its digest, or whole if the server does not know it.
//!
//! If the server says that it did not run the script, it is sent again. Notifications that the
//! script could not publish go out as commands, before the answer is passed on.

use std::time::Duration;

use leasehold_core::{BoxFuture, ErrorKind};
use tokio::time::{Instant, sleep_until};

use crate::classify::{Next, Verdict};
use crate::connect::transport::Transport;
use crate::script::call::{Body, Call, Request};
use crate::script::request::{Answer, Deadline, Delivery};
use crate::script::unsent::Messages;

/// Pauses before a request that the server did not carry out is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long the answer that the messages came with is held back for them at most.
const PATIENCE: Duration = Duration::from_secs(1);

impl Call<'_> {
    /// An answer to it, after the messages that came with it were sent.
    pub(crate) async fn told(
        &self,
        mut answer: Answer,
        transport: &dyn Transport,
        deadline: Deadline,
    ) -> Answer {
        if let Some(sending) = self.tell(&mut answer, transport, deadline) {
            sending.await;
        }
        answer
    }

    /// Takes from an answer the messages that came with it; what sends them.
    fn tell<'c>(
        &'c self,
        answer: &mut Answer,
        transport: &'c dyn Transport,
        deadline: Deadline,
    ) -> Option<BoxFuture<'c, ()>> {
        let unsent = self.unsent.as_ref()?;
        let messages = Messages::take_from(&mut answer.value)?;
        Some(Box::pin(async move {
            let mut sent = Vec::new();
            if unsent.notice(&messages) {
                sent = publish(&messages, transport, deadline).await;
            }
            unsent.settle(&messages, &sent);
        }))
    }

    /// Runs it. What is seldom needed has a place of its own, since each request makes room for the
    /// rest.
    pub(crate) async fn run(
        &self,
        transport: &dyn Transport,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        match transport.one(&self.by_digest(delivery), deadline).await {
            Ok(mut answer) => {
                if let Some(sending) = self.tell(&mut answer, transport, deadline) {
                    sending.await;
                }
                Ok(answer)
            }
            Err(verdict) => Box::pin(self.run_on(verdict, transport, delivery, deadline)).await,
        }
    }

    /// Continues after the first try ended with this verdict.
    async fn run_on(
        &self,
        mut verdict: Verdict,
        transport: &dyn Transport,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        let mut whole = false;
        let mut reconnected = false;
        let mut pause = PAUSE_MIN;
        loop {
            match verdict.next {
                Next::SendSource if !whole => whole = true,
                Next::Reconnect if !reconnected => reconnected = true,
                Next::Retry => {
                    // The next request may go to another server.
                    whole = false;
                    let next = Instant::now() + pause.mul_f64(1.0 + fastrand::f64() / 2.0);
                    if next >= deadline.at {
                        return Err(verdict);
                    }
                    sleep_until(next).await;
                    pause = pause.saturating_mul(2).min(PAUSE_MAX);
                }
                Next::Fail | Next::Drop | Next::Reconnect | Next::SendSource => {
                    return Err(verdict);
                }
            }
            let request = Request { body: Body::Script { call: self, whole }, delivery };
            verdict = match transport.one(&request, deadline).await {
                Ok(answer) => return Ok(self.told(answer, transport, deadline).await),
                Err(verdict) => verdict,
            };
        }
    }
}

/// Sends what a script could not send, and returns for each whether the server took it.
pub(crate) async fn publish(
    messages: &Messages,
    transport: &dyn Transport,
    deadline: Deadline,
) -> Vec<Result<(), ErrorKind>> {
    let requests: Vec<_> = messages.commands.iter().map(Request::plain).collect();
    let answers = transport.many(&requests, deadline.at_most(PATIENCE)).await;
    answers.into_iter().map(|it| it.map(drop).map_err(|verdict| verdict.kind)).collect()
}
