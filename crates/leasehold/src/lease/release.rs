//! Releases a lease, also if the caller drops the release.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use leasehold_core::{Effect, ErrorKind, Fence, Key, Reason, Release as StoreRelease, Result};
use tokio::task::JoinSet;

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::lease::handle::requests::{Afterwards, LastRequest};
use crate::lease::held_lease::HeldLease;
use crate::lease::orphans::Orphan;
pub use crate::lease::outcome::Release;
use crate::lease::outcome::end_in;
use crate::rt;
use crate::shared::Inner;

/// Counts an unanswered release among the outcomes. An error about a missing permission remains an
/// error, even if its effect is unknown.
pub(crate) fn outcome(answer: Result<Release>) -> Result<Release> {
    match answer {
        Err(error)
            if error.effect() != Effect::NotApplied
                && !matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) =>
        {
            Ok(Release::Unknown)
        }
        answer => answer,
    }
}

/// How the releases of several locks went, each with its name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.multi(["account/3", "account/7"]).lock().await?;
/// for (key, outcome) in &guard.release_outcomes().await {
///     println!("{key}: {}", outcome.as_ref().map_or_else(ToString::to_string, ToString::to_string));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "one of the leases may have been lost; `verdict` says so"]
pub struct Releases {
    /// An unanswered release is an error here, so that the verdict has its cause.
    answers: Vec<(Key, Result<Release>)>,
    outcomes: Vec<(Key, Result<Release>)>,
    location: Arc<str>,
}

impl Releases {
    /// Awaits all of these releases, at the same time.
    pub(crate) async fn of(
        client: &Inner,
        releases: impl Iterator<Item = impl Future<Output = (Key, Result<Release>)> + Send + 'static>,
    ) -> Self {
        let (mut tasks, here) = (JoinSet::new(), client.here());
        for release in releases {
            tasks.spawn_on(release, &here);
        }
        let mut answers = Vec::new();
        while let Some(answer) = tasks.join_next().await {
            answers.extend(answer);
        }
        answers.sort_by(|(a, _), (b, _)| a.cmp(b));
        let outcomes =
            answers.iter().map(|(key, answer)| (key.clone(), outcome(answer.clone()))).collect();
        Self { answers, outcomes, location: client.location() }
    }

    /// Succeeds if every lease was held to its end.
    ///
    /// # Errors
    ///
    /// The worst error: [`ErrorKind::Lost`] first, then other errors of the store, and
    /// [`ErrorKind::Late`] last. The error names its lock.
    pub fn verdict(&self) -> Result<()> {
        let errors = self.answers.iter().filter_map(|(key, answer)| {
            let error = answer.clone().and_then(Release::verdict).err()?;
            Some(error.during("release").on_key(key).at_store(Arc::clone(&self.location)))
        });
        errors
            .min_by_key(|error| match error.kind() {
                ErrorKind::Lost => 0,
                ErrorKind::Late => 2,
                _ => 1,
            })
            .map_or(Ok(()), Err)
    }

    /// The worst outcome for the work under all of them.
    pub(crate) fn worst(self) -> Result<Release> {
        let weight = |answer: &Result<Release>| match answer {
            Ok(Release::NotHeld) => (0, None),
            Err(_) | Ok(Release::Unknown) => (1, None),
            Ok(Release::Late { by }) => (2, Some(Reverse(*by))),
            Ok(Release::Released | Release::StillHeld { .. }) => (3, None),
        };
        let answers = self.answers.into_iter().map(|(_, answer)| answer);
        answers.min_by_key(weight).unwrap_or(Ok(Release::Released))
    }

    /// Each lock with its outcome, in the order of their names. An error is a store that refused
    /// the release or could not be reached at all.
    pub fn iter(&self) -> std::slice::Iter<'_, (Key, Result<Release>)> {
        self.outcomes.iter()
    }
}

impl fmt::Display for Releases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, outcome)) in self.outcomes.iter().enumerate() {
            let between = if at == 0 { "" } else { "; " };
            match outcome {
                Ok(release) => write!(f, "{between}\"{key}\": {release}")?,
                Err(error) => write!(f, "{between}\"{key}\": {error}")?,
            }
        }
        Ok(())
    }
}

impl IntoIterator for Releases {
    type Item = (Key, Result<Release>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.outcomes.into_iter()
    }
}

impl<'a> IntoIterator for &'a Releases {
    type Item = &'a (Key, Result<Release>);
    type IntoIter = std::slice::Iter<'a, (Key, Result<Release>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl HeldLease {
    /// Ends the lease; a contender that waits in this process gets it. A store that did not answer
    /// is an error that says so by its effect.
    ///
    /// The end begins with the call, even before the first poll. So a future that is dropped before
    /// that still ends the lease as its caller wanted.
    pub(crate) fn end(
        self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let mut end = End::begin(self, cooldown);
        async move { end.outcome().await }
    }

    /// As [`end`](Self::end); an error unless the lease was held to its end.
    pub(crate) fn end_well(
        self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let mut end = End::begin(self, cooldown);
        async move {
            let answer = end.outcome().await;
            end.lease().verdict(answer)
        }
    }

    /// Ends the lease in the store; begins and answers as [`end`](Self::end).
    pub(crate) fn give_back(
        self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let mut end = End::in_store(self, cooldown);
        async move { end.outcome().await }
    }

    /// Ends the lease in the store, in the background.
    pub(crate) fn give_up(self) {
        drop(End::in_store(self, Afterwards::AsGranted));
    }

    /// What an answer means for the work under this lease.
    pub(crate) fn verdict(&self, answer: Result<Release>) -> Result<()> {
        if !self.handle().is_ours() {
            return Err(self.lost_error());
        }
        answer.and_then(Release::verdict).map_err(|error| self.explain(error, "release"))
    }
}

