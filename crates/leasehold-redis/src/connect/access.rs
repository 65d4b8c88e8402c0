//! How to reach a server: its address, our login, and opening connections to it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use leasehold_clock::Driver;
use leasehold_core::{Reason, Result as StoreResult};
use redis::aio::PubSub;
use redis::{ProtocolVersion, RedisConnectionInfo};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::classify::{self, Stage, Verdict};
use crate::connect::credentials::Provide;
use crate::connect::dial::Socket;
use crate::connect::login::{Given, Logins};
use crate::connect::pipe::Pipe;
use crate::connect::tls::Security;
use crate::script::request::{Deadline, Stamp, here, judged};
use crate::topology::address::{Address, Endpoint, Topology};
use crate::topology::addresses::{self, Addresses, Heard, Said as SaidThere};
use crate::topology::replication::Age;
use crate::topology::role::Role;
use crate::topology::sentinel::{Found, Said, Sentinels};
use crate::topology::server_clock::ServerClock;
use crate::wire::reply;

/// How often a request takes along the questions for the server's clock and its role.
const LOOK_EVERY_MS: u64 = 2_000;

/// How the address of a server is found.
#[derive(Debug)]
enum Finder {
    /// Always at this address.
    At(Endpoint),
    /// A node of a cluster. It redirects requests to the primary of a slot.
    Node(Endpoint),
    /// At the address that the sentinels name.
    Sentinels(Arc<Sentinels>),
}

/// The providers of passwords that the URL does not have.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) of_servers: Option<Provide>,
    pub(crate) of_sentinels: Option<Provide>,
}

/// How to reach a server and log in to it.
pub(crate) struct Access {
    finder: Finder,
    logins: Arc<Logins>,
    /// The addresses of the server's name, for all connections of the store.
    pub(crate) addresses: Arc<Addresses>,
    /// The limit of one attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// The runtime that drives the connections.
    home: Arc<Home>,
    /// Where the primary was at the last look.
    current: Arc<watch::Sender<Option<Found>>>,
    /// The task that follows the primary, under sentinels.
    following: Mutex<Option<AbortHandle>>,
    /// One clone for each open connection for requests.
    open: Arc<()>,
    /// Whether the server has refused a connection for requests since the last one ended. Those for
    /// notifications then close, because requests come first.
    lacks_room: watch::Sender<bool>,
}

/// The process's own thread, unless the user set another runtime.
enum Home {
    /// Set when it is first needed.
    Driver(OnceLock<Driver>),
    Given(Handle),
}

/// A task that is aborted when this is dropped.
pub(crate) struct Tied(AbortHandle);

