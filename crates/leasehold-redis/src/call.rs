//! Running a script on a server: by its digest, whole if the server does not know it, and again
//! if it said that it did not run it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BoxFuture, Fence};
use redis::{Arg, Cmd, ToRedisArgs};
use tokio::time::{Instant, sleep_until};

use crate::classify::{Next, Verdict};
use crate::script::Script;
use crate::slot::slot_of;
use crate::transport::{Answer, Body, Deadline, Delivery, Request, Transport};
use crate::unsent::{Messages, Unsent};
use crate::words::digits;

/// Pauses before a request that the server did not carry out is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What most requests take for a lock with its key and arguments.
const BYTES: usize = 320;
const ARGUMENTS: usize = 12;

/// Before the first key stand the command, the digest or source, and the number of keys.
const FIRST_KEY: usize = 3;

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'a Script,
    /// The request as it is sent first: with the digest of the script, in the least epoch.
    brief: Cmd,
    /// Which of its arguments is the fail-over epoch, and the least that it is.
    epoch: Option<(usize, u64)>,
    unsent: Option<Arc<Unsent>>,
}

/// An epoch as scripts take it: four digits, since records have a place for that many.
fn epoch_digits(epoch: u64) -> [u8; 4] {
    digits(epoch.min(Fence::EPOCH_MAX))
}

impl<'a> Call<'a> {
    pub(crate) fn new<K: ToRedisArgs>(
        script: &'a Script,
        keys: impl IntoIterator<Item = K, IntoIter: ExactSizeIterator>,
    ) -> Self {
        let keys = keys.into_iter();
        let locks = keys.len().max(1);
        let (arguments, bytes) = (ARGUMENTS.saturating_mul(locks), BYTES.saturating_mul(locks));
        let mut call = Self::about(script, keys.len(), arguments, bytes);
        for key in keys {
            call.arg(key);
        }
        call
    }

    /// One about so many locks, whose keys are to follow first; with what it takes in all.
    pub(crate) fn about(script: &'a Script, locks: usize, arguments: usize, bytes: usize) -> Self {
        let mut brief = Cmd::with_capacity(arguments, bytes);
        brief.arg("EVALSHA").arg(&script.digest).arg(locks);
        Self { script, brief, epoch: None, unsent: None }
    }

    /// Sends the messages that the server lets no script send.
    pub(crate) fn telling(mut self, unsent: &Arc<Unsent>) -> Self {
        self.unsent = Some(Arc::clone(unsent));
        self
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.brief.arg(argument);
        self
    }

    /// The argument that is the epoch of whichever server gets the request, and at least this one.
    pub(crate) fn epoch(&mut self, floor: u64) -> &mut Self {
        self.epoch = Some((self.brief.args_iter().count(), floor));
        self.arg(&epoch_digits(floor))
    }

    /// The slot that all its keys share, for a call about one lock.
    pub(crate) fn slot(&self) -> u16 {
        match self.brief.args_iter().nth(FIRST_KEY) {
            Some(Arg::Simple(record)) => slot_of(record),
            _ => 0,
        }
    }

    /// The request, with all of the script or only its digest.
    pub(crate) fn request(&self, whole: bool, epoch: u64) -> Cow<'_, Cmd> {
        let later = self.epoch.filter(|(_, floor)| epoch > *floor);
        if !whole && later.is_none() {
            return Cow::Borrowed(&self.brief);
        }
        let mut request = Cmd::new();
        for (place, argument) in self.brief.args_iter().enumerate() {
            match argument {
                Arg::Simple(_) if place == 0 && whole => request.arg("EVAL"),
                Arg::Simple(_) if place == 1 && whole => request.arg(&self.script.source),
                Arg::Simple(_) if later.is_some_and(|(at, _)| at == place) => {
                    request.arg(&epoch_digits(epoch))
                }
                Arg::Simple(bytes) => request.arg(bytes),
                _ => &mut request,
            };
        }
        Cow::Owned(request)
    }

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
        Some(Box::pin(async move { unsent.send(&messages, transport, deadline).await }))
    }

    /// As a part of many.
    pub(crate) fn by_digest(&self, delivery: Delivery) -> Request<'_> {
        Request { body: Body::Script { call: self, whole: false }, delivery }
    }

    /// Runs it. What is seldom needed has a place of its own, since each request makes room for the rest.
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

    /// Goes on after this became of the first try.
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
                    // It may be another server that is asked next.
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
