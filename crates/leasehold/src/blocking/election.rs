//! An election, for threads.

use std::ops::Deref;
use std::time::Duration;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::{Guard, HeldLease};
use super::value::{holding_setters, owner_setter, waiting_setters};
use crate::election::Leader;
use crate::release::Release;

/// How often it is looked whether to stop.
const LOOK_FOR_STOP: Duration = Duration::from_millis(50);

/// A post that one candidate has at a time. The blocking twin of [`crate::Election`].
///
/// # Errors
///
/// Methods that ask the store fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
/// async runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "nothing is done without a campaign"]
pub struct Election(Driven<crate::Election>);

holding_setters!(Election);
owner_setter!(Election);
waiting_setters!(Election);

impl Election {
    pub(super) const fn new(driven: Driven<crate::Election>) -> Self {
        Self(driven)
    }

    /// How often an observer looks. See [`crate::Election::look_every`].
    pub fn look_every(self, look_every: Duration) -> Self {
        Self(self.0.map(|election| election.look_every(look_every)))
    }

    /// The post's name.
    ///
    /// # Errors
    ///
    /// What is wrong with the name, or the first setting that is wrong.
    pub fn key(&self) -> Result<&Key> {
        self.0.part().key()
    }

    /// Becomes the leader if nobody is. See [`crate::Election::try_campaign`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        let leadership = self.0.wait(crate::Election::try_campaign)??;
        Ok(leadership.map(|leadership| self.leadership(leadership)))
    }

    /// Becomes the leader, waiting for as long as it takes. See [`crate::Election::campaign`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn campaign(&self) -> Result<Leadership> {
        self.0.wait(crate::Election::campaign)?.map(|leadership| self.leadership(leadership))
    }

    /// Becomes the leader, waiting for at most `limit`. See [`crate::Election::campaign_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn campaign_within(&self, limit: Duration) -> Result<Leadership> {
        let leadership = self.0.wait(|election| election.campaign_within(limit))?;
        leadership.map(|leadership| self.leadership(leadership))
    }

    /// Campaigns, and runs `body` whenever this candidate leads. A thread can't be stopped from
    /// outside, so the body returns when the lease that it is given is lost; the next campaign
    /// begins then. Returns what a body returned that led to its end, or `None` when `stop` says so
    /// while this candidate does not lead. See [`crate::Election::run`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn run<T>(
        &self,
        stop: impl Fn() -> bool,
        mut body: impl FnMut(&HeldLease) -> T,
    ) -> Result<Option<T>> {
        loop {
            let campaign = self.0.wait(|election| async {
                tokio::select! {
                    biased;
                    () = stopped(&stop) => Ok(None),
                    leadership = election.campaign_on() => leadership.map(Some),
                }
            });
            let Some(leadership) = campaign?? else { return Ok(None) };
            let leadership = self.leadership(leadership);
            let done = body(leadership.lease());
            let led = leadership.is_held();
            // What the body did is done, whatever becomes of the resignation.
            drop(leadership.resign());
            if led {
                return Ok(Some(done));
            }
        }
    }

    /// Campaigns until `stop` says so, and calls when this candidate begins to lead and when it no
    /// longer does. See [`crate::Election::run_callbacks`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn run_callbacks(
        &self,
        stop: impl Fn() -> bool,
        mut elected: impl FnMut(&HeldLease),
        stepped_down: impl FnMut(),
    ) -> Result<()> {
        let elected =
            |lease: &crate::HeldLease| elected(&HeldLease::new(self.0.with(lease.clone())));
        self.0.wait(|election| election.run_callbacks(stopped(&stop), elected, stepped_down))?
    }

    /// Who leads at this moment. See [`crate::Election::leader`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.0.wait(crate::Election::leader)?
    }

    /// Watches who leads. See [`crate::Election::observe`].
    pub fn observe(&self) -> Observer {
        Observer(self.0.with(self.0.part().observe()))
    }

    fn leadership(&self, leadership: crate::Leadership) -> Leadership {
        Leadership(Guard::new(self.0.with(leadership.into_guard())))
    }
}

/// Returns once `stop` says so.
#[expect(clippy::future_not_send, reason = "it runs on the thread of its caller")]
async fn stopped(stop: &impl Fn() -> bool) {
    while !stop() {
        tokio::time::sleep(LOOK_FOR_STOP).await;
    }
}

/// Sees leaders come and go. The blocking twin of [`crate::Observer`].
#[derive(Debug)]
#[must_use = "nothing is seen without looking"]
pub struct Observer(Driven<crate::Observer>);

impl Observer {
    /// Waits for the next leader, or for there being none any more. See
    /// [`crate::Observer::next`].
    ///
    /// # Errors
    ///
    /// As its twin.
    #[expect(
        clippy::should_implement_trait,
        reason = "named as its twin, and an error ends nothing"
    )]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        self.0.wait_mut(crate::Observer::next)?
    }
}

/// A leadership: the proof that this process leads. The blocking twin of [`crate::Leadership`].
#[derive(Debug)]
#[must_use = "dropping the leadership gives it up in the background; call resign() to be sure"]
#[clippy::has_significant_drop]
pub struct Leadership(Guard);

impl Leadership {
    /// Gives the post up. See [`crate::Leadership::resign`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn resign(self) -> Result<()> {
        self.0.release()
    }

    /// As [`resign`](Self::resign), and says how that went.
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn resign_outcome(self) -> Result<Release> {
        self.0.release_outcome()
    }

    /// The plain guard.
    pub fn into_guard(self) -> Guard {
        self.0
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
