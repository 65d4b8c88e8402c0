//! `leasehold ui`: show the locks in use on a web page, by server-sent events.
//!
//! The store is listed while pages are open, once for all of them. The page is one self-contained
//! file. Its data is the document of `ls --json`, with a few fields more.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use leasehold::{Client, Error, ErrorKind, Fence, Key, Listing};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::force_release::{NO_HOLDER, why_not};
use super::{log, ls};
use crate::arguments;
use crate::cli::Ui;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::gate::{self, Gate};
use crate::http::{Connection, Listener, REQUEST_WITHIN};
use crate::outage::{Outage, late};
use crate::output;
use crate::pauses::Listings;
use crate::secret;
use crate::signals::unless_interrupted;

const PAGE: &str = include_str!("page.html");
const CONNECTIONS_MAX: usize = 32;
/// As many may look at a time; the other connections are for single requests.
const LOOKERS_MAX: usize = 24;
/// As many locks as are shown.
const LOCKS_MAX: usize = 1_000;
/// As many events of a lock.
const PAST_MAX: usize = 200;
/// The largest order: a name of 512 bytes, each escaped, and a fence.
const ORDER_MAX: usize = 8 * 1024;
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Where listings take long, the next is put off by this many times the time between two, at most.
const PUT_OFF_MAX: u32 = 10;
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

type Page = Response<Either<Full<Bytes>, Channel<Bytes>>>;

/// A lease to force-release.
#[derive(Debug)]
struct Order {
    key: Key,
    fence: Fence,
    answer: oneshot::Sender<(StatusCode, String)>,
}

/// What all connections share.
#[derive(Debug)]
struct Site {
    gate: Gate,
    lookers: Arc<Semaphore>,
    pictures: watch::Receiver<Bytes>,
    orders: mpsc::Sender<Order>,
    /// Once the store was reached.
    client: Arc<Mutex<Option<Client>>>,
}

pub(crate) async fn ui(args: &Ui, context: &Context) -> Outcome {
    let prefix = arguments::prefix(args.prefix.as_deref())?;
    let mut signals = context.catch_signals()?;
    let listener = Listener::bind(args.listen, CONNECTIONS_MAX).await?;
    let token = args.allow_release.then(random).transpose()?;
    let behind = token.as_ref().map(|token| format!("#release={token}")).unwrap_or_default();
    output::data(&format!("http://{}/{behind}\n", listener.address()))?;
    let (show, pictures) = watch::channel(Bytes::new());
    let (order, orders) = mpsc::channel(1);
    let gate = Gate { hosts: args.hosts.clone(), token };
    let lookers = Arc::new(Semaphore::new(LOOKERS_MAX));
    let reached = Arc::<Mutex<Option<Client>>>::default();
    let client = Arc::clone(&reached);
    let site = Arc::new(Site { gate, lookers, pictures, orders: order, client });
    let every = args.every.max(EVERY_MIN);
    let painter = Painter { context, prefix, client: None, reached, outage: Outage::default() };
    unless_interrupted(&mut signals, serve(listener, site, painter, show, orders, every)).await?
}

async fn serve(
    listener: Listener,
    site: Arc<Site>,
    mut painter: Painter<'_>,
    show: watch::Sender<Bytes>,
    mut orders: mpsc::Receiver<Order>,
    every: Duration,
) -> Outcome {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look_at = Instant::now();
    let mut listings = Listings::default();
    let mut looking: Option<Ongoing<'_, Looked>> = None;
    let mut late_at = look_at;
    let mut taking: Option<Ongoing<'_, Option<Client>>> = None;
    loop {
        tokio::select! {
            // The site has one receiver itself. One request at a time, and only while a page is
            // open.
            _ = tick.tick(), if looking.is_none() => {
                let now = Instant::now();
                if show.receiver_count() > 1 && now >= look_at {
                    let client = painter.client.clone();
                    looking = Some(Box::pin(look(painter.context, client, painter.prefix)));
                    late_at = now + listings.late_after();
                }
            }
            looked = done(&mut looking) => {
                looking = None;
                if let (Ok(_), Some(took)) = (&looked.listing, looked.took) {
                    listings.done(took);
                    look_at = Instant::now() + listings.apart().min(every * PUT_OFF_MAX);
                }
                painter.connected(looked.client);
                show.send_replace(painter.picture(looked.listing)?);
            }
            // Again and again, for those who come meanwhile.
            () = tokio::time::sleep_until(late_at), if looking.is_some() => {
                let late_after = listings.late_after();
                let why = late(&painter.context.settings.place(), late_after);
                show.send_replace(painter.picture(Err(why))?);
                late_at = Instant::now() + late_after;
            }
            Some(order) = orders.recv(), if taking.is_none() => {
                taking = Some(Box::pin(take_away(painter.context, painter.client.clone(), order)));
            }
            client = done(&mut taking) => {
                taking = None;
                painter.connected(client);
                look_at = Instant::now();
            }
            connection = listener.accept() => {
                if let Some(connection) = connection {
                    tokio::spawn(answer(connection, Arc::clone(&site)));
                }
            }
        }
    }
}

