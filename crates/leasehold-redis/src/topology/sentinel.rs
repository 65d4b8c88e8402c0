//! Asks sentinels where the primary is, and in which fail-over epoch.
//!
//! The client asks all of them at once, and `deployment` decides whose answer counts. An answer
//! only says where to connect. The server itself is then asked whether it is a primary.

pub(crate) mod deployment;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold_core::{ErrorKind, Fence, Reason};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Pipeline, ProtocolVersion, RedisConnectionInfo, Value, cmd};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::classify::{self, Stage, Verdict};
use crate::connect::dial::FirstWords;
use crate::connect::login::Logins;
use crate::connect::pause::pause_after;
use crate::script::request::judged;
use crate::topology::address::Endpoint;
use crate::topology::sentinel::deployment::Circle;
pub(crate) use crate::topology::sentinel::deployment::{Found, Said};

/// How long one sentinel may take.
const ASK_MAX: Duration = Duration::from_secs(2);
/// How long to wait for the others once one has answered.
const GRACE: Duration = Duration::from_millis(200);
/// Answers as young as this are shared by all who ask.
const FRESH: Duration = Duration::from_millis(250);
/// How often to ask sentinels while a primary does not answer.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a connection has to be in use until its primary is followed.
const FOLLOW_AFTER: Duration = Duration::from_millis(500);
/// How often to ask sentinels in quiet times: rarely if all of them publish events to this client,
/// often otherwise.
const LOOK_RARELY: Duration = Duration::from_secs(10);
const LOOK_OFTEN: Duration = Duration::from_secs(2);
/// How soon to ask again after an event, or if no sentinel has answered.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The events of a promotion. The first comes at once, from the sentinel that leads the fail-over.
/// The second comes when the sentinel has adopted the new primary.
const EVENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];
/// How long to leave a sentinel alone that refuses the subscription.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// How often to check that a subscribed sentinel still answers.
const PING_EVERY: Duration = Duration::from_secs(5);
const ADDRESS: &str = "GET-MASTER-ADDR-BY-NAME";

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Endpoint>,
    pub(crate) name: String,
    logins: Arc<Logins>,
    last: Mutex<Option<(Instant, Found)>>,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, name, logins, last: _ } = self;
        f.debug_struct("Sentinels")
            .field("hosts", hosts)
            .field("name", name)
            .field("logins", logins)
            .finish_non_exhaustive()
    }
}

impl Sentinels {
    pub(crate) fn new(hosts: Vec<Endpoint>, name: String, logins: Arc<Logins>) -> Self {
        Self { hosts, name, logins, last: Mutex::new(None) }
    }

