//! What every command gets: settings, the state at the start, and connections.
//!
//! The connections are closed however the command ends.

use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Client, Error, ErrorKind, Reason};
use tokio::time::Instant;

use crate::failure::{Failure, Outcome};
use crate::inherited::Inherited;
use crate::leases::Leases;
use crate::outage::Outage;
use crate::settings::Settings;
use crate::signals::Signals;

/// How long a command tries at its end to leave nothing behind. An unanswered request may be
/// carried out for 2 s, and is abandoned again after that.
const TIDY_WITHIN: Duration = Duration::from_secs(3);
/// And at least, for a store that answers again just then.
pub(crate) const TIDY_LEAST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) inherited: Inherited,
    /// The files that a command is to inherit, apart from the standard ones.
    pub(crate) files: Vec<RawFd>,
    /// Whether a busy lock goes without a message.
    pub(crate) quiet: bool,
    connections: Mutex<Connections>,
}

#[derive(Debug)]
struct Connections {
    clients: Vec<Client>,
    tidy_within: Duration,
    /// When there has to be an answer, whatever is left behind.
    answer_by: Option<Instant>,
}

impl Context {
    pub(crate) fn new(
        settings: Settings,
        inherited: Inherited,
        files: Vec<RawFd>,
        quiet: bool,
    ) -> Self {
        let connections =
            Connections { clients: Vec::new(), tidy_within: TIDY_WITHIN, answer_by: None };
        Self { settings, inherited, files, quiet, connections: Mutex::new(connections) }
    }

    /// Catches the signals that end a process, so that it cleans up first.
    pub(crate) fn catch_signals(&self) -> Outcome<Signals> {
        Signals::catch_fatal(self.inherited)
            .map_err(|error| Failure::system("catch signals", &error))
    }

    /// Connects for a read-only command, which makes no store. `None` if there is none yet.
    pub(crate) async fn connect_to_look(&self) -> Outcome<Option<Client>> {
        self.connect_if_made(None, false).await
    }

    /// Connects as `owner` to act on locks that are held. `None` before there is a store.
    pub(crate) async fn connect_if_made(
        &self,
        owner: Option<&str>,
        detached: bool,
    ) -> Outcome<Option<Client>> {
        if self.settings.store_is_absent() {
            return Ok(None);
        }
        Ok(Some(self.connect_as(owner, detached, None).await?))
    }

    /// Connects as `owner`, within `limit` if there is one. With `detached`, leases live on after
    /// this process.
    pub(crate) async fn connect_as(
        &self,
        owner: Option<&str>,
        detached: bool,
        limit: Option<Duration>,
    ) -> leasehold::Result<Client> {
        self.connect_with(&self.settings, owner, detached, limit).await
    }

    /// Connects to try the store on names that are forgotten after.
    pub(crate) async fn connect_to_try(&self) -> leasehold::Result<Client> {
        self.connect_with(&self.settings.for_scratch_names(), None, false, None).await
    }

    async fn connect_with(
        &self,
        settings: &Settings,
        owner: Option<&str>,
        detached: bool,
        limit: Option<Duration>,
    ) -> leasehold::Result<Client> {
        let (quiet, outage) = (self.quiet, Mutex::new(Outage::default()));
        let connecting = settings.connect(owner, detached, move |error| {
            if !quiet {
                outage.lock().unwrap_or_else(PoisonError::into_inner).tell(error);
            }
        });
        let client = match limit {
            None => connecting.await?,
            Some(limit) => {
                tokio::time::timeout(limit, connecting).await.map_err(|_| self.silent())??
            }
        };
        self.connections().clients.push(client.clone());
        Ok(client)
    }

    /// The end of a request with this limit, which began then, if the store does not answer: one
    /// time for connecting, the request, and its cleanup.
    pub(crate) fn answer_by(&self, limit: Option<Duration>, begun: Instant) -> Option<Instant> {
        let patience = match limit? {
            // Not to wait for the lock is not to have no time to ask for it.
            Duration::ZERO => self.settings.retry_store().unwrap_or_default(),
            limit => limit,
        };
        begun.checked_add(patience.saturating_add(TIDY_WITHIN))
    }

    /// The store did not answer in time.
    pub(crate) fn silent(&self) -> Error {
        let why = "timed out while the store was away, so the state of the lock is unknown";
        let error = Error::new(ErrorKind::Unavailable, why).with_reason(Reason::WaitOver);
        error.at_store(self.settings.place())
    }

    /// Leaves for [`close`](Self::close) what is left until then, or all of its time.
    pub(crate) fn close_by(&self, moment: Option<Instant>) {
        self.connections().answer_by = moment;
    }

    /// Until when leases are released, if one of them is lost. After their deadline only a store
    /// that has not failed is waited for, as after a stop of this process: it knows whether another
    /// holder had the lock.
    pub(crate) fn give_up_by(&self, leases: &Leases) -> Instant {
        let failed = leases.iter().any(|lease| lease.loss().is_some_and(|it| it.error().is_some()));
        let least = if failed { TIDY_LEAST } else { TIDY_WITHIN };
        let moment = Instant::now() + leases.until_deadline().max(least);
        self.close_by(Some(moment));
        moment
    }

    /// The end of the wait for the client's background work.
    pub(crate) fn tidy_by(&self) -> Instant {
        let by = Instant::now() + TIDY_WITHIN;
        self.connections().answer_by.map_or(by, |moment| moment.min(by))
    }

    /// All of that time is over, so [`close`](Self::close) has none left.
    pub(crate) fn has_tidied(&self) {
        self.close_by(Some(Instant::now()));
    }

    /// Leaves less time for [`close`](Self::close), for a store that would only repeat its refusal.
    pub(crate) fn tidy_within(&self, limit: Duration) {
        let mut connections = self.connections();
        connections.tidy_within = connections.tidy_within.min(limit);
    }

    /// Abandons the rest: positions in queues, leases that could not be released.
    pub(crate) async fn close(&self) {
        let (clients, within) = {
            let mut connections = self.connections();
            let left = connections.answer_by.map_or(TIDY_WITHIN, |moment| {
                moment.saturating_duration_since(Instant::now()).max(TIDY_LEAST)
            });
            (std::mem::take(&mut connections.clients), connections.tidy_within.min(left))
        };
        for client in clients {
            // What can't be released in time expires with its ttl.
            drop(tokio::time::timeout(within, client.close()).await);
        }
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
