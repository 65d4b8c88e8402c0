//! The trials of each library: the two sides exclude each other, and notice each other's changes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use leasehold::interop::Layout;
use leasehold::{Client, ErrorKind, Release};
use leasehold_clock::wall::unix_micros;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use tokio::time::{sleep, timeout};

use crate::program::Programs;

/// How often each of four workers acquires the lock.
const TIMES: u32 = 25;
/// Longer than any trial takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A library and its language.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) language: &'static str,
    /// The name of its layout in leasehold.
    pub(crate) layout: &'static str,
    /// The prefix of its keys in the server.
    prefix: &'static str,
    /// Whether its locks work in a cluster.
    pub(crate) clusters: bool,
}

const fn peer(
    name: &'static str,
    language: &'static str,
    layout: &'static str,
    prefix: &'static str,
) -> Peer {
    Peer { name, language, layout, prefix, clusters: true }
}

pub(crate) const PEERS: [Peer; 12] = [
    peer("redis-py", "python", "redis-py", ""),
    // The two keys of one of its locks are in different slots.
    Peer { clusters: false, ..peer("python-redis-lock", "python", "python-redis-lock", "lock:") },
    peer("node-redlock", "node", "node-redlock", ""),
    peer("redis-semaphore", "node", "redis-semaphore", "mutex:"),
    peer("bsm", "go", "redislock", ""),
    peer("redsync", "go", "redsync", ""),
    peer("redisson", "java", "redisson", ""),
    peer("redisson-fenced", "java", "redisson-fenced", ""),
    peer("spring", "java", "spring:registry", "registry:"),
    peer("spring-messages", "java", "spring:registry", "registry:"),
    peer("shedlock", "java", "shedlock:interop", "job-lock:interop:"),
    peer("symfony", "php", "symfony", ""),
];

/// One server, or the nodes of a cluster.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Box<RedisServer>),
    Cluster(Box<Cluster>),
}

impl Servers {
    fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    pub(crate) fn ports(&self) -> String {
        let nodes = match self {
            Self::One(server) => std::slice::from_ref(&**server),
            Self::Cluster(cluster) => cluster.nodes(),
        };
        let ports: Vec<_> = nodes.iter().map(|node| node.port().to_string()).collect();
        ports.join(",")
    }

    /// The server that has a key.
    fn of(&self, key: &str) -> &RedisServer {
        match self {
            Self::One(server) => server,
            Self::Cluster(cluster) => cluster.master_of(cluster.slot_of(key)),
        }
    }
}

/// In milliseconds.
#[derive(Debug)]
pub(crate) struct Times {
    /// From the start of the library's release until leasehold had it.
    pub(crate) ours_after_theirs: f64,
    /// From the start of leasehold's release until the library had it.
    pub(crate) theirs_after_ours: f64,
    /// From the start of the library's force-unlock until leasehold reported the loss.
    pub(crate) loss: f64,
}

/// The results of one library's trials, for the table.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) times: Times,
    /// The library's message about a value of another type.
    pub(crate) wrong_type: String,
    /// The answer to leasehold's release after the library's force-unlock, and which side could
    /// read which text.
    pub(crate) text: String,
}

pub(crate) struct Trial {
    pub(crate) servers: Arc<Servers>,
    pub(crate) programs: Arc<Programs>,
    pub(crate) peer: Peer,
}

fn ms(later: u64, earlier: u64) -> f64 {
    let us = i64::try_from(later).unwrap_or(0) - i64::try_from(earlier).unwrap_or(0);
    us as f64 / 1_000.0
}

impl Trial {
    async fn client(&self) -> Result<Client> {
        let layout: Layout = self.peer.layout.parse()?;
        Ok(Client::builder().interop(layout).connect(self.servers.url()).await?)
    }

    fn start(&self, words: &[&str]) -> Result<crate::program::Program> {
        self.programs.start(self.peer.language, self.peer.name, words)
    }

    fn key(&self, trial: &str) -> String {
        format!("{}-{trial}", self.peer.name)
    }

    /// Runs all trials.
    pub(crate) async fn run(&self, folder: &Path) -> Result<Outcome> {
        self.counting(folder).await.context("counting together")?;
        let ours_after_theirs = self.they_hold(9_500).await.context("they hold, we wait")?;
        let theirs_after_ours = self.we_hold(6_500).await.context("we hold, they wait")?;
        let loss = self.they_force().await.context("they end our lease")?;
        self.we_die().await.context("we are killed")?;
        self.they_die().await.context("they end without a release")?;
        let wrong_type = self.wrong_type().await.context("a value of another type")?;
        let text = self.text().await.context("what is stored")?;
        let times = Times { ours_after_theirs, theirs_after_ours, loss };
        Ok(Outcome { times, wrong_type, text })
    }

