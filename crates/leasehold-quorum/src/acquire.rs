//! Taking a lock: grants of a majority, their fences made one, and undoing what is no majority.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, Already, BoxFuture, Busy, Effect, Error, ErrorKind, FenceBlock,
    Granted, LeaveRequest, Mode, Refusal, Renew, RenewRequest, Result, Ttl,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::nodes::{Nodes, PATIENCE_MIN};
use crate::round::Round;

/// How often an acquisition is tried again at once when nobody got a majority.
const SPLITS_MAX: u32 = 16;
/// The pauses before that: random, and longer each time.
const SPLIT_PAUSE: Duration = Duration::from_millis(2);
const SPLIT_PAUSE_MAX: Duration = Duration::from_millis(100);

/// What a node says during an attempt.
enum Said {
    Acquire(Result<Acquire>),
    /// Whether it surely remembers every lease.
    Age(Result<()>),
    /// Whether it took over these fences.
    Raised(FenceBlock, Result<()>),
}

/// Where an attempt stands with one node.
enum Vote {
    Asked,
    /// It has granted the lease, now or earlier.
    Holds(Holds),
    Busy(Busy),
    Refused(Refusal),
    Failed(Error),
}

struct Holds {
    fences: FenceBlock,
    /// Whether it held the lease before this attempt.
    before: bool,
    holds: u32,
    old_enough: bool,
    raised: bool,
}

/// One try to get a majority.
struct Attempt {
    nodes: Arc<Nodes>,
    request: Arc<AcquireRequest>,
    patience: Duration,
    started: Instant,
    round: Round<Said>,
    votes: Vec<Vote>,
    /// The fences of the lease, once a majority has granted it.
    fences: Option<FenceBlock>,
    /// Whether these fences were told before, so that no others may take their place.
    told_before: bool,
}

/// How a try ended.
enum Outcome {
    Held,
    /// Somebody else holds it, or the lock is closed.
    Busy(Busy),
    /// Several took some nodes each, and none a majority.
    Split(Busy),
    Refused(Refusal),
    Failed(Error),
}

impl Nodes {
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &AcquireRequest,
        within: Duration,
    ) -> Result<Acquire> {
        let until = Instant::now().checked_add(within);
        if request.mode != Mode::Exclusive {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a quorum keeps exclusive leases only: majorities can't count permits, and shared \
                 leases would get the same fences; use a single store for them",
            ));
        }
        self.check_ttl(request.ttl)?;
        let (mut request, ttl) = (request.clone(), request.ttl);
        request.queue = None;
        // A lease must last at the nodes for as long as it takes to ask them twice.
        request.ttl = request.ttl.max(Ttl::new(PATIENCE_MIN)?);
        let request = Arc::new(request);
        let Some(until) = until else {
            return Err(Error::new(ErrorKind::Misuse, "the time for the call is out of range"));
        };
        let turn = self.book.turn(request.token, self.now());
        let answer = match timeout_at(until, turn.lock()).await {
            Ok(_turn) => self.acquire_in_turn(&request, ttl, until).await,
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "another acquisition with the same token was not done in time",
            )),
        };
        drop(turn);
        self.book.forget(request.token);
        answer
    }

    /// Tries until somebody has a majority.
    async fn acquire_in_turn(
        self: &Arc<Self>,
        request: &Arc<AcquireRequest>,
        ttl: Ttl,
        until: Instant,
    ) -> Result<Acquire> {
        for tries in 1_u32.. {
            let left = until.saturating_duration_since(Instant::now());
            let sent_at = self.now();
            let mut attempt = Attempt::begin(self, request, self.patience_for(request.ttl, left));
            let outcome = attempt.run().await;
            let answer = match outcome {
                Outcome::Held => {
                    let answer = attempt.answer();
                    attempt.enter(Self::holds_until(sent_at, ttl));
                    return Ok(answer);
                }
                Outcome::Split(busy) => {
                    attempt.undo().await;
                    let most = SPLIT_PAUSE.saturating_mul(1 << tries.min(10)).min(SPLIT_PAUSE_MAX);
                    let pause = most.mul_f64(fastrand::f64());
                    let left = until.saturating_duration_since(Instant::now());
                    if tries < SPLITS_MAX && pause < left / 4 {
                        sleep(pause).await;
                        continue;
                    }
                    return Ok(Acquire::Busy(busy));
                }
                Outcome::Busy(busy) => Ok(Acquire::Busy(busy)),
                Outcome::Refused(refusal) => Ok(Acquire::Refused(refusal)),
                Outcome::Failed(error) => Err(error),
            };
            attempt.undo().await;
            return answer;
        }
        Err(Error::new(ErrorKind::Unavailable, "nobody got a majority"))
    }
}

