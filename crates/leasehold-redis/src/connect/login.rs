//! Secures a new connection, and logs in.
//!
//! Passwords and certificates change while programs run. The ones that a server accepted last are
//! tried first. If the server refuses them, new ones are read from their file or the program, and
//! tried as well. So it does not matter whether the server or the source changes first.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold_core::Reason;
use redis::{ProtocolVersion, RedisConnectionInfo, Value, cmd};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::classify::{self, Stage, Verdict};
use crate::connect::credentials::{Credentials, Provide};
use crate::connect::dial::{Socket, dial};
use crate::connect::pipe::Pipe;
use crate::connect::tls::Security;
use crate::topology::address::Endpoint;

/// How often one login is tried with newer credentials. A password and a certificate may have
/// changed, and the password twice if servers change one after the other.
const TRIES_MAX: u32 = 4;

/// The least time between two requests for expiring credentials.
const ASK_EVERY_MIN: Duration = Duration::from_secs(1);

/// The longest pause before failed credentials are requested again.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(10);

/// How many servers' accepted credentials are remembered; a cluster has at most this many nodes.
const REMEMBERED_MAX: usize = 1_000;

/// The credentials of a connection.
pub(crate) struct Given {
    login: RedisConnectionInfo,
    /// When to request new ones.
    renew_at: Option<Instant>,
}

impl Given {
    fn is_like(&self, other: &Self) -> bool {
        let parts = |it: &'_ Self| {
            (it.login.username().map(str::to_owned), it.login.password().map(str::to_owned))
        };
        parts(self) == parts(other)
    }

    /// Whether they expire.
    pub(crate) const fn ends(&self) -> bool {
        self.renew_at.is_some()
    }

    fn is_due(&self) -> bool {
        self.renew_at.is_some_and(|at| at <= Instant::now())
    }
}

type Asked = watch::Receiver<Option<Result<Arc<Given>, Verdict>>>;

#[derive(Default)]
struct State {
    /// The latest credentials.
    latest: Option<Arc<Given>>,
    /// The credentials that each server accepted last.
    taken: HashMap<Endpoint, Arc<Given>>,
    /// The request under way, shared by all callers that need its answer.
    asking: Option<Asked>,
}

/// The sources of credentials for servers.
pub(crate) struct Logins {
    base: RedisConnectionInfo,
    provide: Option<Provide>,
    security: Arc<Security>,
    state: Mutex<State>,
    was_let_in: AtomicBool,
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logins").field("security", &self.security).finish_non_exhaustive()
    }
}

impl Logins {
    /// `base` has the URL's user and password. If no other source provides passwords, a user in it
    /// gets an empty one by default.
    pub(crate) fn new(
        mut base: RedisConnectionInfo,
        provide: Option<Provide>,
        security: Arc<Security>,
    ) -> Self {
        if base.username().is_some() && base.password().is_none() && provide.is_none() {
            base = base.set_password("");
        }
        let (state, was_let_in) = (Mutex::default(), AtomicBool::new(false));
        Self { base, provide, security, state, was_let_in }
    }

    /// Whether servers get a password.
    pub(crate) fn has_password(&self) -> bool {
        self.base.password().is_some() || self.provide.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new, idle connection, in this version of the protocol if one is given.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        at: Option<SocketAddr>,
        protocol: Option<ProtocolVersion>,
    ) -> Result<(Socket, Arc<Given>), Verdict> {
        let mut given = self.given(endpoint).await?;
        let mut tls = self.security.current();
        for tries in 1.. {
            let attempt = async {
                let login = match protocol {
                    Some(protocol) => given.login.clone().set_protocol(protocol),
                    None => given.login.clone(),
                };
                let socket = dial(endpoint, at, &tls.connector).await?;
                let heard = socket.first_words();
                let entered = socket.log_in(&login).await;
                entered.map_err(|error| heard.explain(classify::judge(&error, Stage::Connecting)))
            };
            let verdict = match attempt.await {
                Ok(socket) => {
                    self.note(endpoint, &given);
                    return Ok((socket, given));
                }
                Err(verdict) => verdict,
            };
            if tries >= TRIES_MAX {
                return Err(verdict);
            }
            let renewed = match verdict.reason {
                Some(Reason::Certificate) => {
                    let (security, seen) = (Arc::clone(&self.security), tls.number);
                    let renewed = aside(move || security.renewed(seen)).await;
                    renewed.map(|newer| newer.map(|newer| tls = newer))
                }
                Some(Reason::WrongPassword | Reason::NoPassword) if self.provide.is_some() => {
                    let newer = self.newer(&given).await;
                    newer.map(|newer| {
                        let changed = !newer.is_like(&given);
                        given = newer;
                        changed.then_some(())
                    })
                }
                _ => return Err(verdict),
            };
            match renewed {
                Ok(Some(())) => {}
                Ok(None) => return Err(verdict),
                Err(why) => return Err(verdict.beside(&why)),
            }
        }
        Err(Verdict::nobody_yet("no login was made"))
    }

    /// The credentials to log in with.
    async fn given(self: &Arc<Self>, endpoint: &Endpoint) -> Result<Arc<Given>, Verdict> {
        if self.provide.is_none() {
            return Ok(Arc::new(Given { login: self.base.clone(), renew_at: None }));
        }
        let known = {
            let state = self.state();
            state.taken.get(endpoint).or(state.latest.as_ref()).cloned()
        };
        match known {
            Some(known) if !known.is_due() => Ok(known),
            // If renewing fails, the server decides whether the known ones have expired.
            Some(known) => Ok(self.newer(&known).await.unwrap_or(known)),
            None => self.ask().await,
        }
    }

