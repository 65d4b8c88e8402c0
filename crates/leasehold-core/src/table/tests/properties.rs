//! Random use by several tokens, followed by a second bookkeeping that knows only the answers and
//! notices. After every step the two must agree on who holds what until when, and the promises of
//! the table must hold.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::store::HolderInfo;

const TOKENS: u8 = 5;
const LIMIT: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    Pass { us: u64 },
    Acquire { who: u8, ttl_ms: u64, block: u32, holds: u32, how: How, queue: Option<Line> },
    Convert { who: u8, mode: Mode },
    SetLimit { limit: u32 },
    Ask { who: Option<u8> },
    Renew { who: u8, ttl_ms: u64, shorten: bool, to_and_fro: bool },
    Release { who: u8, cooldown: Option<u64>, remaining: u32, reopen: bool },
    Leave { who: u8 },
    ForceRelease { who: u8 },
    Bury { who: u8 },
    Forget,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Plain,
    Preferred,
    Closing { ms: u64 },
}

#[derive(Clone, Debug)]
struct Line {
    window_ms: u64,
    place: Option<Brought>,
    waiters_max: Option<u32>,
}

/// Which place a waiter asks to have back.
#[derive(Clone, Copy, Debug)]
enum Brought {
    Own,
    Of(u8),
    /// One that may have been given at this moment, or soon will be.
    Near {
        us: u64,
        preferred: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let who = || 0..TOKENS;
    let ttl = || select(vec![40, 100, 300, 3_000]);
    let brought = prop_oneof![
        4 => Just(Brought::Own),
        1 => who().prop_map(Brought::Of),
        1 => (0..8_u64, any::<bool>()).prop_map(|(us, preferred)| Brought::Near { us, preferred }),
    ];
    let line = (
        select(vec![90, 300, 900]),
        proptest::option::weighted(0.6, brought),
        proptest::option::weighted(0.2, 0..3_u32),
    )
        .prop_map(|(window_ms, place, waiters_max)| Line { window_ms, place, waiters_max });
    let queue = proptest::option::weighted(0.7, line);
    let how = prop_oneof![
        6 => Just(How::Plain),
        2 => Just(How::Preferred),
        1 => select(vec![0, 50, 400]).prop_map(|ms| How::Closing { ms }),
    ];
    let mode = prop_oneof![
        2 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared),
        2 => (1..=LIMIT + 1, LIMIT..=LIMIT + 1).prop_map(|(n, limit)| permits(n, limit)),
    ];
    let cooldown = proptest::option::weighted(0.2, select(vec![0, 50, 400]));
    prop_oneof![
        5 => select(vec![0, 1, 999, 20_000, 30_000, 45_000, 100_000, 150_000, 300_000, 4_000_000])
            .prop_map(|us| Op::Pass { us }),
        8 => (who(), ttl(), select(vec![1, 1, 64, 200_000]), 1..3_u32, how, queue).prop_map(
            |(who, ttl_ms, block, holds, how, queue)| {
                Op::Acquire { who, ttl_ms, block, holds, how, queue }
            }
        ),
        2 => (who(), mode).prop_map(|(who, mode)| Op::Convert { who, mode }),
        1 => (1..=LIMIT + 2).prop_map(|limit| Op::SetLimit { limit }),
        1 => proptest::option::of(who()).prop_map(|who| Op::Ask { who }),
        2 => (who(), ttl(), any::<bool>(), proptest::bool::weighted(0.3)).prop_map(
            |(who, ttl_ms, shorten, to_and_fro)| Op::Renew { who, ttl_ms, shorten, to_and_fro }
        ),
        4 => (who(), cooldown, select(vec![0, 0, 0, 1]), proptest::bool::weighted(0.2)).prop_map(
            |(who, cooldown, remaining, reopen)| Op::Release { who, cooldown, remaining, reopen }
        ),
        2 => who().prop_map(|who| Op::Leave { who }),
        1 => who().prop_map(|who| Op::ForceRelease { who }),
        1 => who().prop_map(|who| Op::Bury { who }),
        1 => Just(Op::Forget),
    ]
}