impl Attempt {
    /// Asks all nodes that have a vote.
    fn begin(nodes: &Arc<Nodes>, request: &Arc<AcquireRequest>, patience: Duration) -> Self {
        let mut round = Round::new();
        let mut votes = Vec::with_capacity(nodes.count());
        for node in 0..nodes.count() {
            let token = request.token;
            let request = Arc::clone(request);
            let question = nodes.ask(node, patience, move |store, within| {
                Box::pin(async move { store.acquire(&request, within).await })
                    as BoxFuture<'_, Result<Acquire>>
            });
            let clear = Arc::clone(nodes);
            round.ask(node, async move {
                let clear = timeout(patience, clear.book.is_clear(token, node)).await;
                if clear != Ok(true) {
                    return Said::Acquire(Err(Error::new(
                        ErrorKind::Unavailable,
                        "an earlier attempt may still be undone there; ask with a new token",
                    )));
                }
                Said::Acquire(question.await)
            });
            votes.push(Vote::Asked);
        }
        Self {
            nodes: Arc::clone(nodes),
            request: Arc::clone(request),
            patience,
            started: Instant::now(),
            round,
            votes,
            fences: None,
            told_before: false,
        }
    }

    async fn run(&mut self) -> Outcome {
        loop {
            if self.count(Vote::is_confirmed) >= self.nodes.majority() {
                return Outcome::Held;
            }
            if self.count(Vote::is_possible) < self.nodes.majority() && self.is_clear_why() {
                return self.failed();
            }
            let said = match self.no_later_than() {
                Some(at) => match timeout_at(at, self.round.next()).await {
                    Ok(said) => said,
                    Err(_) => return self.failed(),
                },
                None => self.round.next().await,
            };
            match said {
                Some((node, Said::Acquire(answer))) => self.answered(node, answer),
                Some((node, Said::Age(answer))) => {
                    self.step(node, answer, |holds| holds.old_enough = true);
                }
                Some((node, Said::Raised(fences, answer))) => {
                    // Of fences that were given up only a failure still says something.
                    if answer.is_err() || self.fences == Some(fences) {
                        self.step(node, answer, |holds| holds.raised = true);
                    }
                }
                None => return self.failed(),
            }
            // Nodes that answered at the same time have a say too, and the same fence in the end.
            if self.round.has_answers() {
                continue;
            }
            if self.fences.is_none() {
                self.settle_fences();
            } else {
                self.lift_fences();
            }
        }
    }

    /// Until when to wait for the nodes that have not answered, where others are in the way and only
    /// these could still make a majority: for as long as they usually take. What this attempt has
    /// got is in the way of the others in turn. If each of them waited so for a node that is gone,
    /// all of the time in which it could be settled who gets the lock would be spent waiting.
    fn no_later_than(&self) -> Option<Instant> {
        let in_the_way = |vote: &Vote| matches!(vote, Vote::Busy(_) | Vote::Refused(_));
        let granted = self.count(|vote| matches!(vote, Vote::Holds(_)));
        if self.count(in_the_way) == 0 || granted >= self.nodes.majority() || !self.is_clear_why() {
            return None;
        }
        let asked = self.votes.iter().zip(&self.nodes.paces);
        let asked = asked.filter(|(vote, _)| matches!(vote, Vote::Asked));
        let longest = asked.map(|(_, pace)| pace.allowance(self.patience)).max()?;
        self.started.checked_add(longest)
    }