/// A request to the store, while all else goes on.
type Ongoing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Waits for its end, or for ever where there is nothing. Cancel safe.
async fn done<T>(ongoing: &mut Option<Ongoing<'_, T>>) -> T {
    match ongoing {
        Some(ongoing) => ongoing.await,
        None => std::future::pending().await,
    }
}

/// What a look at the store gave.
struct Looked {
    /// Where there is a store.
    client: Option<Client>,
    listing: leasehold::Result<Listing>,
    /// How long listing it took.
    took: Option<Duration>,
}

async fn look(context: &Context, client: Option<Client>, prefix: &str) -> Looked {
    match connected(context, client).await {
        Ok(Some(client)) => {
            let begun = Instant::now();
            let listing = client.list(prefix).await;
            Looked { client: Some(client), listing, took: Some(begun.elapsed()) }
        }
        Ok(None) => Looked { client: None, listing: Ok(Listing::default()), took: None },
        Err(failure) => {
            let why = Error::new(ErrorKind::Unavailable, failure.message);
            Looked { client: None, listing: Err(why), took: None }
        }
    }
}

/// Takes a lease away, and says over which connection, if there is a store.
async fn take_away(context: &Context, client: Option<Client>, order: Order) -> Option<Client> {
    let Order { key, fence, answer } = order;
    let client = connected(context, client).await;
    let done = match &client {
        Ok(Some(client)) => match client.force_release(&key, fence).await {
            Ok(done) => match why_not(&done) {
                None => {
                    let told = format!("force-released \"{key}\" (fence {fence})");
                    output::message(&format!("{told}, as the page requested"));
                    (StatusCode::OK, told)
                }
                Some(why) => (StatusCode::CONFLICT, format!("\"{key}\": {why}")),
            },
            Err(error) => (StatusCode::BAD_GATEWAY, chain(&error)),
        },
        Ok(None) => (StatusCode::CONFLICT, format!("\"{key}\": {NO_HOLDER}")),
        Err(failure) => (StatusCode::BAD_GATEWAY, failure.message.clone()),
    };
    // A closed connection needs no answer.
    drop(answer.send((done.0, secret::redact(&done.1))));
    client.ok().flatten()
}

/// Connects if needed, for as long as `--retry-store` says: the store may be away at the start, or
/// not made yet.
async fn connected(context: &Context, client: Option<Client>) -> Outcome<Option<Client>> {
    match client {
        None => context.connect_to_look().await,
        reached => Ok(reached),
    }
}

/// Says what to show.
struct Painter<'a> {
    context: &'a Context,
    prefix: &'a str,
    client: Option<Client>,
    reached: Arc<Mutex<Option<Client>>>,
    outage: Outage,
}

impl Painter<'_> {
    fn connected(&mut self, client: Option<Client>) {
        if self.client.is_none() && client.is_some() {
            self.reached.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&client);
            self.client = client;
        }
    }

    /// An event with what there is, or why that is not known.
    fn picture(&mut self, listing: leasehold::Result<Listing>) -> Outcome<Bytes> {
        let (listing, problem) = match listing {
            Ok(listing) => {
                self.outage = Outage::default();
                (listing, Value::Null)
            }
            Err(error) => {
                self.outage.tell(&error);
                (Listing::default(), Value::from(secret::redact(&chain(&error))))
            }
        };
        let mut document = ls::document(&listing, LOCKS_MAX, self.context)?;
        document["problem"] = problem;
        document["left_off"] = Value::from(listing.locks.len().saturating_sub(LOCKS_MAX));
        Ok(Bytes::from(format!("data: {}\n", output::json_line(&document))))
    }
}

async fn answer(connection: Connection, site: Arc<Site>) {
    connection.serve(|request| respond(request, Arc::clone(&site))).await;
}

async fn respond(request: Request<Incoming>, site: Arc<Site>) -> Page {
    let passed = site.gate.pass(request.method(), request.uri(), request.headers());
    if let Err((status, why)) = passed {
        return text(status, format!("{why}\n"));
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, gate::PAGE) => page(),
        (&Method::GET, "/events") => events(&site),
        (&Method::GET, "/log") => past(request.uri().query().unwrap_or_default(), &site).await,
        (&Method::POST, "/release") => {
            let (status, told) = release(request, &site).await;
            text(status, told)
        }
        (&Method::GET, _) => text(StatusCode::NOT_FOUND, "the page is at /\n".to_owned()),
        _ => text(StatusCode::METHOD_NOT_ALLOWED, String::new()),
    }
}

