//! A request on its way, which its contender may pass to another one, or leave to the background.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use leasehold_core::{Acquire, BoxFuture, Effect, Error, ErrorKind, Moment, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::lease::orphans::Landing;
use crate::rt;
use crate::shared::Inner;

/// Owns all that it needs. It uses the timers of the runtime on which it was polled first. No other
/// runtime may poll it, since the first one may end earlier.
pub(super) struct Flight {
    answer: BoxFuture<'static, Result<Acquire>>,
    pub(super) sent_at: Moment,
    /// When its time has passed.
    until: Moment,
    /// Whether it was ever polled; before that, no request was sent.
    is_begun: bool,
    runtime: Option<Handle>,
}

impl Flight {
    /// Sends no request yet.
    pub(super) fn new(
        answer: impl Future<Output = Result<Acquire>> + Send + 'static,
        sent_at: Moment,
        until: Moment,
    ) -> Self {
        Self { answer: Box::pin(answer), sent_at, until, is_begun: false, runtime: None }
    }

    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// This flight for the caller's runtime. If it began on another one it continues there, and its
    /// answer is brought here. If that runtime has ended or is blocked, there is no answer.
    pub(super) fn brought_here(self, client: &Arc<Inner>) -> Self {
        let (Ok(here), Some(there)) = (Handle::try_current(), &self.runtime) else { return self };
        if here.id() == there.id() {
            return self;
        }
        let (sent_at, until) = (self.sent_at, self.until);
        let answer = Box::pin(self.landed(client));
        Self { answer, sent_at, until, is_begun: true, runtime: Some(here) }
    }

    /// Finishes it on its own runtime; returns its answer, within its time.
    pub(super) fn landed(
        self,
        client: &Arc<Inner>,
    ) -> impl Future<Output = Result<Acquire>> + Send + use<> {
        let (until, client, landing) = (self.until, Arc::clone(client), self.land());
        async move {
            let landed = tokio::select! {
                biased;
                landed = landing => landed.ok(),
                () = rt::sleep_until(&*client.clock, until) => None,
            };
            landed.unwrap_or_else(|| {
                let why = "the runtime that sent the request has ended, or is held up";
                Err(Error::new(ErrorKind::Unavailable, why).with_effect(Effect::Unknown))
            })
        }
    }

    /// Finishes it in the background.
    pub(super) fn land(self) -> Landing {
        let (mut landed, landing) = oneshot::channel();
        let Self { answer, runtime, .. } = self;
        let finished = async move {
            // A runtime that was blocked must not continue what was abandoned meanwhile.
            let answer = tokio::select! {
                biased;
                () = landed.closed() => None,
                answer = answer => Some(answer),
            };
            answer.map(|answer| landed.send(answer))
        };
        if let Some(runtime) = runtime {
            runtime.spawn(finished);
        }
        landing
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Acquire>> {
        if !self.is_begun {
            (self.is_begun, self.runtime) = (true, Handle::try_current().ok());
        }
        self.answer.as_mut().poll(cx)
    }
}

/// The answer of a request on its way, and when that was sent; pending while there is none.
pub(super) async fn landed(flight: &mut Option<Flight>) -> (Result<Acquire>, Moment) {
    poll_fn(|cx| {
        // If the store panics, it does so in this contender, and not in those after it.
        let Some(mut under_way) = flight.take() else { return Poll::Pending };
        let answer = under_way.poll(cx);
        if answer.is_pending() {
            let _nothing = flight.insert(under_way);
            return Poll::Pending;
        }
        answer.map(|answer| (answer, under_way.sent_at))
    })
    .await
}