impl Tied {
    pub(crate) fn spawn_on(
        runtime: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self(runtime.spawn(task).abort_handle())
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Home {
    /// A forked child shares the sockets of its parent, and has no thread that drives them.
    fn is_ours(&self) -> bool {
        match self {
            Self::Driver(driver) => driver.get().is_none_or(Driver::is_ours),
            Self::Given(_) => true,
        }
    }

    fn runtime(&self) -> Result<Handle, Verdict> {
        let driver = match self {
            Self::Given(runtime) => return Ok(runtime.clone()),
            Self::Driver(driver) => driver,
        };
        let driver = match driver.get() {
            Some(driver) => driver,
            None => {
                let started = Driver::current().map_err(|error| Verdict::without_thread(&error))?;
                driver.get_or_init(|| started)
            }
        };
        if driver.is_ours() { Ok(driver.runtime().clone()) } else { Err(Verdict::forked()) }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finder, logins, connect_timeout, .. } = self;
        f.debug_struct("Access")
            .field("finder", finder)
            .field("logins", logins)
            .field("connect_timeout", connect_timeout)
            .finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) fn new(
        address: &Address,
        connect_timeout: Duration,
        runtime: Option<Handle>,
        sources: Sources,
    ) -> StoreResult<Self> {
        let security = Arc::new(Security::of(&address.endpoint)?);
        let provided = |file: &Option<PathBuf>, by: Option<Provide>| match file {
            Some(path) => Some(Provide::file(path.clone())),
            None => by,
        };
        let protocol = if address.resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let login = login(address.user.as_deref(), address.password.as_deref())
            .set_db(address.database)
            .set_protocol(protocol);
        let finder = match &address.topology {
            Topology::Sentinel { name } => Finder::Sentinels(Arc::new(Sentinels::new(
                address.endpoints().cloned().collect(),
                name.clone(),
                Arc::new(Logins::new(
                    login_to_sentinel(address),
                    provided(&address.sentinel_password_file, sources.of_sentinels),
                    Arc::clone(&security),
                )),
            ))),
            Topology::Single | Topology::Cluster => Finder::At(address.endpoint.clone()),
        };
        let home = runtime.map_or_else(|| Home::Driver(OnceLock::new()), Home::Given);
        let home = Arc::new(home);
        let source = provided(&address.password_file, sources.of_servers);
        let logins = Arc::new(Logins::new(login, source, security));
        Ok(Self::with(finder, logins, connect_timeout, home))
    }

    fn with(
        finder: Finder,
        logins: Arc<Logins>,
        connect_timeout: Duration,
        home: Arc<Home>,
    ) -> Self {
        let (addresses, current, following) = (Arc::default(), Arc::default(), Mutex::default());
        let (open, lacks_room) = (Arc::default(), watch::Sender::default());
        Self {
            finder,
            logins,
            addresses,
            connect_timeout,
            home,
            current,
            following,
            open,
            lacks_room,
        }
    }

    /// Access to a node of a cluster, with the same login.
    pub(crate) fn sibling(&self, endpoint: Endpoint) -> Self {
        let (logins, home) = (Arc::clone(&self.logins), Arc::clone(&self.home));
        Self::with(Finder::Node(endpoint), logins, self.connect_timeout, home)
    }

    /// Access to the server at another address, with the same login.
    pub(crate) fn neighbour(&self, host: &str, port: u16) -> Option<Self> {
        let known = match &self.finder {
            Finder::At(endpoint) | Finder::Node(endpoint) => endpoint,
            Finder::Sentinels(sentinels) => sentinels.hosts.first()?,
        };
        Some(self.sibling(known.sibling(host, port)))
    }

    /// The address, for people. `None` under sentinels, which may name another one at any time.
    pub(crate) fn location(&self) -> Option<String> {
        match &self.finder {
            Finder::At(endpoint) | Finder::Node(endpoint) => Some(endpoint.location()),
            Finder::Sentinels(_) => None,
        }
    }

    /// Whether requests lack a connection because the server is full, now and later.
    pub(crate) fn lacks_room(&self) -> watch::Receiver<bool> {
        self.lacks_room.subscribe()
    }

    /// Notes that the server refused a connection for requests because it is full.
    pub(crate) fn refused(&self) {
        if Arc::strong_count(&self.open) == 1 {
            self.lacks_room.send_replace(true);
        }
    }

    /// What an open connection for requests keeps until it has ended.
    fn taken(&self) -> Arc<()> {
        self.lacks_room.send_replace(false);
        Arc::clone(&self.open)
    }

    /// Whether the server may be replaced by another one.
    pub(crate) fn follows(&self) -> bool {
        matches!(self.finder, Finder::Sentinels(_))
    }

    /// Whether this process drives the connections.
    pub(crate) fn is_ours(&self) -> bool {
        self.home.is_ours()
    }

    /// The runtime on which connections live.
    pub(crate) fn runtime(&self) -> Result<Handle, Verdict> {
        self.home.runtime()
    }

    /// The failure after that runtime has ended. Only a runtime that the user set can end.
    pub(crate) fn lost_runtime() -> Verdict {
        Verdict::unconnected("the runtime that connections were to live on has ended").give_up()
    }

    /// Asks all sentinels; `None` if there are none.
    pub(crate) async fn survey(&self) -> Option<Vec<Said>> {
        match &self.finder {
            Finder::At(_) | Finder::Node(_) => None,
            Finder::Sentinels(sentinels) => Some(sentinels.survey().await),
        }
    }

    async fn find(&self) -> Result<Found, Verdict> {
        match &self.finder {
            Finder::At(endpoint) | Finder::Node(endpoint) => {
                Ok(Found { endpoint: endpoint.clone(), epoch: 0 })
            }
            Finder::Sentinels(sentinels) => {
                // All callers share the answer. In a task of its own, the question goes on even if
                // the caller that began it is not polled.
                let sentinels = Arc::clone(sentinels);
                let asking = self.runtime()?.spawn(async move { sentinels.find().await });
                let found = asking.await.map_err(|_| Self::lost_runtime())??;
                note(&self.current, found.clone());
                Ok(found)
            }
        }
    }

    /// How messages name a server whose address a cluster or sentinels gave. `None` if the URL gave
    /// it.
    fn announced(&self, endpoint: &Endpoint) -> Option<String> {
        match &self.finder {
            Finder::At(_) => None,
            Finder::Node(_) => Some(format!("node {endpoint}")),
            Finder::Sentinels(_) => {
                Some(format!("{endpoint}, which the sentinels name as the primary"))
            }
        }
    }

    /// The same for the server that an attempt to connect goes to, if it is known.
    pub(crate) fn reaching(&self) -> Option<String> {
        match &self.finder {
            Finder::At(_) => None,
            Finder::Node(endpoint) => self.announced(endpoint),
            Finder::Sentinels(_) => {
                let found = self.current.borrow().clone();
                found.and_then(|found| self.announced(&found.endpoint))
            }
        }
    }

    /// Whether the server has been replaced by another one.
    pub(crate) async fn is_elsewhere(&self, endpoint: &Endpoint) -> bool {
        self.find().await.is_ok_and(|found| found.endpoint != *endpoint)
    }

    /// Opens a connection for requests. Runs on the runtime.
    pub(crate) async fn open(&self) -> Result<Link, Verdict> {
        match self.open_once().await {
            Ok(link) => {
                self.logins.let_in();
                Ok(link)
            }
            Err(verdict) => Err(self.logins.judge(verdict)),
        }
    }

    async fn open_once(&self) -> Result<Link, Verdict> {
        let found = self.find().await?;
        let opening = async {
            let opening = self.in_time(&found.endpoint, self.open_at(&found)).await;
            opening.map_err(|verdict| match self.announced(&found.endpoint) {
                Some(announced) => verdict.about(&announced),
                None => verdict,
            })
        };
        match &self.finder {
            Finder::At(_) | Finder::Node(_) => opening.await,
            Finder::Sentinels(sentinels) => tokio::select! {
                biased;
                // An open connection to a primary is newer evidence than an answer of the
                // sentinels.
                link = opening => {
                    let link = link.map_err(Verdict::again)?;
                    // The server itself has confirmed that it is the primary, which overrides all
                    // earlier answers.
                    self.current.send_replace(Some(found.clone()));
                    self.follow(sentinels);
                    Ok(link)
                }
                () = sentinels.elsewhere(&found.endpoint) => {
                    Err(Verdict::nobody_yet("the sentinels named another primary"))
                }
            },
        }
    }

    async fn open_at(&self, found: &Found) -> Result<Link, Verdict> {
        let (socket, given) = self.enter(&found.endpoint, None).await?;
        let heard = socket.first_words();
        let opened = self.open_over(socket, given, found).await;
        opened.map_err(|verdict| heard.explain(verdict))
    }

    /// Opens a socket and logs in. If the server's name has several addresses, it takes the one
    /// where the locks are.
    async fn enter(
        &self,
        endpoint: &Endpoint,
        protocol: Option<ProtocolVersion>,
    ) -> Result<(Socket, Arc<Given>), Verdict> {
        let at = match &self.finder {
            // Any address of a node will do, since the node redirects requests for slots that it
            // lacks.
            Finder::Node(_) => None,
            Finder::At(_) | Finder::Sentinels(_) => {
                let grace = self.grace();
                self.addresses.choose(endpoint, grace, |at| self.look_at(endpoint, at)).await?
            }
        };
        let entered = self.logins.enter(endpoint, at, protocol).await;
        self.addresses.settle(endpoint, entered.is_ok());
        entered
    }

    /// How long to wait for the other addresses of a server.
    fn grace(&self) -> Duration {
        (self.connect_timeout / 4).min(Duration::from_secs(1))
    }

    /// What is at an address of a server.
    fn look_at(
        &self,
        endpoint: &Endpoint,
        at: SocketAddr,
    ) -> impl Future<Output = SaidThere> + Send + 'static {
        let (logins, endpoint) = (Arc::clone(&self.logins), endpoint.clone());
        async move { what_is_at(&logins, &endpoint, at).await.unwrap_or_else(SaidThere::Silent) }
    }

