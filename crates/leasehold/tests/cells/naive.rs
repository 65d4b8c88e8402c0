//! A lock as it is usually written.
//!
//! Taking it is `SET NX PX` with a random value, giving it back deletes the key if it has that
//! value, and a watchdog renews it every third of its length by a script that was sent in whole
//! once and goes by its digest since. All of that is right as long as nothing goes wrong. But it
//! never compares a clock with a deadline, and never hears of a renewal that failed: a holder
//! believes in its lock until it releases it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Key;
use leasehold_clock::SystemClock;
use leasehold_core::{Fence, Mode};
use leasehold_testkit::history::{Record, Recorder, overlaps};
use redis::{AsyncConnectionConfig, Cmd, Script, Value};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::cell::{ms, wait_for};
use crate::resource::Open;

/// In the same slot of a cluster as the lock of [`crate::cell::KEY`].
const KEY: &str = "{cells}:naive";
const RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                         return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
const GIVE_BACK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                             return redis.call('DEL', KEYS[1]) end return 0";
const PATIENCE: Duration = Duration::from_secs(1);
const TRY_EVERY: Duration = Duration::from_millis(10);
/// How many pairs may fail before the fault.
const TRIES: u32 = 20;

type Find = dyn Fn() -> Vec<SocketAddr> + Send + Sync;

/// Where naive clients find their lock.
#[derive(Clone)]
pub(crate) struct Servers {
    find: Arc<Find>,
    needed: usize,
    password: &'static str,
}

impl Servers {
    /// One server, by whatever names it at the moment. `find` may block.
    pub(crate) fn one(find: impl Fn() -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        let find = Arc::new(move || find().into_iter().collect());
        Self { find, needed: 1, password: "" }
    }

    /// The same servers with a password.
    pub(crate) fn password(mut self, password: &'static str) -> Self {
        self.password = password;
        self
    }

    /// A majority of these.
    pub(crate) fn majority(all: Vec<SocketAddr>) -> Self {
        let needed = all.len() / 2 + 1;
        Self { find: Arc::new(move || all.clone()), needed, password: "" }
    }

    /// The first of these that answers, as if they were one.
    pub(crate) fn first(all: Vec<SocketAddr>) -> Self {
        let up = |at: &&SocketAddr| std::net::TcpStream::connect_timeout(at, PATIENCE).is_ok();
        Self::one(move || all.iter().find(up).copied())
    }
}

/// One that wants the lock.
#[derive(Clone)]
struct Contender {
    servers: Servers,
    name: &'static str,
    ttl: Duration,
    renew: String,
}

impl Contender {
    /// Sends this to all servers, and returns how many said yes.
    async fn ask(&self, command: Cmd) -> usize {
        let find = Arc::clone(&self.servers.find);
        let servers = tokio::task::spawn_blocking(move || find()).await.unwrap();
        let mut asking = JoinSet::new();
        for at in servers {
            let (command, password) = (command.clone(), self.servers.password);
            asking.spawn(async move {
                let answer = tokio::time::timeout(PATIENCE, send(at, password, command)).await;
                matches!(answer, Ok(Ok(Value::Okay | Value::Int(1))))
            });
        }
        asking.join_all().await.into_iter().filter(|yes| *yes).count()
    }

    async fn take(&self) -> bool {
        let mut set = redis::cmd("SET");
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap();
        set.arg(KEY).arg(self.name).arg("NX").arg("PX").arg(ttl_ms);
        if self.ask(set).await >= self.servers.needed {
            return true;
        }
        if self.servers.needed > 1 {
            self.give_back().await;
        }
        false
    }

    async fn renew(&self) {
        let mut renew = redis::cmd("EVALSHA");
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap();
        renew.arg(&self.renew).arg(1).arg(KEY).arg(self.name).arg(ttl_ms);
        self.ask(renew).await;
    }

    async fn give_back(&self) {
        let mut eval = redis::cmd("EVAL");
        eval.arg(GIVE_BACK).arg(1).arg(KEY).arg(self.name);
        self.ask(eval).await;
    }
}

async fn send(at: SocketAddr, password: &str, command: Cmd) -> redis::RedisResult<Value> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(format!("redis://:{password}@{at}"))?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    command.query_async(&mut connection).await
}

/// A naive holder, and a naive client that wants what it has.
pub(crate) struct Naive {
    recorder: Recorder,
    resource: Arc<Open>,
    refusals: watch::Receiver<u32>,
    holder: JoinHandle<()>,
    other: JoinHandle<()>,
    second_holder: CancellationToken,
    give_up: CancellationToken,
}