/// How each token wants to hold; in a mixed crowd the kinds clash and refusals happen.
fn modes() -> impl Strategy<Value = Vec<Mode>> {
    let lock = || prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)].boxed();
    let semaphore = || (1..=LIMIT).prop_map(|n| permits(n, LIMIT)).boxed();
    let other = (1..=LIMIT + 2).prop_map(|n| permits(n, LIMIT + 1)).boxed();
    let mixed = prop_oneof![8 => lock(), 1 => semaphore(), 1 => other];
    let tokens = usize::from(TOKENS);
    prop_oneof![
        3 => vec(lock(), tokens),
        2 => vec(semaphore(), tokens),
        1 => vec(mixed, tokens),
        1 => Just(vec![Mode::Exclusive; tokens]),
    ]
}

/// What an operation answered.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Granted(FenceBlock),
    Already(Already),
    Waiting(Waiting),
    Busy(Busy),
    Refused(Refusal),
    Renew(Renew),
    Release(Release),
    Leave(Leave),
    ForceRelease(ForceRelease),
    Convert(Convert),
    SetLimit(SetLimit),
    Ask(Ask),
    None,
}

#[derive(Clone, Debug)]
struct Held {
    fences: FenceBlock,
    mode: Mode,
    asked: bool,
    holds: u32,
    expires_us: u64,
}

#[derive(Clone, Debug)]
struct Waits {
    place: Place,
    mode: Mode,
    heartbeat: u32,
    seen_us: u64,
    window_us: u64,
}

impl Waits {
    fn left(&self, at_us: u64) -> u64 {
        (self.seen_us + self.window_us).saturating_sub(at_us)
    }

    fn servable(&self, at_us: u64) -> bool {
        self.left(at_us) * 2 >= self.window_us
    }
}

/// The second bookkeeping.
#[derive(Debug)]
struct Books {
    modes: Vec<Mode>,
    held: BTreeMap<u8, Held>,
    line: BTreeMap<u8, Waits>,
    /// The last lease and the last place that each token was told of.
    fences: BTreeMap<u8, FenceBlock>,
    places: BTreeMap<u8, Place>,
    beats: BTreeMap<u8, u32>,
    /// The next places to give to those who are preferred and to the others, once some were given
    /// since the line was empty.
    next_places: [Option<Place>; 2],
    closed_until_us: u64,
    top_fence: Fence,
    /// Who got the latest lease, while the entry knows, and did not give it back.
    latest: Option<u8>,
}

impl Books {
    fn new(modes: Vec<Mode>) -> Self {
        Self {
            modes,
            held: BTreeMap::new(),
            line: BTreeMap::new(),
            fences: BTreeMap::new(),
            places: BTreeMap::new(),
            beats: BTreeMap::new(),
            next_places: [None; 2],
            closed_until_us: 0,
            top_fence: Fence::ZERO,
            latest: None,
        }
    }

    fn known_fences(&self, who: u8) -> FenceBlock {
        self.fences.get(&who).copied().unwrap_or(FenceBlock::new(Fence::ZERO, 1))
    }

    fn reopen(&mut self, asked: bool) {
        if asked {
            self.closed_until_us = 0;
        }
    }

    fn permits(&self) -> u32 {
        self.held.values().map(|held| permits_in(held.mode)).sum()
    }

    fn permits_of(&self, who: u8) -> u32 {
        self.held.get(&who).map_or(0, |held| permits_in(held.mode))
    }

    fn head(&self) -> Option<u8> {
        self.line.iter().min_by_key(|(_, waits)| waits.place).map(|(who, _)| *who)
    }

    /// Whether a place that is brought can be one that was given, and is nobody else's of those that
    /// have something now: no place is given ahead of the time but behind another one.
    fn may_have_given(&self, place: Place, in_line: &[Token], at_us: u64) -> bool {
        let present = Place::on_arrival(at_us, place.is_preferred());
        let next = self.next_places[usize::from(!place.is_preferred())].unwrap_or(present);
        let mut others = self.line.iter().filter(|(who, _)| in_line.contains(&token(**who)));
        (place <= present || place < next) && others.all(|(_, waits)| waits.place != place)
    }

