//! An election, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::face::Face as _;
use super::guard::{HeldLease, into_guard};
use super::table::{ends, guard, methods, options, value};
use crate::kinds::election::Leader;

/// How often it looks whether to stop.
const LOOK_FOR_STOP: Duration = Duration::from_millis(50);

value! {
    /// An election with one leader at a time. For threads what [`crate::Election`] is for tasks.
    #[derive(Clone)]
    #[must_use = "an election does nothing without a campaign"]
    Election
}

options!(Election: holding_options owner_option waiting_options patience_options);

methods! { Election {
    /// How often an observer looks.
    sets look_every(look_every: Duration);
    /// The election's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Becomes the leader if there is none. `None` if there is one.
    asks try_campaign() -> Option<Leadership>, errors trying, costs trying;
    /// Becomes the leader, and waits until it is. Candidates are elected in order of arrival.
    asks campaign() -> Leadership, errors taking, costs taking;
    /// Becomes the leader, and waits for at most `limit`.
    asks campaign_within(limit: Duration) -> Leadership, errors taking_within, costs taking_within;
    /// The current leader in the store's view. Takes no part in the election.
    asks leader() -> Option<Leader>, errors asking, costs request;
    /// Watches the leader.
    makes observe() -> Observer;
} }

impl Election {
    /// Campaigns, and runs `body` whenever this candidate leads. A thread can't be stopped from
    /// outside, so the body has to return when its lease is lost; the next campaign begins then.
    /// Returns the output of a body that led to its end, or `None` when `stop` returns `true` while
    /// this candidate does not lead. See [`crate::Election::run`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(leading)]
    ///
    /// # Errors
    ///
    /// Errors that another try can't mend, such as [`ErrorKind::Config`](crate::ErrorKind::Config),
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) and
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse).
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
            let leadership = Leadership::of(leadership, self.0.io());
            let done = body(leadership.lease());
            let led = leadership.is_held();
            // What the body did is done, even if the resignation fails.
            drop(leadership.resign());
            if led {
                return Ok(Some(done));
            }
        }
    }

    /// Campaigns until `stop` returns `true`, and calls when this candidate begins to lead and when
    /// it no longer does. See [`crate::Election::run_callbacks`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(leading)]
    ///
    /// # Errors
    ///
    /// Errors that another try can't mend, such as [`ErrorKind::Config`](crate::ErrorKind::Config),
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) and
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse).
    pub fn run_callbacks(
        &self,
        stop: impl Fn() -> bool,
        mut elected: impl FnMut(&HeldLease),
        stepped_down: impl FnMut(),
    ) -> Result<()> {
        let elected =
            |lease: &crate::HeldLease| elected(&HeldLease::of(lease.clone(), self.0.io()));
        self.0.wait(|election| election.run_callbacks(stopped(&stop), elected, stepped_down))?
    }
}

/// Returns once `stop` returns `true`.
#[expect(clippy::future_not_send, reason = "it runs on the thread of its caller")]
async fn stopped(stop: &impl Fn() -> bool) {
    while !stop() {
        tokio::time::sleep(LOOK_FOR_STOP).await;
    }
}

value! {
    /// Sees leaders come and go. For threads what [`crate::Observer`] is for tasks.
    #[must_use = "an observer sees leaders only when it is called"]
    Observer
}

impl Observer {
    /// Waits for a change: the leader that there is then, or `None` while there is none. See
    /// [`crate::Observer::changed`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(observing)]
    ///
    /// # Errors
    ///
    #[doc = super::errors::errors!(asking)]
    pub fn changed(&mut self) -> Result<Option<Leader>> {
        self.0.wait_mut(crate::Observer::changed)?
    }
}

guard! {
    /// A leadership: the proof that this process leads. For threads what [`crate::Leadership`] is
    /// for tasks.
    Leadership: HeldLease
}
ends!(Leadership: resign, resign_outcome, resign_with_cooldown, resign_with_cooldown_outcome);
into_guard!(Leadership);
