//! Requests as the scripts take them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use leasehold_core::{
    AcquireRequest, AskRequest, ConvertRequest, Error, ErrorKind, Fence, FenceBlock,
    ForceReleaseRequest, Key, LeaveRequest, Mode, Place, ReleaseRequest, RenewRequest, Result,
    SetLimitRequest,
};

use super::RedisStore;
use crate::call::Call;
use crate::names::{asker, label_into};
use crate::reply::Asked;
use crate::script::Script;
use crate::spelling::unix_parts;
use crate::words::{Words, digits, push_digits, push_number, token_digits};

/// What the key of most locks takes, and what stands in a call beside what is said of each lock.
const NAME: usize = 48;
const HEAD: usize = 128;

/// What stands in a plain line's request for no place, and for no limit to how many may wait.
const NO_PLACE: &[u8] = b"----------------";
const NO_LIMIT: &[u8] = b"----------";

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
            .put(digits::<16>(self.shared.seen.load(Ordering::Relaxed)))
            .number(u64::try_from(self.shared.fence_retention.as_millis()).unwrap_or(u64::MAX));
        call
    }

    /// The begin of a call about the locks that these words are about, which says once what is asked
    /// alike, and that.
    fn begin_alike<'w>(
        &self,
        script: &'static Script,
        each: impl ExactSizeIterator<Item = &'w Words> + Clone,
    ) -> (Call<'static>, &'w [u8]) {
        let shared = each.clone().next().map_or(&[][..], Words::asked);
        let mut call = self.opened(Call::new(script, each.map(Words::key)));
        call.put(shared);
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
        add_each(&mut call, each.map(|words| words.argument(&[])), Words::LEASE);
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
        let cooldown = request.cooldown.as_micros();
        let (mode, permits, limit) = mode_words(request.mode)?;
        let preferred = u64::from(request.preferred);
        let room = if request.queue.is_some() { Words::IN_LINE } else { Words::BYTES };
        let mut words = Words::about(&self.shared.names, &request.key, &request.token, room);
        let usual = request.mode == Mode::Exclusive && !request.preferred && cooldown == 0;
        let usual = usual && request.after.is_none();
        let (ttl, block) = (request.ttl.as_millis().into(), request.fence_block.get().into());
        let is_plain = matches!(request.mode, Mode::Exclusive | Mode::Shared)
            && !request.preferred
            && cooldown == 0
            && request.after.is_none()
            && request.holds.get() == 1;
        if is_plain
            && let Some(queue) = &request.queue
            && let Some(place) = plain_place(queue.place)
        {
            words.add_with(|out| {
                out.extend_from_slice(b"= ");
                push_digits::<13>(ttl, out);
                out.push(b' ');
                match place {
                    Some(place) => push_digits::<16>(place, out),
                    None => out.extend_from_slice(NO_PLACE),
                }
                out.push(b' ');
                match queue.max_waiters {
                    Some(most) => push_digits::<10>(most.into(), out),
                    None => out.extend_from_slice(NO_LIMIT),
                }
                out.push(b' ');
                push_digits::<13>(queue.window.as_millis().into(), out);
                for number in [queue.heartbeat.into(), queue.behind.into(), block] {
                    out.push(b' ');
                    push_digits::<10>(number, out);
                }
                out.push(b' ');
                out.extend_from_slice(mode.as_bytes());
                out.extend_from_slice(b" 1 ");
                push_digits::<20>(queue.ticket, out);
                out.push(b' ');
                self.shared.names.channel_into(queue.client, out);
                out.push(b' ');
                profile(request, out);
            });
            return Ok(words);
        }
        let usual = usual && request.queue.is_none();
        words.add_with(|out| {
            out.extend_from_slice(if usual { b"- " } else { b"+ " });
            push_digits::<13>(ttl, out);
            out.push(b' ');
            push_digits::<10>(block, out);
            out.push(b' ');
            profile(request, out);
        });
        if usual {
            return Ok(words);
        }
        words.add_with(|out| {
            out.push(b' ');
            out.extend_from_slice(mode.as_bytes());
            push_each(&[permits, limit.into(), preferred, cooldown], out);
        });
        if let Some(after) = request.after {
            let (epoch, sequence) = unix_parts(after.last());
            words.add_with(|out| {
                out.extend_from_slice(b" after");
                push_each(&[epoch, sequence], out);
            });
        } else if let Some(queue) = &request.queue {
            let place = match queue.place {
                Some(place) if place.number() >= SCRIPT_NUMBER_MAX => {
                    return Err(Error::new(
                        ErrorKind::Config,
                        "the place in line was not given out by this store",
                    ));
                }
                place => place.map(Place::number),
            };
            let window = queue.window.as_millis().into();
            let (heartbeat, behind) = (queue.heartbeat.into(), queue.behind.into());
            words.add_with(|out| {
                out.push(b' ');
                self.shared.names.channel_into(queue.client, out);
                out.push(b' ');
                push_digits::<20>(queue.ticket, out);
                push_each(&[heartbeat, window, behind], out);
                push_or_dash(place, out);
                push_or_dash(queue.max_waiters.map(u64::from), out);
            });
        }
        Ok(words)
    }

    pub(super) fn acquire_all_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let each: Vec<Words> =
            requests.iter().map(|request| self.acquire_words(request)).collect::<Result<_>>()?;
        let (mut call, shared) = self.begin_alike(&self.shared.scripts.acquire_all, each.iter());
        for words in &each {
            call.put(words.argument(shared));
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
    pub(crate) fn release_words(&self, request: &ReleaseRequest) -> Words {
        let cooldown = request.cooldown.as_micros();
        let Self { shared, .. } = self;
        let mut words = Words::about(&shared.names, &request.key, &request.token, Words::BYTES);
        words.add_with(|out| push_end(request.fences, out));
        if request.remaining > 0 || cooldown > 0 || request.reopen || !request.in_time {
            let (reopen, in_time) = (u8::from(request.reopen), u8::from(request.in_time));
            words.add(format_args!(" {} {cooldown} {reopen} {in_time}", request.remaining));
        }
        words
    }

    /// A call about these renewals, whose numbers are for those who read the answer.
    pub(super) fn renew_call(&self, requests: &[(usize, &RenewRequest)]) -> Call<'static> {
        let shared = requests.first().map_or(0, |(_, request)| request.ttl.as_millis());
        let is_usual = |request: &RenewRequest| {
            request.ttl.as_millis() == shared && !request.shorten && request.successor.is_none()
        };
        let alike = requests.len() > 1 && requests.iter().all(|(_, request)| is_usual(request));
        let arguments = requests.len().saturating_mul(if alike { 1 } else { 2 }).saturating_add(8);
        let bytes = requests.len().saturating_mul(NAME + Words::LEASE).saturating_add(HEAD);
        let script = &self.shared.scripts.renew;
        let mut call = Call::about(script, requests.len(), arguments, bytes);
        let mut name = Vec::with_capacity(NAME);
        for (_, request) in requests {
            name.clear();
            self.shared.names.record_into(&request.key, &mut name);
            call.put(&name);
        }
        let mut call = self.opened(call);
        call.put(digits::<13>(shared.into()));
        let mut text = Vec::new();
        text.reserve_exact(Words::LEASE.saturating_mul(if alike { requests.len() } else { 2 }));
        for (_, request) in requests {
            let (next, epoch) = end(request.fences);
            text.extend_from_slice(&token_digits(&request.token));
            text.push(b' ');
            text.extend_from_slice(&digits::<16>(next));
            text.push(b' ');
            text.extend_from_slice(&digits::<4>(epoch));
            if !is_usual(request) {
                text.extend_from_slice(if request.shorten { b" 1 " } else { b" 0 " });
                text.extend_from_slice(&digits::<13>(request.ttl.as_millis().into()));
                if let Some(successor) = &request.successor {
                    text.push(b' ');
                    text.extend_from_slice(&token_digits(successor));
                }
            }
            if !alike {
                call.put(&text);
                text.clear();
            }
        }
        if alike {
            call.put(&text);
        }
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
    each: impl ExactSizeIterator<Item = &'t [u8]> + Clone,
    length: usize,
) {
    if each.len() > 1 && each.clone().all(|text| text.len() == length) {
        let mut all = Vec::with_capacity(length.saturating_mul(each.len()));
        each.for_each(|text| all.extend_from_slice(text));
        call.put(all);
    } else {
        each.for_each(|text| {
            call.put(text);
        });
    }
}

