//! Turns requests into script arguments.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, AskRequest, ConvertRequest, Error, ErrorKind, Fence, FenceBlock,
    ForceReleaseRequest, Key, LeaveRequest, Mode, Place, ReleaseRequest, RenewRequest, Result,
    SetLimitRequest,
};

use super::RedisStore;
use crate::script::Script;
use crate::script::call::Call;
use crate::wire::forms::{CLIENT_SIZE, FAR, Pack as _, WHOSE_SIZE};
use crate::wire::names::{asker, label_into};
use crate::wire::reply::Asked;
use crate::wire::request_text::RequestText;
use crate::wire::spelling::unix_parts;

/// The bytes for most renewals.
const RENEWED: usize = 35;
/// Room for the key of most locks, in bytes.
const NAME: usize = 48;

impl RedisStore {
    /// A call about some locks, without its request.
    fn about<'k>(
        &self,
        script: &'static Script,
        keys: impl ExactSizeIterator<Item = &'k Key>,
    ) -> Call<'static> {
        let mut call = Call::about(script, keys.len());
        let mut name = Vec::with_capacity(NAME);
        for key in keys {
            name.clear();
            self.shared.names.record_into(key, &mut name);
            call.put(&name);
        }
        call
    }

    /// The call with a request of these parts.
    fn asking<'t>(
        &self,
        call: Call<'static>,
        parts: impl Iterator<Item = &'t [u8]> + Clone,
    ) -> Call<'static> {
        let mut call = call.telling(&self.shared.unsent);
        let seen = self.shared.highest_sequence.load(Ordering::Relaxed);
        let client = [self.shared.epoch, seen, micros(self.shared.fence_retention)];
        call.request_of(client, parts);
        call
    }

    /// A call about one lock, with this request.
    fn call_about(&self, script: &'static Script, key: &Key, request: &[u8]) -> Call<'static> {
        let call = self.about(script, std::iter::once(key));
        self.asking(call, std::iter::once(request))
    }

    /// A call that takes the locks of these requests. If the same is wanted of several locks in a
    /// row, it is sent once.
    fn taking_call<'w>(
        &self,
        script: &'static Script,
        each: impl ExactSizeIterator<Item = &'w RequestText> + Clone,
    ) -> Call<'static> {
        let (mut whose, mut wishes) = (Vec::new(), Vec::new());
        whose.reserve(each.len().saturating_mul(WHOSE_SIZE));
        // Scripts count from one.
        let first = each.len().saturating_mul(WHOSE_SIZE).saturating_add(CLIENT_SIZE + 1);
        let (mut which, mut last) = (0, None);
        for text in each.clone() {
            let (token, wish) = text.parts();
            if last.replace(wish) != Some(wish) {
                which = u32::try_from(first.saturating_add(wishes.len())).unwrap_or(u32::MAX);
                wishes.extend_from_slice(wish);
            }
            whose.bytes(token).int(which);
        }
        let call = Call::new(script, each.map(RequestText::key));
        self.asking(call, [&*whose, &*wishes].into_iter())
    }

    /// A call that takes the locks that these requests are about, each for itself.
    pub(crate) fn acquire_call<'w>(
        &self,
        each: impl ExactSizeIterator<Item = &'w RequestText> + Clone,
    ) -> Call<'static> {
        self.taking_call(&self.shared.scripts.acquire, each)
    }

    /// A call that ends the leases that these requests are about.
    pub(crate) fn release_call<'w>(
        &self,
        each: impl ExactSizeIterator<Item = &'w RequestText> + Clone,
    ) -> Call<'static> {
        let call = Call::new(&self.shared.scripts.release, each.clone().map(RequestText::key));
        self.asking(call, each.map(RequestText::token_and_asked))
    }

    /// Notes a fence that this store has seen. All later fences must be above it, even if the
    /// server has forgotten it, or a server with a slower clock has replaced it.
    pub(super) fn observe_fence(&self, fence: Fence) {
        let (_, sequence) = unix_parts(fence);
        self.shared.highest_sequence.fetch_max(sequence, Ordering::Relaxed);
    }

    pub(super) fn leave_call(&self, request: &LeaveRequest) -> Call<'static> {
        let mut asked = Vec::new();
        asked.bytes(request.token.as_bytes()).byte(request.reopen.into());
        self.call_about(&self.shared.scripts.leave, &request.key, &asked)
    }

    /// What is wanted of one lock.
    pub(crate) fn acquire_text(&self, request: &AcquireRequest) -> Result<RequestText> {
        let (mode, permits, limit) = mode_parts(request.mode)?;
        let queue = request.in_line();
        let place = queue.and_then(|queue| queue.place).map(Place::number);
        if place.is_some_and(|place| place > FAR) {
            return Err(Error::new(
                ErrorKind::Config,
                "the position in the queue is not from this store",
            ));
        }
        let names = &self.shared.names;
        let room = if queue.is_some() { RequestText::IN_LINE } else { RequestText::BYTES };
        Ok(RequestText::about(names, &request.key, &request.token, room, |out| {
            let flags = u8::from(request.preferred)
                | u8::from(queue.is_some()) << 1
                | u8::from(request.after.is_some()) << 2;
            out.double(micros(request.ttl.duration()))
                .int(request.fence_block.get())
                .int(request.holds.get())
                .byte(mode)
                .double(permits)
                .int(limit)
                .double(request.cooldown.as_micros())
                .byte(flags)
                .int(0);
            let length_ends = out.len();
            if let Some(queue) = queue {
                out.bytes(&queue.ticket.to_le_bytes())
                    .int(queue.heartbeat)
                    .double(micros(queue.window.duration()))
                    .int(queue.behind)
                    .number_or_none(place)
                    .number_or_none(queue.max_waiters.map(u64::from))
                    .byte(0);
                let begin = out.len();
                names.channel_into(queue.client, out);
                let length = u8::try_from(out.len().saturating_sub(begin)).unwrap_or(u8::MAX);
                if let Some(place) = out.get_mut(begin.saturating_sub(1)) {
                    *place = length;
                }
            } else if let Some(after) = request.after {
                let (epoch, sequence) = unix_parts(after.last());
                out.short(epoch).double(sequence);
            }
            let (count, holds) = (request.fence_block, request.holds);
            let label_begins = out.len();
            // Writing to bytes in memory fails only where the value itself does.
            let _written = write!(out, "{count} {holds} ");
            label_into(&request.owner, &request.metadata, out);
            let length = u32::try_from(out.len().saturating_sub(label_begins)).unwrap_or(u32::MAX);
            if let Some(place) = out.get_mut(length_ends.saturating_sub(4)..length_ends) {
                place.copy_from_slice(&length.to_le_bytes());
            }
        }))
    }

    pub(super) fn acquire_all_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let each: Vec<RequestText> =
            requests.iter().map(|request| self.acquire_text(request)).collect::<Result<_>>()?;
        Ok(self.taking_call(&self.shared.scripts.acquire_all, each.iter()))
    }

    /// `epoch` is the epoch of the server that answered.
    pub(crate) fn asked(&self, request: &AcquireRequest, epoch: u64) -> Asked {
        let epoch = epoch.max(self.shared.epoch);
        Asked { epoch, block: request.fence_block, mode: request.mode }
    }

    pub(super) fn convert_call(&self, request: &ConvertRequest) -> Result<Call<'static>> {
        let (mode, permits, limit) = mode_parts(request.mode)?;
        let mut asked = Vec::new();
        asked.bytes(request.token.as_bytes());
        put_end(request.fences, &mut asked);
        asked.byte(mode).double(permits).int(limit).int(request.fence_block.get());
        Ok(self.call_about(&self.shared.scripts.convert, &request.key, &asked))
    }

    pub(super) fn ask_call(&self, request: &AskRequest, from: u32) -> Call<'static> {
        let mut asked = meant(request.fence, from);
        asked.bytes(asker(&request.by).as_ref());
        self.call_about(&self.shared.scripts.ask, &request.key, &asked)
    }

    pub(super) fn force_release_call(
        &self,
        request: &ForceReleaseRequest,
        from: u32,
    ) -> Call<'static> {
        let asked = meant(Some(request.fence), from);
        self.call_about(&self.shared.scripts.force_release, &request.key, &asked)
    }

    pub(super) fn set_limit_call(&self, request: &SetLimitRequest) -> Call<'static> {
        let mut asked = Vec::new();
        asked.int(request.limit.get());
        self.call_about(&self.shared.scripts.set_limit, &request.key, &asked)
    }

    /// The text of a release.
    pub(crate) fn release_text(&self, request: &ReleaseRequest) -> RequestText {
        let names = &self.shared.names;
        RequestText::about(names, &request.key, &request.token, RequestText::BYTES, |out| {
            put_end(request.fences, out);
            let flags = u8::from(request.reopen) | u8::from(request.in_time) << 1;
            out.int(request.remaining).double(request.cooldown.as_micros()).byte(flags);
        })
    }

    /// A call for these renewals. Their indices are for the reader of the answer.
    pub(super) fn renew_call(&self, requests: &[(usize, &RenewRequest)]) -> Call<'static> {
        let mut all = Vec::with_capacity(requests.len().saturating_mul(RENEWED));
        for (_, request) in requests {
            all.bytes(request.token.as_bytes());
            put_end(request.fences, &mut all);
            let flags = u8::from(request.shorten) | u8::from(request.successor.is_some()) << 1;
            all.double(micros(request.ttl.duration())).byte(flags);
            if let Some(successor) = &request.successor {
                all.bytes(successor.as_bytes());
            }
        }
        let keys = requests.iter().map(|(_, request)| &request.key);
        let call = self.about(&self.shared.scripts.renew, keys);
        self.asking(call, std::iter::once(&*all))
    }

    pub(crate) fn publish_call(&self, near: &Key, channel: &str, message: &[u8]) -> Call<'static> {
        let mut sent = Vec::new();
        sent.int(u32::try_from(channel.len()).unwrap_or(u32::MAX)).bytes(channel.as_bytes());
        sent.bytes(message);
        self.call_about(&self.shared.scripts.publish, near, &sent)
    }

    pub(crate) fn inspect_call(&self, key: &Key) -> Call<'static> {
        self.call_about(&self.shared.scripts.inspect, key, &[])
    }
}

/// A length as scripts take it.
fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// The sequence that follows the last of these fences, and their epoch.
fn put_end(fences: FenceBlock, out: &mut Vec<u8>) {
    let (epoch, sequence) = unix_parts(fences.last());
    out.double(sequence.saturating_add(1)).short(epoch);
}

/// What names one lease or all, and the holder from which to start.
fn meant(fence: Option<Fence>, from: u32) -> Vec<u8> {
    let (epoch, sequence) = fence.map(unix_parts).unwrap_or_default();
    let mut asked = Vec::new();
    asked.byte(fence.is_none().into()).short(epoch).double(sequence).int(from);
    asked
}

/// A mode as scripts take it: its letter, the permits or the bond, and the limit or 0.
fn mode_parts(mode: Mode) -> Result<(u8, u64, u32)> {
    match mode {
        Mode::Exclusive => Ok((b'x', 1, 0)),
        Mode::Shared => Ok((b's', 1, 0)),
        Mode::Permits { count, limit } => Ok((b'p', count.get().into(), limit.get())),
        Mode::Joint(bond) => Ok((b'j', bond.number(), 0)),
        _ => Err(Error::new(ErrorKind::Unsupported, "this store lacks such holds")),
    }
}