    /// What is at each address of the server that a URL names, if there are several.
    pub(crate) async fn survey_addresses(&self) -> Option<Vec<Heard>> {
        let Finder::At(endpoint) = &self.finder else { return None };
        let listed = self.addresses.listed(endpoint).await.ok()?;
        if listed.len() < 2 {
            return None;
        }
        Some(addresses::hear(&listed, self.grace(), |at| self.look_at(endpoint, at)).await)
    }

    async fn open_over(
        &self,
        socket: Socket,
        given: Arc<Given>,
        found: &Found,
    ) -> Result<Link, Verdict> {
        let (pipe, driver) = Pipe::new(socket);
        pipe.keep(self.taken());
        let here = here()?;
        let driver = Tied::spawn_on(&here, driver.run());
        let login = given.ends().then(|| {
            let logins = Arc::clone(&self.logins);
            Tied::spawn_on(&here, logins.stay(found.endpoint.clone(), given, pipe.clone()))
        });
        let link = Link {
            pipe,
            at: found.clone(),
            _driver: driver,
            _login: login,
            age: OnceLock::new(),
            silent: AtomicU32::new(0),
            clock: ServerClock::unknown(),
            opened: Instant::now(),
            looked_ms: AtomicU64::new(0),
            tells_role: !matches!(self.finder, Finder::Node(_)),
        };
        let mut connection = link.pipe.clone();
        let question = ServerClock::question();
        let time = async { link.clock.read(&judged(link.pipe.ask(&question).await)) };
        let role = async {
            match &self.finder {
                Finder::Node(_) => Ok(None),
                Finder::At(_) | Finder::Sentinels(_) => Role::ask(&mut connection).await.map(Some),
            }
        };
        // Both questions share one round trip.
        let ((), role) = tokio::join!(time, role);
        let role = role?;
        match &self.finder {
            Finder::Node(_) => {}
            Finder::At(_) => role.unwrap_or_default().check_alone(&found.endpoint)?,
            Finder::Sentinels(_) => {
                let role = role.unwrap_or_default();
                if !role.is_primary() {
                    return Err(Verdict::nobody_yet(
                        "the server that the sentinels name as primary is a replica, or not yet a \
                         primary",
                    ));
                }
                role.check_alone(&found.endpoint)?;
            }
        }
        Ok(link)
    }

