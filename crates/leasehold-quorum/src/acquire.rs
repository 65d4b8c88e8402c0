//! Acquires a lock: one try, which ends its token if it gets no majority.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, Busy, Effect, Error, ErrorKind, Mode, Reason, Result, Ttl,
};
use tokio::time::{Instant, timeout_at};

use crate::attempt::Attempt;
use crate::ballot::InVain;
use crate::nodes::{Nodes, PATIENCE_MIN};

impl Nodes {
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &AcquireRequest,
        within: Duration,
    ) -> Result<Acquire> {
        let now = Instant::now();
        // Waiting as long as the longest lease is as good as waiting without a limit.
        let until = now.checked_add(within.min(Ttl::MAX.duration())).unwrap_or(now);
        if request.mode != Mode::Exclusive {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a quorum has exclusive locks only; use a single store for shared locks and \
                 permits",
            ));
        }
        self.check_ttl(request.ttl)?;
        let (mut request, ttl) = (request.clone(), request.ttl);
        request.queue = None;
        // At the nodes, a lease must last for two rounds of requests.
        request.ttl = request.ttl.max(Ttl::new(PATIENCE_MIN)?);
        let request = Arc::new(request);
        let turn = self.tokens.turn(request.token, self.now());
        let answer = match timeout_at(until, turn.lock()).await {
            Ok(_turn) => self.acquire_in_turn(&request, ttl, until).await,
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "another acquisition with the same token did not end in time",
            )
            .with_reason(Reason::NoAnswer)),
        };
        drop(turn);
        self.tokens.forget(request.token);
        answer
    }

    /// Tries once: another try with the same token might lose its grants to the undoing of this
    /// one.
    async fn acquire_in_turn(
        self: &Arc<Self>,
        request: &Arc<AcquireRequest>,
        ttl: Ttl,
        until: Instant,
    ) -> Result<Acquire> {
        if self.tokens.is_given_up(request.token) {
            let why = "this token was abandoned; use a new one";
            return Err(Error::new(ErrorKind::Unavailable, why).with_effect(Effect::NotApplied));
        }
        let left = until.saturating_duration_since(Instant::now());
        let sent_at = self.now();
        let mut attempt = Attempt::begin(self, request, self.patience_for(request.ttl, left));
        let answer = match attempt.run().await {
            None => {
                let answer = attempt.answer();
                attempt.enter(Self::holds_until(sent_at, ttl));
                return Ok(answer);
            }
            Some(InVain::Split) => Ok(Acquire::Busy(Busy::contended())),
            Some(InVain::Busy(busy)) => Ok(Acquire::Busy(busy)),
            Some(InVain::Refused(refusal)) => Ok(Acquire::Refused(refusal)),
            Some(InVain::TooFew(granted, errors)) => {
                Err(self.too_few(granted, "granted the lease", errors))
            }
        };
        let nothing_left = attempt.undo().await;
        // All grants were undone, so the caller has nothing to abandon.
        match answer {
            Err(error) if nothing_left => Err(error.with_effect(Effect::NotApplied)),
            answer => answer,
        }
    }
}
