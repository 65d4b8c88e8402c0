//! `leasehold metrics`: print or serve the locks in use as Prometheus metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use leasehold::{Client, Error, HolderInfo, Listing, LockInfo};
use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::arguments;
use crate::cli::Metrics;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::gate::Gate;
use crate::http::{Connection, Listener};
use crate::outage::{self, Outage};
use crate::output;
use crate::signals::unless_interrupted;

/// Scrapers abandon a scrape that takes longer.
const SCRAPE_WITHIN: Duration = Duration::from_secs(8);
const CONNECTIONS_MAX: usize = 16;
/// As many locks as get numbers of their own.
const PER_LOCK_MAX: usize = 1_000;

/// A request for the numbers.
type Asked = oneshot::Sender<String>;

pub(crate) async fn metrics(args: &Metrics, context: &Context) -> Outcome {
    let prefix = arguments::prefix(args.prefix.as_deref())?;
    let mut scraper = Scraper {
        context,
        prefix,
        per_lock: args.per_lock,
        client: None,
        outage: Outage::default(),
    };
    match args.listen {
        Some(address) => {
            let gate = Gate { hosts: args.hosts.clone(), token: None };
            listen(address, gate, &mut scraper).await
        }
        None => {
            let begun = Instant::now();
            let listing = scraper.list().await;
            let text = text(listing.as_ref().ok(), begun.elapsed(), args.per_lock);
            let printed = output::data(&text);
            // A store that is away counts for more than a reader that is.
            listing.and(printed).map(|()| Exit::Success)
        }
    }
}

/// Asks the store.
struct Scraper<'a> {
    context: &'a Context,
    prefix: &'a str,
    per_lock: bool,
    client: Option<Client>,
    outage: Outage,
}

impl Scraper<'_> {
    /// Connects if it has not before: at the start the store may be away, or missing.
    async fn list(&mut self) -> Outcome<Listing> {
        if self.client.is_none() {
            self.client = self.context.connect_to_look().await?;
        }
        match &self.client {
            Some(client) => Ok(client.list(self.prefix).await?),
            None => Ok(Listing::default()),
        }
    }

    /// The numbers, whatever the state of the store.
    async fn scrape(&mut self) -> String {
        let begun = Instant::now();
        let listing = tokio::time::timeout(SCRAPE_WITHIN, self.list()).await;
        let failure = match listing {
            Ok(Ok(listing)) => {
                self.outage = Outage::default();
                return text(Some(&listing), begun.elapsed(), self.per_lock);
            }
            Ok(Err(failure)) => Error::new(leasehold::ErrorKind::Unavailable, failure.message),
            Err(_) => {
                let store = self.client.as_ref().map_or("the store", Client::location);
                outage::late(store, SCRAPE_WITHIN)
            }
        };
        self.outage.tell(&failure);
        text(None, begun.elapsed(), self.per_lock)
    }
}

async fn listen(address: SocketAddr, gate: Gate, scraper: &mut Scraper<'_>) -> Outcome {
    let gate = Arc::new(gate);
    let mut signals = scraper.context.catch_signals()?;
    let listener = Listener::bind(address, CONNECTIONS_MAX).await?;
    output::data(&format!("http://{}/metrics\n", listener.address()))?;
    let (ask, mut asked) = mpsc::channel::<Asked>(CONNECTIONS_MAX);
    let served = unless_interrupted(&mut signals, async {
        loop {
            tokio::select! {
                Some(first) = asked.recv() => {
                    let text = scraper.scrape().await;
                    // The others that asked meanwhile get the same.
                    let others = std::iter::from_fn(|| asked.try_recv().ok());
                    for asked in std::iter::once(first).chain(others.take(CONNECTIONS_MAX)) {
                        // A closed connection needs no answer.
                        drop(asked.send(text.clone()));
                    }
                }
                connection = listener.accept() => {
                    if let Some(connection) = connection {
                        tokio::spawn(serve(connection, Arc::clone(&gate), ask.clone()));
                    }
                }
            }
        }
    });
    served.await?
}

async fn serve(connection: Connection, gate: Arc<Gate>, ask: mpsc::Sender<Asked>) {
    connection.serve(async |request| respond(&request, &gate, &ask).await).await;
}

