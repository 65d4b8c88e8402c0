//! Tries on scratch names whether a store keeps locks as it should, for `doctor --probe`.

use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::store::doctor::{Finding, Severity};
use leasehold::{Client, Error, Fence, LockOptions};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::context::Context;
use crate::duration;
use crate::failure::{Outcome, chain};

/// How many take one lock, each over connections of its own, and how often in all.
const CONTENDERS: usize = 6;
const GRANTS: u32 = 300;
/// A store that is slow grants fewer, but not fewer than these.
const GRANTS_LEAST: u32 = 20;
const CONTEND_WITHIN: Duration = Duration::from_secs(5);
const CONTEND_AT_MOST: Duration = Duration::from_secs(30);
/// Before a lock that is busy is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// How often a waiter is woken.
const WAKES: u32 = 5;
/// Long beside a message, short beside the time after which a waiter asks by itself: a third of the
/// ttl.
const WOKEN_WITHIN: Duration = Duration::from_secs(2);
const WAITER_TTL: Duration = Duration::from_secs(30);
/// A lease that is left to end by itself.
const SHORT_TTL: Duration = Duration::from_secs(1);
/// Locks that have to be there at the end.
const KEPT: usize = 200;
const KEPT_TTL: Duration = Duration::from_secs(60);
/// After this a server has forgotten the names. It keeps a name for 1.25 s after the release of a
/// lease of 1 s, and longer for a longer lease.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(2_500);

/// Runs all experiments: what each has found.
pub(crate) async fn probe(context: &Context) -> Outcome<Vec<Finding>> {
    let client = context.connect_to_try().await?;
    let mut others = Vec::new();
    for _ in 1..CONTENDERS {
        others.push(context.connect_to_try().await?);
    }
    let other = others.first().cloned().unwrap_or_else(|| client.clone());
    let scratch = format!("doctor/probe/{}", std::process::id());
    let kept_ttl = bounded(&client, KEPT_TTL);
    let options = LockOptions::new().ttl(kept_ttl).metadata("leasehold doctor --probe");
    let kept = keep(&client, &scratch, &options).await;
    let contenders = [slice::from_ref(&client), &others[..]].concat();
    let mut findings = vec![exclusion(&contenders, &format!("{scratch}/one")).await];
    findings.push(messages(&client, &other, &format!("{scratch}/wake")).await);
    findings.extend(time(&client, &other, &format!("{scratch}/short")).await);
    findings.push(match kept {
        Ok(begun) => still_there(&other, &scratch, begun).await,
        Err(error) => failed("memory", &error),
    });
    if let Err(error) = client.release_all().await
        && findings.iter().all(|finding| finding.severity == Severity::Fine)
    {
        findings.push(failed("release", &error));
    }
    if context.settings.is_on_a_server() {
        // By itself: to remove keys takes a right that no lock needs.
        tokio::time::sleep(FORGOTTEN_AFTER).await;
    }
    Ok(findings)
}

/// A ttl, at most the longest one of the store.
fn bounded(client: &Client, ttl: Duration) -> Duration {
    ttl.min(client.store().capability().longest.unwrap_or(ttl))
}

fn failed(topic: &'static str, error: &Error) -> Finding {
    let found = format!("the experiment failed: {}", chain(error));
    Finding::new(Severity::Problem, topic, found, "locks don't work here as they have to")
}

fn found(topic: &'static str, is_fine: bool, found: String, means: &'static str) -> Finding {
    let severity = if is_fine { Severity::Fine } else { Severity::Problem };
    Finding::new(severity, topic, found, means)
}

/// What several contenders saw of one lock.
#[derive(Debug, Default)]
struct Seen {
    inside: AtomicU32,
    grants: AtomicU32,
    /// How often a holder came in while another was.
    overlaps: AtomicU32,
    /// How often a fence was not above the one before it, or two holders were shown.
    disorders: AtomicU32,
    last: Mutex<Option<Fence>>,
}