    fn count(&self, which: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }

    fn answered(&mut self, node: usize, answer: Result<Acquire>) {
        let vote = match answer {
            Ok(Acquire::Granted(granted)) => {
                Vote::holds(granted.fences, false, self.request.holds.get())
            }
            Ok(Acquire::Already(already)) => Vote::holds(already.fences, true, already.holds),
            Ok(Acquire::Busy(busy)) => Vote::Busy(busy),
            Ok(Acquire::Refused(refusal)) => Vote::Refused(refusal),
            Ok(_) => Vote::Failed(
                Error::new(ErrorKind::Protocol, "an answer that this version does not know")
                    .with_effect(Effect::Unknown),
            ),
            Err(error) => Vote::Failed(error),
        };
        if let Some(slot) = self.votes.get_mut(node) {
            *slot = vote;
        }
        self.drop_second_names();
        let holds = matches!(self.votes.get(node), Some(Vote::Holds(_)));
        if holds {
            self.ask_age(node);
            if self.fences.is_some() {
                self.raise(node);
            }
        }
    }

    /// Takes the vote from a node that is another one under a second name: what the first name was
    /// granted just now, the second one is said to have had before. Two servers never agree so,
    /// since a node that had the lease before has older fences for it.
    fn drop_second_names(&mut self) {
        let granted: Vec<(usize, FenceBlock)> = (0..)
            .zip(&self.votes)
            .filter_map(|(node, vote)| match vote {
                Vote::Holds(holds) if !holds.before => Some((node, holds.fences)),
                _ => None,
            })
            .collect();
        for (first, fences) in granted {
            for second in 0..self.votes.len() {
                let same = matches!(
                    self.votes.get(second),
                    Some(Vote::Holds(holds)) if holds.before && holds.fences == fences
                );
                if !same {
                    continue;
                }
                let location =
                    |node: usize| self.nodes.stores.get(node).map(|store| store.location());
                let error = Error::new(
                    ErrorKind::Config,
                    format!(
                        "it is the same server as {} under another name, and has one vote; name \
                         each server once",
                        location(first).unwrap_or_default()
                    ),
                )
                .at_store(location(second).unwrap_or_default());
                if let Some(vote) = self.votes.get_mut(second) {
                    *vote = Vote::Failed(error);
                }
            }
        }
    }

    /// Asks how far back the node remembers. Only now: had it been restarted between that answer
    /// and the grant, the answer would be worth nothing.
    fn ask_age(&mut self, node: usize) {
        if self.nodes.keep_leases {
            return self.step(node, Ok(()), |holds| holds.old_enough = true);
        }
        let question =
            self.nodes.ask(node, self.patience, |store, within| store.remembers_for(within));
        let max_ttl = self.nodes.max_ttl;
        let enough = max_ttl.duration().saturating_add(leasehold_core::margin(max_ttl));
        let location = self.nodes.stores.get(node).map(|store| store.location());
        self.round.ask(node, async move {
            Said::Age(question.await.and_then(|age| match age.filter(|age| *age < enough) {
                None => Ok(()),
                Some(age) => {
                    let left = enough.saturating_sub(age);
                    let why = format!(
                        "it was started not long ago and may have forgotten leases; it counts in \
                         {left:.1?}"
                    );
                    let error = Error::new(ErrorKind::Unavailable, why).passes_in(left);
                    Err(error.at_store(location.unwrap_or_default()))
                }
            }))
        });
    }