    /// Where the primary is, as they see it.
    pub(crate) async fn find(&self) -> Result<Found, Verdict> {
        let mut last = self.last.lock().await;
        if let Some((at, found)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(found.clone());
        }
        let found = self.ask_all().await?;
        *last = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// Follows the primary while this is polled, and reports the result of each look.
    ///
    /// Subscribed sentinels report a promotion as it happens. The look now and then is for
    /// sentinels that refuse the subscription. It all begins after a delay, so that a program that
    /// runs for a moment does neither.
    pub(crate) async fn follow(self: Arc<Self>, tell: impl Fn(Found)) -> ! {
        sleep(FOLLOW_AFTER).await;
        let news = Arc::new(News::default());
        let mut listening = JoinSet::new();
        for host in &self.hosts {
            listening.spawn(self.one(host).listen(Arc::clone(&news)));
        }
        let mut pause = LOOK_OFTEN;
        loop {
            let told = timeout(pause, news.told.notified()).await.is_ok();
            if told {
                *self.last.lock().await = None;
            }
            let found = self.find().await;
            let all = news.listening.load(Ordering::Relaxed) == self.hosts.len();
            pause = match &found {
                // The sentinel that leads a fail-over may have been the last to answer.
                Ok(_) if told => LOOK_AGAIN,
                Ok(_) if all => LOOK_RARELY,
                Ok(_) => LOOK_OFTEN,
                Err(_) => LOOK_AGAIN,
            };
            if let Ok(found) = found {
                tell(found);
            }
        }
    }

    fn one(&self, host: &Endpoint) -> One {
        One { host: host.clone(), name: self.name.clone(), logins: Arc::clone(&self.logins) }
    }

    /// Returns once they name another primary.
    pub(crate) async fn elsewhere(&self, endpoint: &Endpoint) {
        loop {
            sleep(LOOK_EVERY).await;
            if self.find().await.is_ok_and(|found| found.endpoint != *endpoint) {
                return;
            }
        }
    }

    /// Asks all of them at once.
    fn ask_each(&self) -> JoinSet<Said> {
        let mut asking = JoinSet::new();
        for host in &self.hosts {
            asking.spawn(self.one(host).say());
        }
        asking
    }

    /// What each of them says, in the order in which they were named.
    pub(crate) async fn survey(&self) -> Vec<Said> {
        let mut asking = JoinSet::new();
        for host in &self.hosts {
            let (one, again) = (self.one(host), self.one(host));
            asking.spawn(async move {
                let said = one.say().await;
                // A sentinel that failed to answer the first question would delay this one as well.
                let no_quorum = match said.found {
                    Ok(_) => timeout(ASK_MAX, again.lacks_quorum()).await.unwrap_or_default(),
                    Err(_) => None,
                };
                Said { no_quorum, ..said }
            });
        }
        let mut said = Vec::with_capacity(self.hosts.len());
        while let Some(answer) = asking.join_next().await {
            said.extend(answer);
        }
        let place = |one: &Said| self.hosts.iter().position(|host| *host == one.sentinel);
        said.sort_by_key(place);
        said
    }

    async fn ask_all(&self) -> Result<Found, Verdict> {
        let mut asking = self.ask_each();
        let mut until = None;
        let mut said = Vec::with_capacity(self.hosts.len());
        loop {
            let next = match until {
                Some(until) => timeout_at(until, asking.join_next()).await.unwrap_or(None),
                None => asking.join_next().await,
            };
            let Some(answer) = next else { break };
            said.extend(answer);
            if said.last().is_some_and(|one| one.found.is_ok()) {
                until.get_or_insert_with(|| Instant::now() + GRACE);
            }
        }
        deployment::believed(&said).unwrap_or_else(|| Err(told_most(said)))
    }
}

/// The failure that helps most: one that an operator can mend comes before an absent sentinel.
fn told_most(said: Vec<Said>) -> Verdict {
    let mut failures: Vec<Verdict> = said.into_iter().filter_map(|one| one.found.err()).collect();
    failures.sort_by_key(|verdict| verdict.kind == ErrorKind::Unavailable);
    let none = || Verdict::unconnected("no sentinel answers");
    failures.into_iter().next().unwrap_or_else(none)
}

/// What listeners hear.
#[derive(Default)]
struct News {
    told: Notify,
    /// How many sentinels are listened to.
    listening: AtomicUsize,
}

impl News {
    /// Counts one sentinel as listened to, until that is dropped.
    fn listen(&self) -> impl Drop + '_ {
        struct Listening<'a>(&'a AtomicUsize);
        impl Drop for Listening<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.listening.fetch_add(1, Ordering::Relaxed);
        // Events before the subscription were missed, so a look is due.
        self.told.notify_one();
        Listening(&self.listening)
    }
}

/// What is needed to ask one sentinel.
struct One {
    host: Endpoint,
    name: String,
    logins: Arc<Logins>,
}

impl One {
    async fn say(self) -> Said {
        let answer = timeout(ASK_MAX, self.ask()).await.unwrap_or_else(|_| {
            Err(Verdict::unconnected(format!("sentinel {} does not answer", self.host))
                .because(Reason::NoAnswer))
        });
        let (found, circle) = match answer {
            Ok((found, circle)) => (Ok(found), circle),
            Err(verdict) => (Err(verdict), None),
        };
        Said { sentinel: self.host, found, circle, no_quorum: None }
    }

    /// Why the sentinels could not agree on a fail-over now, as this one sees it. `None` also where
    /// it does not say.
    async fn lacks_quorum(&self) -> Option<String> {
        let (mut connection, _driver, _) = self.connect().await.ok()?;
        let check = cmd("SENTINEL").arg("CKQUORUM").arg(&self.name).to_owned();
        let error = match connection.send_packed_command(&check).await {
            Ok(Value::ServerError(error)) => {
                (error.code().to_owned(), error.details().map(str::to_owned))
            }
            Err(error) => (error.code()?.to_owned(), error.detail().map(str::to_owned)),
            Ok(_) => return None,
        };
        (error.0 == "NOQUORUM").then(|| error.1.unwrap_or_default())
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, AbortOnDrop, FirstWords), Verdict> {
        let (socket, _) = self.logins.enter(&self.host, None, None).await?;
        let heard = socket.first_words();
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let login = logged_in();
        let opening = MultiplexedConnection::new_with_config(&login, socket, config);
        let opened = opening.await.map_err(|error| classify::judge(&error, Stage::Connecting));
        let (connection, driver) = opened.map_err(|verdict| heard.explain(verdict))?;
        Ok((connection, AbortOnDrop(tokio::spawn(driver).abort_handle()), heard))
    }

