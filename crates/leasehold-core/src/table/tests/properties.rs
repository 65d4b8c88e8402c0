//! Random operations by several tokens, checked by a second bookkeeping.
//!
//! It knows only the answers and notices. After every step the two must agree on each hold and its
//! end, and the promises of the table must hold.

mod answers;
mod books;
mod operations;

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::store::HolderInfo;
use books::{Answer, Books, Held, Waits, permits_in};
use operations::{Brought, How, Op, TOKENS, modes, op};

fn renew(lock: &mut Lock, request: &RenewRequest) -> Renew {
    lock.entry.perform(request, lock.now(), &mut lock.notices)
}

/// An operation as it was sent, so that the very same can be sent again.
struct Call<'a> {
    op: &'a Op,
    acquire: Option<AcquireRequest>,
    fences: FenceBlock,
}

struct World {
    lock: Lock,
    books: Books,
    /// Whether a store keeps the entry in its common form between the steps, when it has that.
    is_kept_plain: bool,
}

impl World {
    fn new(modes: Vec<Mode>) -> Self {
        Self { lock: Lock::new(), books: Books::new(modes), is_kept_plain: false }
    }

    fn call<'a>(&mut self, op: &'a Op) -> Call<'a> {
        let (Op::Convert { who, .. }
        | Op::Ask { who: Some(who) }
        | Op::Acquire { who, .. }
        | Op::Renew { who, .. }
        | Op::Release { who, .. }
        | Op::Leave { who }
        | Op::ForceRelease { who }
        | Op::Bury { who }) = *op
        else {
            return Call { op, acquire: None, fences: self.books.known_fences(0) };
        };
        let acquire = self.acquire_request(op);
        Call { op, acquire, fences: self.books.known_fences(who) }
    }

    fn acquire_request(&mut self, op: &Op) -> Option<AcquireRequest> {
        let &Op::Acquire { who, ttl_ms, block, holds, how, ref queue } = op else { return None };
        let mut asked = with_mode(who, ttl_ms, self.books.modes[usize::from(who)]);
        asked.fence_block = count(block);
        asked.holds = count(holds);
        match how {
            How::Plain => {}
            How::Preferred => asked.preferred = true,
            How::Cooldown { ms: cooldown } => asked.cooldown = cool(cooldown),
        }
        if let Some(line) = queue {
            let beat = self.books.beats.entry(who).or_default();
            *beat += 1;
            let mut queue = QueueRequest::new(client(who), u64::from(who), ttl(line.window_ms));
            queue.heartbeat = *beat;
            queue.place = match line.place {
                None => None,
                Some(Brought::Own) => self.books.places.get(&who).copied(),
                Some(Brought::Of(other)) => self.books.places.get(&other).copied(),
                Some(Brought::Near { us, preferred }) => {
                    Some(Place::on_arrival(self.lock.at_us + us, preferred))
                }
            };
            queue.max_waiters = line.max_waiters;
            asked.queue = Some(queue);
        }
        Some(asked)
    }

    fn apply(lock: &mut Lock, call: &Call<'_>) -> Answer {
        match *call.op {
            Op::Acquire { .. } => match lock.acquire(call.acquire.as_ref().unwrap()) {
                Acquire::Granted(granted) => Answer::Granted(granted.fences),
                Acquire::Already(already) => Answer::Already(already),
                Acquire::Waiting(waiting) => Answer::Waiting(waiting),
                Acquire::Busy(busy) => Answer::Busy(busy),
                Acquire::Refused(refusal) => Answer::Refused(refusal),
            },
            Op::Renew { who, ttl_ms, shorten, to_and_fro } => {
                let mut request = RenewRequest::new(key(), token(who), call.fences, ttl(ttl_ms));
                request.shorten = shorten;
                if !to_and_fro {
                    return Answer::Renew(renew(lock, &request));
                }
                request.successor = Some(token(who + TOKENS));
                let answer = renew(lock, &request);
                if answer.proves().is_some() {
                    assert_eq!(renew(lock, &request), answer, "handed over again");
                    request.successor = None;
                    assert_eq!(renew(lock, &request), Renew::NotHeld, "its token is not spent");
                    request.token = token(who + TOKENS);
                    request.successor = Some(token(who));
                    assert_eq!(renew(lock, &request), answer);
                }
                Answer::Renew(answer)
            }
            Op::Convert { who, mode } => {
                let request = ConvertRequest::new(key(), token(who), call.fences, mode);
                Answer::Convert(lock.entry.perform(&request, lock.now(), &mut lock.notices))
            }
            Op::SetLimit { limit } => {
                let request = SetLimitRequest::new(key(), count(limit));
                Answer::SetLimit(lock.entry.perform(&request, lock.now(), &mut lock.notices))
            }
            Op::Ask { who } => {
                let mut request = AskRequest::new(key(), OwnerName::new("operator").unwrap());
                request.fence = who.map(|_| call.fences.first());
                Answer::Ask(lock.entry.perform(&request, lock.now(), &mut lock.notices))
            }
            Op::Release { who, cooldown, remaining, reopen } => {
                let mut request = ReleaseRequest::new(key(), token(who), call.fences);
                request.cooldown = cooldown.map(cool).unwrap_or_default();
                request.remaining = remaining;
                request.reopen = reopen;
                Answer::Release(lock.release_with(&request))
            }
            Op::Leave { who } => Answer::Leave(lock.leave(who)),
            Op::ForceRelease { .. } => {
                Answer::ForceRelease(lock.force_release(call.fences.first()))
            }
            Op::Bury { who } => {
                lock.bury(&[who]);
                Answer::None
            }
            Op::Pass { .. } | Op::Forget => Answer::None,
        }
    }

    /// No token that waits ends, and opens, an earlier lease: each acquisition has a token of its
    /// own, and this one would be handed the lock by its own release.
    fn sensible(&self, op: &Op) -> Op {
        match *op {
            Op::Release { who, cooldown, remaining, .. } if self.books.line.contains_key(&who) => {
                Op::Release { who, cooldown, remaining, reopen: false }
            }
            ref other => other.clone(),
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Pass { us } => {
                self.lock.pass_us(us);
                let us = u32::try_from(us).unwrap();
                self.lock.floor = self.lock.floor.saturating_add(us);
                return;
            }
            Op::Forget if self.lock.entry.may_be_forgotten(self.lock.now()) => {
                assert_eq!(self.lock.inspect(), None);
                self.lock.entry = LockEntry::default();
                self.books.latest = None;
                self.books.line.clear();
                return;
            }
            Op::Forget => return,
            _ => {}
        }
        let at_us = self.lock.at_us;
        let call = self.call(op);
        let head_before = self.books.head();
        let closed_until_before = self.books.closed_until_us.max(at_us);
        let reopens = matches!(op, Op::Release { reopen: true, .. });
        let closed_before = self.books.closed_until_us > at_us && !reopens;
        let gone = |other: u8, waits: &Waits| match *op {
            Op::Leave { who } | Op::Bury { who } => other == who,
            Op::SetLimit { limit } => permits_in(waits.mode) > limit,
            _ => false,
        };
        self.check_obstacle(&call);
        // A notice announces each hand-over, so the books can follow without a look at the entry.
        let answer = Self::apply(&mut self.lock, &call);
        let notices = self.lock.take_notices();
        self.books.held.retain(|_, held| held.expires_us > at_us);
        self.books.hear(call.acquire.as_ref(), at_us);
        self.books.enter_notices(&notices, gone, closed_before, at_us);
        let end_before = self.books.end_for(op);
        self.enter_answer(&call, &answer, closed_before);
        self.compare();
        // The head has to set its timer again after a cooldown, and after a lease was shortened.
        let closes = self.books.closed_until_us > closed_until_before;
        let is_shorter =
            end_before.zip(self.books.end_for(op)).is_some_and(|(before, after)| after < before);
        self.check_line(op, head_before.filter(|_| !closes && !is_shorter), &notices);
        self.check_repeat(&call, &answer, &notices);
        if self.is_kept_plain
            && let Some(plain) = self.lock.entry.plain(self.lock.at())
        {
            self.lock.entry = LockEntry::from(plain);
        }
    }

    /// The table names the obstacle that the request itself would have met, and only if it would
    /// have met one.
    fn check_obstacle(&self, call: &Call<'_>) {
        let Some(asked) = &call.acquire else { return };
        let asked = AcquireRequest { queue: None, ..asked.clone() };
        let (mut looked, mut taken) = (self.lock.clone(), self.lock.clone());
        let obstacle = looked.entry.perform(&Obstacle(&asked), looked.now(), &mut looked.notices);
        if taken.entry.tokens().any(|token| *token == asked.token) && obstacle.is_some() {
            return;
        }
        let answer = taken.acquire(&asked);
        match obstacle {
            None => assert!(answer.fences().is_some(), "{answer:?} without an obstacle"),
            Some(obstacle) => assert_eq!(format!("{obstacle:?}"), format!("{answer:?}")),
        }
    }

    /// The entry shows exactly what the books say, and no two holds exclude each other.
    fn compare(&mut self) {
        let at_us = self.lock.at_us;
        let info = self.lock.inspect();
        let holders = info.as_ref().map(|info| &info.holders[..]).unwrap_or_default();
        let shown: BTreeMap<u8, &HolderInfo> =
            holders.iter().map(|holder| (number(&holder.owner), holder)).collect();
        assert_eq!(shown.len(), holders.len(), "a token holds twice");
        assert!(shown.keys().eq(self.books.held.keys()), "{shown:?} {:?}", self.books.held);
        for (who, held) in &self.books.held {
            let holder = shown[who];
            assert_eq!(holder.fence, held.fences.first());
            assert_eq!(holder.holds, held.holds);
            assert_eq!(holder.remaining, Duration::from_micros(held.expires_us - at_us));
            assert_eq!(holder.mode, held.mode);
            assert_eq!(holder.asked_by.is_some(), held.asked);
        }
        assert!(holders.is_sorted_by_key(|holder| holder.fence), "not in the order of grants");
        if holders.iter().any(|holder| holder.mode == Mode::Exclusive) {
            assert_eq!(holders.len(), 1, "an exclusive holder is not alone");
        }
        let closed_us = self.books.closed_until_us.saturating_sub(at_us);
        let closed = info.as_ref().and_then(|info| info.closed_for);
        assert_eq!(closed.unwrap_or_default(), Duration::from_micros(closed_us));

        // A token without a hold or a position is not kept.
        let kept: Vec<Token> = self.lock.entry.tokens().copied().collect();
        for who in self.books.held.keys() {
            assert!(kept.contains(&token(*who)));
        }
        let (stay, gone) = std::mem::take(&mut self.books.line)
            .into_iter()
            .partition(|(who, _)| kept.contains(&token(*who)));
        self.books.line = stay;
        assert_eq!(kept.len(), self.books.held.len() + self.books.line.len());
        let gone: BTreeMap<u8, Waits> = gone;
        for (who, waits) in gone {
            assert!(!waits.servable(at_us), "{who} lost its place while it was alive");
        }
    }

    /// Waiters wait only for what is held, in the order of their positions. A new head is notified
    /// if it would oversleep, and only then.
    fn check_line(&self, op: &Op, head_before: Option<u8>, notices: &[Notice]) {
        let at_us = self.lock.at_us;
        let info = self.lock.inspect();
        let holders = info.as_ref().map(|info| &info.holders[..]).unwrap_or_default();
        let mut places: Vec<(Place, u8)> =
            self.books.line.iter().map(|(who, waits)| (waits.place, *who)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].0 < two[1].0), "a place is taken twice");
        let alive = places.iter().map(|(_, who)| *who);
        let alive: Vec<u8> = alive.filter(|who| self.books.line[who].left(at_us) > 0).collect();
        assert_eq!(self.lock.waiters(), alive);

        let closed = self.books.closed_until_us > at_us;
        if let Some(head) = alive.first().copied()
            && !closed
        {
            let mode = self.books.line[&head].mode;
            assert!(!would_admit(holders, mode), "{head} waits for a lock that is free");
        }

        let told: Vec<&Notice> =
            notices.iter().filter(|notice| matches!(notice.wake, Wake::First { .. })).collect();
        let asker = if let Op::Acquire { who, .. } = *op { Some(who) } else { None };
        let oversleeps = places.first().and_then(|&(_, head)| {
            let waits = &self.books.line[&head];
            let next_end = holders.iter().map(|holder| holder.remaining).min().unwrap_or_default();
            let closed_us = self.books.closed_until_us.saturating_sub(at_us);
            let free_in = next_end.max(Duration::from_micros(closed_us));
            let next_beat = waits.seen_us + waits.window_us / 3;
            let in_time = self.lock.at().saturating_add(free_in).as_micros() >= next_beat;
            let is_new = head_before != Some(head) && asker != Some(head);
            (is_new && !in_time).then_some((head, free_in))
        });
        match oversleeps {
            Some((head, retry_after)) => {
                let wake = Wake::First { ticket: u64::from(head), retry_after };
                assert_eq!(told, [&Notice { client: client(head), wake }]);
            }
            None => assert!(told.is_empty(), "{told:?} need not know"),
        }
    }

    /// The same request again has the same answer, and no effect or notification.
    fn check_repeat(&self, call: &Call<'_>, answer: &Answer, notices: &[Notice]) {
        let mut lock = self.lock.clone();
        let again = Self::apply(&mut lock, call);
        assert_eq!(lock.entry, self.lock.entry, "repeating changed the entry");
        assert!(lock.notices.is_empty(), "a repetition notified a waiter");
        let handed_on = !grants(notices).is_empty();
        let expected = match (call.op, answer) {
            (&Op::Acquire { holds, .. }, Answer::Granted(fences)) => {
                Answer::Already(Already::new(*fences, holds))
            }
            (_, Answer::Release(Release::Released | Release::Late)) if handed_on => return,
            (_, Answer::Leave(_)) => Answer::Leave(Leave::NotHeld),
            (&Op::SetLimit { limit }, Answer::SetLimit(SetLimit::Set { .. })) => {
                Answer::SetLimit(SetLimit::Set { before: count(limit) })
            }
            (_, Answer::ForceRelease(ForceRelease::Released)) => {
                assert!(!matches!(again, Answer::ForceRelease(ForceRelease::Released)));
                return;
            }
            (_, answer) => answer.clone(),
        };
        assert_eq!(again, expected);
    }
}

fn taken(holders: &[HolderInfo]) -> u32 {
    holders.iter().map(|holder| permits_in(holder.mode)).sum()
}

fn would_admit(holders: &[HolderInfo], mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => holders.is_empty(),
        Mode::Shared => holders.iter().all(|holder| holder.mode == Mode::Shared),
        // Not among the modes here; the description hides which holder has which bond.
        Mode::Joint(_) => false,
        Mode::Permits { count, limit } => taken(holders) + count.get() <= limit.get(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_use_keeps_every_promise(modes in modes(), ops in vec(op(), 1..80)) {
        let mut world = World::new(modes);
        for op in &ops {
            world.step(&world.sensible(op));
        }
    }

    #[test]
    fn an_entry_behaves_the_same_after_it_was_kept_in_its_common_form(
        modes in modes(),
        ops in vec(op(), 1..80),
    ) {
        let mut world = World { is_kept_plain: true, ..World::new(modes) };
        for op in &ops {
            world.step(&world.sensible(op));
        }
    }
}