    /// Decides on the fences once a majority has granted the lease, and lets all nodes that
    /// granted lower ones take them over.
    ///
    /// The highest of a majority is above every fence that was told before: each was taken over by
    /// a majority, which shares a node with this one, and that node granted above it. And nobody
    /// else gets the same or a lower one later, because this one is taken over by a majority
    /// before it is told. A node may take it over only while it holds the lease for this token: so
    /// its last fence is of this lease, and is raised, never repeated. (Accepting an equal one that
    /// somebody else wrote would issue a fence twice.)
    fn settle_fences(&mut self) {
        let granted: Vec<_> = self.votes.iter().filter_map(Vote::fences).collect();
        if granted.len() < self.nodes.majority() {
            return;
        }
        let token = self.request.token;
        // One that was told before is told again, if the majority has held it since.
        let mut known = self.nodes.book.granted(token, self.nodes.now());
        if self.count(Vote::held_before) < self.nodes.majority() {
            if known.is_some() && self.votes.iter().any(|vote| matches!(vote, Vote::Asked)) {
                return;
            }
            known = None;
        }
        let agreed = granted.iter().copied().find(|one| {
            granted.iter().filter(|other| *other == one).count() >= self.nodes.majority()
        });
        let highest = granted.iter().copied().max_by_key(|fences| fences.last());
        self.told_before = known.is_some();
        self.fences = known.or(agreed).or(highest);
        for node in 0..self.votes.len() {
            self.raise(node);
        }
    }

    /// Decides once more, on higher fences, where those decided on can't get a majority any more
    /// though the lease has one: some of the nodes that granted first don't count, and those that
    /// came later granted above what was decided. What was decided has been told to nobody, and
    /// every node takes the higher fences over as it took the first ones.
    fn lift_fences(&mut self) {
        let Some(fences) = self.fences.filter(|_| !self.told_before) else { return };
        let below = |vote: &Vote| vote.fences().is_some_and(|own| own.last() <= fences.last());
        if self.count(below) >= self.nodes.majority()
            || self.count(|vote| matches!(vote, Vote::Holds(_))) < self.nodes.majority()
        {
            return;
        }
        let granted = self.votes.iter().filter_map(Vote::fences);
        self.fences = granted.max_by_key(|fences| fences.last());
        for vote in &mut self.votes {
            if let Vote::Holds(holds) = vote {
                holds.raised = false;
            }
        }
        for node in 0..self.votes.len() {
            self.raise(node);
        }
    }

    fn raise(&mut self, node: usize) {
        let (Some(fences), Some(own)) = (self.fences, self.votes.get(node).and_then(Vote::fences))
        else {
            return;
        };
        let token = self.request.token;
        if own.last() == fences.last() {
            return self.step(node, Ok(()), |holds| holds.raised = true);
        }
        if own.last() > fences.last() {
            // Granted above what was decided. If such nodes counted, two at a time could be told
            // the same fence. One that was told before, and is held all the time, is ours.
            let known = self.nodes.book.granted(token, self.nodes.now()) == Some(fences);
            if known && self.votes.get(node).is_some_and(Vote::held_before) {
                self.step(node, Ok(()), |holds| holds.raised = true);
            }
            return;
        }
        let renewal = RenewRequest::new(self.request.key.clone(), token, fences, self.request.ttl);
        let question = self.nodes.ask(node, self.patience, move |store, within| {
            Box::pin(async move {
                let mut answers = store.renew(std::slice::from_ref(&renewal), within).await;
                answers.pop().unwrap_or_else(|| {
                    Err(Error::new(ErrorKind::Protocol, "a renewal without an answer"))
                })
            }) as BoxFuture<'_, Result<Renew>>
        });
        let location = self.nodes.stores.get(node).map(|store| store.location());
        self.round.ask(node, async move {
            let answer = question.await.and_then(|answer| match answer {
                Renew::Late | Renew::NotHeld => Err(Error::new(
                    ErrorKind::Unavailable,
                    "the lease was over before its fence was confirmed",
                )
                .at_store(location.unwrap_or_default())),
                _ => Ok(()),
            });
            Said::Raised(fences, answer)
        });
    }

