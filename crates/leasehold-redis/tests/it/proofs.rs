//! Every answer that needs confirmation, under every doubt, on real servers: each case of the table
//! of [`leasehold_core::proof`].
//!
//! The doubts about time and epochs are left out, since a server's clock can't be set.
//! `differential` sets clocks back and sends requests of earlier epochs. It compares all answers
//! with the lock table, in which fences only grow.

use std::time::Duration;

use leasehold_core::proof::{Doubt, Proof, Standing};
use leasehold_core::{
    AcquireRequest, AskRequest, ClientId, ConvertRequest, Error, FenceBlock, Key, Listener, Mode,
    OwnerName, RenewRequest, Store as _,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use tokio::time::timeout;

use crate::common::{Caller, SHORT, WITHIN, key};
use crate::replicated::{pair, take_at_last};

/// For a notification that must not come: shorter than any ttl, and long enough for it to arrive.
const HEARD: Duration = Duration::from_millis(500);

/// The preparations for an answer with this proof.
struct Ready {
    proof: Proof,
    caller: Caller,
    fences: Option<FenceBlock>,
    /// For a set: the other request.
    other: AcquireRequest,
    /// For a notification: its listener.
    listener: Option<Box<dyn Listener>>,
}

impl Ready {
    /// Prepares it, at a time without doubts.
    async fn new(proof: Proof, sure: &RedisStore, name: Key) -> Self {
        let mut caller = Caller::new(sure, &name);
        let other = Caller::new(sure, &key()).request;
        let (mut fences, mut listener) = (None, None);
        match proof {
            Proof::Granted | Proof::Set => {}
            Proof::Converted => {
                caller.request.mode = Mode::Shared;
                fences = Some(take_at_last(&caller).await);
            }
            Proof::Already | Proof::Renewed => fences = Some(take_at_last(&caller).await),
            Proof::Asked => {
                fences = Some(take_at_last(&caller).await);
                let by = OwnerName::new("operator").unwrap();
                sure.ask(&AskRequest::new(name.clone(), by), WITHIN).await.unwrap();
            }
            Proof::Told => {
                fences = Some(take_at_last(&caller).await);
                let client = ClientId::generate().unwrap();
                listener = Some(sure.listen(client, WITHIN).await.unwrap());
                Caller::patient(sure, &name, client).wait().await;
            }
        }
        Self { proof, caller, fences, other, listener }
    }

    /// Requests the proof; returns the result. A notification is waited for as long as `heard`.
    async fn ask(
        &mut self,
        store: &RedisStore,
        within: Duration,
        heard: Duration,
    ) -> Result<Standing, Error> {
        let Self { proof, caller: Caller { request, .. }, fences, other, listener } = self;
        let fences = fences.unwrap_or(FenceBlock::new(leasehold_core::Fence::ZERO, 1));
        let key = request.key.clone();
        let proved = match proof {
            Proof::Granted | Proof::Already => store.acquire(request, within).await?.proves(),
            Proof::Set => {
                store.acquire_all(&[request.clone(), other.clone()], within).await?.proves()
            }
            Proof::Converted => {
                let request = ConvertRequest::new(key, request.token, fences, Mode::Exclusive);
                store.convert(&request, within).await?.proves()
            }
            Proof::Renewed | Proof::Asked => {
                let request = RenewRequest::new(key, request.token, fences, request.ttl);
                store.renew(&[request], within).await.remove(0)?.proves()
            }
            Proof::Told => {
                let ending = self.caller.ending(fences);
                // The notification shows whether it was carried out.
                drop(store.release(&ending, within).await);
                let heard = timeout(heard, listener.as_mut().unwrap().next()).await;
                return Ok(match heard.ok().and_then(|wake| wake.proves()) {
                    Some(Proof::Told) => Standing::True,
                    _ => Standing::Unsaid,
                });
            }
        };
        match proved {
            Some(proved) => {
                assert_eq!(proved, *proof);
                Ok(Standing::True)
            }
            None => Ok(Standing::Denied),
        }
    }
}

/// Every proof under this doubt: prepared on a trusting store, and requested from the other one.
async fn try_all(
    doubt: Doubt,
    sure: &RedisStore,
    doubtful: &RedisStore,
    name: impl Fn() -> Key,
    bring_about: impl FnOnce(),
) {
    let within = if doubt == Doubt::Late { SHORT } else { WITHIN };
    let mut ready = Vec::new();
    for proof in Proof::ALL {
        ready.push(Ready::new(proof, sure, name()).await);
    }
    bring_about();
    for one in &mut ready {
        let proof = one.proof;
        let answer = one.ask(doubtful, within, HEARD).await;
        let standing = match &answer {
            Ok(standing) => *standing,
            Err(_) => Standing::Withdrawn,
        };
        assert_eq!(standing, proof.under(doubt), "{proof:?} under {doubt:?}: {answer:?}");
    }
}

/// A store with this setting for confirmations.
async fn store_at(url: &str, settings: &str) -> RedisStore {
    RedisStore::connect(&format!("{url}?{settings}")).await.unwrap()
}

const CONFIRMED: &str = "replicas=1&replicate_timeout=200ms&keep_leases=yes";

#[tokio::test]
async fn without_a_doubt_every_proof_is_given() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    for proof in Proof::ALL {
        let mut ready = Ready::new(proof, &store, key()).await;
        let standing = ready.ask(&store, WITHIN, WITHIN).await.unwrap();
        assert_eq!(standing, Standing::True, "{proof:?}");
    }
}