    /// Enters that a newcomer got this place: the one that it brings, if that may be, or the next.
    fn give(&mut self, place: Place, asked: &AcquireRequest, in_line: &[Token], at_us: u64) {
        let mut others = self.line.keys().filter(|who| in_line.contains(&token(**who)));
        if others.next().is_none() {
            self.next_places = [None; 2];
        }
        let brought = asked.queue.as_ref().and_then(|queue| queue.place);
        let brought = brought.filter(|place| self.may_have_given(*place, in_line, at_us));
        let preferred = brought.map_or(asked.preferred, Place::is_preferred);
        let next = &mut self.next_places[usize::from(!preferred)];
        let following = next.unwrap_or_else(|| Place::on_arrival(at_us, preferred));
        assert_eq!(place, brought.unwrap_or(following), "not the place that is due");
        *next = Some(following.max(place.following()));
    }

    fn grant(&mut self, who: u8, held: Held) {
        let fences = held.fences;
        assert!(fences.first() > self.top_fence, "fences overlap or fall");
        self.top_fence = fences.last();
        self.fences.insert(who, fences);
        self.latest = Some(who);
        assert!(self.held.insert(who, held).is_none(), "granted to its holder");
    }

    /// Enters that a waiter gave a sign of life.
    fn hear(&mut self, asked: Option<&AcquireRequest>, at_us: u64) {
        let Some(asked) = asked else { return };
        let Some(queue) = &asked.queue else { return };
        if let Some(waits) = self.line.get_mut(&number(&asked.owner)) {
            waits.seen_us = at_us;
            waits.heartbeat = queue.heartbeat;
            waits.window_us = u64::from(queue.window.as_millis()) * 1_000;
        }
    }

    /// Enters the grants to waiters that a step announced.
    fn enter_notices(
        &mut self,
        notices: &[Notice],
        gone: impl Fn(u8, &Waits) -> bool,
        closed: bool,
        at_us: u64,
    ) {
        for notice in notices {
            let Wake::Granted { ticket, heartbeat, fences } = notice.wake else { continue };
            assert!(!closed, "handed over during a cool-down");
            let who = u8::try_from(ticket).unwrap();
            assert_eq!(notice.client, client(who), "told to a stranger");
            let waits = self.line.remove(&who).expect("only waiters are told of grants");
            assert_eq!(heartbeat, waits.heartbeat);
            assert!(waits.servable(at_us), "handed to a waiter with too little left");
            let skipped = self.line.iter().find(|(other, others)| {
                others.place < waits.place && others.servable(at_us) && !gone(**other, others)
            });
            assert!(skipped.is_none(), "{who} was served before {skipped:?}");
            let expires_us = waits.seen_us + waits.window_us;
            let mode = waits.mode;
            self.grant(who, Held { fences, mode, asked: false, holds: 1, expires_us });
        }
    }
}

fn renew(lock: &mut Lock, request: &RenewRequest) -> Renew {
    lock.entry.renew(request, lock.now(), &mut lock.notices)
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
}

