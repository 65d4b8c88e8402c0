//! A simulated process's store: its end of the network.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_clock::TokioClock;
use leasehold_core::{
    BoxFuture, Call, Capability, Effect, Error, ErrorKind, Listener, LockLog, Result, Store,
    StoreLayer, Token, Wake,
};
use leasehold_quorum::QuorumStore;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::net::Net;
use crate::profile::Profile;

/// How often a listener checks its connection.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long it takes to notice that a connection broke.
const BROKEN_AFTER: Duration = Duration::from_millis(20);

/// One process's connection to one node.
#[derive(Clone)]
struct Wire {
    net: Arc<Net>,
    host: usize,
    node: usize,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({} to {})", self.host, self.node)
    }
}

impl StoreLayer for Wire {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        Box::pin(async move {
            let began = Instant::now();
            let (answered, answer) = oneshot::channel::<C::Answer>();
            let breaks = self.net.call(call, (self.host, self.node), within, move |answer| {
                drop(answered.send(answer));
            });
            let within = if breaks { within.min(BROKEN_AFTER) } else { within };
            if let Ok(Ok(answer)) = timeout(within, answer).await {
                return answer;
            }
            // All copies are lost; the caller only learns that its time is over.
            sleep_until(began + within).await;
            let why = Error::new(ErrorKind::Unavailable, "no answer came");
            call.fail(why.with_effect(Effect::Unknown))
        })
    }

    fn listener(&self, inner: Box<dyn Listener>) -> Box<dyn Listener> {
        let life = self.life();
        Box::new(Ear { inner, wire: self.clone(), waiting: None, life })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn capability(&self) -> Capability {
        Capability::ALL
    }

    fn location(&self) -> String {
        format!("node {}", self.node)
    }
}

impl Wire {
    fn life(&self) -> u64 {
        self.net.nodes[self.node].life.load(Ordering::Relaxed)
    }
}

/// The notification channel: its notifications are delayed, doubled or lost.
#[derive(Debug)]
struct Ear {
    inner: Box<dyn Listener>,
    wire: Wire,
    waiting: Option<(Wake, Instant, bool)>,
    life: u64,
}

impl Listener for Ear {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async move {
            loop {
                if let Some((_, at, _)) = &self.waiting {
                    sleep_until(*at).await;
                    let Some((wake, _, again)) = self.waiting.take() else { continue };
                    if again {
                        let at = Instant::now() + Duration::from_millis(700);
                        self.waiting = Some((wake.clone(), at, false));
                    }
                    return wake;
                }
                let wake = tokio::select! {
                    biased;
                    wake = self.inner.next() => wake,
                    () = sleep(LOOK_EVERY) => {
                        let life = self.wire.life();
                        if std::mem::replace(&mut self.life, life) != life {
                            return Wake::Resync;
                        }
                        continue;
                    }
                };
                let Wire { net, host, node } = &self.wire;
                let (now, arrivals) = (net.now(), net.tells(*host, *node));
                if let Some(at) = arrivals.first() {
                    let on_the_way = Duration::from_micros(at.saturating_sub(now));
                    self.waiting = Some((wake, Instant::now() + on_the_way, arrivals.len() > 1));
                }
            }
        })
    }
}

/// A process's whole store, which draws tokens from the seed.
struct Seeded {
    inner: Arc<dyn Store>,
    rng: Mutex<fastrand::Rng>,
}

impl fmt::Debug for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seeded({:?})", self.inner)
    }
}

impl StoreLayer for Seeded {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        call.send(&*self.inner, within)
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn token(&self) -> Result<Token> {
        let drawn = self.rng.lock().unwrap_or_else(PoisonError::into_inner).u128(..);
        Ok(Token::from_bytes(drawn.to_le_bytes()))
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

/// The store as a process sees it, made on that process's own runtime.
pub(crate) fn store(
    net: &Arc<Net>,
    host: usize,
    profile: &Profile,
    seed: u64,
) -> Result<Arc<dyn Store>> {
    let nodes = 0..profile.nodes;
    let mut wires: Vec<Arc<dyn Store>> = nodes
        .map(|node| Arc::new(Wire { net: Arc::clone(net), host, node }) as Arc<dyn Store>)
        .collect();
    let inner = if profile.nodes == 1 {
        wires.remove(0)
    } else {
        let quorum = QuorumStore::builder(wires)
            .clock(Arc::new(TokioClock::new()))
            .max_ttl(profile.ttl.max(Duration::from_secs(1)))
            .nodes_keep_leases(!profile.forgets);
        Arc::new(quorum.build()?)
    };
    Ok(Arc::new(Seeded { inner, rng: Mutex::new(fastrand::Rng::with_seed(seed)) }))
}
