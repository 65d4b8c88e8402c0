//! Draws random operations: few callers, few lengths of time, and many coincidences.

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Bond, ConvertRequest, Cooldown, FenceBlock, Key, Metadata, Mode, OwnerName,
    Place, QueueRequest, ReleaseRequest, RenewRequest, Ttl,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{EPOCHS, Known, TOKENS, client, token};

/// An operation, and the time before it.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Negative if the server's clock is set back.
    pub(super) pass_us: i64,
    pub(super) epoch: u64,
    pub(super) operation: Operation,
}

impl Step {
    /// The ticket of the waiter that abandons its request or lease.
    pub(super) fn ends(&self) -> Option<u64> {
        match &self.operation {
            Operation::Leave { who, .. } | Operation::Release(Ending { who, .. }) => {
                Some(u64::from(*who))
            }
            _ => None,
        }
    }

    /// Whether it renews the lease of the waiter with this ticket.
    pub(super) fn renews(&self, ticket: u64) -> bool {
        match &self.operation {
            Operation::Renew(renewals) => renewals.iter().any(|renewal| renewal.is_by(ticket)),
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Acquire(Taking),
    AcquireAll(Taking),
    Convert(Change),
    SetLimit(u32),
    Ask { who: Option<u8>, later: u32, by: u8 },
    Renew(Vec<Renewal>),
    Release(Ending),
    Leave { who: u8, reopen: bool },
    ForceRelease { who: u8, later: u32 },
}

#[derive(Clone, Debug)]
pub(super) struct Taking {
    who: u8,
    mode: Mode,
    ttl_ms: u64,
    block: u32,
    holds: u32,
    preferred: bool,
    cooldown: Cooldown,
    wait: Option<Waiting>,
    after: Option<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    who: u8,
    fences_of: u8,
    mode: Mode,
    block: u32,
}

#[derive(Clone, Debug)]
struct Waiting {
    heartbeat: u32,
    behind: u32,
    window_ms: u64,
    place: Where,
    max_waiters: Option<u32>,
}

/// Which position a waiter asks to get back.
#[derive(Clone, Copy, Debug)]
enum Where {
    None,
    Own,
    Of(u8),
    Number(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Renewal {
    who: u8,
    fences_of: u8,
    /// How much higher the fences are than those.
    raise: u32,
    ttl_ms: u64,
    shorten: bool,
    successor: Option<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) who: u8,
    fences_of: u8,
    remaining: u32,
    cooldown: Cooldown,
    reopen: bool,
    in_time: bool,
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

fn count(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

pub(super) fn owner(who: u8) -> OwnerName {
    OwnerName::new(["", "web-7_12", "a b%é"][usize::from(who % 3)]).unwrap()
}

impl Change {
    pub(super) fn request(&self, key: &Key, known: &Known) -> ConvertRequest {
        let fences = known.fences(token(self.fences_of));
        let mut request = ConvertRequest::new(key.clone(), token(self.who), fences, self.mode);
        request.fence_block = count(self.block);
        request
    }
}

impl Taking {
    /// The same request without waiting.
    pub(super) fn at_once(self) -> Self {
        Self { wait: None, ..self }
    }

    pub(super) fn request(&self, key: &Key, known: &Known) -> AcquireRequest {
        let token = token(self.who);
        let mut request = AcquireRequest::new(key.clone(), token, ttl(self.ttl_ms));
        request.mode = self.mode;
        request.fence_block = count(self.block);
        request.holds = count(self.holds);
        request.preferred = self.preferred;
        request.cooldown = self.cooldown;
        request.after = self.after.map(|who| known.fences(super::token(who)));
        request.owner = owner(self.who);
        request.metadata =
            Metadata::new(["", "x y\n", "%s {}"][usize::from(self.who / 2)]).unwrap();
        request.queue = self.wait.as_ref().map(|wait| {
            // A ticket identifies the token, so that a notification can be traced to it.
            let mut queue =
                QueueRequest::new(client(self.who), self.who.into(), ttl(wait.window_ms));
            queue.heartbeat = wait.heartbeat;
            queue.behind = wait.behind;
            queue.max_waiters = wait.max_waiters;
            queue.place = match wait.place {
                Where::None => None,
                Where::Own => known.places.get(&token).copied(),
                Where::Of(other) => known.places.get(&super::token(other)).copied(),
                Where::Number(number) => Some(Place::from_number(number)),
            };
            queue
        });
        request
    }
}

impl Renewal {
    pub(super) fn is_by(&self, ticket: u64) -> bool {
        u64::from(self.who) == ticket
    }

    pub(super) fn request(&self, key: &Key, known: &Known) -> RenewRequest {
        let fences = known.fences(token(self.fences_of));
        let first = fences.first().saturating_add(self.raise);
        let fences = FenceBlock::new(first, fences.count());
        let mut request = RenewRequest::new(key.clone(), token(self.who), fences, ttl(self.ttl_ms));
        request.shorten = self.shorten;
        request.successor = self.successor.map(token);
        request
    }
}

impl Ending {
    pub(super) fn request(&self, key: &Key, known: &Known) -> ReleaseRequest {
        let fences = known.fences(token(self.fences_of));
        let mut request = ReleaseRequest::new(key.clone(), token(self.who), fences);
        request.remaining = self.remaining;
        request.cooldown = self.cooldown;
        request.reopen = self.reopen;
        request.in_time = self.in_time;
        request
    }
}

/// A waiter renews an exclusive lease in the very step in which it is granted, with higher fences
/// from other nodes.
pub(super) fn renewal_of_what_it_hands_over() -> Vec<Step> {
    let renewal = Renewal {
        who: 2,
        fences_of: 0,
        raise: 3_000_000,
        ttl_ms: 1_000,
        shorten: false,
        successor: None,
    };
    [
        plain(0, Mode::Exclusive, None),
        plain(2, Mode::Exclusive, Some(Where::None)),
        Operation::Renew(vec![renewal]),
    ]
    .map(|operation| Step { pass_us: 900, epoch: 0, operation })
    .into()
}

/// The head of the queue requests another mode than before, and joins the holders. The next waiter
/// wants the same mode, so the head no longer blocks it.
pub(super) fn waiter_that_asks_in_another_mode() -> Vec<Step> {
    let joint = Mode::Joint(Bond::new(7));
    let ending = Ending {
        who: 2,
        fences_of: 2,
        remaining: 0,
        cooldown: Cooldown::NONE,
        reopen: false,
        in_time: true,
    };
    [
        plain(2, Mode::Shared, None),
        plain(5, joint, Some(Where::None)),
        plain(4, Mode::Exclusive, Some(Where::None)),
        plain(1, joint, Some(Where::None)),
        Operation::Release(ending),
        plain(4, joint, Some(Where::None)),
    ]
    .map(|operation| Step { pass_us: 100, epoch: 0, operation })
    .into()
}

/// A waiter requests its own position again.
pub(super) fn waiter_that_asks_for_its_place() -> Vec<Step> {
    [None, Some(Where::None), Some(Where::Own)]
        .into_iter()
        .zip([0, 1, 1])
        .map(|(waits, who)| plain(who, Mode::Exclusive, waits))
        .map(|operation| Step { pass_us: 100, epoch: 0, operation })
        .collect()
}

fn plain(who: u8, mode: Mode, waits: Option<Where>) -> Operation {
    let wait = waits.map(|place| Waiting {
        heartbeat: 0,
        behind: 0,
        window_ms: 1_000,
        place,
        max_waiters: None,
    });
    Operation::Acquire(Taking {
        who,
        mode,
        ttl_ms: 10,
        block: 1,
        holds: 1,
        preferred: false,
        cooldown: Cooldown::NONE,
        wait,
        after: None,
    })
}

/// Sequences that mostly use one kind of lock; otherwise most steps would be refused.
pub(super) fn sequence(home: Home) -> impl Strategy<Value = Vec<Step>> {
    vec(step(home), 20..60)
}

/// The kind of lock that a name is used as.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Exclusive,
    Shared,
    Permits,
    Joint,
    Any,
}

pub(super) fn step(home: Home) -> impl Strategy<Value = Step> {
    let pass_us = prop_oneof![
        6 => Just(0_i64),
        2 => Just(1_i64),
        3 => 1..40_000_i64,
        // Around a third, a half and the whole of the lengths in use.
        4 => prop::sample::select(vec![
            333_333_i64, 333_334, 499_999, 500_000, 500_001, 999_999, 1_000_000, 1_000_001,
        ]),
        1 => 1_000_000..5_000_000_i64,
        1 => -6_000_000..0_i64,
    ];
    let epoch = prop_oneof![12 => Just(0_u64), 1 => 0..EPOCHS];
    (pass_us, epoch, operation(home)).prop_map(|(pass_us, epoch, operation)| Step {
        pass_us,
        epoch,
        operation,
    })
}

fn operation(home: Home) -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => taking(home).prop_map(Operation::Acquire),
        3 => vec(renewal(), 1..3).prop_map(Operation::Renew),
        1 => taking(home).prop_map(|taking| Operation::AcquireAll(taking.at_once())),
        2 => change(home).prop_map(Operation::Convert),
        1 => (1..6_u32).prop_map(Operation::SetLimit),
        1 => (option::of(who()), 0..3_u32, who())
            .prop_map(|(who, later, by)| Operation::Ask { who, later, by }),
        6 => ending().prop_map(Operation::Release),
        2 => (who(), prop::bool::weighted(0.2))
            .prop_map(|(who, reopen)| Operation::Leave { who, reopen }),
        1 => (who(), 0..3_u32).prop_map(|(who, later)| Operation::ForceRelease { who, later }),
    ]
}

fn who() -> impl Strategy<Value = u8> {
    0..TOKENS
}

fn length_ms() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![10_u64, 11, 12, 500, 1_000, 1_000, 1_000, 1_001, 2_000, 10_000])
}

