//! The simplest queue in the server, and a bare message: lower bounds for the cost of a hand-off.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use crate::bare::{Bare, Loaded, TTL_MS, token};

/// Acquires a free lock, or queues with the name of a channel.
const TAKE_OR_STAND: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1] .. ARGV[2])
return 0";

/// Grants the lock to the head of the queue, and notifies only that one.
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

/// As [`TAKE_OR_STAND`], with the least that a record of leasehold's form needs. That is one hash
/// with a packed state, a text about the grant, two fields for each waiter, the lease's end, and a
/// fence for each grant.
///
/// All have leasehold's lengths. A token is half as long as the values that the others here
/// compare.
const STAND_IN_RECORD: &str = "\
local pack, unpack, sub = struct.pack, struct.unpack, string.sub
local time = redis.call('TIME')
local now, ttl, token = time[1] * 1000000 + time[2], ARGV[3] * 1000, sub(ARGV[1], 1, 16)
local state = redis.call('HGET', KEYS[1], 'state')
local kept, holder, ends, given, following = now + ttl, nil, 0, nil, now
local _
if state then _, kept, holder, ends, given, following = unpack('<Bdc16dddH', state) end
if ends == 0 then
  local fence = math.max(following, now)
  redis.call('HSET', KEYS[1], 'state', pack('<Bdc16dddH', 17, kept, token, now + ttl, now, fence + 1, 0),
    'about', time[1] .. ' ' .. time[2] .. ' 17 1 vm_1000 ')
  if not state then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return fence
end
local waiters, head, tail = 0, now + 2 ^ 52, now + 2 ^ 52 - 1
if #state > 51 then waiters, head, tail = unpack('<Idd', state, 52) end
tail = tail + 1
local channel = string.match(ARGV[2], '^%S+')
redis.call('HSET', KEYS[1], 'state',
  pack('<Bdc16dddHIdddd', 18, kept, holder, ends, given, following, 0, waiters + 1, head, tail, ttl, now + ttl),
  pack('>d', tail), token, token, pack('<c1ddIdIdIc1dc8B', 'w', tail, now, 0, ttl, 0, now, 1, 'x', 1, sub(ARGV[1], 17, 24), #channel)
  .. channel .. ARGV[1] .. sub(ARGV[2], #channel + 1, 35))
return 0";

/// As [`HAND_OVER`], with such a record.
const HAND_OVER_RECORD: &str = "\
local pack, unpack, sub = struct.pack, struct.unpack, string.sub
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = redis.call('HGET', KEYS[1], 'state')
if not state or sub(state, 10, 25) ~= sub(ARGV[1], 1, 16) then return 0 end
if #state == 51 then
  redis.call('HSET', KEYS[1], 'state', sub(state, 1, 25) .. pack('<d', 0) .. sub(state, 34))
  return 1
end
local _, kept, _, _, _, following, _, waiters, head, tail, longest, soonest = unpack('<Bdc16dddHIdddd', state)
local place = pack('>d', head)
local token = redis.call('HGET', KEYS[1], place)
local waiter = redis.call('HGET', KEYS[1], token)
local _, _, _, _, _, _, _, _, _, _, _, length, from = unpack('<c1ddIdIdIc1dc8B', waiter)
local fence, ends = math.max(following, now), now + ARGV[2] * 1000
if waiters > 1 then
  state = pack('<Bdc16dddHIdddd', 18, kept, token, ends, now, fence + 1, 0, waiters - 1, head + 1, tail, longest, soonest)
else
  state = pack('<Bdc16dddH', 17, kept, token, ends, now, fence + 1, 0)
end
redis.call('HSET', KEYS[1], 'state', state, 'about', time[1] .. ' ' .. time[2] .. ' 17 1 vm_1000 ', place, '', token, '')
redis.call('HDEL', KEYS[1], place, token)
redis.call('PUBLISH', sub(waiter, from, from + length - 1), sub(waiter, from + length, from + length + 31) .. pack('<d', fence))
return 1";

/// The bytes that a waiter of leasehold sends besides its token. The record keeps the part that is
/// as long as leasehold's.
const REST_OF_WAITER: usize = 147;

/// A lost message ends the measurement: these waiters have no timers.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is subscribed to one channel.
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

    /// The next message.
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

/// Queues in a list of the server until a release names it the next holder. There are no
/// heartbeats, so a dead waiter blocks all behind it. With a list, the lock also lacks fences.
#[derive(Debug)]
pub(crate) struct BareFifo {
    ear: Ear,
    asks: Bare,
    take: Loaded,
    release: Loaded,
    keys: [String; 2],
    /// Its channel, and the rest of its field.
    label: String,
}

/// How the queue is stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kept {
    /// A key, and a list.
    List,
    /// One hash of the size of leasehold's.
    Record,
}

/// The connections for requests and for messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wires {
    /// One connection for both, which needs version 3 of the protocol.
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

/// Passes a message round: no lock, only the notification of the next one.
#[derive(Debug)]
pub(crate) struct Message {
    ear: Ear,
    next: String,
    /// Whether it starts the round.
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
