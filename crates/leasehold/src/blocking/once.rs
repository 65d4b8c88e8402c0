//! Once per period, for threads.

use leasehold_core::{Key, Result};

use super::guard::{HeldLease, into_guard};
use super::run::run_under;
use super::table::{ends, guard, methods, options, value};
use crate::lease::handle::requests::Afterwards;
use crate::lease::release::Release;
use crate::lease::run::RunError;

value! {
    /// A job that starts at most once per period, on all hosts together. For threads what
    /// [`crate::OncePer`] is for tasks.
    #[derive(Clone)]
    #[must_use = "nothing is done until it is started"]
    OncePer
}

options!(OncePer: holding_options owner_option);

methods! { OncePer {
    /// The job's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Starts the job. `None` if it has been started in this period already, or still runs.
    asks try_start() -> Option<OnceGuard>, errors trying, costs trying;
} }

impl OncePer {
    /// Runs `body`. `None` if the job has been started in this period already, or still runs. The
    /// period stays closed. See [`OnceGuard::run`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(starting_and_running)]
    ///
    /// # Errors
    ///
    /// As [`try_start`](Self::try_start) and [`OnceGuard::run`].
    pub fn run<T>(&self, body: impl FnOnce(&HeldLease) -> T) -> Result<Option<T>, RunError<T>> {
        self.try_start()?.map(|guard| guard.run(body)).transpose()
    }

    /// As [`run`](Self::run), and reopens the period when the body fails; its own error is in the
    /// answer.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(starting_and_running)]
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    #[expect(clippy::type_complexity, reason = "a name for it would have to be looked up")]
    pub fn run_or_reopen<T, E>(
        &self,
        body: impl FnOnce(&HeldLease) -> Result<T, E>,
    ) -> Result<Option<Result<T, E>>, RunError<Result<T, E>>> {
        let Some(OnceGuard(guard, lease)) = self.try_start()? else { return Ok(None) };
        let end = |guard: crate::OnceGuard, cooldown| guard.into_guard().end(cooldown);
        let cooldown = |done: &Result<T, E>| match done {
            Ok(_) => Afterwards::AsGranted,
            Err(_) => Afterwards::Open,
        };
        run_under(guard, &lease, body, cooldown, end).map(Some)
    }
}

guard! {
    /// A job that has started. For threads what [`crate::OnceGuard`] is for tasks.
    OnceGuard: HeldLease
}
ends!(OnceGuard);
into_guard!(OnceGuard);

methods! { OnceGuard {
    /// Ends the lease of a job that has failed, and reopens the period for another start.
    ends release_and_reopen() -> (), errors releasing, costs request_in_turn;
    /// Ends the lease of a job that has failed, reopens the period, and reports how the release
    /// went.
    ends release_and_reopen_outcome() -> Release, errors ending, costs request_in_turn;
} }