fn mode(home: Home) -> BoxedStrategy<Mode> {
    let permits = |limits: Vec<u32>| {
        (1..5_u32, prop::sample::select(limits)).prop_map(|(permits, limit)| Mode::Permits {
            count: count(permits),
            limit: count(limit),
        })
    };
    let exclusive = Just(Mode::Exclusive);
    let shared = Just(Mode::Shared);
    let joint = prop::sample::select(vec![7_u64, 7, 7, 8]);
    let joint = joint.prop_map(|number| Mode::Joint(Bond::new(number)));
    match home {
        Home::Exclusive => exclusive.boxed(),
        Home::Shared => prop_oneof![3 => shared, 1 => exclusive].boxed(),
        Home::Permits => permits(vec![4; 9].into_iter().chain([3]).collect()).boxed(),
        Home::Joint => prop_oneof![4 => joint, 1 => shared, 1 => exclusive].boxed(),
        Home::Any => prop_oneof![shared, exclusive, joint, permits(vec![3, 4])].boxed(),
    }
}

pub(super) fn taking(home: Home) -> impl Strategy<Value = Taking> {
    let block = prop_oneof![4 => Just(1_u32), 2 => 1..65_u32, 1 => Just(3_000_000)];
    let place = prop_oneof![
        4 => Just(Where::None),
        4 => Just(Where::Own),
        1 => who().prop_map(Where::Of),
        1 => (0..9_u64).prop_map(Where::Number),
    ];
    let behind = prop_oneof![3 => Just(0), 2 => 1..20_u32, 1 => Just(u32::MAX)];
    let wait = (0..9_u32, behind, length_ms(), place, option::weighted(0.2, 0..4_u32)).prop_map(
        |(heartbeat, behind, window_ms, place, max_waiters)| Waiting {
            heartbeat,
            behind,
            window_ms,
            place,
            max_waiters,
        },
    );
    let after = option::weighted(0.1, who());
    let how =
        (prop::bool::weighted(0.2), prop_oneof![9 => Just(Cooldown::NONE), 1 => cooldown()], after);
    (who(), mode(home), length_ms(), block, 1..4_u32, how, option::weighted(0.6, wait)).prop_map(
        |(who, mode, ttl_ms, block, holds, (preferred, cooldown, after), wait)| Taking {
            who,
            mode,
            ttl_ms,
            block,
            holds,
            preferred,
            cooldown,
            wait,
            after,
        },
    )
}