/// The page, whose script and style alone may run in it.
fn page() -> Page {
    let Ok(nonce) = random() else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "no random numbers\n".to_owned());
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src \
         'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = Full::from(PAGE.replace("{{NONCE}}", &nonce));
    let mut response = of_kind("text/html; charset=utf-8", Either::Left(page));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The events of a lock, from the log of the store: a document on each line.
async fn past(query: &str, site: &Site) -> Page {
    let key = query.strip_prefix("key=").and_then(decoded).and_then(|key| Key::new(key).ok());
    let Some(key) = key else {
        return text(StatusCode::BAD_REQUEST, "no lock is named; write /log?key=NAME\n".to_owned());
    };
    let client = site.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let entries = match client {
        Some(client) => client.log(&key, PAST_MAX).await,
        None => Ok(Vec::new()),
    };
    match entries {
        Ok(entries) => {
            let lines = Full::from(log::text(&entries, true));
            of_kind("application/jsonl; charset=utf-8", Either::Left(lines))
        }
        Err(error) => text(StatusCode::BAD_GATEWAY, secret::redact(&chain(&error))),
    }
}

/// Text of a query, in which a page writes all but the plainest characters by their bytes.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(part.get(2..)?.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

fn events(site: &Site) -> Page {
    let Ok(place) = Arc::clone(&site.lookers).try_acquire_owned() else {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are open; close one\n".to_owned(),
        );
    };
    let (feed, body) = Channel::new(1);
    let pictures = site.pictures.clone();
    tokio::spawn(async move {
        send(feed, pictures).await;
        drop(place);
    });
    of_kind("text/event-stream", Either::Right(body))
}

/// Sends each new picture, until its reader has gone; a reader that is slow gets the latest.
async fn send(mut feed: Sender<Bytes>, mut pictures: watch::Receiver<Bytes>) {
    pictures.mark_unchanged();
    while pictures.changed().await.is_ok() {
        let picture = pictures.borrow_and_update().clone();
        if feed.send_data(picture).await.is_err() {
            return;
        }
    }
}

/// Has a lease taken away by its fence, as `force-release` does.
async fn release(request: Request<Incoming>, site: &Site) -> (StatusCode, String) {
    let body = Limited::new(request.into_body(), ORDER_MAX).collect();
    let body = match tokio::time::timeout(REQUEST_WITHIN, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => return (StatusCode::BAD_REQUEST, "the request is incomplete, or too long".to_owned()),
    };
    let Some((key, fence)) = order(&body) else {
        return (StatusCode::BAD_REQUEST, "the request names no lock, or no fence".to_owned());
    };
    let (answer, answered) = oneshot::channel();
    site.orders.send(Order { key, fence, answer }).await.ok();
    let gone = || (StatusCode::SERVICE_UNAVAILABLE, "this server is about to end".to_owned());
    answered.await.unwrap_or_else(|_| gone())
}

fn order(body: &[u8]) -> Option<(Key, Fence)> {
    let order: Value = serde_json::from_slice(body).ok()?;
    let fence = order["fence"].as_str()?.parse().ok()?;
    Some((Key::new(order["key"].as_str()?).ok()?, Fence::from_value(fence).ok()?))
}

fn text(status: StatusCode, told: String) -> Page {
    let mut response = of_kind("text/plain; charset=utf-8", Either::Left(Full::from(told)));
    *response.status_mut() = status;
    response
}

fn of_kind(kind: &'static str, body: Either<Full<Bytes>, Channel<Bytes>>) -> Page {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A random secret.
fn random() -> Outcome<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(Exit::System, format!("can't get random numbers: {error}"))
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_a_lock_and_its_fence_as_text() {
        let read = |text: &str| order(text.as_bytes());
        let (key, fence) = read(r#"{"key": "a \"b\"", "fence": "215000123456789"}"#).unwrap();
        assert_eq!((key.as_str(), fence.value()), ("a \"b\"", 215_000_123_456_789));
        for wrong in ["", "{}", r#"{"key":"a","fence":7}"#, r#"{"key":"","fence":"7"}"#, "[1]"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_two_have_two_nonces() {
        assert!(!PAGE.contains("http://") && !PAGE.contains("https://") && !PAGE.contains("src="));
        assert!(!PAGE.contains("innerHTML"));
        let policy = |page: &Page| page.headers()[CONTENT_SECURITY_POLICY].clone();
        assert_ne!(policy(&page()), policy(&page()));
    }
}
