//! `leasehold ui`: the locks in use on a web page, by server-sent events.
//!
//! The store is listed for as long as somebody looks, once for all of them. The page is one file that
//! loads nothing from anywhere; what it is told is the document of `ls --json`, with a few fields more.

mod gate;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use leasehold::{Client, Error, ErrorKind, Fence, ForceRelease, Key, Listing};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use self::gate::Gate;
use super::ls;
use crate::cli::Ui;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::http::{Connection, Listener, REQUEST_WITHIN};
use crate::outage::Outage;
use crate::output;
use crate::secret;
use crate::signals::unless_interrupted;

const PAGE: &str = include_str!("page.html");
const CONNECTIONS_MAX: usize = 32;
/// As many may look at a time; the other connections are for single requests.
const LOOKERS_MAX: usize = 24;
/// As many locks as are shown.
const LOCKS_MAX: usize = 1_000;
/// The largest order: a name of 512 bytes, each escaped, and a fence.
const ORDER_MAX: usize = 8 * 1024;
const EVERY_MIN: Duration = Duration::from_millis(100);
/// The store is left alone for so long beside what a listing takes.
const LISTINGS_APART: u32 = 10;
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

type Page = Response<Either<Full<Bytes>, Channel<Bytes>>>;

/// A lease that somebody takes away.
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
}

pub(crate) async fn ui(args: &Ui, context: &Context) -> Outcome {
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let Some(prefix) = prefix.to_str() else {
        return Err(Failure::usage("the prefix is not UTF-8, so no name has it"));
    };
    let mut signals = context.catch_signals()?;
    let listener = Listener::bind(args.listen, CONNECTIONS_MAX).await?;
    let token = args.allow_release.then(random).transpose()?;
    let behind = token.as_ref().map(|token| format!("#release={token}")).unwrap_or_default();
    output::data(&format!("http://{}/{behind}\n", listener.address()))?;
    let (show, pictures) = watch::channel(Bytes::new());
    let (order, orders) = mpsc::channel(1);
    let gate = Gate { hosts: args.hosts.clone(), token };
    let lookers = Arc::new(Semaphore::new(LOOKERS_MAX));
    let site = Arc::new(Site { gate, lookers, pictures, orders: order });
    let every = args.every.max(EVERY_MIN);
    let painter = Painter { context, prefix, client: None, outage: Outage::default() };
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
    let mut looking = JoinSet::new();
    loop {
        tokio::select! {
            // The site has one receiver itself. One question at a time, and none for nobody.
            _ = tick.tick(), if looking.is_empty() => {
                if show.receiver_count() > 1 && Instant::now() >= look_at {
                    match painter.client().await {
                        Ok(Some(client)) => {
                            looking.spawn(list(client, painter.prefix.to_owned()));
                        }
                        Ok(None) => drop(show.send_replace(painter.picture(Ok(Listing::default()))?)),
                        Err(failure) => {
                            let why = Error::new(ErrorKind::Unavailable, failure.message);
                            show.send_replace(painter.picture(Err(why))?);
                        }
                    }
                }
            }
            Some(looked) = looking.join_next(), if !looking.is_empty() => {
                let Ok((listing, took)) = looked else { continue };
                look_at = Instant::now() + (took * LISTINGS_APART).min(every * LISTINGS_APART);
                show.send_replace(painter.picture(listing)?);
            }
            Some(order) = orders.recv() => {
                painter.take_away(order).await;
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

async fn list(client: Client, prefix: String) -> (leasehold::Result<Listing>, Duration) {
    let begun = Instant::now();
    let listing = client.list(prefix).await;
    (listing, begun.elapsed())
}

/// Asks the store, and says what to show.
struct Painter<'a> {
    context: &'a Context,
    prefix: &'a str,
    client: Option<Client>,
    outage: Outage,
}

impl Painter<'_> {
    /// Connects where it has not: the store may be away at the start, or not made yet.
    async fn client(&mut self) -> Outcome<Option<Client>> {
        if self.client.is_none() {
            self.client = self.context.connect_to_look().await?;
        }
        Ok(self.client.clone())
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
        let mut document = ls::document(&listing, LOCKS_MAX)?;
        document["store"] = Value::from(self.context.settings.place());
        document["problem"] = problem;
        document["left_off"] = Value::from(listing.locks.len().saturating_sub(LOCKS_MAX));
        Ok(Bytes::from(format!("data: {}\n", output::json_line(&document))))
    }

    async fn take_away(&mut self, order: Order) {
        let Order { key, fence, answer } = order;
        let done = match self.client().await {
            Ok(Some(client)) => match client.force_release(&key, fence).await {
                Ok(ForceRelease::Released) => {
                    let told = format!("took \"{key}\" (fence {fence}) away");
                    output::message(&format!("{told}, as the page asked"));
                    (StatusCode::OK, told)
                }
                Ok(_) => (StatusCode::CONFLICT, format!("\"{key}\" had come free by itself")),
                Err(error) => (StatusCode::BAD_GATEWAY, chain(&error)),
            },
            Ok(None) => (StatusCode::CONFLICT, format!("\"{key}\" is not held")),
            Err(failure) => (StatusCode::BAD_GATEWAY, failure.message),
        };
        // Somebody who has gone needs no answer.
        drop(answer.send((done.0, secret::redact(&done.1))));
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

fn events(site: &Site) -> Page {
    let Ok(place) = Arc::clone(&site.lookers).try_acquire_owned() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "too many look already\n".to_owned());
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
        _ => return (StatusCode::BAD_REQUEST, "the order did not come, or is too long".to_owned()),
    };
    let Some((key, fence)) = order(&body) else {
        return (StatusCode::BAD_REQUEST, "the order names no lock, or no fence".to_owned());
    };
    let (answer, answered) = oneshot::channel();
    site.orders.send(Order { key, fence, answer }).await.ok();
    let gone = || (StatusCode::SERVICE_UNAVAILABLE, "this is about to end".to_owned());
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

/// What nobody can guess.
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
