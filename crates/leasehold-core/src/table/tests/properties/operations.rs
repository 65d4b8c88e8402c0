//! Random operations.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

pub(super) const TOKENS: u8 = 5;
pub(super) const LIMIT: u32 = 3;

#[derive(Clone, Debug)]
pub(super) enum Op {
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
pub(super) enum How {
    Plain,
    Preferred,
    Cooldown { ms: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) window_ms: u64,
    pub(super) place: Option<Brought>,
    pub(super) max_waiters: Option<u32>,
}

/// Which position a waiter brings back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Brought {
    Own,
    Of(u8),
    /// One that may have been given at this moment, or soon will be.
    Near {
        us: u64,
        preferred: bool,
    },
}

pub(super) fn op() -> impl Strategy<Value = Op> {
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
        .prop_map(|(window_ms, place, max_waiters)| Line { window_ms, place, max_waiters });
    let queue = proptest::option::weighted(0.7, line);
    let how = prop_oneof![
        6 => Just(How::Plain),
        2 => Just(How::Preferred),
        1 => select(vec![0, 50, 400]).prop_map(|ms| How::Cooldown { ms }),
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
pub(super) fn modes() -> impl Strategy<Value = Vec<Mode>> {
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
