//! What the pure parts cost: names, secrets, and the lock table without a store around it.
//!
//! `cargo bench -p leasehold-bench --bench pure`. Nothing passes or fails on time.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

use std::time::Duration;

use divan::{Bencher, black_box};
use leasehold_core::table::{LockEntry, Now, StoreTime};
use leasehold_core::{
    Acquire, AcquireRequest, ClientId, Fence, FenceBlock, Key, QueueRequest, ReleaseRequest,
    RenewRequest, Token, Ttl,
};

fn main() {
    divan::main();
}

fn token(number: u128) -> Token {
    Token::from_bytes(number.to_be_bytes())
}

fn wanted(number: u128) -> AcquireRequest {
    let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
    AcquireRequest::new(Key::new("orders/4711").unwrap(), token(number), ttl)
}

fn now() -> Now {
    Now::new(StoreTime::from_micros(1_000_000), Fence::new(0, 1_000_000).unwrap())
}

/// A lock that the first party holds, while all `waiters` queue.
fn held(waiters: u128) -> (LockEntry, FenceBlock) {
    let mut entry = LockEntry::default();
    let Acquire::Granted(granted) = entry.perform(&wanted(0), now(), &mut Vec::new()) else {
        panic!("a free lock was refused");
    };
    for number in 1..=waiters {
        entry.perform(&queued(number), now(), &mut Vec::new());
    }
    (entry, granted.fences)
}

fn queued(number: u128) -> AcquireRequest {
    let mut request = wanted(number);
    let client = ClientId::from_bytes([7; 16]);
    request.queue = Some(QueueRequest::new(client, number.try_into().unwrap(), request.ttl));
    request
}

#[divan::bench]
fn validate_a_name() -> Key {
    Key::new(black_box("tenants/4711/orders/1234567")).unwrap()
}

#[divan::bench]
fn make_a_token() -> Token {
    Token::generate().unwrap()
}

#[divan::bench]
fn write_a_token(bencher: Bencher<'_, '_>) {
    let token = token(4711);
    bencher.bench(|| black_box(&token).to_hex());
}

#[divan::bench]
fn read_a_token(bencher: Bencher<'_, '_>) {
    let text = token(4711).to_hex();
    bencher.bench(|| Token::from_hex(black_box(&text)));
}

#[divan::bench]
fn take_and_release(bencher: Bencher<'_, '_>) {
    let (request, mut entry) = (wanted(1), LockEntry::default());
    bencher.bench_local(|| {
        let Acquire::Granted(granted) = entry.perform(&request, now(), &mut Vec::new()) else {
            panic!("a free lock was refused");
        };
        let ending = ReleaseRequest::new(request.key.clone(), request.token, granted.fences);
        entry.perform(&ending, now(), &mut Vec::new())
    });
}

#[divan::bench]
fn renew(bencher: Bencher<'_, '_>) {
    let (mut entry, fences) = held(0);
    let first = wanted(0);
    let renewal = RenewRequest::new(first.key, first.token, fences, first.ttl);
    bencher.bench_local(|| entry.perform(&renewal, now(), &mut Vec::new()));
}

#[divan::bench(args = [0, 10, 1000])]
fn be_refused(bencher: Bencher<'_, '_>, waiters: u64) {
    let (mut entry, _) = held(waiters.into());
    let request = wanted(u128::MAX);
    bencher.bench_local(|| entry.perform(&request, now(), &mut Vec::new()));
}

#[divan::bench(args = [1, 10, 1000])]
fn keep_a_place(bencher: Bencher<'_, '_>, waiters: u64) {
    let (mut entry, _) = held(waiters.into());
    let last = queued(waiters.into());
    bencher.bench_local(|| entry.perform(&last, now(), &mut Vec::new()));
}

#[divan::bench(args = [1, 10, 1000])]
fn release_and_hand_over(bencher: Bencher<'_, '_>, waiters: u64) {
    let first = wanted(0);
    bencher.with_inputs(|| held(waiters.into())).bench_local_refs(|(entry, fences)| {
        let ending = ReleaseRequest::new(first.key.clone(), first.token, *fences);
        entry.perform(&ending, now(), &mut Vec::new())
    });
}