/// Logs how the store answered a release.
pub(crate) fn tell(key: &Key, fence: Fence, answer: &Result<StoreRelease>) {
    match answer {
        Ok(StoreRelease::Released) => tracing::debug!(target: LOCK, %key, %fence, "released"),
        Ok(outcome) => tracing::debug!(target: LOCK, %key, %fence, ?outcome, "release"),
        Err(error) => {
            let reason = error.reason().map(Reason::name);
            tracing::debug!(target: LOCK, %key, %fence, %error, reason, "not released");
        }
    }
}

/// What the answer to the release of a lease without a guard means.
pub(crate) fn verdict_of(client: &Inner, key: &Key, answer: Result<Release>) -> Result<()> {
    let verdict = answer.and_then(Release::verdict);
    verdict.map_err(|error| client.explain(error, "release").on_key(key))
}

/// The end of a lease, once it has begun.
pub(crate) enum End {
    /// Another contender of this process has the lease.
    HandedOn(HeldLease),
    /// It had ended already, or this is a fork's child.
    NotHeld(HeldLease),
    InStore(Ending),
}

impl End {
    pub(crate) fn begin(lease: HeldLease, cooldown: Afterwards) -> Self {
        if cooldown == Afterwards::AsGranted && lease.hand_to_successor() {
            let (key, fence) = (&lease.handle().key, lease.handle().fence());
            tracing::debug!(target: LOCK, %key, %fence, "released inside the process");
            return Self::HandedOn(lease);
        }
        Self::in_store(lease, cooldown)
    }

    fn in_store(lease: HeldLease, cooldown: Afterwards) -> Self {
        match Ending::begin(lease, cooldown) {
            Ok(ending) => Self::InStore(ending),
            Err(lease) => Self::NotHeld(lease),
        }
    }

    const fn lease(&self) -> &HeldLease {
        match self {
            Self::HandedOn(lease) | Self::NotHeld(lease) | Self::InStore(Ending { lease, .. }) => {
                lease
            }
        }
    }

    pub(crate) async fn outcome(&mut self) -> Result<Release> {
        match self {
            Self::HandedOn(_) => Ok(Release::Released),
            Self::NotHeld(_) => Ok(Release::NotHeld),
            Self::InStore(ending) => ending.outcome().await,
        }
    }
}

/// A release under way. Dropped before its end, it hands the lease to the reaper.
pub(crate) struct Ending {
    lease: HeldLease,
    last: LastRequest,
    is_over: bool,
}

impl Ending {
    /// Begins it; returns the lease if there is nothing to end.
    pub(crate) fn begin(lease: HeldLease, cooldown: Afterwards) -> Result<Self, HeldLease> {
        let (client, handle) = (lease.client(), lease.handle());
        let ours = handle.is_ours();
        let last = ours.then(|| handle.begin_end(cooldown, client.clock.now())).flatten();
        let Some(last) = last else { return Err(lease) };
        // Before it stops being held, since closing a client waits for all that is held or armed.
        client.reaper.arm();
        client.schedule.remove(handle);
        Ok(Self { lease, last, is_over: false })
    }

    /// How it went in the store.
    async fn outcome(&mut self) -> Result<Release> {
        let (client, handle) = (self.lease.client(), self.lease.handle());
        let LastRequest { request, is_settled, .. } = &self.last;
        if !is_settled {
            handle.settled().await;
        }
        let answer = end_in(&*client.store, request, client.config.call_timeout).await;
        tell(&handle.key, handle.fence(), &answer);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let error = self.lease.explain(error, "release");
                self.hand_over();
                return Err(error);
            }
        };
        let outcome = Release::of(&answer, self.last.over_for);
        self.is_over();
        let cooldown = self.last.request.cooldown.closes_for();
        self.lease.handle().tell(LockEventKind::Released { outcome, cooldown });
        self.outlive().await;
        Ok(outcome)
    }

    /// Waits out the time in which an unanswered acquisition can be carried out: it would leave a
    /// lease that no guard has.
    async fn outlive(&self) {
        let (client, handle) = (self.lease.client(), self.lease.handle());
        let in_doubt_until = handle.state().in_doubt_until();
        let Some(in_doubt_until) = in_doubt_until else { return };
        if in_doubt_until <= client.clock.now() {
            return;
        }
        let (key, token) = (handle.key.clone(), handle.token);
        let until = in_doubt_until.saturating_add(handle.state().ttl().duration());
        let laid = client.reaper.send(Orphan::Ghost { key, token, in_doubt_until, until });
        let patience = in_doubt_until.saturating_add(client.config.call_timeout);
        tokio::select! {
            biased;
            // If the reaper is gone, there is nothing left to wait for either.
            laid = laid => drop(laid),
            () = rt::sleep_until(&*client.clock, patience) => {}
        }
    }

    /// Leaves nothing to do.
    pub(crate) fn is_over(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.lease.client().reaper.disarm();
        }
    }

    /// Leaves the release to the reaper.
    fn hand_over(&mut self) {
        if !self.is_over {
            let (client, handle) = (self.lease.client(), Arc::clone(self.lease.handle()));
            #[cfg(leasehold_planted)]
            let kept = leasehold_core::planted::is(
                leasehold_core::planted::Fault::DroppedReleaseForgotten,
            );
            #[cfg(leasehold_planted)]
            if kept {
                return self.is_over();
            }
            client.reaper.send(Orphan::Lease { handle, request: self.last.request.clone() });
            self.is_over();
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.hand_over();
    }
}