    async fn ask(&self) -> Result<(Found, Option<Circle>), Verdict> {
        let asked = match self.connect().await {
            Ok((connection, _driver, heard)) => {
                self.ask_over(connection).await.map_err(|verdict| heard.explain(verdict))
            }
            Err(verdict) => Err(verdict),
        };
        asked.map_err(|verdict| self.told(verdict))
    }

    /// Notifies of its events about the primary, while this is polled.
    async fn listen(self, news: Arc<News>) -> ! {
        let mut failures = 0_u32;
        loop {
            let opened = timeout(ASK_MAX, self.subscribe()).await;
            match opened {
                Ok(Ok(connection)) => {
                    failures = 0;
                    let _listening = news.listen();
                    self.pass_on(connection, &news).await;
                }
                // Permissions rarely change within seconds.
                Ok(Err(verdict)) if verdict.kind == ErrorKind::Denied => sleep(REFUSED_FOR).await,
                Ok(Err(_)) | Err(_) => {}
            }
            failures = failures.saturating_add(1);
            sleep(pause_after(failures).saturating_mul(2)).await;
        }
    }

    async fn subscribe(&self) -> Result<PubSub, Verdict> {
        let judge = |error| classify::judge(&error, Stage::Connecting);
        let (socket, _) = self.logins.enter(&self.host, None, None).await?;
        let mut connection = PubSub::new(&logged_in(), socket).await.map_err(judge)?;
        connection.subscribe(&EVENTS).await.map_err(judge)?;
        Ok(connection)
    }

    /// Returns when the connection has ended, or is silent.
    async fn pass_on(&self, connection: PubSub, news: &News) {
        let (mut sink, mut stream) = connection.split();
        loop {
            match timeout(PING_EVERY, stream.next()).await {
                Ok(Some(message)) => {
                    let said = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                    if said.split(' ').any(|word| word == self.name) {
                        news.told.notify_one();
                    }
                }
                Ok(None) => return,
                Err(_)
                    if timeout(ASK_MAX, sink.ping::<Value>()).await.is_ok_and(|it| it.is_ok()) => {}
                Err(_) => return,
            }
        }
    }

    /// Explains an error of a sentinel, which has users of its own.
    fn told(&self, verdict: Verdict) -> Verdict {
        let sentinel = format!("sentinel {}", self.host);
        if verdict.kind != ErrorKind::Denied || verdict.lack.is_some() {
            return verdict.about(&sentinel);
        }
        let given = self.logins.has_password();
        let what = if given {
            "refused sentinel_user or sentinel_password; correct them in the store's URL"
        } else {
            "requires a password of its own; give sentinel_password (and sentinel_user) in the URL \
             in LEASEHOLD_STORE"
        };
        Verdict::refused(ErrorKind::Denied, verdict.next, format!("{sentinel} {what}"))
            .because(Reason::SentinelPassword)
    }

    async fn ask_over(
        &self,
        mut connection: MultiplexedConnection,
    ) -> Result<(Found, Option<Circle>), Verdict> {
        let judge = |error| classify::judge(&error, Stage::Connecting);
        let ask = |what: &str| cmd("SENTINEL").arg(what).arg(&self.name).to_owned();
        let mut all = Pipeline::with_capacity(5);
        all.add_command(ask(ADDRESS));
        all.add_command(ask("MASTER"));
        all.add_command(ask(ADDRESS));
        all.add_command(cmd("SENTINEL").arg("MYID").to_owned());
        all.add_command(ask("SENTINELS"));
        let answers = connection.send_packed_commands(&all, 0, 5).await.map_err(judge)?;
        let mut answers = answers.into_iter().map(|answer| judged(Ok(answer)));
        let mut answer = || answers.next().unwrap_or_else(|| Err(senseless()));
        let (before, master, after) = (answer()?, answer()?, answer()?);
        if before != after {
            return Err(Verdict::nobody_yet("the sentinels are failing over to another primary"));
        }
        // A user that lacks the permission for these two can do without.
        let circle = answer().ok().zip(answer().ok()).and_then(|(id, others)| circle(&id, &others));
        Ok((read(&self.host, &master, &before)?, circle))
    }
}