    /// Runs the trials that differ in a cluster.
    pub(crate) async fn run_in_cluster(&self, folder: &Path) -> Result<Times> {
        self.counting(folder).await.context("counting together")?;
        let ours_after_theirs = self.they_hold(1_500).await.context("they hold, we wait")?;
        let theirs_after_ours = self.we_hold(500).await.context("we hold, they wait")?;
        let loss = self.they_force().await.context("they end our lease")?;
        Ok(Times { ours_after_theirs, theirs_after_ours, loss })
    }

    /// Four workers, two of each side, write a number. Two holders at once would lose updates.
    async fn counting(&self, folder: &Path) -> Result<()> {
        let (key, file) = (self.key("count"), folder.join(self.peer.name));
        std::fs::write(&file, "0")?;
        let name = file.to_str().context("a path that is no text")?;
        let times = TIMES.to_string();
        let mut theirs = [
            self.start(&["count", &key, name, &times])?,
            self.start(&["count", &key, name, &times])?,
        ];
        let mut ours = Vec::new();
        for _ in 0..2 {
            let (mutex, file) = (self.client().await?.mutex(&*key), file.clone());
            ours.push(tokio::spawn(async move {
                for _ in 0..TIMES {
                    let guard = mutex.lock().await?;
                    let value: u32 = std::fs::read_to_string(&file)?.trim().parse()?;
                    sleep(Duration::from_millis(1)).await;
                    std::fs::write(&file, (value + 1).to_string())?;
                    guard.release().await?;
                    // Lets the other side, which polls, get its turn meanwhile.
                    sleep(Duration::from_millis(fastrand::u64(20..80))).await;
                }
                anyhow::Ok(())
            }));
        }
        for worker in ours {
            worker.await??;
        }
        for worker in &mut theirs {
            worker.expect("counted").await?;
        }
        for worker in theirs {
            worker.done().await?;
        }
        let counted: u32 = std::fs::read_to_string(&file)?.trim().parse()?;
        ensure!(counted == 4 * TIMES, "{counted} of {} updates are left", 4 * TIMES);
        Ok(())
    }

    /// The library holds the lock, renewing it over three ttls if `ms_held` is that long. Leasehold
    /// gets it right after the release.
    async fn they_hold(&self, ms_held: u32) -> Result<f64> {
        let key = self.key("theirs");
        let client = self.client().await?;
        let mut theirs = self.start(&["hold", &key, &ms_held.to_string(), "3000"])?;
        theirs.expect("held").await?;
        let mutex = client.mutex(&*key);
        ensure!(mutex.try_lock().await?.is_none(), "we got what they hold");
        let guard = timeout(PATIENCE, mutex.lock()).await.context("their release")??;
        let held_at = unix_micros();
        let releasing = theirs.expect("releasing").await?;
        ensure!(held_at > releasing.us, "we got it before they released it");
        theirs.expect("released").await?;
        theirs.done().await?;
        guard.release().await?;
        Ok(ms(held_at, releasing.us))
    }

    /// Leasehold holds the lock, renewing it over three ttls if `ms_held` is that long. The library
    /// gets it after the release.
    async fn we_hold(&self, ms_held: u64) -> Result<f64> {
        let key = self.key("ours");
        let client = self.client().await?;
        let guard = client.mutex(&*key).ttl(Duration::from_secs(2)).lock().await?;
        let mut theirs = self.start(&["wait", &key, "10000"])?;
        theirs.expect("waiting").await?;
        sleep(Duration::from_millis(ms_held)).await;
        if let Some(line) = theirs.said() {
            bail!("they said {line:?} while we held it");
        }
        ensure!(guard.is_held(), "our lease was not renewed");
        let releasing = unix_micros();
        guard.release().await?;
        let held = theirs.expect("held").await?;
        theirs.expect("released").await?;
        theirs.done().await?;
        Ok(ms(held.us, releasing))
    }

    /// The library force-unlocks leasehold's lease, which leasehold reports long before its next
    /// renewal.
    async fn they_force(&self) -> Result<f64> {
        let key = self.key("force");
        let client = self.client().await?;
        let guard = client.mutex(&*key).ttl(Duration::from_secs(600)).lock().await?;
        let mut theirs = self.start(&["force", &key])?;
        let forcing = theirs.expect("forcing").await?;
        timeout(PATIENCE, guard.lost()).await.context("the loss was not told")?;
        let lost_at = unix_micros();
        theirs.expect("forced").await?;
        theirs.done().await?;
        let outcome = guard.release_outcome().await?;
        ensure!(outcome == Release::NotHeld, "the release was {outcome:?}");
        Ok(ms(lost_at, forcing.us))
    }

    /// A leasehold process is killed; the library gets the lock when the lease has expired.
    async fn we_die(&self) -> Result<()> {
        let key = self.key("we-die");
        let mut theirs = {
            let own = std::env::current_exe()?;
            let mut holder = Command::new(own)
                .args(["hold", &self.servers.url(), self.peer.layout, &key])
                .stdout(Stdio::piped())
                .spawn()?;
            let mut line = String::new();
            let output = holder.stdout.take().context("BUG: its output is piped")?;
            std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
            ensure!(line.trim() == "held", "our process said {line:?}");
            let mut theirs = self.start(&["wait", &key, "10000"])?;
            theirs.expect("waiting").await?;
            sleep(Duration::from_millis(300)).await;
            holder.kill()?;
            holder.wait()?;
            theirs
        };
        theirs.expect("held").await?;
        theirs.expect("released").await?;
        theirs.done().await
    }