    fn step(&mut self, node: usize, answer: Result<()>, done: impl FnOnce(&mut Holds)) {
        let Some(vote) = self.votes.get_mut(node) else { return };
        match (vote, answer) {
            (Vote::Holds(holds), Ok(())) => done(holds),
            // It holds the lease all the same, which is to be undone if it comes to that.
            (vote, Err(error)) => *vote = Vote::Failed(error.with_effect(Effect::Applied)),
            (_, Ok(())) => {}
        }
    }

    /// Whether more answers would not change whether it is the others or the nodes that stand in
    /// the way.
    fn is_clear_why(&self) -> bool {
        let answered =
            self.count(|vote| matches!(vote, Vote::Holds(_) | Vote::Busy(_) | Vote::Refused(_)));
        let failed = self.count(|vote| matches!(vote, Vote::Failed(_)));
        answered >= self.nodes.majority() || failed > self.nodes.spare()
    }

    fn failed(&mut self) -> Outcome {
        let mut errors = Vec::new();
        let mut blocked: Vec<&Busy> = Vec::new();
        let mut refusals = Vec::new();
        for vote in &self.votes {
            match vote {
                Vote::Busy(busy) => blocked.push(busy),
                Vote::Refused(refusal) => refusals.push(*refusal),
                Vote::Failed(error) => errors.push(error.clone()),
                Vote::Asked | Vote::Holds(_) => {}
            }
        }
        let (majority, spare) = (self.nodes.majority(), self.nodes.spare());
        if let Some(refusal) = refusals.first().filter(|_| refusals.len() > spare) {
            return Outcome::Refused(*refusal);
        }
        let holding = self.count(|vote| matches!(vote, Vote::Holds(_)));
        let silent = self.count(|vote| matches!(vote, Vote::Asked)).saturating_add(errors.len());
        if holding.saturating_add(blocked.len()) < majority || blocked.is_empty() {
            let granted = holding;
            return Outcome::Failed(self.nodes.too_few(granted, "granted the lease", errors));
        }
        let alike = |one: &Busy| blocked.iter().filter(|other| same_obstacle(one, other)).count();
        // A node that is alone with its fence granted it above the lease's own.
        let fence = |busy: &Busy| Reverse(busy.holder.as_ref().map(|holder| holder.fence));
        let most = blocked
            .iter()
            .map(|one| (alike(one), *one))
            .max_by_key(|(count, busy)| (*count, fence(busy)));
        let Some((count, most)) = most else {
            return Outcome::Failed(self.nodes.too_few(holding, "granted the lease", errors));
        };
        let missing = majority.saturating_sub(holding).max(1);
        let mut ends: Vec<Duration> = blocked.iter().map(|busy| busy.retry_after).collect();
        ends.sort_unstable();
        let end = ends.get(missing.saturating_sub(1)).or_else(|| ends.last()).copied();
        let busy = Busy::new(end.unwrap_or_default(), most.holder.clone());
        if count.saturating_add(silent) < majority {
            Outcome::Split(busy)
        } else {
            Outcome::Busy(busy)
        }
    }

    /// The answer for the lease that was got.
    fn answer(&self) -> Acquire {
        let held = |vote: &Vote| match vote {
            Vote::Holds(holds) => Some((holds.before, holds.holds)),
            _ => None,
        };
        let votes: Vec<_> = self.votes.iter().filter_map(held).collect();
        let before = votes.iter().filter(|(before, _)| *before).count();
        let fences = self.fences.unwrap_or(FenceBlock::new(leasehold_core::Fence::ZERO, 1));
        if before >= self.nodes.majority() {
            let holds = votes.iter().map(|(_, holds)| *holds).max().unwrap_or(1);
            Acquire::Already(Already::new(fences, holds))
        } else {
            Acquire::Granted(Granted::new(fences))
        }
    }