/// Whether an operation on a lock is one step: many take it and give it back as quickly as they
/// can, and no two may have it at a time.
async fn exclusion(clients: &[Client], key: &str) -> Finding {
    let (seen, begun) = (Arc::new(Seen::default()), Instant::now());
    let mut contenders = JoinSet::new();
    for client in clients {
        contenders.spawn(contend(client.clone(), key.to_owned(), Arc::clone(&seen), begun));
    }
    while let Some(contender) = contenders.join_next().await {
        if let Ok(Err(error)) = contender {
            return failed("exclusion", &error);
        }
    }
    let count = |number: &AtomicU32| number.load(Ordering::Relaxed);
    let (grants, overlaps, disorders) =
        (count(&seen.grants), count(&seen.overlaps), count(&seen.disorders));
    let who = clients.len();
    let told = if overlaps == 0 && disorders == 0 {
        format!("{who} took one lock {grants} times: never two at once, each fence above the last")
    } else {
        format!(
            "{who} took one lock {grants} times: {overlaps} times it had another holder, and \
             {disorders} times the fence was not above the last, or two holders were shown"
        )
    };
    let is_fine = overlaps == 0 && disorders == 0;
    if is_fine && grants < GRANTS_LEAST {
        let means = "too few to know whether two could hold it; the store is slow";
        return Finding::new(Severity::Note, "exclusion", told, means);
    }
    found("exclusion", is_fine, told, "an operation on a lock is not one step: two can hold it")
}