    /// The library's program ends without a release. Leasehold sends no request until the lease has
    /// expired, and then gets the lock.
    async fn they_die(&self) -> Result<()> {
        let key = self.key("they-die");
        let proxy = Proxy::start(self.servers.of(&key).addr());
        let layout: Layout = self.peer.layout.parse()?;
        let client = Client::builder().interop(layout).connect(proxy.url()).await?;
        let mut theirs = self.start(&["take", &key, "3000"])?;
        theirs.expect("held").await?;
        let mutex = client.mutex(&*key);
        let waiting = tokio::spawn(async move { mutex.lock().await });
        loop {
            let before = proxy.stats().requests;
            // Longer than the pauses of a polling waiter.
            sleep(Duration::from_millis(500)).await;
            ensure!(!waiting.is_finished(), "our waiter asked all the time");
            if proxy.stats().requests == before {
                break;
            }
        }
        theirs.done().await?;
        let guard = timeout(PATIENCE, waiting).await.context("the expiry")???;
        guard.release().await?;
        Ok(())
    }

    /// Both sides refuse a value that is not a lock.
    async fn wrong_type(&self) -> Result<String> {
        let key = self.key("type");
        let stored = format!("{}{key}", self.peer.prefix);
        self.servers.of(&stored).try_cli(&["SADD", &stored, "x"])?;
        let mut theirs = self.start(&["try", &key])?;
        let said = theirs.next().await?;
        ensure!(said.event != "held", "they took it");
        theirs.done().await?;
        let ours = self.client().await?.mutex(&*key).try_lock().await;
        let error = ours.err().context("we took it")?;
        ensure!(error.kind() == ErrorKind::Foreign, "{error}");
        Ok(match said.event.as_str() {
            "busy" => "held".to_owned(),
            _ if said.why.contains("WRONGTYPE") => "an error: `WRONGTYPE`".to_owned(),
            _ => bail!("they said {said:?}"),
        })
    }

    /// Each side reads the text that the other side stored, if there is any.
    async fn text(&self) -> Result<String> {
        let key = self.key("text");
        let client = self.client().await?;
        let layout: Layout = self.peer.layout.parse()?;
        let mutex = client.mutex(&*key).owner("rust-host");
        let mutex = if layout.has_metadata() { mutex.metadata("from rust") } else { mutex };
        let guard = mutex.lock().await?;
        let mut theirs = self.start(&["meta", &key])?;
        let said = theirs.expect("meta").await?.value;
        theirs.done().await?;
        match &layout {
            layout if layout.has_metadata() => {
                ensure!(said.contains("from rust"), "they read {said:?}");
            }
            Layout::ShedLock { .. } => ensure!(said.contains("@rust-host:"), "they read {said:?}"),
            Layout::RedissonFenced => {
                let fence = guard.fence()?.sequence().to_string();
                ensure!(said == fence, "they read {said:?}, our fence is {fence}");
            }
            _ => ensure!(said == "true", "they read {said:?}"),
        }
        guard.release().await?;
        let mut theirs = self.start(&["take", &key, "60000"])?;
        theirs.expect("held").await?;
        theirs.done().await?;
        let info = client.inspect(&*key).await?.context("we see nobody hold what they hold")?;
        let holder = info.holders.first().context("we see no holder")?;
        ensure!(!holder.remaining.is_zero(), "we see no remaining time");
        let (owner, metadata) = (holder.owner.as_str(), holder.metadata.as_str());
        match self.peer.name {
            "bsm" => ensure!(metadata.starts_with("go-"), "we read {metadata:?}"),
            "shedlock" => ensure!(!owner.is_empty(), "we read no host"),
            "redisson" | "redisson-fenced" => {
                ensure!(owner.contains("thread"), "we read {owner:?}")
            }
            _ => ensure!(metadata.is_empty(), "we read {metadata:?}"),
        }
        Ok(match self.peer.name {
            "bsm" => "metadata, both ways",
            "shedlock" => "host, both ways",
            "redisson" => "client and thread",
            "redisson-fenced" => "client and thread; their token is our fence",
            _ => "our metadata",
        }
        .to_owned())
    }
}

/// The work of a leasehold process that will be killed.
pub(crate) async fn hold_until_killed(url: &str, layout: &str, key: &str) -> Result<()> {
    let layout: Layout = layout.parse()?;
    let client = Client::builder().interop(layout).connect(url).await?;
    let _guard = client.mutex(key).ttl(Duration::from_secs(2)).lock().await?;
    println!("held");
    std::future::pending().await
}