    /// Enters the lease in the book, and lets requests to slower nodes go on: what they bring
    /// makes the lease safer.
    fn enter(self, until: leasehold_core::Moment) {
        let Some(fences) = self.fences else { return };
        let (nodes, token) = (Arc::clone(&self.nodes), self.request.token);
        let stragglers = (!self.round.is_over()).then(|| tokio::spawn(self.go_on()).abort_handle());
        nodes.book.enter(token, nodes.now(), (fences, until), stragglers);
    }

    /// Takes in the answers that nobody waits for; whoever grants lower fences takes over ours.
    async fn go_on(mut self) {
        while let Some((node, said)) = self.round.next().await {
            if let Said::Acquire(answer) = said {
                self.answered(node, answer);
            }
        }
    }

    /// Gives up what the attempt may have got: by a node that said so, and by one that did not
    /// answer. What the token had before the attempt is left alone.
    async fn undo(self) {
        let Self { nodes, request, patience, round, votes, .. } = self;
        // What is not sent yet must not be sent after the undoing.
        drop(round);
        let token = request.token;
        let held_before = nodes.book.granted(token, nodes.now()).is_some()
            || votes.iter().any(|vote| matches!(vote, Vote::Holds(Holds { before: true, .. })));
        let mut granted = Vec::new();
        let mut unknown = Vec::new();
        for (node, vote) in votes.iter().enumerate() {
            match vote {
                Vote::Holds(holds) if !holds.before => granted.push(node),
                Vote::Failed(error) if error.effect() == Effect::Applied && !held_before => {
                    granted.push(node);
                }
                Vote::Failed(error) if error.effect() == Effect::Unknown && !held_before => {
                    unknown.push(node);
                }
                Vote::Asked if !held_before => unknown.push(node),
                _ => {}
            }
        }
        let mut leave = LeaveRequest::new(request.key.clone(), token);
        leave.reopen = request.close_for.is_some();
        let leave = Arc::new(leave);
        let send = |to: Vec<usize>| {
            let mut round = Round::new();
            for node in to {
                nodes.book.undoing(token, node, nodes.now());
                let leave = Arc::clone(&leave);
                let question = nodes.ask(node, patience, move |store, within| {
                    Box::pin(async move { store.leave(&leave, within).await }) as BoxFuture<'_, _>
                });
                let nodes = Arc::clone(&nodes);
                round.ask(node, async move {
                    nodes.book.undone(token, node, arrived(&question.await));
                });
            }
            round
        };
        // Nobody waits for nodes that did not even answer the question.
        if !unknown.is_empty() {
            tokio::spawn(send(unknown).finish());
        }
        send(granted).finish().await;
    }
}

impl Vote {
    fn holds(fences: FenceBlock, before: bool, holds: u32) -> Self {
        Self::Holds(Holds { fences, before, holds, old_enough: false, raised: false })
    }

    fn fences(&self) -> Option<FenceBlock> {
        match self {
            Self::Holds(holds) => Some(holds.fences),
            _ => None,
        }
    }

    fn held_before(&self) -> bool {
        matches!(self, Self::Holds(Holds { before: true, .. }))
    }

    fn is_confirmed(&self) -> bool {
        matches!(self, Self::Holds(Holds { old_enough: true, raised: true, .. }))
    }

    /// Whether it may still be confirmed.
    fn is_possible(&self) -> bool {
        matches!(self, Self::Asked | Self::Holds(_))
    }
}

/// Whether an undoing is no longer on its way.
pub(crate) fn arrived<T>(answer: &Result<T>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => error.effect() == Effect::NotApplied,
    }
}

/// Whether two nodes are blocked by the same lease, or by a cool-down each.
fn same_obstacle(one: &Busy, other: &Busy) -> bool {
    one.holder.as_ref().map(|holder| holder.fence)
        == other.holder.as_ref().map(|holder| holder.fence)
}