async fn respond(
    request: &Request<Incoming>,
    gate: &Gate,
    ask: &mpsc::Sender<Asked>,
) -> Response<Full<Bytes>> {
    let passed = gate.pass(request.method(), request.uri(), request.headers());
    let (status, text) = match (request.method(), request.uri().path(), passed) {
        (&Method::GET, _, Err((status, why))) => (status, format!("{why}\n")),
        (&Method::GET, "/metrics", Ok(())) => {
            let (tell, told) = oneshot::channel();
            ask.send(tell).await.ok();
            match told.await {
                Ok(text) => (StatusCode::OK, text),
                Err(_) => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
            }
        }
        (&Method::GET, ..) => (StatusCode::NOT_FOUND, "the numbers are at /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The numbers of a listing, or of a store that gave none.
fn text(listing: Option<&Listing>, took: Duration, per_lock: bool) -> String {
    // A new one each time: a lock that is gone has no numbers.
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        describe_gauge!("leasehold_store_up", "Whether the store could be listed");
        gauge!("leasehold_store_up").set(if listing.is_some() { 1.0 } else { 0.0 });
        describe_gauge!("leasehold_store_list_seconds", "How long that took");
        gauge!("leasehold_store_list_seconds").set(took);
        if let Some(listing) = listing {
            set(listing);
            if per_lock {
                listing.locks.iter().take(PER_LOCK_MAX).for_each(set_one);
            }
        }
    });
    recorder.handle().render()
}

fn set(listing: &Listing) {
    let locks = &listing.locks;
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    describe_gauge!(
        "leasehold_locks",
        "Locks in use, by state: held, closed to all, or waited for"
    );
    let held = locks.iter().filter(|info| !info.holders.is_empty()).count();
    let closed = |info: &&LockInfo| info.holders.is_empty() && info.closed_for.is_some();
    let closed = locks.iter().filter(closed).count();
    gauge!("leasehold_locks", "state" => "held").set(count(held));
    gauge!("leasehold_locks", "state" => "closed").set(count(closed));
    gauge!("leasehold_locks", "state" => "free").set(count(locks.len() - held - closed));
    describe_gauge!("leasehold_locks_unreadable", "Locks whose record can't be read");
    gauge!("leasehold_locks_unreadable").set(count(listing.unreadable.len()));
    describe_gauge!("leasehold_holders", "Leases that are held");
    gauge!("leasehold_holders").set(count(locks.iter().map(|info| info.holders.len()).sum()));
    describe_gauge!("leasehold_waiters", "Contenders in the queue");
    let waiting: u64 = locks.iter().map(LockInfo::waiting).sum();
    gauge!("leasehold_waiters").set(count(usize::try_from(waiting).unwrap_or(usize::MAX)));
    describe_gauge!("leasehold_hold_age_seconds_max", "The age of the oldest hold");
    let oldest = locks.iter().filter_map(oldest).map(|holder| holder.held_for).max();
    gauge!("leasehold_hold_age_seconds_max").set(oldest.unwrap_or_default());
    describe_gauge!("leasehold_wait_age_seconds_max", "How long the most patient has waited");
    let waited = locks.iter().flat_map(|info| &info.waiters).map(|waiter| waiter.waited).max();
    gauge!("leasehold_wait_age_seconds_max").set(waited.unwrap_or_default());
}

fn set_one(info: &LockInfo) {
    let lock = info.key.as_str().to_owned();
    describe_gauge!("leasehold_lock_hold_age_seconds", "The age of a lock's oldest hold");
    describe_gauge!("leasehold_lock_waiters", "A lock's contenders in the queue");
    // One that is merely closed or waited for has no hold that could have an age.
    if let Some(holder) = oldest(info) {
        gauge!("leasehold_lock_hold_age_seconds", "lock" => lock.clone()).set(holder.held_for);
    }
    let waiters = f64::from(u32::try_from(info.waiting()).unwrap_or(u32::MAX));
    gauge!("leasehold_lock_waiters", "lock" => lock).set(waiters);
}

fn oldest(info: &LockInfo) -> Option<&HolderInfo> {
    info.holders.iter().max_by_key(|holder| holder.held_for)
}