fn change(home: Home) -> impl Strategy<Value = Change> {
    let to = prop_oneof![
        1 => Just(Mode::Exclusive),
        1 => Just(Mode::Shared),
        3 => mode(home),
    ];
    (who().prop_flat_map(fences_of), to, 1..65_u32)
        .prop_map(|((who, fences_of), mode, block)| Change { who, fences_of, mode, block })
}

fn cooldown() -> impl Strategy<Value = Cooldown> {
    prop::sample::select(vec![
        Duration::ZERO,
        Duration::from_nanos(999),
        Duration::from_micros(1),
        Duration::from_millis(1_000),
        Duration::from_nanos(333_333_333),
    ])
    .prop_map(|length| Cooldown::new(length).unwrap())
}

fn fences_of(who: u8) -> impl Strategy<Value = (u8, u8)> {
    (Just(who), prop_oneof![9 => Just(who), 1 => 0..TOKENS])
}

pub(super) fn renewal() -> impl Strategy<Value = Renewal> {
    let raise = prop_oneof![3 => Just(0_u32), 1 => 1..9_u32, 1 => 1..4_000_000_u32];
    let successor = option::weighted(0.2, who());
    (who().prop_flat_map(fences_of), raise, length_ms(), prop::bool::weighted(0.2), successor)
        .prop_map(|((who, fences_of), raise, ttl_ms, shorten, successor)| Renewal {
            who,
            fences_of,
            raise,
            ttl_ms,
            shorten,
            successor,
        })
}

pub(super) fn ending() -> impl Strategy<Value = Ending> {
    let remaining = prop_oneof![5 => Just(0_u32), 1 => 1..3_u32];
    let cooldown = prop_oneof![8 => Just(Cooldown::NONE), 2 => cooldown()];
    let (reopen, in_time) = (prop::bool::weighted(0.1), prop::bool::weighted(0.7));
    (who().prop_flat_map(fences_of), remaining, cooldown, reopen, in_time).prop_map(
        |((who, fences_of), remaining, cooldown, reopen, in_time)| Ending {
            who,
            fences_of,
            remaining,
            cooldown,
            reopen,
            in_time,
        },
    )
}