/// ` next epoch`: where the fences of a lease end, as states have it.
fn push_end(fences: FenceBlock, out: &mut Vec<u8>) {
    let (next, epoch) = end(fences);
    out.push(b' ');
    push_digits::<16>(next, out);
    out.push(b' ');
    push_digits::<4>(epoch, out);
}

/// The sequence that follows the last of these fences, and their epoch.
fn end(fences: FenceBlock) -> (u64, u64) {
    let (epoch, sequence) = unix_parts(fences.last());
    (sequence.saturating_add(1), epoch)
}

/// The place that a waiter brings, if it brings one, as far as a plain line's request has room for it.
fn plain_place(place: Option<Place>) -> Option<Option<u64>> {
    const SIXTEEN_DIGITS: Range<u64> = 1_000_000_000_000_000..SCRIPT_NUMBER_MAX;
    match place.map(Place::number) {
        Some(place) => SIXTEEN_DIGITS.contains(&place).then_some(Some(place)),
        None => Some(None),
    }
}

/// Appends numbers, a blank before each.
fn push_each(numbers: &[u64], out: &mut Vec<u8>) {
    for number in numbers {
        out.push(b' ');
        push_number(*number, out);
    }
}

/// The same with a number where there may be none.
fn push_or_dash(number: Option<u64>, out: &mut Vec<u8>) {
    match number {
        Some(number) => push_each(&[number], out),
        None => out.extend_from_slice(b" -"),
    }
}

/// `holds owner metadata`, as records have it.
fn profile(request: &AcquireRequest, out: &mut Vec<u8>) {
    push_number(request.holds.get().into(), out);
    out.push(b' ');
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