#[tokio::test]
async fn nothing_that_replicas_lack_is_proved() {
    let (primary, replica) = pair().await;
    let store = store_at(&primary.url(), CONFIRMED).await;
    try_all(Doubt::Unreplicated, &store, &store, key, || replica.pause()).await;
    replica.resume();
}

#[tokio::test]
async fn nothing_that_replicas_cannot_be_asked_about_is_proved() {
    let (primary, _replica) = pair().await;
    let user = |rule: &[&str]| drop(primary.cli(&[&["ACL", "SETUSER", "u"], rule].concat()));
    user(&["on", ">pw", "~*", "&*", "+@all"]);
    let store = store_at(&primary.url_for("u", "pw"), CONFIRMED).await;
    try_all(Doubt::Unconfirmable, &store, &store, key, || user(&["-wait"])).await;
}

#[tokio::test]
async fn nothing_that_was_stopped_half_way_is_proved() {
    let server = RedisServer::start();
    let user = |rule: &[&str]| drop(server.cli(&[&["ACL", "SETUSER", "u"], rule].concat()));
    user(&["on", ">pw", "~*", "&*", "+@all"]);
    let store = RedisStore::connect(&server.url_for("u", "pw")).await.unwrap();
    try_all(Doubt::Aborted, &store, &store, key, || user(&["-@write"])).await;
}

#[tokio::test]
async fn nothing_that_is_answered_too_late_is_proved() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    try_all(Doubt::Late, &store, &store, key, || server.pause()).await;
    server.resume();
}

#[tokio::test]
async fn nothing_that_another_node_says_is_proved() {
    let start = || Cluster::builder().replicas(0).start();
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let sure = RedisStore::connect(&cluster.url()).await.unwrap();
    let node = &cluster.nodes()[0];
    let elsewhere = RedisStore::connect_lazy(&node.url()).unwrap();
    let of_another = || loop {
        let name = key();
        let slot = cluster.slot_of(&format!("leasehold:{{{name}}}"));
        if cluster.master_of(slot).port() != node.port() {
            break name;
        }
    };
    try_all(Doubt::Elsewhere, &sure, &elsewhere, of_another, || ()).await;
}

#[tokio::test]
async fn nothing_that_a_server_may_have_forgotten_is_proved() {
    let (primary, _replica) = pair().await;
    let sure = store_at(&primary.url(), CONFIRMED).await;
    let wary = store_at(&primary.url(), "replicas=1&replicate_timeout=200ms").await;
    try_all(Doubt::Forgotten, &sure, &wary, key, || primary.restart()).await;
}

#[tokio::test]
async fn nothing_that_a_replica_says_is_proved() {
    let (primary, replica) = pair().await;
    let sure = RedisStore::connect(&primary.url()).await.unwrap();
    let wrong = RedisStore::connect_lazy(&replica.url()).unwrap();
    try_all(Doubt::Replica, &sure, &wrong, key, || ()).await;
}

#[test]
fn every_doubt_is_tried() {
    for doubt in Doubt::ALL {
        match doubt {
            Doubt::Unreplicated
            | Doubt::Unconfirmable
            | Doubt::Aborted
            | Doubt::Late
            | Doubt::Elsewhere
            | Doubt::Forgotten
            | Doubt::Replica => {}
            // Covered by `differential`.
            Doubt::Outdated | Doubt::ClockSetBack => {
                assert!(Proof::ALL.iter().all(|proof| proof.under(doubt) == Standing::True));
            }
        }
    }
}
