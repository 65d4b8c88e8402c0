//! The leases that a command holds: lost together and released together.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::interop::Layout;
use leasehold::{
    Client, ErrorKind, Fence, Guard, HeldLease, Key, LockEvent, LockEventKind, LockEvents, Loss,
    LossReason, OnceGuard, Release, Result,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::failure::{Failure, Outcome, chain};
use crate::{describe, failure, output, status};

/// How often a holder without `--on-ask` looks whether its renewals carried a release request.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Held leases, in the order in which their names were given.
#[derive(Debug)]
pub(crate) struct Held {
    client: Client,
    grip: Grip,
    leases: Leases,
}

#[derive(Debug)]
enum Grip {
    Guards(Vec<Guard>),
    Once(OnceGuard),
}

/// The state of the lock after the release.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Cooldown {
    /// The cooldown of the grant.
    #[default]
    AsGranted,
    /// A cooldown of this length.
    For(leasehold::Cooldown),
    /// No period: the lock is free again.
    Reopen,
}

impl Held {
    pub(crate) fn new(client: &Client, guards: Vec<Guard>, numbers: Numbers) -> Self {
        let held = guards.iter().map(|guard| guard.lease().clone()).collect();
        let leases = Leases { held, numbers, at: client.location().into() };
        Self { client: client.clone(), grip: Grip::Guards(guards), leases }
    }

    pub(crate) fn once(client: &Client, guard: OnceGuard) -> Self {
        let (held, at) = (vec![guard.lease().clone()], client.location().into());
        let leases = Leases { held, numbers: Numbers::Fences, at };
        Self { client: client.clone(), grip: Grip::Once(guard), leases }
    }

    /// The leases, for the work under them.
    pub(crate) const fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The guards, to be ended one by one.
    pub(crate) fn into_guards(self) -> Vec<Guard> {
        match self.grip {
            Grip::Guards(guards) => guards,
            Grip::Once(guard) => vec![guard.into_guard()],
        }
    }

    /// Ends all leases, with a message for each that needs one. A lease that was lost before had
    /// its message then. `limited`: whether `--max-hold` made the leases short; `hear_by`: the end
    /// of the wait for a delayed answer.
    pub(crate) async fn give_up(
        self,
        cooldown: Cooldown,
        limited: bool,
        hear_by: impl FnOnce() -> Instant,
    ) -> Vec<GivenUp> {
        let lost = self.leases.iter().filter(|lease| !lease.is_held());
        let lost: Vec<Key> = lost.map(|lease| lease.key().clone()).collect();
        let deadline = Instant::now() + self.leases.until_deadline();
        let (events, leases) = (self.client.events(), self.leases.clone());
        let mut ended = self.release(cooldown).await;
        let again = hear_again(&mut ended, &leases, events);
        drop(tokio::time::timeout_at(hear_by(), again).await);
        let in_time = Instant::now() < deadline;
        let given_up = ended.into_iter().map(|(key, released)| {
            status::released(&key, &released);
            let said = leases.told_of_release(&key, &released, cooldown, limited, in_time);
            let said = said.filter(|_| !lost.contains(&key));
            GivenUp { key, released, said }
        });
        given_up.collect()
    }

    /// Ends all leases at the same time, with the outcome of each.
    async fn release(self, cooldown: Cooldown) -> Vec<(Key, Result<Release>)> {
        match (self.grip, cooldown) {
            (Grip::Once(guard), Cooldown::Reopen) => {
                let key = guard.key().clone();
                vec![(key, guard.release_and_reopen_outcome().await)]
            }
            (Grip::Once(guard), _) => vec![release(guard.into_guard(), Cooldown::AsGranted).await],
            (Grip::Guards(guards), cooldown) => {
                let releases = guards.into_iter().map(|guard| release(guard, cooldown));
                releases.collect::<JoinSet<_>>().join_all().await
            }
        }
    }
}

/// Gets the outcomes of unanswered releases, which the client retries in the background.
async fn hear_again(ended: &mut [(Key, Result<Release>)], leases: &Leases, mut events: LockEvents) {
    let unanswered = ended.iter_mut().filter(|(_, how)| matches!(how, Ok(Release::Unknown)));
    let mut unanswered: Vec<_> = unanswered.collect();
    while !unanswered.is_empty() {
        let Some(LockEvent { key, fence, what, .. }) = events.next().await else { return };
        let LockEventKind::Released { outcome, .. } = what else { continue };
        if leases.iter().any(|lease| *lease.key() == key && lease.fence_even_if_lost() == fence) {
            for (_, how) in unanswered.extract_if(.., |(of, _)| *of == key) {
                // Any other answer may be about a lock that the first request has released.
                if outcome == Release::Released {
                    *how = Ok(outcome);
                }
            }
        }
    }
}

/// How a lease was ended.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) key: Key,
    pub(crate) released: Result<Release>,
    /// A message about it, if one is needed.
    pub(crate) said: Option<String>,
}

