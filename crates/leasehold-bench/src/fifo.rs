//! A bare line in the server, and a bare message: what a hand-off costs when nothing watches over it.

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

/// The same as [`TAKE_OR_STAND`] with what leasehold's record of a lock takes at least: one hash with a
/// state, a line and a field for each who waits, texts of leasehold's lengths, and a look at the clock.
const STAND_IN_RECORD: &str = "\
local time = redis.call('TIME')
local got = redis.call('HMGET', KEYS[1], 'state', 'line', ARGV[1])
local free = string.rep('-', 58)
if not got[1] or #got[1] == 58 then
  redis.call('HSET', KEYS[1], 'state', ARGV[1] .. free, 'lock', time[1] .. time[2] .. free)
  if not got[1] then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return 1
end
local head, tail = 1, 0
if got[2] and got[2] ~= '' then head, tail = string.match(got[2], '^(%d+) (%d+)') end
tail = tail + 1
redis.call('HSET', KEYS[1], '#' .. tail, ARGV[1] .. ARGV[2] .. ' ' .. free .. time[1], ARGV[1], '#' .. tail,
  'line', head .. ' ' .. tail .. ' ' .. free)
return 0";

/// The same as [`HAND_OVER`] with such a record.
const HAND_OVER_RECORD: &str = "\
local time = redis.call('TIME')
local state = redis.call('HGET', KEYS[1], 'state')
if not state or string.sub(state, 1, 32) ~= ARGV[1] then return 0 end
local free = string.rep('-', 58)
local line = redis.call('HGET', KEYS[1], 'line')
local head, tail = string.match(line or '', '^(%d+) (%d+)')
if not head or head + 0 > tail + 0 then
  redis.call('HSET', KEYS[1], 'state', free)
  return 1
end
local place = '#' .. head
local waiter = redis.call('HMGET', KEYS[1], place, '#' .. head + 1)[1]
local token, channel = string.sub(waiter, 1, 32), string.match(waiter, '^(%S+)', 33)
redis.call('HSET', KEYS[1], 'state', token .. free, 'lock', time[1] .. time[2] .. free, place, '', token, '',
  'line', head + 1 .. ' ' .. tail .. ' ' .. free)
redis.call('HDEL', KEYS[1], place, token)
redis.call('PUBLISH', channel, token)
return 1";

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
/// heartbeats, in which a waiter that died stops all behind it, and a lock without fences.
#[derive(Debug)]
pub(crate) struct BareFifo {
    ear: Ear,
    asks: Bare,
    take: Loaded,
    release: Loaded,
    keys: [String; 2],
    channel: String,
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
        let (take, release) = match kept {
            Kept::List => (TAKE_OR_STAND, HAND_OVER),
            Kept::Record => (STAND_IN_RECORD, HAND_OVER_RECORD),
        };
        let (take, release) = (asks.load(take).await?, asks.load(release).await?);
        let keys = [key.to_owned(), format!("{key}:line")];
        Ok(Self { ear, asks, take, release, keys, channel })
    }

    pub(crate) async fn lock(&mut self) -> anyhow::Result<String> {
        let token = token();
        let mut call = redis::cmd("EVALSHA");
        call.arg(self.take.digest()).arg(2).arg(&self.keys);
        call.arg(&token).arg(&self.channel).arg(TTL_MS);
        let taken: i64 = call.query_async(&mut self.asks.connection).await?;
        if taken == 0 {
            let said = self.ear.hear().await?;
            ensure!(said == token.as_bytes(), "a message for another token");
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
