//! Every resource that checks fences lets the same ones pass.

mod cell;
mod redis;
mod sqlite;

use leasehold::Fence;

fn fence(value: u64) -> Fence {
    Fence::from_value(value).unwrap()
}

/// Where a comparison could go wrong: the number of digits changes, doubles stop being exact, the
/// halves of a number touch, an epoch begins, 63 bits end.
const EDGES: [u64; 18] = [
    0,
    1,
    9,
    10,
    99,
    100,
    999_999_999,
    9_999_999_999,
    10_000_000_000,
    10_000_000_001,
    99_999_999_999,
    (1 << 51) - 1,
    1 << 51,
    (1 << 53) - 1,
    1 << 53,
    (1 << 53) + 1,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
];

/// Every ordered pair of edges, and whether the second passes after the first.
fn pairs() -> impl Iterator<Item = (Fence, Fence, bool)> {
    EDGES
        .iter()
        .flat_map(|first| EDGES.iter().map(move |second| (first, second)))
        .map(|(first, second)| (fence(*first), fence(*second), second >= first))
}