async fn contend(
    client: Client,
    key: String,
    seen: Arc<Seen>,
    begun: Instant,
) -> leasehold::Result<()> {
    let mutex = client.mutex(&key).ttl(bounded(&client, WAITER_TTL));
    let goes_on = || match seen.grants.load(Ordering::Relaxed) {
        grants if grants < GRANTS_LEAST => begun.elapsed() < CONTEND_AT_MOST,
        grants => grants < GRANTS && begun.elapsed() < CONTEND_WITHIN,
    };
    while goes_on() {
        let Some(guard) = mutex.try_lock().await? else {
            if client.inspect(&key).await?.is_some_and(|lock| lock.holders.len() > 1) {
                seen.disorders.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(TRY_AGAIN).await;
            continue;
        };
        seen.grants.fetch_add(1, Ordering::Relaxed);
        if seen.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            seen.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        let fence = guard.fence()?;
        let before = seen.last.lock().unwrap_or_else(PoisonError::into_inner).replace(fence);
        if before.is_some_and(|before| before >= fence) {
            seen.disorders.fetch_add(1, Ordering::Relaxed);
        }
        tokio::task::yield_now().await;
        seen.inside.fetch_sub(1, Ordering::SeqCst);
        guard.release().await?;
    }
    Ok(())
}

/// Whether a waiter is woken by a message when the lock comes free.
async fn messages(holder: &Client, waiter: &Client, key: &str) -> Finding {
    if !holder.store().capability().wake {
        let told = "this store sends no notifications: waiters poll";
        let means = "a free lock goes to a waiter within about 250 ms";
        return Finding::new(Severity::Note, "messages", told, means);
    }
    let mut longest = Duration::ZERO;
    for _ in 0..WAKES {
        match wake(holder, waiter, key).await {
            Ok(took) => longest = longest.max(took),
            Err(error) => return failed("messages", &error),
        }
    }
    let heartbeat = bounded(waiter, WAITER_TTL) / 3;
    let told = format!(
        "a waiter had the lock {} after its release, in the worst of {WAKES} tries; without a \
         notification it polls after {}",
        duration::show(longest),
        duration::show(heartbeat)
    );
    if heartbeat <= WOKEN_WITHIN {
        let means = "leases are too short here to know whether notifications arrive";
        return Finding::new(Severity::Note, "messages", told, means);
    }
    if longest <= WOKEN_WITHIN {
        return Finding::new(Severity::Fine, "messages", told, "");
    }
    let means = "notifications of scripts don't arrive: locks reach waiters later";
    Finding::new(Severity::Warning, "messages", told, means)
        .advise("let scripts publish, and the user subscribe to leasehold's channels")
}

/// How long a lock takes from its holder to a waiter in the queue.
async fn wake(holder: &Client, waiter: &Client, key: &str) -> leasehold::Result<Duration> {
    let ttl = bounded(holder, WAITER_TTL);
    let guard = holder.mutex(key).ttl(ttl).lock().await?;
    let mutex = waiter.mutex(key).ttl(ttl);
    let waits = tokio::spawn(async move { mutex.lock().await });
    let until = Instant::now() + WAITER_TTL;
    while holder.inspect(key).await?.is_none_or(|lock| lock.waiters.is_empty()) {
        if waits.is_finished() || Instant::now() >= until {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let released = Instant::now();
    guard.release().await?;
    // It is never aborted, and does not panic.
    let Ok(guard) = waits.await else { return Ok(Duration::MAX) };
    let took = released.elapsed();
    guard?.release().await?;
    Ok(took)
}

/// A lock that was taken, and when: between two moments here, and by the store's clock, which is a
/// part of the fence.
struct Taken {
    guard: leasehold::Guard,
    sent: Instant,
    answered: Instant,
    our_time: SystemTime,
    store_time: Duration,
}

async fn take(client: &Client, key: &str) -> leasehold::Result<Taken> {
    let (sent, our_time) = (Instant::now(), time_of_day());
    let ttl = bounded(client, SHORT_TTL);
    let guard = client.mutex(key).ttl(ttl).renew(false).lock_within(SHORT_TTL * 5).await?;
    let store_us = guard.fence_even_if_lost().sequence().saturating_add(Fence::ORIGIN_UNIX_US);
    let store_time = Duration::from_micros(store_us);
    Ok(Taken { guard, sent, answered: Instant::now(), our_time, store_time })
}

#[expect(clippy::disallowed_methods, reason = "to be compared with the store's, for people")]
fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// Which clock the store shows, and whether a lease ends by it: not before its holder knows.
async fn time(holder: &Client, next: &Client, key: &str) -> Vec<Finding> {
    let measured = async {
        let first = take(holder, key).await?;
        let second = take(next, key).await?;
        let (ended, believed) = (first.sent.elapsed(), first.guard.is_held());
        // In time or late: a machine that is busy is no fault of the store's.
        let _outcome = second.guard.release_outcome().await?;
        // Another name, whose fences come from the clock alone.
        let later = take(holder, &format!("{key}/later")).await?;
        let measured = clocks(&first, &later);
        let _outcome = later.guard.release_outcome().await?;
        leasehold::Result::Ok((ended, believed, measured))
    };
    let (ended, believed, clocks) = match measured.await {
        Ok(measured) => measured,
        Err(error) => return vec![failed("expiry", &error)],
    };
    let told = format!(
        "a lease of {} that was not renewed went to another holder after {}; its holder {}",
        duration::show(bounded(holder, SHORT_TTL)),
        duration::show(ended),
        if believed { "did not know" } else { "knew by then" }
    );
    let means = "a lease ends before its holder knows: two can hold a lock";
    vec![found("expiry", !believed, told, means), clocks]
}

/// The store's clock beside this machine's.
fn clocks(first: &Taken, later: &Taken) -> Finding {
    let our_time = first.our_time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (apart, word) = match first.store_time.checked_sub(our_time) {
        Some(ahead) => (ahead, "ahead of"),
        None => (our_time.saturating_sub(first.store_time), "behind"),
    };
    let went = later.store_time.saturating_sub(first.store_time);
    let least = later.sent.saturating_duration_since(first.answered);
    let most = later.answered.saturating_duration_since(first.sent);
    let told = format!(
        "the store's clock is about {} {word} this machine's, and went {went:.3?} while this one went \
         {least:.3?} to {most:.3?}",
        duration::show(apart),
    );
    // Within the margin that leases have for clocks.
    let is_right = went >= least.mul_f64(0.99) && went <= most.mul_f64(1.01);
    let severity = if is_right { Severity::Fine } else { Severity::Warning };
    let means = "leases run on it: at another rate they end before or after their holders think";
    Finding::new(severity, "clock shown", told, means)
}

/// Takes locks that nothing may remove before they are looked for; when that was.
async fn keep(client: &Client, scratch: &str, options: &LockOptions) -> leasehold::Result<Instant> {
    let begun = Instant::now();
    let mut taking = JoinSet::new();
    for number in 0..KEPT {
        let mutex = client.mutex(format!("{scratch}/kept/{number}")).options(options);
        taking.spawn(async move { mutex.lock_within(KEPT_TTL).await });
    }
    while let Some(taken) = taking.join_next().await {
        if let Ok(guard) = taken {
            // Its client gives it back at the end, with all others.
            std::mem::forget(guard?);
        }
    }
    Ok(begun)
}

/// Whether they are all there.
async fn still_there(client: &Client, scratch: &str, begun: Instant) -> Finding {
    let mut there = 0_usize;
    for number in 0..KEPT {
        match client.inspect(format!("{scratch}/kept/{number}")).await {
            Ok(lock) => there += usize::from(lock.is_some_and(|lock| !lock.holders.is_empty())),
            Err(error) => return failed("memory", &error),
        }
    }
    let gone = KEPT.saturating_sub(there);
    let after = duration::show(begun.elapsed());
    let told = match gone {
        0 => format!("all of {KEPT} locks were there after {after}"),
        gone => format!("{gone} of {KEPT} locks were gone after {after}, though they were held"),
    };
    let finding =
        found("memory", gone == 0, told, "the store evicts or forgets locks that are held");
    if gone == 0 { finding } else { finding.advise("see the findings on eviction and persistence") }
}