    /// Newer credentials: the latest ones, or new ones.
    async fn newer(self: &Arc<Self>, than: &Given) -> Result<Arc<Given>, Verdict> {
        let latest = self.state().latest.clone();
        match latest.filter(|latest| !latest.is_like(than) && !latest.is_due()) {
            Some(latest) => Ok(latest),
            None => self.ask().await,
        }
    }

    /// Requests credentials, or waits for a request under way.
    async fn ask(self: &Arc<Self>) -> Result<Arc<Given>, Verdict> {
        let Some(provide) = self.provide.clone() else {
            return Err(Verdict::misconfigured("no password is known; give one"));
        };
        let mut asked = {
            let mut state = self.state();
            match state.asking.clone().filter(|asked| asked.has_changed().is_ok()) {
                Some(asked) => asked,
                None => {
                    let (tell, asked) = watch::channel(None);
                    let logins = Arc::clone(self);
                    start(move || {
                        let since = Instant::now();
                        let given = provide.ask().map(|it| Arc::new(logins.take(it, since)));
                        let mut state = logins.state();
                        if let Ok(given) = &given {
                            state.latest = Some(Arc::clone(given));
                        }
                        state.asking = None;
                        tell.send_replace(Some(given));
                    })?;
                    state.asking = Some(asked.clone());
                    asked
                }
            }
        };
        let answer = asked.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| Err(Verdict::unconnected("no credentials: their source panicked")))
    }

    fn take(&self, credentials: Credentials, since: Instant) -> Given {
        let Credentials { user, password, valid_for } = credentials;
        let mut login = self.base.clone().set_password(password);
        if let Some(user) = user {
            login = login.set_username(user);
        }
        let renew_at = valid_for.and_then(|length| {
            let early = (length / 4).saturating_mul(3).max(ASK_EVERY_MIN);
            since.checked_add(early)
        });
        Given { login, renew_at }
    }

    fn note(&self, endpoint: &Endpoint, given: &Arc<Given>) {
        if self.provide.is_none() {
            return;
        }
        let mut state = self.state();
        if state.taken.len() >= REMEMBERED_MAX {
            state.taken.clear();
        }
        state.taken.insert(endpoint.clone(), Arc::clone(given));
    }

    /// Logs an open connection in again before its credentials expire. Returns when the connection
    /// has ended, or if the credentials don't expire.
    pub(crate) async fn stay(
        self: Arc<Self>,
        endpoint: Endpoint,
        mut given: Arc<Given>,
        pipe: Pipe,
    ) {
        let (mut tried, mut pause) = (Arc::clone(&given), ASK_EVERY_MIN);
        while let Some(at) = given.renew_at {
            sleep_until(at).await;
            if pipe.has_ended() {
                return;
            }
            let renewed = match self.other_than(&tried).await {
                Ok(newer) => {
                    tried = newer;
                    log_in_again(&tried, &pipe).await
                }
                Err(verdict) => Err(verdict),
            };
            match renewed {
                Ok(()) => {
                    self.note(&endpoint, &tried);
                    given = Arc::clone(&tried);
                    pause = ASK_EVERY_MIN;
                }
                Err(verdict) => {
                    tracing::debug!(why = verdict.message(), "the login was not renewed");
                    sleep(pause).await;
                    pause = pause.saturating_mul(2).min(ASK_AGAIN_MAX);
                }
            }
        }
    }

    /// Other credentials: the latest ones, or new ones.
    async fn other_than(self: &Arc<Self>, tried: &Arc<Given>) -> Result<Arc<Given>, Verdict> {
        let latest = self.state().latest.clone();
        match latest.filter(|latest| !Arc::ptr_eq(latest, tried) && !latest.is_due()) {
            Some(latest) => Ok(latest),
            None => self.ask().await,
        }
    }

    /// Records that a server has accepted a login.
    pub(crate) fn let_in(&self) {
        self.was_let_in.store(true, Ordering::Relaxed);
    }

    /// Judges a failed connection. A refusal after an accepted login counts as an outage, since
    /// passwords and certificates may be in the middle of a change.
    pub(crate) fn judge(&self, verdict: Verdict) -> Verdict {
        use Reason::{Certificate, NoPassword, SentinelPassword, WrongPassword};
        let refused = matches!(
            verdict.reason,
            Some(Certificate | NoPassword | SentinelPassword | WrongPassword)
        );
        if refused && self.was_let_in.load(Ordering::Relaxed) { verdict.outage() } else { verdict }
    }
}

/// Logs in on a connection in use. A refusal leaves it as it was.
async fn log_in_again(given: &Given, pipe: &Pipe) -> Result<(), Verdict> {
    let mut auth = cmd("AUTH");
    if let Some(user) = given.login.username() {
        auth.arg(user);
    }
    auth.arg(given.login.password().unwrap_or_default());
    match pipe.ask(&auth).await {
        Ok(Value::ServerError(error)) => {
            Err(classify::server(error.code(), error.details().unwrap_or("")))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(classify::judge(&error, Stage::Asked)),
    }
}

/// Runs blocking work on a separate thread, so that runtimes and the end of the process never wait
/// for it.
fn start(work: impl FnOnce() + Send + 'static) -> Result<(), Verdict> {
    match thread::Builder::new().name("leasehold-login".to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(Verdict::unconnected(format!("no thread can be started: {error}"))
            .because(Reason::Threads)),
    }
}

/// As [`start`], with an answer.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Verdict> + Send + 'static,
) -> Result<T, Verdict> {
    let (tell, told) = oneshot::channel();
    start(move || drop(tell.send(work())))?;
    told.await.unwrap_or_else(|_| Err(Verdict::unconnected("reading the files panicked")))
}