/// The settings for a connection that is logged in already.
fn logged_in() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name()
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn senseless() -> Verdict {
    Verdict::unconnected("its answer is unreadable; check that the address is a sentinel")
}

/// Reads a sentinel's description of the primary and the address that it gave to clients before
/// and after.
///
/// A sentinel that leads a fail-over returns the new address as soon as the new primary is one. It
/// raises the epoch in the same step, and changes the address in its description last. The others
/// may be behind, so its answer has to count.
fn read(sentinel: &Endpoint, master: &Value, address: &Value) -> Result<Found, Verdict> {
    let Value::Array(address) = address else { return Err(senseless()) };
    let [host, port] = &**address else { return Err(senseless()) };
    let (Some(host), Some(port)) = (text(host), text(port)) else { return Err(senseless()) };
    let epoch = field(master, "config-epoch").and_then(|epoch| epoch.parse::<u64>().ok());
    let (Some(epoch), Ok(number)) = (epoch, port.parse()) else { return Err(senseless()) };
    let epoch = epoch.min(Fence::EPOCH_MAX);
    Ok(Found { endpoint: sentinel.sibling(host, number), epoch })
}

/// Reads a sentinel's own id and its descriptions of the others.
fn circle(id: &Value, others: &Value) -> Option<Circle> {
    let Value::Array(others) = others else { return None };
    let ids = others.iter().filter_map(|other| field(other, "runid"));
    // A sentinel that is known only by its address has no id yet.
    let others = ids.filter(|id| !id.is_empty()).map(str::to_owned).collect();
    Some(Circle { own: text(id)?.to_owned(), others })
}

fn field<'a>(description: &'a Value, wanted: &str) -> Option<&'a str> {
    match description {
        Value::Array(parts) => {
            let mut pairs = parts.chunks_exact(2);
            pairs
                .find(|pair| pair.first().and_then(text) == Some(wanted))
                .and_then(|pair| pair.get(1).and_then(text))
        }
        Value::Map(pairs) => {
            let mut pairs = pairs.iter();
            pairs.find(|(name, _)| text(name) == Some(wanted)).and_then(|(_, value)| text(value))
        }
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &str) -> Value {
        let bulk = |word: &str| Value::BulkString(word.into());
        Value::Array(words.split(' ').map(bulk).collect())
    }

    fn sentinel() -> Endpoint {
        Endpoint::Tcp { host: "s".into(), port: 1, tls: None }
    }

    #[test]
    fn a_primary_is_an_address_and_an_epoch() {
        let master = words("name m ip 10.0.0.1 port 7000 flags master config-epoch 12");
        let found = read(&sentinel(), &master, &words("10.0.0.1 7000")).unwrap();
        let endpoint = Endpoint::Tcp { host: "10.0.0.1".into(), port: 7000, tls: None };
        assert_eq!(found, Found { endpoint, epoch: 12 });
        let worn = words("ip 10.0.0.1 port 7000 config-epoch 99999");
        let found = read(&sentinel(), &worn, &words("10.0.0.1 7000")).unwrap();
        assert_eq!(found.epoch, Fence::EPOCH_MAX);
    }

    #[test]
    fn who_leads_a_fail_over_names_the_new_primary_and_its_epoch() {
        let master = words("ip 10.0.0.1 port 7000 config-epoch 13");
        let found = read(&sentinel(), &master, &words("10.0.0.2 7000")).unwrap();
        let endpoint = Endpoint::Tcp { host: "10.0.0.2".into(), port: 7000, tls: None };
        assert_eq!(found, Found { endpoint, epoch: 13 });
    }

    #[test]
    fn what_is_no_answer_of_a_sentinel_is_refused() {
        let master = words("ip 10.0.0.1 port 7000 config-epoch 13");
        for (master, address) in [
            (Value::Nil, words("10.0.0.1 7000")),
            (master.clone(), Value::Nil),
            (master.clone(), words("10.0.0.1")),
            (master, words("10.0.0.1 port")),
            (words("ip 10.0.0.1 port 7000"), words("10.0.0.1 7000")),
        ] {
            assert!(read(&sentinel(), &master, &address).is_err());
        }
    }
}
