//! Contenders for a quorum's lock without a majority: each tries again with a new token.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Client;
use leasehold::store::{BoxFuture, Call, Capability, LockLog, Method, Store, StoreLayer};
use leasehold_core::Token;
use leasehold_embedded::MemoryStore;
use leasehold_quorum::QuorumStore;
use tokio::time::Instant;

use crate::support::{World, ms, secs};

/// Writes down the tokens of a node's requests.
#[derive(Debug)]
struct Watched {
    inner: MemoryStore,
    asked_for: Arc<Mutex<Vec<Token>>>,
}

impl StoreLayer for Watched {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        if C::METHOD == Method::Acquire {
            let tokens = call.targets().into_iter().filter_map(|(_, token)| token.copied());
            self.asked_for.lock().unwrap().extend(tokens);
        }
        call.send(&self.inner, within)
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        "watched".to_owned()
    }
}

/// A client of three nodes, two of which are in the hands of one other each.
struct Scene {
    world: World,
    nodes: Vec<MemoryStore>,
    asked_for: Arc<Mutex<Vec<Token>>>,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let node = || MemoryStore::with_clock(Arc::clone(&world.clock));
        let nodes = (0..3).map(|_| node()).collect();
        Self { world, nodes, asked_for: Arc::default() }
    }

    fn client(&self) -> Client {
        let watched = |node: &MemoryStore| {
            let asked_for = Arc::clone(&self.asked_for);
            Arc::new(Watched { inner: node.clone(), asked_for }) as Arc<dyn Store>
        };
        let quorum = QuorumStore::builder(self.nodes.iter().map(watched).collect());
        let quorum = quorum.clock(Arc::clone(&self.world.clock)).build().unwrap();
        self.world.client_of(Arc::new(quorum))
    }

    /// Takes two nodes, each for another owner, for so long.
    async fn split(&self, length: Duration) {
        for (node, owner) in self.nodes[1..].iter().zip(["one", "other"]) {
            let other = self.world.client_of(Arc::new(node.clone()));
            let other = other.mutex("k").owner(owner).ttl(length).renew(false);
            drop(other.lock().await.unwrap().detach().await.unwrap());
        }
    }

    /// How often the lock was requested; never twice with one token.
    fn tries(&self) -> usize {
        let asked_for = self.asked_for.lock().unwrap();
        let different: HashSet<&Token> = asked_for.iter().collect();
        assert_eq!(asked_for.len(), different.len() * self.nodes.len(), "once at each node");
        different.len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_met_a_split_is_made_again_with_new_tokens_and_ends() {
    let scene = Scene::new();
    scene.split(secs(30)).await;
    let client = scene.client();
    let began = Instant::now();
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
    let tries = scene.tries();
    assert!((4..=16).contains(&tries), "{tries} tries");
    assert!(client.multi(["a", "k"]).try_lock().await.unwrap().is_none());
    assert!(client.mutex("a").try_lock().await.unwrap().is_some(), "it was given back");
}

#[tokio::test(start_paused = true)]
async fn a_split_that_is_over_soon_costs_no_try_its_lock() {
    let scene = Scene::new();
    let client = scene.client();
    for several in [false, true] {
        scene.split(ms(40)).await;
        if several {
            let guard = client.multi(["k", "m"]).try_lock().await.unwrap().unwrap();
            guard.release().await.unwrap();
        } else {
            let guard = client.mutex("k").try_lock().await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
    }
    scene.split(ms(40)).await;
    drop(client.mutex("k").lock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn many_who_try_once_at_the_same_time_have_one_holder() {
    let scene = Scene::new();
    for round in 0..20 {
        fastrand::seed(round);
        let tries: Vec<_> = (0..16)
            .map(|_| {
                let mutex = scene.client().mutex("k");
                tokio::spawn(async move { mutex.try_lock().await.unwrap() })
            })
            .collect();
        let mut held = Vec::new();
        for one in tries {
            held.extend(one.await.unwrap());
        }
        assert_eq!(held.len(), 1, "round {round}");
        held.pop().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_try_is_one_try() {
    let scene = Scene::new();
    let guard = scene.client().mutex("k").try_lock().await.unwrap().unwrap();
    assert_eq!(scene.tries(), 1);
    assert!(scene.client().mutex("k").try_lock().await.unwrap().is_none());
    assert_eq!(scene.tries(), 2, "a holder is no split");
    guard.release().await.unwrap();
}