/// Begins with the call, so that a task that is cancelled before its first step still sets the
/// cooldown.
fn release(
    guard: Guard,
    cooldown: Cooldown,
) -> impl Future<Output = (Key, Result<Release>)> + Send {
    let key = guard.key().clone();
    let outcome: Pin<Box<dyn Future<Output = _> + Send>> = match cooldown {
        Cooldown::For(cooldown) => Box::pin(guard.release_with_cooldown_outcome(cooldown)),
        Cooldown::AsGranted | Cooldown::Reopen => Box::pin(guard.release_outcome()),
    };
    async { (key, outcome.await) }
}

/// Views of leases that are held together: they are held while each of them is.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    held: Vec<HeldLease>,
    numbers: Numbers,
    /// The store, as messages name it.
    at: Arc<str>,
}

/// The meaning of the numbers of leases.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Numbers {
    /// They are leasehold's fences.
    #[default]
    Fences,
    /// They are the counter of another library.
    Counter,
    /// There are none.
    Nothing,
}

impl Numbers {
    pub(crate) fn of(layout: Option<&Layout>) -> Self {
        match layout {
            None => Self::Fences,
            Some(layout) if layout.has_fences() => Self::Counter,
            Some(_) => Self::Nothing,
        }
    }

    /// The number as people and other programs know it.
    pub(crate) fn text(self, fence: Fence) -> Option<String> {
        match self {
            Self::Fences => Some(fence.to_string()),
            Self::Counter => Some(fence.sequence().to_string()),
            Self::Nothing => None,
        }
    }
}

impl Leases {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldLease> {
        self.held.iter()
    }

    /// The meaning of their numbers.
    pub(crate) const fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// The number of a lease that its user is about to use.
    pub(crate) fn number_to_use(&self, lease: &HeldLease) -> Outcome<Option<String>> {
        let fence = lease.fence().map_err(|error| {
            let mut failure = Failure::from(error);
            if self.numbers == Numbers::Fences {
                failure.message.push_str(&describe::see_why(lease.key()));
            }
            failure
        })?;
        Ok(self.numbers.text(fence))
    }

    /// Returns when one of them is lost.
    pub(crate) async fn lost(&self) {
        first(self.iter().map(HeldLease::lost)).await;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.iter().all(HeldLease::is_held)
    }

    /// How long all of them are held for certain.
    pub(crate) fn remaining(&self) -> Duration {
        self.iter().map(HeldLease::remaining).min().unwrap_or_default()
    }

    /// The time until the store may grant the first of them to another holder.
    pub(crate) fn until_deadline(&self) -> Duration {
        self.iter().map(HeldLease::until_deadline).min().unwrap_or_default()
    }

    /// Prints a message for each lost lease, which is the same in all commands; `then` says what
    /// follows. Returns whether all of them ended by `--max-hold`.
    pub(crate) fn tell_of_losses(&self, then: &str) -> bool {
        self.losses(then, output::message)
    }

    /// Does the same as [`tell_of_losses`](Self::tell_of_losses) with another printer.
    pub(crate) fn losses(&self, then: &str, tell: impl Fn(&str)) -> bool {
        let losses: Vec<_> = self.iter().filter_map(|lease| Some((lease, lease.loss()?))).collect();
        for (lease, loss) in &losses {
            status::lost(lease.key(), loss);
            tell(&self.told(lease, loss, then));
        }
        !losses.is_empty() && losses.iter().all(|(_, loss)| loss.reason() == LossReason::MaxHold)
    }

    /// The message that leasehold itself was stopped or starved until the leases had expired.
    pub(crate) fn told_of_delay(&self, then: &str) -> String {
        let names = self.names();
        let next = self.iter().next().map(HeldLease::key);
        let next = next.map_or_else(String::new, |key| after_a_loss(key, self.numbers));
        format!("lost {names}: leasehold was delayed until the lease expired; {then}{next}")
    }

    fn told(&self, lease: &HeldLease, loss: &Loss, then: &str) -> String {
        let key = lease.key();
        if loss.reason() == LossReason::MaxHold {
            return format!("\"{key}\" was held for as long as --max-hold allows{then}");
        }
        let fence = self.numbers().text(lease.fence_even_if_lost());
        let fence = fence.map_or_else(String::new, |fence| format!(" (fence {fence})"));
        let next = match loss.error().and_then(failure::advice) {
            Some(advice) => format!("; {advice}"),
            None => after_a_loss(key, self.numbers),
        };
        format!("lost \"{key}\" at {}{fence}: {loss:#}{then}{next}", self.at)
    }

