//! Requests as the scripts take them.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, AskRequest, ConvertRequest, Error, ErrorKind, Fence, FenceBlock,
    ForceReleaseRequest, Key, LeaveRequest, Mode, Place, QueueRequest, ReleaseRequest,
    RenewRequest, Result, SetLimitRequest,
};

use super::RedisStore;
use crate::call::Call;
use crate::names::{asker, label_into};
use crate::reply::Asked;
use crate::script::Script;
use crate::spelling::unix_parts;
use crate::words::{Words, push, push_token};

/// The longest cool-down: a year.
const COOLDOWN_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Numbers in a script are exact below this.
const SCRIPT_NUMBER_MAX: u64 = 1 << 53;

impl RedisStore {
    /// A call about some locks, with what the arguments of every script begin with.
    fn begin<'k>(
        &self,
        script: &'static Script,
        keys: impl IntoIterator<Item = &'k Key>,
    ) -> Call<'static> {
        let keys: Vec<String> = keys.into_iter().map(|key| self.shared.names.record(key)).collect();
        self.opened(Call::new(script, &keys))
    }

    fn opened(&self, call: Call<'static>) -> Call<'static> {
        let mut call = call.telling(&self.shared.unsent);
        call.epoch(self.shared.epoch)
            .shown(format_args!("{:016}", self.shared.seen.load(Ordering::Relaxed)))
            .arg(self.shared.fence_retention.as_millis());
        call
    }

    /// The begin of a call about the locks that these words are about, which says once what is asked
    /// alike, and that.
    fn begin_alike<'w>(
        &self,
        script: &'static Script,
        each: impl ExactSizeIterator<Item = &'w Words> + Clone,
    ) -> (Call<'static>, &'w str) {
        let shared = each.clone().next().map_or("", Words::asked);
        let mut call = self.opened(Call::new(script, each.map(Words::key)));
        call.arg(shared);
        (call, shared)
    }

    /// A call that takes the locks that these words are about, each for itself.
    pub(crate) fn acquire_call<'w>(
        &self,
        each: impl ExactSizeIterator<Item = &'w Words> + Clone,
    ) -> Call<'static> {
        let (mut call, shared) = self.begin_alike(&self.shared.scripts.acquire, each.clone());
        add_each(&mut call, each.map(|words| words.argument(shared)), Words::TOKEN);
        call
    }

    /// A call that ends the leases that these words are about.
    pub(crate) fn release_call<'w>(
        &self,
        each: impl ExactSizeIterator<Item = &'w Words> + Clone,
    ) -> Call<'static> {
        let script = &self.shared.scripts.release;
        let mut call = self.opened(Call::new(script, each.clone().map(Words::key)));
        add_each(&mut call, each.map(|words| words.argument("")), Words::LEASE);
        call
    }

    /// Takes in fences that this store told of: whatever it issues from now on is to be above them,
    /// also when it has forgotten them, or another server with a slower clock has taken its place.
    pub(super) fn saw(&self, fence: Fence) {
        let (_, sequence) = unix_parts(fence);
        self.shared.seen.fetch_max(sequence, Ordering::Relaxed);
    }

    pub(super) fn leave_call(&self, request: &LeaveRequest) -> Call<'static> {
        let mut call = self.begin(&self.shared.scripts.leave, [&request.key]);
        call.arg(request.token.to_hex()).arg(u8::from(request.reopen));
        call
    }

    /// What is wanted of one lock.
    pub(crate) fn acquire_words(&self, request: &AcquireRequest) -> Result<Words> {
        let cooldown = cooldown_ms(request.cooldown)?;
        let (mode, permits, limit) = mode_words(request.mode)?;
        let preferred = u8::from(request.preferred);
        let mut words = Words::about(&self.shared.names, &request.key, &request.token);
        let usual = request.mode == Mode::Exclusive && !request.preferred && cooldown == 0;
        let usual = usual && request.after.is_none();
        let (ttl, block) = (request.ttl.as_millis(), request.fence_block);
        let is_plain = matches!(request.mode, Mode::Exclusive | Mode::Shared)
            && !request.preferred
            && cooldown == 0
            && request.after.is_none()
            && request.holds.get() == 1;
        if is_plain
            && let Some(queue) = &request.queue
            && let Some((place, most)) = plain_place(queue)
        {
            let QueueRequest { client, ticket, heartbeat, behind, .. } = queue;
            let window = queue.window.as_millis();
            let channel = self.shared.names.channel(*client);
            words
                .add(format_args!("= {ttl:013} {place} {most} {window:013} {heartbeat:010} "))
                .add(format_args!("{behind:010} {block:010} {mode} 1 {ticket:020} {channel} "))
                .add_with(|out| profile(request, out));
            return Ok(words);
        }
        let usual = usual && request.queue.is_none();
        words
            .add(format_args!("{} {ttl:013} {block:010} ", if usual { '-' } else { '+' }))
            .add_with(|out| profile(request, out));
        if usual {
            return Ok(words);
        }
        words.add(format_args!(" {mode} {permits} {limit} {preferred} {cooldown}"));
        if let Some(after) = request.after {
            let (epoch, sequence) = unix_parts(after.last());
            words.add(format_args!(" after {epoch} {sequence}"));
        } else if let Some(queue) = &request.queue {
            let place = match queue.place {
                Some(place) if place.number() >= SCRIPT_NUMBER_MAX => {
                    return Err(Error::new(
                        ErrorKind::Config,
                        "the place in line was not given out by this store",
                    ));
                }
                place => or_dash(place.map(Place::number)),
            };
            words.add(format_args!(
                " {} {:020} {} {} {} {place} {}",
                self.shared.names.channel(queue.client),
                queue.ticket,
                queue.heartbeat,
                queue.window.as_millis(),
                queue.behind,
                or_dash(queue.max_waiters)
            ));
        }
        Ok(words)
    }

    pub(super) fn acquire_all_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let each: Vec<Words> =
            requests.iter().map(|request| self.acquire_words(request)).collect::<Result<_>>()?;
        let (mut call, shared) = self.begin_alike(&self.shared.scripts.acquire_all, each.iter());
        for words in &each {
            call.arg(words.argument(shared));
        }
        Ok(call)
    }

    /// `epoch` is that of the server which answered.
    pub(crate) fn asked(&self, request: &AcquireRequest, epoch: u64) -> Asked {
        let epoch = epoch.max(self.shared.epoch);
        Asked { epoch, block: request.fence_block, mode: request.mode }
    }

    pub(super) fn convert_call(&self, request: &ConvertRequest) -> Result<Call<'static>> {
        let (epoch, sequence) = unix_parts(request.fences.last());
        let (mode, permits, limit) = mode_words(request.mode)?;
        let mut call = self.begin(&self.shared.scripts.convert, [&request.key]);
        call.arg(request.token.to_hex())
            .arg(epoch)
            .arg(sequence)
            .arg(mode)
            .arg(permits)
            .arg(limit)
            .arg(request.fence_block);
        Ok(call)
    }

    pub(super) fn ask_call(&self, request: &AskRequest, from: u32) -> Call<'static> {
        let mut call = self.begin(&self.shared.scripts.ask, [&request.key]);
        let (epoch, sequence) = match request.fence.map(unix_parts) {
            Some((epoch, sequence)) => (epoch.to_string(), sequence.to_string()),
            None => Default::default(),
        };
        call.arg(epoch).arg(sequence).arg(asker(&request.by)).arg(from);
        call
    }

    pub(super) fn force_release_call(
        &self,
        request: &ForceReleaseRequest,
        from: u32,
    ) -> Call<'static> {
        let (epoch, sequence) = unix_parts(request.fence);
        let mut call = self.begin(&self.shared.scripts.force_release, [&request.key]);
        call.arg(epoch).arg(sequence).arg(from);
        call
    }

    pub(super) fn set_limit_call(&self, request: &SetLimitRequest) -> Call<'static> {
        let mut call = self.begin(&self.shared.scripts.set_limit, [&request.key]);
        call.arg(request.limit);
        call
    }

    /// What is to end.
    pub(crate) fn release_words(&self, request: &ReleaseRequest) -> Result<Words> {
        let cooldown = cooldown_ms(request.cooldown)?;
        let mut words = Words::about(&self.shared.names, &request.key, &request.token);
        words.add_with(|out| push_end(request.fences, out));
        if request.remaining > 0 || cooldown > 0 || request.reopen {
            let reopen = u8::from(request.reopen);
            words.add(format_args!(" {} {cooldown} {reopen}", request.remaining));
        }
        Ok(words)
    }

    pub(super) fn renew_call(&self, requests: &[&RenewRequest]) -> Call<'static> {
        let keys = requests.iter().map(|request| &request.key);
        let mut call = self.begin(&self.shared.scripts.renew, keys);
        let shared = requests.first().map_or(Duration::ZERO, |request| request.ttl.duration());
        call.arg(format!("{:013}", shared.as_millis()));
        let mut texts = String::with_capacity(Words::LEASE.saturating_mul(requests.len()));
        let mut parts = Vec::with_capacity(requests.len());
        for request in requests {
            let start = texts.len();
            push_token(&request.token, &mut texts);
            push_end(request.fences, &mut texts);
            let is_usual = !request.shorten && request.successor.is_none();
            if !is_usual || request.ttl.duration() != shared {
                let ttl = request.ttl.as_millis();
                push(&mut texts, format_args!(" {} {ttl:013}", u8::from(request.shorten)));
                if let Some(successor) = &request.successor {
                    texts.push(' ');
                    push_token(successor, &mut texts);
                }
            }
            parts.push(start..texts.len());
        }
        let each = parts.iter().map(|part| texts.get(part.clone()).unwrap_or(""));
        add_each(&mut call, each, Words::LEASE);
        call
    }

    pub(crate) fn publish_call(&self, near: &Key, channel: &str, message: &str) -> Call<'static> {
        let mut call = self.begin(&self.shared.scripts.publish, [near]);
        call.arg(channel).arg(message);
        call
    }

    pub(crate) fn inspect_call(&self, key: &Key) -> Call<'static> {
        self.begin(&self.shared.scripts.inspect, [key])
    }
}

