//! The smallest locks that leasehold is compared with: a key set if absent, deleted if still ours.
//!
//! The file has the two usual ways to wait for such a key as well. All variants use the same client
//! library.

use std::time::Duration;

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo as _, ProtocolVersion, PushInfo,
    RedisConnectionInfo, Script,
};
use tokio::sync::mpsc;

const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

const SET_AND_COUNT: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2])
end
return 0";

const COMPARE_AND_EXTEND: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0";

const DELETE_AND_PUBLISH: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[2], '1')
  return 1
end
return 0";

const DELETE_AND_PUSH: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], '1') end
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return 1
end
return 0";

const DELETE_AND_PASS_ON: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('RPUSH', KEYS[2], '1')
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return 1
end
return 0";

/// For each lock, reads a state as long as leasehold's, writes one, and issues a fence. Every lock
/// needs that much: a lease that expires, and a key that does, too.
const TAKE_EACH: &str = "\
local time, sub = redis.call('TIME'), string.sub
local now = time[1] .. sub('00000' .. time[2], -6)
local fence, answers = now + 0, {}
local rest = string.format(' %d', fence + ARGV[1] * 1000)
for i = 1, #KEYS do
  local state = redis.call('HGET', KEYS[i], 'state')
  if state and #state == 85 and sub(state, 70) > now then
    answers[i] = 0
  else
    redis.call('HSET', KEYS[i], 'state', now .. ARGV[i + 2] .. ARGV[2] .. rest)
    if not state then redis.call('PEXPIRE', KEYS[i], 20 * ARGV[1]) end
    answers[i] = fence
  end
end
return answers";

const FREE_EACH: &str = "\
local answers = {}
for i = 1, #KEYS do
  local state = redis.call('HGET', KEYS[i], 'state') or ''
  if string.sub(state, 17, 48) == ARGV[i] then
    redis.call('HSET', KEYS[i], 'state', string.sub(state, 1, 68))
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers";

/// The size of the remaining fields in leasehold's state.
const STATE_REST: usize = 20;

const NOTHING: &str = "return 1";

pub(crate) const TTL_MS: u64 = 30_000;

/// A separate connection, with the settings of leasehold's that matter here.
#[derive(Clone, Debug)]
pub(crate) struct Bare {
    pub(crate) connection: MultiplexedConnection,
}

/// A script that the server has loaded.
#[derive(Clone, Debug)]
pub(crate) struct Loaded(String);

impl Loaded {
    pub(crate) fn digest(&self) -> &str {
        &self.0
    }
}

impl Bare {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        Self::connect_with(url, AsyncConnectionConfig::new(), ProtocolVersion::RESP2).await
    }

    pub(crate) async fn connect_with(
        url: &str,
        config: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> anyhow::Result<Self> {
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let redis = RedisConnectionInfo::default().set_protocol(protocol);
        let info = url.into_connection_info()?.set_tcp_settings(tcp).set_redis_settings(redis);
        let connection =
            Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Self { connection: connection.context("cannot connect to the server")? })
    }

    /// Without a timeout for answers, which a blocking command needs.
    async fn connect_patiently(url: &str) -> anyhow::Result<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Self::connect_with(url, config, ProtocolVersion::RESP2).await
    }

    pub(crate) async fn load(&self, script: &str) -> anyhow::Result<Loaded> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script);
        let hash: String = load.query_async(&mut self.connection.clone()).await?;
        debug_assert_eq!(hash, Script::new(script).get_hash(), "both hash the same text");
        Ok(Loaded(hash))
    }

    pub(crate) async fn compare_and_delete(&self) -> anyhow::Result<Loaded> {
        self.load(COMPARE_AND_DELETE).await
    }

    pub(crate) async fn set_and_count(&self) -> anyhow::Result<Loaded> {
        self.load(SET_AND_COUNT).await
    }

    pub(crate) async fn compare_and_extend(&self) -> anyhow::Result<Loaded> {
        self.load(COMPARE_AND_EXTEND).await
    }

    pub(crate) async fn nothing(&self) -> anyhow::Result<Loaded> {
        self.load(NOTHING).await
    }

    pub(crate) async fn run_nothing(&mut self, script: &Loaded) -> anyhow::Result<()> {
        let mut run = redis::cmd("EVALSHA");
        run.arg(&script.0).arg(0);
        Ok(run.query_async(&mut self.connection).await?)
    }

    pub(crate) async fn ping(&mut self) -> anyhow::Result<()> {
        Ok(redis::cmd("PING").query_async(&mut self.connection).await?)
    }

    pub(crate) async fn set(&mut self, key: &str, token: &str) -> anyhow::Result<bool> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(TTL_MS);
        let answer: Option<String> = set.query_async(&mut self.connection).await?;
        Ok(answer.is_some())
    }

    /// Runs a script on these keys; returns whether its answer was above 0.
    pub(crate) async fn call(
        &mut self,
        script: &Loaded,
        keys: &[&str],
        token: &str,
    ) -> anyhow::Result<bool> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&script.0).arg(keys.len()).arg(keys).arg(token).arg(TTL_MS);
        let answer: i64 = call.query_async(&mut self.connection).await?;
        Ok(answer > 0)
    }

    /// Renews all of these in one pipeline; returns how many were renewed.
    pub(crate) async fn extend_all(
        &mut self,
        script: &Loaded,
        keys: &[String],
        token: &str,
    ) -> anyhow::Result<u64> {
        let mut pipeline = redis::Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline.cmd("EVALSHA").arg(&script.0).arg(1).arg(key).arg(token).arg(TTL_MS);
        }
        let answers: Vec<u64> = pipeline.query_async(&mut self.connection).await?;
        Ok(answers.iter().sum())
    }

    /// Fills the server with keys that expire after `ttl_ms`, each after a different time.
    pub(crate) async fn fill(
        &mut self,
        prefix: &str,
        count: usize,
        ttl_ms: std::ops::Range<u64>,
    ) -> anyhow::Result<()> {
        for first in (0..count).step_by(1000) {
            let mut pipeline = redis::Pipeline::with_capacity(1000);
            for number in first..count.min(first + 1000) {
                let ttl_ms = fastrand::u64(ttl_ms.clone());
                let key = format!("{prefix}{number}");
                pipeline.cmd("SET").arg(key).arg("1").arg("PX").arg(ttl_ms).ignore();
            }
            pipeline.query_async::<()>(&mut self.connection).await?;
        }
        Ok(())
    }
}