/// What became of them.
#[derive(Clone, Debug)]
pub(crate) struct Grief {
    pub(crate) acquisitions: usize,
    pub(crate) overlaps: usize,
    pub(crate) longest: Duration,
    pub(crate) lost_updates: u64,
}

impl Naive {
    /// Has one of them take the lock, and the other one be refused.
    pub(crate) async fn begin(servers: Servers, ttl: Duration) -> Self {
        for _ in 0..TRIES {
            let mut naive = Self::pair(&servers, ttl).await;
            let refused = async { naive.refusals.wait_for(|times| *times >= 3).await.is_ok() };
            let refused = wait_for("the naive lock to be refused", refused).await;
            if refused && !naive.second_holder.is_cancelled() {
                return naive;
            }
            // They met before the fault, as on a busy machine: that proves nothing of the fault.
            let _grief = naive.end(Duration::ZERO).await;
        }
        panic!("the naive lock fails without any fault");
    }

    async fn pair(servers: &Servers, ttl: Duration) -> Self {
        // From here on the server knows the script, and its replicas do not.
        let mut load = redis::cmd("EVAL");
        load.arg(RENEW).arg(1).arg(KEY).arg("nobody").arg(0);
        for at in (servers.find)() {
            let _refusal = send(at, servers.password, load.clone()).await;
        }
        let renew = Script::new(RENEW).get_hash().to_owned();
        let contender =
            |name| Contender { servers: servers.clone(), name, ttl, renew: renew.clone() };
        let recorder = Recorder::new(1, Arc::new(SystemClock::new()));
        let resource = Arc::new(Open::default());
        let (second_holder, give_up) = (CancellationToken::new(), CancellationToken::new());
        let (taken, has_taken) = tokio::sync::oneshot::channel();
        let holder = tokio::spawn({
            let (me, recorder, resource) =
                (contender("holder"), recorder.clone(), Arc::clone(&resource));
            let (second_holder, give_up) = (second_holder.clone(), give_up.clone());
            async move {
                let attempt = recorder.acquire(&Key::new(KEY).unwrap(), Mode::Exclusive);
                while !me.take().await {
                    tokio::time::sleep(TRY_EVERY).await;
                }
                let held = attempt.granted(Fence::ZERO);
                taken.send(()).unwrap();
                let seen = resource.read();
                let watchdog = async {
                    loop {
                        tokio::time::sleep(me.ttl / 3).await;
                        me.renew().await;
                    }
                };
                tokio::select! {
                    () = watchdog => {}
                    () = second_holder.cancelled() => {}
                    () = give_up.cancelled() => {}
                }
                resource.write(seen);
                let releasing = held.release();
                me.give_back().await;
                releasing.done();
            }
        });
        has_taken.await.unwrap();
        let (refused, refusals) = watch::channel(0);
        let other = tokio::spawn({
            let (me, recorder, resource) =
                (contender("other"), recorder.clone(), Arc::clone(&resource));
            let (second_holder, give_up) = (second_holder.clone(), give_up.clone());
            async move {
                let attempt = recorder.acquire(&Key::new(KEY).unwrap(), Mode::Exclusive);
                while !me.take().await {
                    refused.send_modify(|times| *times += 1);
                    if give_up.is_cancelled() {
                        return attempt.failed();
                    }
                    tokio::time::sleep(TRY_EVERY).await;
                }
                let held = attempt.granted(Fence::ZERO);
                resource.write(resource.read());
                tokio::time::sleep(ms(20)).await;
                second_holder.cancel();
                let releasing = held.release();
                me.give_back().await;
                releasing.done();
            }
        });
        Self { recorder, resource, refusals, holder, other, second_holder, give_up }
    }

    /// Waits until there have been two holders at once, and lets them finish.
    pub(crate) async fn end(self, within: Duration) -> Grief {
        let _elapsed = tokio::time::timeout(within, self.second_holder.cancelled()).await;
        self.give_up.cancel();
        wait_for("the naive clients to end", async {
            self.holder.await.unwrap();
            self.other.await.unwrap();
        })
        .await;
        let history: Vec<Record> = self.recorder.records();
        let overlaps = overlaps(&history);
        Grief {
            acquisitions: crate::cell::grants(&history),
            overlaps: overlaps.len(),
            longest: overlaps.iter().map(|overlap| overlap.length).max().unwrap_or_default(),
            lost_updates: self.resource.lost(),
        }
    }
}