    /// Opens a connection for notifications on the current runtime, and returns its server too.
    pub(crate) async fn open_pubsub(&self) -> Result<(PubSub, Found), Verdict> {
        let found = self.find().await?;
        let attempt = async {
            let (socket, _) = self.enter(&found.endpoint, Some(ProtocolVersion::RESP2)).await?;
            // The socket is logged in already.
            let login = RedisConnectionInfo::default().set_skip_set_lib_name();
            let opened = PubSub::new(&login, socket).await;
            opened.map_err(|error| classify::judge(&error, Stage::Connecting))
        };
        let opened = self.in_time(&found.endpoint, attempt).await;
        Ok((opened.map_err(|verdict| self.logins.judge(verdict))?, found))
    }

    /// Opens a connection on which the server reports changes to the keys that were read over it.
    #[cfg(feature = "interop")]
    pub(crate) async fn open_tracking(&self) -> Result<Tracking, Verdict> {
        let found = self.find().await?;
        let attempt = async {
            let (socket, _) = self.enter(&found.endpoint, Some(ProtocolVersion::RESP3)).await?;
            let heard = socket.first_words();
            let opened = self.track(socket, &found).await;
            opened.map_err(|verdict| heard.explain(verdict))
        };
        self.in_time(&found.endpoint, attempt).await
    }

