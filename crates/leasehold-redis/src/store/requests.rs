//! Requests as the scripts take them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, AskRequest, ConvertRequest, Error, ErrorKind, Fence, ForceReleaseRequest, Key,
    LeaveRequest, Mode, Place, ReleaseRequest, RenewRequest, Result, SetLimitRequest,
};

use super::RedisStore;
use crate::call::Call;
use crate::names::{asker, label_into};
use crate::reply::Asked;
use crate::script::Script;
use crate::spelling::unix_parts;
use crate::words::{Words, push};

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
            .arg(format!("{:016}", self.shared.seen.load(Ordering::Relaxed)))
            .arg(self.shared.fence_retention.as_millis());
        call
    }

    /// A call about the locks that these words are about.
    pub(crate) fn call_about<'w>(
        &self,
        script: &'static Script,
        each: impl Iterator<Item = &'w Words> + Clone,
    ) -> Call<'static> {
        let keys: Vec<&str> = each.clone().map(Words::key).collect();
        let mut call = self.opened(Call::new(script, &keys));
        for argument in each.flat_map(Words::arguments) {
            call.arg(argument);
        }
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

    /// What is wanted of one lock, in five words.
    pub(crate) fn acquire_words(&self, request: &AcquireRequest) -> Result<Words> {
        let cooldown = cooldown_ms(request.cooldown)?;
        let (mode, permits, limit) = mode_words(request.mode)?;
        let preferred = u8::from(request.preferred);
        let mut words = Words::about(&self.shared.names, &request.key);
        words
            .add_token(&request.token)
            .add(format_args!("{:013}", request.ttl.as_millis()))
            .add(format_args!("{:010}", request.fence_block))
            .add_with(|out| profile(request, out));
        if let Some(after) = request.after {
            let (epoch, sequence) = unix_parts(after.last());
            words.add(format_args!(
                "{mode} {permits} {limit} {preferred} {cooldown} after {epoch} {sequence}"
            ));
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
                "{mode} {permits} {limit} {preferred} {cooldown} {} {} {} {} {} {place} {}",
                self.shared.names.channel(queue.client),
                queue.ticket,
                queue.heartbeat,
                queue.window.as_millis(),
                queue.behind,
                or_dash(queue.max_waiters)
            ));
        } else if request.mode == Mode::Exclusive && !request.preferred && cooldown == 0 {
            words.add("");
        } else {
            words.add(format_args!("{mode} {permits} {limit} {preferred} {cooldown}"));
        }
        Ok(words)
    }

    pub(super) fn acquire_all_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let each: Vec<Words> =
            requests.iter().map(|request| self.acquire_words(request)).collect::<Result<_>>()?;
        Ok(self.call_about(&self.shared.scripts.acquire_all, each.iter()))
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

    /// What is to end, in four words.
    pub(crate) fn release_words(&self, request: &ReleaseRequest) -> Result<Words> {
        let cooldown = cooldown_ms(request.cooldown)?;
        let (epoch, sequence) = unix_parts(request.fences.last());
        let mut words = Words::about(&self.shared.names, &request.key);
        words.add_token(&request.token).add(epoch).add(sequence);
        if request.remaining > 0 || cooldown > 0 || request.reopen {
            let reopen = u8::from(request.reopen);
            words.add(format_args!("{} {cooldown} {reopen}", request.remaining));
        } else {
            words.add("");
        }
        Ok(words)
    }

    pub(super) fn renew_call(&self, requests: &[&RenewRequest]) -> Call<'static> {
        let keys = requests.iter().map(|request| &request.key);
        let mut call = self.begin(&self.shared.scripts.renew, keys);
        for request in requests {
            let (epoch, sequence) = unix_parts(request.fences.last());
            let successor = request.successor.map_or_else(String::new, |token| token.to_hex());
            call.arg(request.token.to_hex())
                .arg(epoch)
                .arg(sequence)
                .arg(format!("{:013}", request.ttl.as_millis()))
                .arg(format!("{}{successor}", u8::from(request.shorten)));
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