impl World {
    fn new(modes: Vec<Mode>) -> Self {
        Self { lock: Lock::new(), books: Books::new(modes) }
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
            How::Closing { ms: close_for } => asked.close_for = Some(ms(close_for)),
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
            queue.waiters_max = line.waiters_max;
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
                Answer::Convert(lock.entry.convert(&request, lock.now(), &mut lock.notices))
            }
            Op::SetLimit { limit } => {
                let request = SetLimitRequest::new(key(), count(limit));
                Answer::SetLimit(lock.entry.set_limit(&request, lock.now(), &mut lock.notices))
            }
            Op::Ask { who } => {
                let mut request = AskRequest::new(key(), OwnerName::new("operator").unwrap());
                request.fence = who.map(|_| call.fences.first());
                Answer::Ask(lock.entry.ask(&request, lock.now(), &mut lock.notices))
            }
            Op::Release { who, cooldown, remaining, reopen } => {
                let mut request = ReleaseRequest::new(key(), token(who), call.fences);
                request.cooldown = cooldown.map(ms);
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
        // A hand-over is told of in a notice, so the books can follow without asking the entry.
        let answer = Self::apply(&mut self.lock, &call);
        let notices = self.lock.take_notices();
        self.books.held.retain(|_, held| held.expires_us > at_us);
        self.books.hear(call.acquire.as_ref(), at_us);
        self.books.enter_notices(&notices, gone, closed_before, at_us);
        self.enter_answer(&call, &answer, closed_before);
        self.compare();
        // Whoever stood first before a cool-down has to reckon anew.
        let closes = self.books.closed_until_us > closed_until_before;
        self.check_line(op, head_before.filter(|_| !closes), &notices);
        self.check_repeat(&call, &answer, &notices);
    }

    /// What is said to be in the way is what asking would have said, and nothing where it would
    /// not have been.
    fn check_obstacle(&self, call: &Call<'_>) {
        let Some(asked) = &call.acquire else { return };
        let asked = AcquireRequest { queue: None, ..asked.clone() };
        let (mut looked, mut taken) = (self.lock.clone(), self.lock.clone());
        let obstacle = looked.entry.obstacle(&asked, looked.now(), &mut looked.notices);
        if taken.entry.tokens().any(|token| *token == asked.token) && obstacle.is_some() {
            return;
        }
        let answer = taken.acquire(&asked);
        match obstacle {
            None => assert!(answer.fences().is_some(), "{answer:?} without an obstacle"),
            Some(obstacle) => assert_eq!(format!("{obstacle:?}"), format!("{answer:?}")),
        }
    }