    #[cfg(feature = "interop")]
    async fn track(&self, socket: Socket, found: &Found) -> Result<Tracking, Verdict> {
        let asked = |error| classify::judge(&error, Stage::Connecting);
        let (pushed, pushes) = tokio::sync::mpsc::unbounded_channel();
        let config = redis::AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_push_sender(pushed);
        // The socket is logged in already.
        let login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        let (mut connection, driver) =
            redis::aio::MultiplexedConnection::new_with_config(&login, socket, config)
                .await
                .map_err(asked)?;
        let driver = Tied::spawn_on(&here()?, driver);
        let mut track = redis::cmd("CLIENT");
        track.arg("TRACKING").arg("ON");
        track.exec_async(&mut connection).await.map_err(asked)?;
        // A node of a cluster redirects requests for slots that it lacks.
        if !matches!(self.finder, Finder::Node(_)) {
            Role::ask(&mut connection).await?.check_alone(&found.endpoint)?;
        }
        Ok(Tracking { connection, pushes, from: found.clone(), _driver: driver })
    }

    /// Follows the primary from now on, in a task on the current runtime.
    fn follow(&self, sentinels: &Arc<Sentinels>) {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if following.as_ref().is_none_or(AbortHandle::is_finished) {
            let (sentinels, current) = (Arc::clone(sentinels), Arc::clone(&self.current));
            let tell = move |found| note(&current, found);
            *following = Some(tokio::spawn(sentinels.follow(tell)).abort_handle());
        }
    }

    /// Whether the sentinels have named another server than this one.
    pub(crate) fn has_left(&self, from: &Found) -> bool {
        self.follows() && is_elsewhere(&self.current.borrow(), from)
    }

    /// Returns once the sentinels have named another server than this one.
    pub(crate) async fn left(&self, from: &Found) {
        let mut current = self.current.subscribe();
        if !self.follows() || current.wait_for(|now| is_elsewhere(now, from)).await.is_err() {
            std::future::pending().await
        }
    }

    async fn in_time<T>(
        &self,
        endpoint: &Endpoint,
        attempt: impl Future<Output = Result<T, Verdict>>,
    ) -> Result<T, Verdict> {
        timeout(self.connect_timeout, attempt).await.unwrap_or_else(|_| {
            let waited = self.connect_timeout;
            // A server without TLS takes the greeting for the start of a command and waits.
            let hint = match endpoint {
                Endpoint::Tcp { tls: Some(_), .. } => "; if the port has no TLS, use redis://",
                Endpoint::Tcp { tls: None, .. } | Endpoint::Unix(_) => "",
            };
            Err(Verdict::unconnected(format!("no answer within {waited:?}{hint}"))
                .because(Reason::NoAnswer))
        })
    }
}

