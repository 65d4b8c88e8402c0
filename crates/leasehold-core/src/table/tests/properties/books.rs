//! The second bookkeeping: what is held and waited for, by the answers and notices.

use super::*;

/// What an operation answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
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
pub(super) struct Held {
    pub(super) fences: FenceBlock,
    pub(super) mode: Mode,
    pub(super) asked: bool,
    pub(super) holds: u32,
    pub(super) expires_us: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Waits {
    pub(super) place: Place,
    pub(super) mode: Mode,
    pub(super) heartbeat: u32,
    pub(super) seen_us: u64,
    pub(super) window_us: u64,
}

impl Waits {
    pub(super) fn left(&self, at_us: u64) -> u64 {
        (self.seen_us + self.window_us).saturating_sub(at_us)
    }

    pub(super) fn servable(&self, at_us: u64) -> bool {
        self.left(at_us) * 2 >= self.window_us
    }
}

/// The second bookkeeping.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) modes: Vec<Mode>,
    pub(super) held: BTreeMap<u8, Held>,
    pub(super) line: BTreeMap<u8, Waits>,
    /// The last lease and the last position that each token knows of.
    pub(super) fences: BTreeMap<u8, FenceBlock>,
    pub(super) places: BTreeMap<u8, Place>,
    pub(super) beats: BTreeMap<u8, u32>,
    /// The next positions to give, to preferred waiters and to the others, once some were given
    /// since the queue was empty.
    pub(super) next_places: [Option<Place>; 2],
    pub(super) closed_until_us: u64,
    pub(super) top_fence: Fence,
    /// The holder of the latest lease, while the entry knows it and it was not released.
    pub(super) latest: Option<u8>,
}

impl Books {
    pub(super) fn new(modes: Vec<Mode>) -> Self {
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

    pub(super) fn known_fences(&self, who: u8) -> FenceBlock {
        self.fences.get(&who).copied().unwrap_or(FenceBlock::new(Fence::ZERO, 1))
    }

    pub(super) fn reopen(&mut self, asked: bool) {
        if asked {
            self.closed_until_us = 0;
        }
    }

    pub(super) fn permits(&self) -> u32 {
        self.held.values().map(|held| permits_in(held.mode)).sum()
    }

    pub(super) fn permits_of(&self, who: u8) -> u32 {
        self.held.get(&who).map_or(0, |held| permits_in(held.mode))
    }

    pub(super) fn head(&self) -> Option<u8> {
        self.line.iter().min_by_key(|(_, waits)| waits.place).map(|(who, _)| *who)
    }

    /// When the lease ends that an operation renews.
    pub(super) fn end_for(&self, op: &Op) -> Option<u64> {
        let &Op::Renew { who, .. } = op else { return None };
        self.held.get(&who).map(|held| held.expires_us)
    }

    /// Whether a position that a waiter brings can have been given, and belongs to no other token
    /// now. A position ahead of the time is only given behind another one.
    pub(super) fn may_have_given(&self, place: Place, in_line: &[Token], at_us: u64) -> bool {
        let present = Place::on_arrival(at_us, place.is_preferred());
        let next = self.next_places[usize::from(!place.is_preferred())].unwrap_or(present);
        let mut others = self.line.iter().filter(|(who, _)| in_line.contains(&token(**who)));
        (place <= present || place < next) && others.all(|(_, waits)| waits.place != place)
    }

    /// Enters that a newcomer got this position: the one that it brings, if that is possible, or
    /// the next.
    pub(super) fn give(
        &mut self,
        place: Place,
        asked: &AcquireRequest,
        in_line: &[Token],
        at_us: u64,
    ) {
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

    pub(super) fn grant(&mut self, who: u8, held: Held) {
        let fences = held.fences;
        assert!(fences.first() > self.top_fence, "fences overlap or fall");
        self.top_fence = fences.last();
        self.fences.insert(who, fences);
        self.latest = Some(who);
        assert!(self.held.insert(who, held).is_none(), "granted to its holder");
    }

    /// Enters a waiter's heartbeat.
    pub(super) fn hear(&mut self, asked: Option<&AcquireRequest>, at_us: u64) {
        let Some(asked) = asked else { return };
        let Some(queue) = &asked.queue else { return };
        if let Some(waits) = self.line.get_mut(&number(&asked.owner)) {
            waits.seen_us = at_us;
            waits.heartbeat = queue.heartbeat;
            waits.window_us = u64::from(queue.window.as_millis()) * 1_000;
        }
    }

    /// Enters the grants to waiters that a step announced.
    pub(super) fn enter_notices(
        &mut self,
        notices: &[Notice],
        gone: impl Fn(u8, &Waits) -> bool,
        closed: bool,
        at_us: u64,
    ) {
        for notice in notices {
            let Wake::Granted { ticket, heartbeat, fences } = notice.wake else { continue };
            assert!(!closed, "granted during a cooldown");
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

pub(super) fn permits_in(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { count, .. } => count.get(),
        Mode::Exclusive | Mode::Shared | Mode::Joint(_) => 0,
    }
}