    fn enter_answer(&mut self, call: &Call<'_>, answer: &Answer, closed: bool) {
        let at_us = self.lock.at_us;
        let queue = call.acquire.as_ref().and_then(|asked| asked.queue.as_ref());
        let in_line: Vec<Token> = self.lock.entry.tokens().copied().collect();
        let books = &mut self.books;
        match (call.op, answer) {
            (&Op::Acquire { who, ttl_ms, holds, block, how, .. }, &Answer::Granted(fences)) => {
                assert!(!closed, "granted during a cool-down");
                let place = queue.and_then(|queue| queue.place);
                let preferred = matches!(how, How::Preferred);
                let kept = place.filter(|place| books.may_have_given(*place, &in_line, at_us));
                let mut before = books.line.values().filter(|other| {
                    let behind = match kept {
                        Some(place) => other.place > place,
                        None => preferred && !other.place.is_preferred(),
                    };
                    !behind && other.servable(at_us)
                });
                assert!(before.next().is_none(), "granted past the line");
                assert_eq!(fences.count(), block);
                books.line.remove(&who);
                if let How::Closing { ms } = how {
                    books.closed_until_us = books.closed_until_us.max(at_us + ms * 1_000);
                }
                let mode = books.modes[usize::from(who)];
                let expires_us = at_us + ttl_ms * 1_000;
                books.grant(who, Held { fences, mode, asked: false, holds, expires_us });
            }
            (&Op::Acquire { who, ttl_ms, holds, .. }, &Answer::Already(already)) => {
                let held = books.held.get_mut(&who).expect("it holds already");
                held.expires_us = held.expires_us.max(at_us + ttl_ms * 1_000);
                held.holds = holds;
                assert_eq!(already, Already::new(held.fences, holds));
            }
            (&Op::Acquire { who, .. }, Answer::Waiting(waiting)) => {
                assert!(!books.held.contains_key(&who), "a holder is not put in line");
                let known = books.line.get(&who).cloned();
                if let (None, Some(asked)) = (&known, &call.acquire) {
                    books.give(waiting.place, asked, &in_line, at_us);
                }
                let waits = match (queue, known) {
                    (Some(queue), known) => Waits {
                        place: waiting.place,
                        mode: known
                            .map_or_else(|| books.modes[usize::from(who)], |waits| waits.mode),
                        heartbeat: queue.heartbeat,
                        seen_us: at_us,
                        window_us: u64::from(queue.window.as_millis()) * 1_000,
                    },
                    (None, known) => known.expect("nobody is put in line unasked"),
                };
                assert_eq!(waits.place, waiting.place);
                books.places.insert(who, waiting.place);
                books.line.insert(who, waits);
            }
            (&Op::Acquire { who, .. }, Answer::Busy(busy)) => {
                assert!(!books.held.contains_key(&who), "a holder is not refused its own lock");
                assert!(!busy.retry_after.is_zero(), "busy, and free at once");
            }
            (
                &Op::Renew { who, ttl_ms, shorten, .. },
                Answer::Renew(answer @ (Renew::Renewed | Renew::Asked)),
            ) => {
                let expires_us = at_us + ttl_ms * 1_000;
                let held = books.held.get_mut(&who).expect("only a holder renews");
                assert_eq!(held.asked, *answer == Renew::Asked);
                held.expires_us =
                    if shorten { expires_us } else { held.expires_us.max(expires_us) };
            }
            (&Op::Renew { who, .. }, Answer::Renew(answer)) => {
                assert!(!books.held.contains_key(&who), "a holder was refused its renewal");
                let late = books.latest == Some(who) && books.held.is_empty();
                assert_eq!(*answer, if late { Renew::Late } else { Renew::NotHeld });
            }
            (&Op::Convert { who, mode }, Answer::Convert(answer)) => match *answer {
                Convert::Converted(converted) => {
                    let alone = books.held.len() == 1;
                    let others = books.permits() - books.permits_of(who);
                    let held = books.held.get_mut(&who).expect("only a holder converts");
                    let upgraded = (held.mode, mode) == (Mode::Shared, Mode::Exclusive);
                    if let Mode::Permits { count, limit } = mode {
                        let fewer = permits_in(mode) <= permits_in(held.mode);
                        assert!(fewer || others + count.get() <= limit.get(), "beyond the limit");
                    }
                    held.mode = mode;
                    if upgraded {
                        assert!(alone, "an upgrade beside others");
                        assert!(converted.fences.first() > books.top_fence);
                        held.fences = converted.fences;
                        books.top_fence = converted.fences.last();
                        books.fences.insert(who, converted.fences);
                        books.latest = Some(who);
                    } else {
                        assert_eq!(converted.fences, held.fences);
                    }
                }
                Convert::Busy { others } => {
                    let held = &books.held[&who];
                    match held.mode {
                        Mode::Shared => assert_eq!(others as usize, books.held.len() - 1),
                        _ => assert_eq!(others, books.permits() - books.permits_of(who)),
                    }
                }
                Convert::Refused(_) => assert!(books.held.contains_key(&who)),
                Convert::Late => assert_eq!(books.latest, Some(who)),
                Convert::NotHeld => {
                    // A downgrade must name the lease's fences, or it is an old one that comes late.
                    let knows = books
                        .held
                        .get(&who)
                        .is_none_or(|held| held.fences.last() == call.fences.last());
                    assert!(!knows || !books.held.contains_key(&who), "a holder was refused");
                    assert!(!knows || books.latest != Some(who) || !books.held.is_empty());
                }
            },
            (&Op::SetLimit { limit }, Answer::SetLimit(SetLimit::Set { .. })) => {
                books.line.retain(|_, waits| permits_in(waits.mode) <= limit);
                let line = books.line.values_mut().map(|waits| &mut waits.mode);
                for mode in books.held.values_mut().map(|held| &mut held.mode).chain(line) {
                    *mode = permits(permits_in(*mode), limit);
                }
            }
            (&Op::Ask { who }, Answer::Ask(answer)) => {
                let mut asked = 0;
                for held in books.held.values_mut() {
                    if who.is_none() || held.fences.contains(call.fences.first()) {
                        held.asked = true;
                        asked += 1;
                    }
                }
                let expected =
                    if asked == 0 { Ask::NotHeld } else { Ask::Asked { holders: asked } };
                assert_eq!(*answer, expected);
            }
            (&Op::Release { who, cooldown, reopen, .. }, Answer::Release(answer)) => {
                match *answer {
                    Release::StillHeld { holds } => {
                        books.held.get_mut(&who).expect("only a holder releases").holds = holds;
                    }
                    Release::Released => {
                        if books.held.remove(&who).is_some() {
                            books.latest = books.latest.filter(|latest| *latest != who);
                            books.reopen(reopen);
                            let until = at_us + cooldown.unwrap_or(0) * 1_000;
                            books.closed_until_us = books.closed_until_us.max(until);
                        }
                    }
                    Release::Late => {
                        assert!(!books.held.contains_key(&who));
                        // A lock that is opened again may be handed on in the same step.
                        assert!(reopen || books.latest == Some(who), "late, but somebody came");
                        books.reopen(reopen);
                        let until = at_us + cooldown.unwrap_or(0) * 1_000;
                        books.closed_until_us = books.closed_until_us.max(until);
                    }
                    Release::NotHeld => {
                        assert!(!books.held.contains_key(&who), "a holder's release was refused");
                        let late = books.latest == Some(who) && books.held.is_empty();
                        assert!(!late, "nobody came, so it is only late");
                    }
                }
            }
            (&Op::Leave { who }, Answer::Leave(answer)) => {
                let had = books.held.remove(&who).is_some();
                assert_eq!(had, *answer == Leave::Released);
                books.latest = books.latest.filter(|latest| !had || *latest != who);
                let waited = books.line.remove(&who);
                let alive = waited.is_some_and(|waits| waits.servable(at_us));
                assert!(!alive || *answer == Leave::Left);
            }
            (&Op::ForceRelease { who }, Answer::ForceRelease(answer)) => {
                let seen = books.held.get(&who).is_some_and(|held| held.fences == call.fences);
                assert_eq!(seen, *answer == ForceRelease::Released);
                if seen {
                    books.held.remove(&who);
                    // The fence was raised, unless somebody has been served after that.
                    if self.lock.entry.last_fence() != Some(books.top_fence) {
                        assert!(self.lock.entry.last_fence() > Some(books.top_fence));
                        books.latest = None;
                    }
                }
            }
            (&Op::Bury { who }, _) => {
                books.held.remove(&who);
                books.line.remove(&who);
            }
            _ => {}
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

        // Who has neither a hold nor a place is not kept.
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

    /// Nobody waits for what is free, the order is that of the places, and whoever became the
    /// head is told if it would oversleep, and only then.
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
        // A renewal tells before it extends, so only who is told can be known here.
        match oversleeps {
            Some((head, retry_after)) if !matches!(op, Op::Renew { .. }) => {
                let wake = Wake::First { ticket: u64::from(head), retry_after };
                assert_eq!(told, [&Notice { client: client(head), wake }]);
            }
            Some(_) => {}
            None if matches!(op, Op::Renew { .. }) => {}
            None => assert!(told.is_empty(), "{told:?} need not know"),
        }
    }

    /// The same request again changes nothing, tells nobody, and is answered alike.
    fn check_repeat(&self, call: &Call<'_>, answer: &Answer, notices: &[Notice]) {
        let mut lock = self.lock.clone();
        let again = Self::apply(&mut lock, call);
        assert_eq!(lock.entry, self.lock.entry, "repeating changed the entry");
        assert!(lock.notices.is_empty(), "repeating told somebody");
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

fn permits_in(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { count, .. } => count.get(),
        Mode::Exclusive | Mode::Shared => 0,
    }
}

fn would_admit(holders: &[HolderInfo], mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => holders.is_empty(),
        Mode::Shared => holders.iter().all(|holder| holder.mode == Mode::Shared),
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
}
