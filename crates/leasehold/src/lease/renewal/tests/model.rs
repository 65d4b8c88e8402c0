//! Compares the renewal schedule under random changes with the simplest list of due times.

use std::any::Any;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use leasehold_clock::ManualClock;
use leasehold_core::{
    Admission, BoxFuture, Call, Capability, Effect, Error, ErrorKind, FenceBlock, LeaseState,
    LeaseStatus, LockLog, Relay, Result, StoreLayer, Token,
};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::audit::LockEventKind;
use crate::lease::handle::requests::Afterwards;
use crate::lease::handle::{Began, Proof};
use crate::lease::succession::Successors;
use crate::settings::Settings;

type Answers = Vec<Result<Renew>>;

/// Renewals on their way, and the way for their answers.
#[derive(Debug)]
struct Sent {
    leases: Vec<usize>,
    answer: oneshot::Sender<Answers>,
}

/// A store that answers when and what the test says.
#[derive(Debug)]
struct Slow(mpsc::UnboundedSender<Sent>);

impl StoreLayer for Slow {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        _within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        let (answer, answered) = oneshot::channel();
        let targets = call.targets().into_iter();
        let leases = targets.map(|(key, _)| key.as_str().parse().unwrap()).collect();
        self.0.send(Sent { leases, answer }).unwrap();
        Box::pin(async move {
            let answers: Answers = answered.await.unwrap_or_default();
            let mut answers = Some(answers);
            let answers: &mut dyn Any = &mut answers;
            answers.downcast_mut::<Option<C::Answer>>().unwrap().take().unwrap()
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn capability(&self) -> Capability {
        Capability::default()
    }

    fn location(&self) -> String {
        String::new()
    }
}

/// Gets the leases that their contenders did not take.
#[derive(Debug, Default)]
struct Next(Mutex<Vec<HoldId>>);

impl Successors for Next {
    fn hand_on(&self, _handle: &Arc<LeaseHandle>) -> bool {
        false
    }

    fn take_back(&self, handle: &Arc<LeaseHandle>) {
        self.0.lock().unwrap().push(handle.id);
    }
}

struct Lease {
    handle: Arc<LeaseHandle>,
    /// When it is due, if it is cared for.
    due: Option<Moment>,
    /// Until when it is on its way, unless it was taken, and when its predecessor was due.
    offer: Option<Moment>,
    resume: Option<Moment>,
    /// Whether the store said that it has ended.
    refuted: bool,
}

struct World {
    random: fastrand::Rng,
    clock: Arc<ManualClock>,
    schedule: Arc<RenewalSchedule>,
    next: Arc<Next>,
    sent: mpsc::UnboundedReceiver<Sent>,
    /// With the moment at which they were sent.
    on_the_way: Vec<(Sent, Moment)>,
    leases: Vec<Lease>,
    /// Whose length is being changed.
    changing: Option<usize>,
    settings: Settings,
    /// When the renewer looks by itself, and whether it was woken.
    looks_at: Option<Moment>,
    /// The leases that were offered in vain.
    taken_back: Vec<HoldId>,
    woken: bool,
}

impl World {
    async fn new(seed: u64) -> Self {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let guard = client.mutex("settings").try_lock().await.unwrap().unwrap();
        let settings = (*guard.handle().settings).clone();
        let (sender, sent) = mpsc::unbounded_channel();
        let store: Arc<dyn Store> = Arc::new(Slow(sender));
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(3600));
        let (next, succession) = (Arc::new(Next::default()), Arc::<Succession>::default());
        let successors: Weak<Next> = Arc::downgrade(&next);
        succession.leads_to(successors);
        let schedule = RenewalSchedule::new(store, Arc::<ManualClock>::clone(&clock), succession);
        Self {
            random: fastrand::Rng::with_seed(seed),
            clock,
            schedule,
            next,
            sent,
            on_the_way: Vec::new(),
            leases: Vec::new(),
            changing: None,
            settings,
            looks_at: None,
            taken_back: Vec::new(),
            woken: false,
        }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn held(&self) -> usize {
        self.leases.iter().filter(|lease| lease.due.is_some()).count()
    }

    fn length(&mut self) -> Ttl {
        let lengths = [100, 150, 1000, 3000, 3000, 3000, 30_000];
        Ttl::new(Duration::from_millis(*self.random.choice(&lengths).unwrap())).unwrap()
    }

    /// One of those that may still be cared for.
    fn any(&mut self) -> Option<usize> {
        let of_late = self.leases.len().saturating_sub(30)..self.leases.len();
        (!of_late.is_empty()).then(|| self.random.usize(of_late))
    }

    fn take(&mut self) {
        let now = self.now();
        let ttl = self.length();
        let sent_at = now.saturating_sub(ttl.duration() / 8 * self.random.u32(..3));
        let mut settings = self.settings.clone();
        settings.ttl = ttl;
        settings.renew = self.random.u8(..8) > 0;
        settings.max_hold = (self.random.u8(..6) == 0).then(|| ttl.duration() * 2);
        settings.progress_within = (self.random.u8(..6) == 0).then(|| ttl.duration() / 2);
        let fences = FenceBlock::new(Fence::new(0, 1_000_000).unwrap(), 9);
        let lease = LeaseState::granted(sent_at, ttl, LeaseState::default_grace(ttl), now).unwrap();
        let handle = LeaseHandle::new(
            Proof {
                key: Key::new(self.leases.len().to_string()).unwrap(),
                token: Token::generate().unwrap(),
                fences,
                fence: fences.first(),
            },
            lease,
            ttl,
            Relay { handoffs: 3, until: Moment::from_nanos(u64::MAX) },
            Arc::new(settings),
            Began { at: now, how: LockEventKind::Granted },
        );
        let handle = self.schedule.begin(handle, sent_at, now);
        self.leases.push(Lease { handle, due: None, offer: None, resume: None, refuted: false });
        self.added(self.leases.len() - 1, sent_at);
    }

    /// Takes in that the schedule was given this one.
    fn added(&mut self, number: usize, sent_at: Moment) {
        let (now, held) = (self.now(), self.held());
        let lease = &mut self.leases[number];
        let handle = &lease.handle;
        let state = handle.state();
        let Lasting { length, lost_at } = state.lasting();
        lease.due = (!state.is_over()).then(|| {
            let due = renewal_due(sent_at, length, held);
            if state.wants_renewal(now) { due.min(lost_at) } else { lost_at }
        });
    }

    fn release(&mut self) {
        let Some(number) = self.any() else { return };
        let now = self.now();
        let lease = &mut self.leases[number];
        if lease.handle.begin_end(Afterwards::AsGranted, now).is_some() {
            self.schedule.remove(&lease.handle);
            lease.due = None;
        }
    }

    fn progress(&mut self) {
        let (Some(number), now) = (self.any(), self.now()) else { return };
        let lease = &mut self.leases[number];
        lease.handle.on(|lease| lease.progress(now));
        self.schedule.look_now(&lease.handle);
        lease.due = (!lease.handle.state().is_over()).then_some(now);
    }

    fn take_away(&mut self) {
        let Some(number) = self.any() else { return };
        let lease = &mut self.leases[number];
        self.schedule.taken_away(&lease.handle.key, lease.handle.fences.first());
        lease.refuted |= lease.due.take().is_some();
    }

    fn change_length(&mut self) {
        let (Some(number), ttl, now) = (self.any(), self.length(), self.now()) else { return };
        let handle = Arc::clone(&self.leases[number].handle);
        let Admission::Start((_, change)) = handle.change_length(ttl, now) else { return };
        // The renewer may look meanwhile.
        self.changing = Some(number);
        if self.random.bool() {
            self.turn();
        }
        self.changing = None;
        match self.random.u8(..3) {
            0 => drop(handle.on(|lease| lease.length_changed(change, now))),
            1 => handle.on(|lease| lease.length_unchanged(change, now)),
            _ => {}
        }
        handle.on(|lease| lease.change_done());
        self.schedule.add(&handle, now, now);
        self.added(number, now);
    }

    /// Whether one was.
    fn hand_on(&mut self) -> bool {
        let (Some(number), now) = (self.any(), self.now()) else { return false };
        let before = Arc::clone(&self.leases[number].handle);
        let Some(next) = before.hand_on(now) else { return false };
        let next = Arc::new(next);
        let until = now.saturating_add(Duration::from_millis(100));
        let resume = self.leases[number].resume.or(self.leases[number].due).unwrap();
        self.schedule.hand_on(&before, &next, until);
        let due = Some(until.min(resume));
        // It goes on under its number.
        self.leases[number] =
            Lease { handle: next, due, offer: Some(until), resume: Some(resume), refuted: false };
        true
    }

    fn claim(&mut self) {
        let Some(number) = self.any() else { return };
        let lease = &mut self.leases[number];
        assert_eq!(lease.handle.on(|it| it.claimed(0)), lease.offer.take().is_some());
    }

    /// Looks at a lease that is due; returns whether it needs a renewal.
    fn looked_at(&mut self, number: usize, now: Moment) -> bool {
        let lease = &mut self.leases[number];
        let handle = &lease.handle;
        let lost_at = handle.lost_at();
        if now >= lost_at || handle.status(now) == LeaseStatus::Lost {
            lease.due = None;
            self.taken_back.extend(lease.offer.take().map(|_| handle.id));
            return false;
        }
        if let Some(until) = lease.offer {
            lease.due = (now < until).then(|| lost_at.min(until));
            if now >= until {
                lease.offer = None;
                self.taken_back.push(handle.id);
            }
            return false;
        }
        if let Some(resume) = lease.resume.take()
            && now < resume
        {
            lease.due = Some(lost_at.min(resume));
            return false;
        }
        lease.due = Some(lost_at);
        handle.state().wants_renewal(now) && self.changing != Some(number)
    }

    fn turn(&mut self) {
        let now = self.now();
        let due = |lease: &Lease| lease.due.is_some_and(|due| due <= now);
        let due: Vec<usize> = (0..self.leases.len()).filter(|at| due(&self.leases[*at])).collect();
        let expected: Vec<usize> =
            due.into_iter().filter(|number| self.looked_at(*number, now)).collect();
        let planned = self.schedule.due().planned;
        let (batches, next) = self.schedule.begin_renewals(now);
        let mut renewed: Vec<usize> = Vec::new();
        for batch in batches {
            for handle in &batch.leases {
                assert!(!handle.state().is_over());
                assert!(now < handle.lost_at());
                renewed.push(handle.key.as_str().parse().unwrap());
            }
            drop(tokio::spawn(Arc::clone(&self.schedule).renew(batch)));
        }
        renewed.sort_unstable();
        assert_eq!(renewed, expected);
        let mut order = self.taken_back.clone();
        order.sort_unstable();
        let mut taken_back = self.next.0.lock().unwrap().clone();
        taken_back.sort_unstable();
        assert_eq!(taken_back, order);
        self.looks_at = next;
        // A look that is planned for later stays, even if its lease has ended since: that is one
        // look for nothing.
        let first = self.leases.iter().filter_map(|lease| lease.due).min();
        let ahead = planned.filter(|planned| *planned > now);
        assert_eq!(self.looks_at, first.into_iter().chain(ahead).min());
        self.woken = false;
    }

    /// Has the tasks that renew go on.
    async fn let_run(&mut self) {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let now = self.now();
        while let Ok(sent) = self.sent.try_recv() {
            self.on_the_way.push((sent, now));
        }
    }

    /// How many renewals were answered well, and how many not.
    async fn answer(&mut self) -> (usize, usize) {
        if self.on_the_way.is_empty() {
            return (0, 0);
        }
        let (sent, sent_at) =
            self.on_the_way.swap_remove(self.random.usize(..self.on_the_way.len()));
        let (now, held) = (self.now(), self.held());
        let odd = if self.random.u8(..3) == 0 { 6 } else { 60 };
        let mut answers: Answers = Vec::new();
        for _ in &sent.leases {
            let away = Error::new(ErrorKind::Unavailable, "away").with_effect(Effect::Unknown);
            answers.push(match self.random.u8(..odd) {
                0 => Ok(Renew::Late),
                1 => Ok(Renew::NotHeld),
                2 => Ok(Renew::Asked),
                3 => Err(away),
                _ => Ok(Renew::Renewed),
            });
        }
        // A store that breaks its word, or is gone.
        if self.random.u8(..8) == 0 {
            answers.truncate(self.random.usize(..=answers.len()));
        }
        let told: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().cloned()).collect();
        sent.answer.send(answers).unwrap();
        self.let_run().await;
        let there = self.there();
        for (at, number) in sent.leases.iter().enumerate() {
            let lease = &mut self.leases[*number];
            let Lasting { length, lost_at } = lease.handle.state().lasting();
            let told = told.get(at).cloned().flatten();
            if lease.due.is_none() {
                continue;
            }
            let found = there.iter().find(|(other, _)| other == number).map(|(_, due)| *due);
            lease.due = match told {
                // The end of its longest hold is looked at by the renewer.
                Some(Renew::Renewed | Renew::Asked) if now >= lost_at => {
                    found.filter(|found| *found <= now)
                }
                Some(Renew::Renewed | Renew::Asked) => {
                    Some(renewal_due(sent_at, length, held).min(lost_at))
                }
                Some(_) => {
                    lease.refuted = true;
                    None
                }
                // Some time later, which is decided by lot.
                None => {
                    let (earliest, latest) = (length.duration() / 16, length.duration() * 5 / 48);
                    let moment = |after| now.saturating_add(after).min(lost_at);
                    let (found, fault) = (found.unwrap(), Duration::from_nanos(99));
                    let about = found.saturating_add(fault);
                    assert!(moment(earliest) <= about);
                    assert!(found <= moment(latest).saturating_add(fault));
                    Some(found)
                }
            };
        }
        let sure = told.iter().flatten().filter(|told| **told == Renew::Renewed).count();
        (sure, sent.leases.len().saturating_sub(sure))
    }

    /// What is in the schedule, and when it is due.
    fn there(&self) -> Vec<(usize, Moment)> {
        let all = self.schedule.due().until(Moment::from_nanos(u64::MAX));
        let number = |found: &Found| {
            let number: usize = found.lease.key.as_str().parse().unwrap();
            assert!(Arc::ptr_eq(&found.lease, &self.leases[number].handle));
            number
        };
        let mut there: Vec<_> = all.iter().map(|found| (number(found), found.at)).collect();
        there.sort_unstable();
        there
    }

    fn check(&mut self) {
        let due = self.leases.iter().enumerate();
        let expected: Vec<_> = due.filter_map(|(at, lease)| Some((at, lease.due?))).collect();
        assert_eq!(self.there(), expected);
        assert_eq!(self.schedule.due().held(), expected.len());
        let mut sooner = std::pin::pin!(self.schedule.sooner.notified());
        self.woken |= sooner.as_mut().enable();
        if let Some(first) = expected.iter().map(|(_, due)| *due).min() {
            assert!(self.woken || self.looks_at.is_some_and(|at| at <= first));
        }
        let now = self.now();
        for lease in &self.leases {
            let handle = &lease.handle;
            let is_held = !handle.state().is_over();
            assert!(is_held || lease.due.is_none());
            let is_back = self.taken_back.contains(&handle.id);
            let is_over = lease.refuted || is_back || now >= handle.lost_at();
            assert!(!is_held || lease.due.is_some() || is_over);
        }
    }
}

/// Time stands still between two steps, so nothing here depends on how fast the machine is.
#[tokio::test]
async fn every_lease_is_renewed_when_it_is_due_and_none_is_forgotten_under_any_fault() {
    let (mut renewed, mut retried, mut handed_on) = (0, 0, 0);
    for seed in 0..24 {
        let mut world = World::new(seed).await;
        for _ in 0..600 {
            match world.random.u8(..20) {
                0..5 => world.take(),
                5 => world.release(),
                6 => world.progress(),
                7 => world.change_length(),
                8 => handed_on += usize::from(world.hand_on()),
                9 => world.claim(),
                10 if world.random.bool() => world.take_away(),
                10..14 => {
                    let (sure, other) = world.answer().await;
                    renewed += sure;
                    retried += other;
                }
                _ => {
                    let longest = *world.random.choice(&[1, 20, 300, 1000]).unwrap();
                    world.clock.advance(Duration::from_micros(world.random.u64(..longest * 1000)));
                    if world.random.u8(..5) > 0 {
                        world.turn();
                    }
                }
            }
            world.let_run().await;
            world.check();
        }
    }
    // It was tried.
    assert!(
        renewed > 1000 && retried > 100 && handed_on > 100,
        "{renewed}, {retried}, {handed_on}"
    );
}

/// Notes when a lease is due as its last request counts as done.
struct Watch {
    schedule: Arc<RenewalSchedule>,
    lease: Arc<LeaseHandle>,
    due_ns: AtomicU64,
}

impl Watch {
    fn due(&self) -> Moment {
        self.schedule.due().at(self.lease.id).unwrap()
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.due_ns.store(self.due().as_nanos(), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_lease_is_at_its_next_moment_before_its_renewal_counts_as_done() {
    let mut world = World::new(1).await;
    for _ in 0..40 {
        world.take();
    }
    world.clock.advance(Duration::from_millis(40));
    world.turn();
    world.let_run().await;
    let mut watched = 0;
    for (Sent { leases, answer }, _) in std::mem::take(&mut world.on_the_way) {
        let watch = |number: &usize| {
            let lease = Arc::clone(&world.leases[*number].handle);
            let schedule = Arc::clone(&world.schedule);
            Arc::new(Watch { schedule, lease, due_ns: AtomicU64::new(0) })
        };
        let watches: Vec<_> = leases.iter().map(watch).collect();
        let mut waiting: Vec<_> =
            watches.iter().map(|watch| Box::pin(watch.lease.settled())).collect();
        for (settled, watch) in waiting.iter_mut().zip(&watches) {
            let waker = Waker::from(Arc::clone(watch));
            assert!(settled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        answer.send(leases.iter().map(|_| Ok(Renew::Renewed)).collect()).unwrap();
        world.let_run().await;
        for watch in &watches {
            assert_eq!(watch.due_ns.load(Ordering::Relaxed), watch.due().as_nanos());
            assert!(watch.due() < watch.lease.lost_at());
            watched += 1;
        }
        drop(waiting);
    }
    assert!(watched > 0);
}

#[tokio::test]
async fn a_lease_that_others_moved_since_it_was_found_due_stays_where_they_put_it() {
    let mut world = World::new(2).await;
    for _ in 0..40 {
        world.take();
    }
    world.clock.advance(Duration::from_millis(40));
    let found = world.schedule.due().until(Moment::from_nanos(u64::MAX));
    let now = world.now();
    for found in &found {
        // As when the holder says that it gets on, right behind the look.
        world.schedule.look_now(&found.lease);
        let (at, _) = world.schedule.look_at(found, now);
        world.schedule.put_off(&[found.to(at.unwrap())]);
        assert_eq!(world.schedule.due().at(found.lease.id), Some(now));
    }
    assert!(!found.is_empty());
}
