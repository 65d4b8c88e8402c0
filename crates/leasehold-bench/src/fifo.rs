//! The simplest queue in the server, and a bare message: the least that a hand-off can cost.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use crate::bare::{Bare, Loaded, TTL_MS, token};

/// Takes a lock that is free, or stands in line with the name of a channel.
const TAKE_OR_STAND: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1] .. ARGV[2])
return 0";

/// Gives the lock to the first in line, and tells that one alone.
const HAND_OVER: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local first = redis.call('LPOP', KEYS[2])
if first then
  local token = string.sub(first, 1, 32)
  redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
  redis.call('PUBLISH', string.sub(first, 33), token)
else
  redis.call('DEL', KEYS[1])
end
return 1";

/// The same as [`TAKE_OR_STAND`] with what a record like leasehold's takes at least: one hash with a state, a text about
/// the grant and a field for each who waits, of leasehold's lengths, the end of a lease, and a fence for each grant.
///
/// The state has the holder, the fence to come, the end of the lease in µs, and the line's head and tail.
const STAND_IN_RECORD: &str = "\
local sub, format = string.sub, string.format
local time = redis.call('TIME')
local now = time[1] .. format('%06d', time[2])
local state = redis.call('HGET', KEYS[1], 'state')
if not state or sub(state, 1, 1) == '-' then
  local fence = state and sub(state, 34, 49) or now
  if fence < now then fence = now end
  local line = state and sub(state, 67) or ' 1000000000000000 1000000000000000 ' .. string.rep('-', 51)
  redis.call('HSET', KEYS[1], 'state', ARGV[1] .. format(' %d %d', fence + 1, now + ARGV[3] * 1000) .. line,
    'lock', 'leasehold/1 0000000017 ' .. now .. ' 1 vm_1000 ')
  if not state then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return fence
end
local tail = sub(state, 85, 100)
local place = '#' .. tail
redis.call('HSET', KEYS[1], place, now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2], ARGV[1], place,
  'state', sub(state, 1, 84) .. format('%d', tail + 1) .. sub(state, 101))
return 0";

/// The same as [`HAND_OVER`] with such a record.
const HAND_OVER_RECORD: &str = "\
local sub, format = string.sub, string.format
local time = redis.call('TIME')
local now = time[1] .. format('%06d', time[2])
local state = redis.call('HGET', KEYS[1], 'state')
if not state or sub(state, 1, 32) ~= ARGV[1] then return 0 end
local head = sub(state, 68, 83)
if head == sub(state, 85, 100) then
  redis.call('HSET', KEYS[1], 'state', string.rep('-', 32) .. sub(state, 33))
  return 1
end
local place = '#' .. head
local waiter = redis.call('HGET', KEYS[1], place)
local token, channel = sub(waiter, 18, 49), string.match(waiter, '^%S+', 51)
local fence = sub(state, 34, 49)
if fence < now then fence = now end
redis.call('HSET', KEYS[1], 'state', token .. format(' %d %d %d', fence + 1, now + ARGV[2] * 1000, head + 1)
  .. sub(state, 84), 'lock', 'leasehold/1 0000000017 ' .. now .. ' 1 vm_1000 ', place, '', token, '')
redis.call('HDEL', KEYS[1], place, token)
redis.call('PUBLISH', channel, token .. fence)
return 1";

/// What a waiter sends beside its token and its channel, so that a field for it is as long as leasehold's.
const REST_OF_WAITER: usize = 147;

/// A message that does not come ends the measurement: nothing here looks again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that hears of one channel.
#[derive(Debug)]
struct Ear {
    bare: Bare,
    messages: mpsc::UnboundedReceiver<PushInfo>,
}

impl Ear {
    async fn open(url: &str, channel: &str) -> anyhow::Result<Self> {
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_push_sender(sender);
        let mut bare = Bare::connect_with(url, config, ProtocolVersion::RESP3).await?;
        bare.connection.subscribe(channel).await?;
        Ok(Self { bare, messages })
    }

    /// What the next message says.
    async fn hear(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.messages.recv()).await;
            let PushInfo { kind, mut data } =
                message.context("no message came")?.context("the connection was lost")?;
            if kind == PushKind::Message
                && let Some(Value::BulkString(said)) = data.pop()
            {
                return Ok(said);
            }
        }
    }
}

/// Waits in a list of the server for a release that names it the next holder: a line without
/// heartbeats, in which a waiter that died stops all behind it, and with a list a lock without fences.
#[derive(Debug)]
pub(crate) struct BareFifo {
    ear: Ear,
    asks: Bare,
    take: Loaded,
    release: Loaded,
    keys: [String; 2],
    /// Its channel, and what else its field has.
    label: String,
}

/// What keeps the line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kept {
    /// A key, and a list.
    List,
    /// One hash of the size of leasehold's.
    Record,
}

/// What its requests and its messages come over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wires {
    /// One connection, as only version 3 of the protocol lets them.
    Shared,
    /// A connection for each.
    Apart,
}

impl BareFifo {
    pub(crate) async fn connect(
        url: &str,
        key: &str,
        number: usize,
        kept: Kept,
        wires: Wires,
    ) -> anyhow::Result<Self> {
        let channel = format!("{key}:{number}");
        let ear = Ear::open(url, &channel).await?;
        let asks = match wires {
            Wires::Shared => ear.bare.clone(),
            Wires::Apart => Bare::connect(url).await?,
        };
        let (take, release, label) = match kept {
            Kept::List => (TAKE_OR_STAND, HAND_OVER, channel),
            Kept::Record => {
                (STAND_IN_RECORD, HAND_OVER_RECORD, format!("{channel:<REST_OF_WAITER$}"))
            }
        };
        let (take, release) = (asks.load(take).await?, asks.load(release).await?);
        let keys = [key.to_owned(), format!("{key}:line")];
        Ok(Self { ear, asks, take, release, keys, label })
    }

    pub(crate) async fn lock(&mut self) -> anyhow::Result<String> {
        let token = token();
        let mut call = redis::cmd("EVALSHA");
        call.arg(self.take.digest()).arg(2).arg(&self.keys);
        call.arg(&token).arg(&self.label).arg(TTL_MS);
        let taken: i64 = call.query_async(&mut self.asks.connection).await?;
        if taken == 0 {
            let said = self.ear.hear().await?;
            ensure!(said.starts_with(token.as_bytes()), "a message for another token");
        }
        Ok(token)
    }

    pub(crate) async fn release(&mut self, token: &str) -> anyhow::Result<bool> {
        let keys = self.keys.each_ref().map(String::as_str);
        self.asks.call(&self.release, &keys, token).await
    }
}

/// Passes a message round: no lock at all, only what it takes to tell the next one.
#[derive(Debug)]
pub(crate) struct Message {
    ear: Ear,
    next: String,
    /// The first one starts.
    starts: bool,
}

impl Message {
    pub(crate) async fn connect(
        url: &str,
        key: &str,
        number: usize,
        all: usize,
    ) -> anyhow::Result<Self> {
        let ear = Ear::open(url, &format!("{key}:{number}")).await?;
        Ok(Self { ear, next: format!("{key}:{}", (number + 1) % all), starts: number == 0 })
    }

    pub(crate) async fn lock(&mut self) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.starts) {
            self.ear.hear().await?;
        }
        Ok(())
    }

    pub(crate) async fn release(&mut self) -> anyhow::Result<bool> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.next).arg("1");
        let heard: i64 = publish.query_async(&mut self.ear.bare.connection).await?;
        Ok(heard == 1)
    }
}