async fn what_is_at(
    logins: &Arc<Logins>,
    endpoint: &Endpoint,
    at: SocketAddr,
) -> Result<SaidThere, Verdict> {
    let (socket, _) = logins.enter(endpoint, Some(at), None).await?;
    let heard = socket.first_words();
    let (mut pipe, driver) = Pipe::new(socket);
    let _driver = Tied::spawn_on(&here()?, driver.run());
    let role = Role::ask(&mut pipe).await.map_err(|verdict| heard.explain(verdict))?;
    if let Err(verdict) = role.check_alone(endpoint) {
        return Ok(SaidThere::Other(verdict));
    }
    let info = judged(pipe.ask(&Age::question()).await);
    Ok(SaidThere::Primary(info.ok().and_then(|info| reply::run_id(&info))))
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Some(task) = &*self.following.lock().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Notes where the primary is, unless the answer is from an older epoch than the noted one.
fn note(current: &watch::Sender<Option<Found>>, found: Found) {
    current.send_if_modified(|current| {
        let news = current.as_ref().is_none_or(|it| *it != found && it.epoch <= found.epoch);
        if news {
            *current = Some(found);
        }
        news
    });
}

fn is_elsewhere(now: &Option<Found>, from: &Found) -> bool {
    now.as_ref().is_some_and(|now| now.endpoint != from.endpoint)
}

fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let mut login =
        RedisConnectionInfo::default().set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

fn login_to_sentinel(address: &Address) -> RedisConnectionInfo {
    login(address.sentinel_user.as_deref(), address.sentinel_password.as_deref())
        .set_protocol(ProtocolVersion::RESP2)
}

/// A connection on which the server reports changes to the keys that were read over it.
#[cfg(feature = "interop")]
pub(crate) struct Tracking {
    pub(crate) connection: redis::aio::MultiplexedConnection,
    /// Bounded by the number of tracked keys: the server reports each once until it is read again.
    pub(crate) pushes: tokio::sync::mpsc::UnboundedReceiver<redis::PushInfo>,
    /// The server.
    pub(crate) from: Found,
    _driver: Tied,
}

/// One connection and what is known of it.
pub(crate) struct Link {
    pub(crate) pipe: Pipe,
    /// The server, and the fail-over epoch in which it was found.
    pub(crate) at: Found,
    /// Aborted with the link, or it would go on reading from the server.
    _driver: Tied,
    /// Renews the login, if the credentials expire.
    _login: Option<Tied>,
    /// The server's age, once a request has read it.
    pub(crate) age: OnceLock<Age>,
    /// Calls without an answer since the last answer.
    pub(crate) silent: AtomicU32,
    pub(crate) clock: ServerClock,
    opened: Instant,
    /// When, in ms after `opened`, a request last read the server's clock and role.
    looked_ms: AtomicU64,
    /// Whether requests read its role. A node of a cluster redirects to the primary by itself.
    tells_role: bool,
}

impl Link {
    /// The epoch and the time limit that a request carries on this connection.
    pub(crate) fn stamp(&self, epoch: u64, deadline: Deadline) -> Stamp {
        Stamp { epoch, not_after: self.clock.late_after(deadline.not_after) }
    }

    /// Whether the next requests must read the server's clock, and whether its role too. A primary
    /// can become a replica without closing its connections, and go on answering.
    pub(crate) fn looks_again(&self) -> (bool, bool) {
        let looks = self.look_due().is_some_and(|(last, now)| {
            self.looked_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        (looks, looks && self.tells_role)
    }

    /// Whether such a look is due.
    pub(crate) fn is_to_look_again(&self) -> bool {
        self.look_due().is_some()
    }

    /// The last look and the present, in ms after `opened`, if a look is due.
    fn look_due(&self) -> Option<(u64, u64)> {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = self.looked_ms.load(Ordering::Relaxed);
        (now.saturating_sub(last) >= LOOK_EVERY_MS).then_some((last, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unpolled_request_to_sentinels_delays_no_other() {
        // It accepts connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis+sentinel://{}/m", silent.local_addr().unwrap());
        let address = Address::parse(&url).unwrap();
        let access =
            Access::new(&address, Duration::from_secs(5), None, Sources::default()).unwrap();
        let endpoint = address.endpoint.sibling("primary", 1);
        let mut left_alone = std::pin::pin!(access.is_elsewhere(&endpoint));
        let begun = timeout(Duration::from_millis(1), left_alone.as_mut()).await;
        assert!(begun.is_err(), "nobody answered yet");
        let other = timeout(Duration::from_secs(60), access.is_elsewhere(&endpoint)).await;
        assert_eq!(other, Ok(false));
        assert!(!left_alone.await);
    }

    #[test]
    fn requests_lack_room_from_a_refusal_while_none_is_open() {
        let address = Address::parse("redis://127.0.0.1").unwrap();
        let access =
            Access::new(&address, Duration::from_secs(5), None, Sources::default()).unwrap();
        let lacks = access.lacks_room();
        let (first, second) = (access.taken(), access.taken());
        access.refused();
        drop(first);
        access.refused();
        assert!(!*lacks.borrow(), "one is open");
        drop(second);
        assert!(!*lacks.borrow(), "none was refused");
        access.refused();
        assert!(*lacks.borrow());
        let third = access.taken();
        assert!(!*lacks.borrow());
        drop(third);
        assert!(!*lacks.borrow());
    }
}