/// The least that a script about many locks can do to grant each with a fence and release it. It
/// reads and writes a state for each. Owners, queues, expiry and expired releases would come on
/// top.
#[derive(Clone, Debug)]
pub(crate) struct Batches {
    bare: Bare,
    take: Loaded,
    free: Loaded,
}

impl Batches {
    pub(crate) async fn load(bare: Bare) -> anyhow::Result<Self> {
        let (take, free) = (bare.load(TAKE_EACH).await?, bare.load(FREE_EACH).await?);
        Ok(Self { bare, take, free })
    }

    /// Acquires all and releases all; returns whether both succeeded.
    pub(crate) async fn cycle(&mut self, keys: &[String]) -> anyhow::Result<bool> {
        let tokens: Vec<String> = keys.iter().map(|_| token()).collect();
        for (script, takes) in [(&self.take, true), (&self.free, false)] {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&script.0).arg(keys.len()).arg(keys);
            if takes {
                call.arg(TTL_MS).arg("-".repeat(STATE_REST));
            }
            let answers: Vec<i64> =
                call.arg(&tokens).query_async(&mut self.bare.connection).await?;
            if answers.contains(&0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A new secret for each acquisition, as every client of such a lock makes one.
pub(crate) fn token() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Waits for a message to all waiters, and then tries again like all of them.
#[derive(Debug)]
pub(crate) struct PublishToAll {
    bare: Bare,
    messages: mpsc::UnboundedReceiver<PushInfo>,
    release: Loaded,
    key: String,
    channel: String,
}

/// A lost message must not stop a benchmark.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl PublishToAll {
    pub(crate) async fn connect(url: &str, key: &str) -> anyhow::Result<Self> {
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_push_sender(sender);
        let mut bare = Bare::connect_with(url, config, ProtocolVersion::RESP3).await?;
        let channel = format!("{key}:released");
        bare.connection.subscribe(&channel).await?;
        let release = bare.load(DELETE_AND_PUBLISH).await?;
        Ok(Self { bare, messages, release, key: key.to_owned(), channel })
    }

    pub(crate) async fn lock(&mut self) -> anyhow::Result<String> {
        let token = token();
        loop {
            while self.messages.try_recv().is_ok() {}
            if self.bare.set(&self.key, &token).await? {
                return Ok(token);
            }
            drop(tokio::time::timeout(LOOK_AGAIN, self.messages.recv()).await);
        }
    }

    pub(crate) async fn release(&mut self, token: &str) -> anyhow::Result<bool> {
        self.bare.call(&self.release, &[&self.key, &self.channel], token).await
    }
}

/// Waits in the server for an element of a list, which one waiter gets, and then tries again.
///
/// In turn, the element is the right to try. A waiter tries without it only if it seems lost.
/// Otherwise, a newcomer tries first and may overtake the waiters.
#[derive(Debug)]
pub(crate) struct BlockingPop {
    bare: Bare,
    release: Loaded,
    key: String,
    list: String,
    in_turn: bool,
}

impl BlockingPop {
    pub(crate) async fn connect(url: &str, key: &str, in_turn: bool) -> anyhow::Result<Self> {
        let mut bare = Bare::connect_patiently(url).await?;
        let release = bare.load(if in_turn { DELETE_AND_PASS_ON } else { DELETE_AND_PUSH }).await?;
        let list = format!("{key}:released");
        // The first element is pushed once, at the start.
        if in_turn && bare.set(&format!("{key}:begun"), "1").await? {
            let mut push = redis::cmd("RPUSH");
            push.arg(&list).arg("1").query_async::<()>(&mut bare.connection).await?;
        }
        Ok(Self { bare, release, key: key.to_owned(), list, in_turn })
    }

    pub(crate) async fn lock(&mut self) -> anyhow::Result<String> {
        let token = token();
        let mut may_try = !self.in_turn;
        while !may_try || !self.bare.set(&self.key, &token).await? {
            may_try = true;
            let mut pop = redis::cmd("BLPOP");
            pop.arg(&self.list).arg(LOOK_AGAIN.as_secs());
            let _popped: Option<(String, String)> =
                pop.query_async(&mut self.bare.connection).await?;
        }
        Ok(token)
    }

    pub(crate) async fn release(&mut self, token: &str) -> anyhow::Result<bool> {
        self.bare.call(&self.release, &[&self.key, &self.list], token).await
    }
}