/// Adds what is asked of each lock: as one argument where scripts can tell by its length what belongs to
/// which of several locks, since a server takes longer over an argument than over a part of one.
fn add_each<'t>(
    call: &mut Call<'_>,
    each: impl ExactSizeIterator<Item = &'t str> + Clone,
    length: usize,
) {
    if each.len() > 1 && each.clone().all(|text| text.len() == length) {
        call.arg(each.collect::<String>());
    } else {
        each.for_each(|text| {
            call.arg(text);
        });
    }
}

/// ` next epoch`: where the fences of a lease end, as states have it.
fn push_end(fences: FenceBlock, out: &mut String) {
    let (epoch, sequence) = unix_parts(fences.last());
    push(out, format_args!(" {:016} {epoch:04}", sequence.saturating_add(1)));
}

/// The place that a waiter brings, and how many may wait, in the places that a plain line's request has for them;
/// nothing where they don't fit.
fn plain_place(queue: &QueueRequest) -> Option<(String, String)> {
    const DIGITS: RangeInclusive<u64> = 1_000_000_000_000_000..=SCRIPT_NUMBER_MAX;
    let place = match queue.place {
        Some(place) if DIGITS.contains(&place.number()) => place.number().to_string(),
        Some(_) => return None,
        None => "-".repeat(16),
    };
    let most = queue.max_waiters.map_or_else(|| "-".repeat(10), |most| format!("{most:010}"));
    Some((place, most))
}

/// A number where there may be none.
fn or_dash(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// `holds owner metadata`, as records have it.
fn profile(request: &AcquireRequest, out: &mut String) {
    push(out, request.holds);
    out.push(' ');
    label_into(&request.owner, &request.metadata, out);
}

/// A mode as scripts take it: its letter, the permits or the bond, and the limit or 0.
fn mode_words(mode: Mode) -> Result<(&'static str, u64, u32)> {
    match mode {
        Mode::Exclusive => Ok(("x", 1, 0)),
        Mode::Shared => Ok(("s", 1, 0)),
        Mode::Permits { count, limit } => Ok(("p", count.get().into(), limit.get())),
        Mode::Joint(bond) => Ok(("j", bond.number(), 0)),
        _ => Err(Error::new(ErrorKind::Unsupported, "this store lacks such holds")),
    }
}

/// How long a lock is to be closed, in µs; 0 for not at all.
fn cooldown_ms(length: Option<Duration>) -> Result<u128> {
    let length = length.unwrap_or_default();
    if length > COOLDOWN_MAX {
        return Err(Error::new(
            ErrorKind::Config,
            format!("a cool-down of {length:?} is too long; give at most a year"),
        ));
    }
    Ok(length.as_micros())
}
