//! Requests as the scripts take them.

use std::time::Duration;

use leasehold_core::{
    AcquireRequest, AskRequest, ConvertRequest, Error, ErrorKind, Key, LeaveRequest, Mode,
    ReleaseRequest, RenewRequest, Result,
};

use super::RedisStore;
use crate::call::Call;
use crate::names::{asker, label};
use crate::reply::{Asked, unix_parts};

/// The longest cool-down: a year.
const COOLDOWN_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Numbers in a script are exact below this.
const SCRIPT_NUMBER_MAX: u64 = 1 << 53;

impl RedisStore {
    pub(super) fn leave_call(&self, request: &LeaveRequest) -> Call<'static> {
        let mut call = self.call(&self.shared.scripts.leave, &request.key);
        call.arg(request.token.to_hex()).arg(self.retention_ms()).epoch(self.shared.epoch);
        if request.reopen {
            call.arg(1);
        }
        call
    }

    pub(super) fn acquire_call(&self, request: &AcquireRequest) -> Result<Call<'static>> {
        let mut call = self.call(&self.shared.scripts.acquire, &request.key);
        call.arg(request.token.to_hex())
            .arg(request.ttl.as_millis())
            .epoch(self.shared.epoch)
            .arg(self.kept_ms(request))
            .arg(request.fence_block)
            .arg(profile(request));
        let (preferred, close_for) = (request.preferred, closing(request.close_for)?);
        let plain = !preferred && close_for == 0;
        if plain && request.queue.is_none() && request.mode == Mode::Exclusive {
            return Ok(call);
        }
        let (mode, permits, limit) = mode_words(request.mode)?;
        call.arg(mode).arg(permits).arg(limit);
        match &request.queue {
            Some(queue) => {
                let place = match queue.place {
                    Some(place) if place.number() >= SCRIPT_NUMBER_MAX => {
                        return Err(Error::new(
                            ErrorKind::Config,
                            "the place in line was not given out by this store",
                        ));
                    }
                    Some(place) => place.number().to_string(),
                    None => String::new(),
                };
                let waiters_max = queue.waiters_max.map(|max| max.to_string()).unwrap_or_default();
                call.arg(self.shared.names.channel(queue.client))
                    .arg(queue.ticket)
                    .arg(queue.heartbeat)
                    .arg(queue.window.as_millis())
                    .arg(place)
                    .arg(waiters_max);
            }
            None if plain => return Ok(call),
            None => {
                for _ in 0..6 {
                    call.arg("");
                }
            }
        }
        if !plain {
            call.arg(u8::from(preferred)).arg(close_for);
        }
        Ok(call)
    }

    pub(super) fn acquire_all_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let keys = requests.iter().flat_map(|request| self.shared.names.keys(&request.key));
        let mut call = Call::new(&self.shared.scripts.acquire_all, keys.collect::<Vec<_>>());
        call.epoch(self.shared.epoch);
        for request in requests {
            let (mode, permits, limit) = mode_words(request.mode)?;
            call.arg(request.token.to_hex())
                .arg(request.ttl.as_millis())
                .arg(self.kept_ms(request))
                .arg(request.fence_block)
                .arg(profile(request))
                .arg(mode)
                .arg(permits)
                .arg(limit)
                .arg(u8::from(request.preferred))
                .arg(closing(request.close_for)?);
        }
        Ok(call)
    }

    /// How long a record with a new lease is kept, in ms. It must outlive the fences reserved by
    /// it, or the next would issue them again.
    pub(super) fn kept_ms(&self, request: &AcquireRequest) -> u128 {
        let block_ms = u128::from(request.fence_block.get() / 1_000).saturating_add(1);
        self.retention_ms().max(block_ms).saturating_add(request.ttl.as_millis().into())
    }

    /// `epoch` is that of the server which answered.
    pub(super) fn asked(&self, request: &AcquireRequest, epoch: u64) -> Asked {
        let epoch = epoch.max(self.shared.epoch);
        Asked { epoch, block: request.fence_block, mode: request.mode }
    }

    pub(super) fn convert_call(&self, request: &ConvertRequest) -> Result<Call<'static>> {
        let (epoch, sequence) = unix_parts(request.fences.last());
        let (mode, permits, limit) = mode_words(request.mode)?;
        let mut call = self.call(&self.shared.scripts.convert, &request.key);
        call.arg(request.token.to_hex())
            .arg(self.retention_ms())
            .epoch(self.shared.epoch)
            .arg(epoch)
            .arg(sequence)
            .arg(mode)
            .arg(permits)
            .arg(limit)
            .arg(request.fence_block);
        Ok(call)
    }

    pub(super) fn ask_call(&self, request: &AskRequest) -> Call<'static> {
        let mut call = self.call(&self.shared.scripts.ask, &request.key);
        let (epoch, sequence) = match request.fence.map(unix_parts) {
            Some((epoch, sequence)) => (epoch.to_string(), sequence.to_string()),
            None => Default::default(),
        };
        call.arg(epoch)
            .arg(self.retention_ms())
            .epoch(self.shared.epoch)
            .arg(sequence)
            .arg(asker(&request.by));
        call
    }

    pub(super) fn release_call(&self, request: &ReleaseRequest) -> Result<Call<'static>> {
        let cooldown = closing(request.cooldown)?;
        let (epoch, sequence) = unix_parts(request.fences.last());
        let mut call = self.call(&self.shared.scripts.release, &request.key);
        call.arg(request.token.to_hex())
            .arg(self.retention_ms())
            .epoch(self.shared.epoch)
            .arg(epoch)
            .arg(sequence);
        if request.remaining > 0 || cooldown > 0 || request.reopen {
            call.arg(request.remaining).arg(cooldown).arg(u8::from(request.reopen));
        }
        Ok(call)
    }

    pub(super) fn renew_call(&self, requests: &[&RenewRequest]) -> Call<'static> {
        let mut keys = Vec::with_capacity(requests.len().saturating_mul(3));
        for request in requests {
            keys.extend(self.shared.names.keys(&request.key));
        }
        let mut call = Call::new(&self.shared.scripts.renew, keys);
        call.epoch(self.shared.epoch).arg(self.retention_ms());
        for request in requests {
            let (epoch, sequence) = unix_parts(request.fences.last());
            call.arg(request.token.to_hex())
                .arg(epoch)
                .arg(sequence)
                .arg(request.ttl.as_millis())
                .arg(u8::from(request.shorten));
        }
        call
    }

    pub(super) fn inspect_call(&self, key: &Key) -> Call<'static> {
        self.call(&self.shared.scripts.inspect, key)
    }
}

/// `holds owner metadata`, as records have it.
fn profile(request: &AcquireRequest) -> String {
    format!("{} {}", request.holds, label(&request.owner, &request.metadata))
}

/// A mode as scripts take it: its letter, the permits, and the limit or 0.
fn mode_words(mode: Mode) -> Result<(&'static str, u32, u32)> {
    match mode {
        Mode::Exclusive => Ok(("x", 1, 0)),
        Mode::Shared => Ok(("s", 1, 0)),
        Mode::Permits { count, limit } => Ok(("p", count.get(), limit.get())),
        _ => Err(Error::new(ErrorKind::Unsupported, "this store lacks such holds")),
    }
}

/// How long a lock is to be closed, in µs; 0 for not at all.
fn closing(length: Option<Duration>) -> Result<u128> {
    let length = length.unwrap_or_default();
    if length > COOLDOWN_MAX {
        return Err(Error::new(
            ErrorKind::Config,
            format!("closing a lock for {length:?} is too long; give at most a year"),
        ));
    }
    Ok(length.as_micros())
}