    /// The message about a release, which is the same in all commands. A release in time has none.
    fn told_of_release(
        &self,
        key: &Key,
        released: &Result<Release>,
        cooldown: Cooldown,
        limited: bool,
        in_time: bool,
    ) -> Option<String> {
        let at = &self.at;
        let at_worst = match cooldown {
            Cooldown::For(_) => {
                "the lock may stay held until its lease expires, and may have no cooldown then"
            }
            Cooldown::AsGranted | Cooldown::Reopen => {
                "the lock may stay held until its lease expires"
            }
        };
        Some(match released {
            Ok(Release::Released) => return None,
            Ok(Release::Late { by }) => {
                let option = if limited { "--max-hold" } else { "--ttl" };
                let expired = expired(*by, "the release");
                format!("warning: release \"{key}\" at {at}: {expired}. Give a longer {option}")
            }
            Ok(Release::NotHeld) if in_time => {
                let next = after_a_loss(key, self.numbers);
                format!("lost \"{key}\" at {at}: {TAKEN}{next}")
            }
            Ok(Release::NotHeld) => {
                let next = after_a_loss(key, self.numbers);
                format!(
                    "\"{key}\" at {at} may have been lost: its release was answered after the lease \
                     had expired{next}"
                )
            }
            Ok(_) => format!("warning: release \"{key}\" at {at}: no answer; {at_worst}"),
            // What is damaged does not end with the ttl; its error says what to do.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                format!("warning: {}", chain(error))
            }
            Err(error) => format!("warning: {}; {at_worst}", chain(error)),
        })
    }

    /// Each name with the fence as it is shown.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&Key, Option<String>)> {
        self.iter().map(|lease| (lease.key(), self.numbers().text(lease.fence_even_if_lost())))
    }

    /// The names, quoted.
    pub(crate) fn names(&self) -> String {
        quoted(self.iter().map(HeldLease::key))
    }

    /// Returns at a release request for one of them, with a sentence about it. With `at_once` it
    /// polls the store, else it relies on the renewals.
    pub(crate) async fn asked(&self, client: &Client, at_once: bool) -> String {
        loop {
            if let Some(lease) = self.iter().find(|lease| lease.is_asked()) {
                let (key, fence) = (lease.key(), lease.fence_even_if_lost());
                let by = match client.inspect(key).await {
                    Ok(Some(info)) => info
                        .holders
                        .into_iter()
                        .find(|holder| holder.fence == fence)
                        .and_then(|holder| holder.asked_by),
                    _ => None,
                };
                let by = by.map_or_else(|| "another program".to_owned(), |by| by.to_string());
                return format!("{by} requests the release of \"{key}\" (fence {fence})");
            }
            if !self.is_held() {
                return std::future::pending().await;
            }
            if at_once {
                first(self.iter().map(HeldLease::asked)).await;
            } else {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// The causes of a lease that ended before its expiry.
pub(crate) const TAKEN: &str = "force-released, or the store lost its data";

/// The advice after a loss.
fn after_a_loss(key: &Key, numbers: Numbers) -> String {
    let why = match numbers {
        Numbers::Fences => format!(", and see {}", describe::why(key)),
        // `why` does not know locks of other libraries.
        Numbers::Counter | Numbers::Nothing => String::new(),
    };
    format!(". Check its last writes{why}")
}

/// The message about a lost lease that another process may have ended.
pub(crate) fn is_lost(key: &Key, layout: Option<&Layout>) -> String {
    let next = after_a_loss(key, Numbers::of(layout));
    format!("the lease is lost: it expired, was released before, or was force-released{next}")
}

/// The message that a lease expired before a moment, and the lock stayed free.
pub(crate) fn expired(by: Option<Duration>, moment: &str) -> String {
    let before = describe::before(by, moment);
    format!("the lease expired {before}, though no other holder has come since")
}

/// Names for people: `"a"`, `"b"`.
pub(crate) fn quoted<'a>(keys: impl Iterator<Item = &'a Key>) -> String {
    keys.map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns when one of these does.
async fn first<'a, F: Future<Output = ()> + Send + 'a>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + Send + 'a>>> =
        futures.map(|future| Box::pin(future) as Pin<Box<_>>).collect();
    poll_fn(|cx| {
        let done = futures.iter_mut().any(|future| future.as_mut().poll(cx).is_ready());
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use leasehold::Key;

    use super::*;

    #[tokio::test]
    async fn a_lease_that_was_lost_before_its_use_names_why() {
        let client = Client::connect("memory:").await.unwrap();
        let mutex = client.mutex("reports/daily").ttl(Duration::from_secs(1));
        let guard = mutex.lock().await.unwrap();
        let (lease, fence) = (guard.lease().clone(), guard.fence().unwrap());
        client.force_release(&Key::new("reports/daily").unwrap(), fence).await.unwrap();
        lease.lost().await;
        for (numbers, names_why) in [(Numbers::Fences, true), (Numbers::Counter, false)] {
            let held = vec![lease.clone()];
            let leases = Leases { held, numbers, at: client.location().into() };
            let failure = leases.number_to_use(&lease).unwrap_err();
            assert_eq!(failure.exit, crate::exit::Exit::Lost);
            let message = failure.message;
            assert_eq!(message.ends_with("why reports/daily`"), names_why, "{message}");
        }
    }
}
