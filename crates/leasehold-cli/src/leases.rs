//! The leases that a command holds: lost together and released together.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::interop::Layout;
use leasehold::{
    Client, ErrorKind, Fence, Guard, HeldLease, Key, LockEvent, LockEventKind, LockEvents, Loss,
    LossReason, OnceGuard, Release, Result,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::failure::chain;
use crate::{describe, failure, output, status};

/// How often a holder that does not wait to be asked looks at what its renewals have told it.
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

/// What becomes of the lock after the release.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Cooldown {
    /// What was said when it was taken.
    #[default]
    AsGranted,
    /// It stays closed for so long.
    For(leasehold::Cooldown),
    /// It is open again, where taking it closed it.
    Reopen,
}

impl Held {
    pub(crate) fn new(client: &Client, guards: Vec<Guard>, numbers: Numbers) -> Self {
        let leases = Leases(guards.iter().map(|guard| guard.lease().clone()).collect(), numbers);
        Self { client: client.clone(), grip: Grip::Guards(guards), leases }
    }

    pub(crate) fn once(client: &Client, guard: OnceGuard) -> Self {
        let leases = Leases(vec![guard.lease().clone()], Numbers::Fences);
        Self { client: client.clone(), grip: Grip::Once(guard), leases }
    }

    /// The leases, for whoever works under them.
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

    /// Ends all leases, and says of each what there is to be told; not of what was lost before, of which that
    /// was told. `limited`: whether the longest hold made the leases short; `hear_by`: until when an answer is waited for
    /// that did not come in time.
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
            let said = told_of_release(&key, &released, cooldown, limited, in_time);
            let said = said.filter(|_| !lost.contains(&key));
            GivenUp { key, released, said }
        });
        given_up.collect()
    }

    /// Ends all leases, at the same time, and says of each how that went.
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

/// Learns what became of releases that were not answered: the client asks for them again in the background.
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
    /// What is to be told of it.
    pub(crate) said: Option<String>,
}

/// What is told of a release, in the same words whichever command had the lock; nothing of one that went well.
fn told_of_release(
    key: &Key,
    released: &Result<Release>,
    cooldown: Cooldown,
    limited: bool,
    in_time: bool,
) -> Option<String> {
    let at_worst = match cooldown {
        Cooldown::For(_) => {
            "the lock may stay held until its ttl runs out, and is then free at once: its cool-down may \
             not have been set"
        }
        Cooldown::AsGranted | Cooldown::Reopen => "the lock may stay held until its ttl runs out",
    };
    Some(match released {
        Ok(Release::Released) => return None,
        Ok(Release::Late { by }) => {
            let shortened = if limited { ", which --max-hold limits," } else { "" };
            let before = describe::before(*by, "the release");
            format!(
                "warning: release \"{key}\": its lease ran out {before}; nobody else has held it since, \
                 but the ttl{shortened} is too short"
            )
        }
        Ok(Release::NotHeld) if in_time => format!(
            "lost \"{key}\": it was taken away, or the store has forgotten it, before the release; \
             somebody else may have held it meanwhile"
        ),
        Ok(Release::NotHeld) => format!(
            "\"{key}\" may have been lost: the store answered the release only after the lease had run out, \
             too late to tell whether somebody else held it"
        ),
        Ok(_) => {
            format!("warning: release \"{key}\": the store did not answer the release; {at_worst}")
        }
        // What is damaged does not end with the ttl; its error says what to do.
        Err(error) if error.kind() == ErrorKind::Corrupt => format!("warning: {}", chain(error)),
        Err(error) => format!("warning: {}; {at_worst}", chain(error)),
    })
}

/// It begins with the call: a task that is cut short before its first step must not release the
/// lock without what it was to do besides.
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

/// Views of leases that are held together: they hold while each of them does.
#[derive(Clone, Debug)]
pub(crate) struct Leases(Vec<HeldLease>, Numbers);

/// What the numbers of leases are good for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Numbers {
    /// They are leasehold's fences.
    #[default]
    Fences,
    /// They are the counter of another library's.
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
        self.0.iter()
    }

    /// What their numbers are good for.
    pub(crate) const fn numbers(&self) -> Numbers {
        self.1
    }

    /// Returns when one of them is lost.
    pub(crate) async fn lost(&self) {
        first(self.iter().map(HeldLease::lost)).await;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.iter().all(HeldLease::is_held)
    }

    /// For how long all of them are held for certain.
    pub(crate) fn remaining(&self) -> Duration {
        self.iter().map(HeldLease::remaining).min().unwrap_or_default()
    }

    /// How long it is until the store may grant the first of them to somebody else.
    pub(crate) fn until_deadline(&self) -> Duration {
        self.iter().map(HeldLease::until_deadline).min().unwrap_or_default()
    }

    /// Tells of each lease that is lost and of why, in the same words whichever command had it; `then`
    /// says what follows. Whether all of them ended with the longest time that they may be held.
    pub(crate) fn tell_of_losses(&self, then: &str) -> bool {
        self.losses(then, output::message)
    }

    /// As [`tell_of_losses`](Self::tell_of_losses), by other means than standard error.
    pub(crate) fn losses(&self, then: &str, tell: impl Fn(&str)) -> bool {
        let losses: Vec<_> = self.iter().filter_map(|lease| Some((lease, lease.loss()?))).collect();
        for (lease, loss) in &losses {
            status::lost(lease.key(), loss);
            tell(&self.told(lease, loss, then));
        }
        !losses.is_empty() && losses.iter().all(|(_, loss)| loss.reason() == LossReason::MaxHold)
    }

    fn told(&self, lease: &HeldLease, loss: &Loss, then: &str) -> String {
        let key = lease.key();
        if loss.reason() == LossReason::MaxHold {
            return format!("\"{key}\" has been held for as long as --max-hold allows{then}");
        }
        let fence = self.numbers().text(lease.fence_even_if_lost());
        let fence = fence.map_or_else(String::new, |fence| format!(" (fence {fence})"));
        let advice = loss.error().and_then(failure::advice);
        let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
        format!("lost \"{key}\"{fence}: {loss}{advice}{then}")
    }

    /// Each name with the fence as it is shown.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&Key, Option<String>)> {
        self.iter().map(|lease| (lease.key(), self.numbers().text(lease.fence_even_if_lost())))
    }

    /// The names, quoted.
    pub(crate) fn names(&self) -> String {
        quoted(self.iter().map(HeldLease::key))
    }

    /// Returns when somebody asks for one of them, with a sentence about that; never when none is
    /// asked for. With `at_once` it learns of it by looking, else by the renewals.
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
                let by = by.map_or_else(|| "somebody".to_owned(), |by| by.to_string());
                return format!("{by} asks to let go of \"{key}\" (fence {fence})");
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
