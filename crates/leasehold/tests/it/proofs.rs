//! Every answer that proves something, under every doubt, as a whole client takes it on a real
//! wire: the table of [`leasehold_core::proof`], judged from outside by what the guards say, by who
//! else gets the lock, and by what the store shows.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Effect, Error, ErrorKind, Fence, Guard, ReadGuard, Result};
use leasehold_core::proof::{Doubt, Proof, Standing};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server::RedisServer;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::connected::connected;
use crate::support::{PATIENCE, ms, patiently, secs};

/// Longer than anything here takes, and no lease ends by itself meanwhile.
const TTL: Duration = secs(300);
const LONGER: Duration = secs(600);
/// Long enough for a notification, or for an answer to a waiter that polls.
const HEARD: Duration = ms(1_500);

/// Where a pair of the table is tried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tried {
    Here,
    /// What keeps a whole client and its wire from bringing it about, and where it is tried.
    Elsewhere(&'static str),
}

/// A doubt that is new does not compile before it says where its pairs are tried.
const fn tried(proof: Proof, doubt: Doubt) -> Tried {
    match (proof, doubt) {
        (_, Doubt::ClockSetBack) => Tried::Elsewhere(
            "no server lets a client set its clock; `redis::differential` sets it back before any \
             operation, and compares each answer with that of the table of locks",
        ),
        (Proof::Already | Proof::Told, Doubt::Forgotten) => Tried::Elsewhere(
            "a client that does not believe a server for its age does not queue there either, and \
             a server that is old enough for that takes longer than a test; `redis::proofs` asks \
             with the token of a client that did believe it",
        ),
        (_, Doubt::Elsewhere) => Tried::Elsewhere(
            "no client takes a node of a cluster for a single server; `redis::proofs` asks one all \
             the same",
        ),
        (_, Doubt::Outdated) => Tried::Elsewhere(
            "only a client of a cluster's node would ask in an earlier epoch for long; \
             `redis::differential` compares what is answered then with the table of locks",
        ),
        (
            _,
            Doubt::Unreplicated
            | Doubt::Unconfirmable
            | Doubt::Aborted
            | Doubt::Late
            | Doubt::Forgotten
            | Doubt::Replica,
        ) => Tried::Here,
    }
}

enum Servers {
    One(Box<RedisServer>),
    Pair(Box<[RedisServer; 2]>),
}

impl Servers {
    fn start(doubt: Option<Doubt>) -> Self {
        match doubt {
            Some(Doubt::Unreplicated | Doubt::Unconfirmable | Doubt::Forgotten) => {
                let primary = alone();
                let replica = RedisServer::builder().replica_of(&primary).start();
                Self::Pair(Box::new([primary, replica]))
            }
            _ => Self::One(Box::new(alone())),
        }
    }

    /// The store under test.
    fn main(&self) -> &RedisServer {
        match self {
            Self::One(server) => server,
            Self::Pair(pair) => &pair[0],
        }
    }

    fn bring_about(&self, doubt: Doubt, wires: &[Proxy; 2]) {
        match (doubt, self) {
            (Doubt::Unreplicated, Self::Pair(pair)) => pair[1].pause(),
            (Doubt::Unconfirmable, _) => user(self.main(), &["-wait"]),
            (Doubt::Aborted, _) => user(self.main(), &["-@write"]),
            (Doubt::Late, _) => wires.iter().for_each(|wire| wire.set(Fault::Stall)),
            (Doubt::Forgotten, _) => self.main().restart(),
            // Of a primary that is not there.
            (Doubt::Replica, _) => drop(self.main().cli(&["REPLICAOF", "127.0.0.1", "1"])),
            (doubt, _) => panic!("nothing here brings about {doubt:?}"),
        }
    }

    fn lift(&self, doubt: Doubt, wires: &[Proxy; 2]) {
        wires.iter().for_each(|wire| wire.set(Fault::Pass));
        match (doubt, self) {
            (Doubt::Unreplicated, Self::Pair(pair)) => pair[1].resume(),
            (Doubt::Unconfirmable | Doubt::Aborted, _) => user(self.main(), &["+@all"]),
            (Doubt::Replica, _) => drop(self.main().cli(&["REPLICAOF", "NO", "ONE"])),
            _ => {}
        }
    }
}

/// May do everything, for as long as nothing is taken from it.
const USER: &str = "u on >pw ~* &* +@all";

fn alone() -> RedisServer {
    RedisServer::builder().acl_user(USER).start()
}

fn user(server: &RedisServer, rule: &[&str]) {
    drop(server.cli(&[&["ACL", "SETUSER", "u"], rule].concat()));
}

/// Clients, each as in a process of its own.
struct Scene {
    doubt: Option<Doubt>,
    servers: Servers,
    /// Sees the store as it is.
    outsider: Client,
    /// Whose answers are in doubt.
    tried: Client,
    /// Likewise, on a wire that is cut while a lease is granted to it.
    cut: Client,
    /// Holds what answers are to be about.
    before: Client,
    /// Waits for what `before` releases.
    behind: Client,
    wires: [Proxy; 2],
}

impl Scene {
    async fn new(doubt: Option<Doubt>) -> Self {
        let servers = spawn_blocking(move || Servers::start(doubt)).await.unwrap();
        let main = servers.main();
        let wires = [Proxy::start(main.addr()), Proxy::start(main.addr())];
        let confirmed = "?replicas=1&replicate_timeout=300ms";
        let settings = match doubt {
            Some(Doubt::Unreplicated | Doubt::Unconfirmable) => {
                format!("{confirmed}&keep_leases=yes")
            }
            // For a day after its start such a server is not believed.
            Some(Doubt::Forgotten) => format!("{confirmed}&max_ttl=1d"),
            _ => String::new(),
        };
        let within = async |calls: Duration, url: String| {
            connected(Client::builder().ttl(TTL).call_timeout(calls), &url).await
        };
        let connect = async |url: String| within(secs(3), url).await;
        let wired = |wire: &Proxy| format!("redis://u:pw@{}{settings}", wire.addr());
        // The others need their answers in time on a busy machine, too.
        let in_doubt = if doubt == Some(Doubt::Late) { ms(700) } else { secs(3) };
        let tried = within(in_doubt, wired(&wires[0])).await;
        let before = match doubt {
            Some(Doubt::Forgotten) => connect(format!("{}{confirmed}&keep_leases=yes", main.url())),
            _ => connect(wired(&wires[0])),
        };
        let behind = match doubt {
            Some(Doubt::Aborted) => main.url(),
            _ => format!("{}{settings}", main.url_for("u", "pw")),
        };
        Self {
            doubt,
            outsider: connect(main.url()).await,
            tried,
            cut: within(in_doubt, wired(&wires[1])).await,
            before: before.await,
            behind: connect(behind).await,
            wires,
            servers,
        }
    }

    fn stands(&self, proof: Proof) -> Standing {
        self.doubt.map_or(Standing::True, |doubt| proof.under(doubt))
    }

    async fn waiters(&self, name: &str) -> usize {
        let info = self.outsider.inspect(name).await.unwrap();
        info.map_or(0, |info| info.waiters.len())
    }

    /// Queues with this client.
    async fn in_line(&self, client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
        let mutex = client.mutex(name);
        let mut waiting = tokio::spawn(async move { mutex.lock().await });
        patiently("the line", async {
            while self.waiters(name).await == 0 {
                assert!(!waiting.is_finished(), "{:?}", (&mut waiting).await);
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        waiting
    }
}

/// Takes a lock as soon as the store confirms it.
async fn at_last<G>(mut take: impl AsyncFnMut() -> Result<Option<G>>) -> G {
    patiently("a lock", async {
        loop {
            match take().await {
                Ok(Some(guard)) => return guard,
                Ok(None) | Err(_) => tokio::time::sleep(ms(5)).await,
            }
        }
    })
    .await
}

/// All that is ready for an answer to prove something.
enum Ready {
    Granted,
    Set,
    /// Was in the queue, and has been handed the lease without a notification.
    Already(JoinHandle<Result<Guard>>),
    Converted(ReadGuard),
    /// Renewed, with or without a release request.
    Renewed(Guard),
    Told(Guard, JoinHandle<Result<Guard>>),
}

/// What a client made of an answer, and what it believes to hold from then on.
struct Seen {
    standing: Standing,
    believed: Vec<Guard>,
    error: Option<Error>,
}

impl Seen {
    fn holds(believed: Vec<Guard>) -> Self {
        Self { standing: Standing::True, believed, error: None }
    }

    fn not(standing: Standing, error: Option<Error>, believed: Vec<Guard>) -> Self {
        Self { standing, believed, error }
    }
}

/// One proof, on names of its own.
struct Cell {
    proof: Proof,
    name: String,
    /// The fence of a lease before, in the latest epoch.
    earlier: Fence,
}

impl Cell {
    async fn prepare(proof: Proof, scene: &Scene) -> (Self, Ready) {
        let name = format!("{proof:?}");
        let first = at_last(async || scene.outsider.mutex(&*name).try_lock().await).await;
        let earlier = first.fence().unwrap();
        let before = async || at_last(async || scene.before.mutex(&*name).try_lock().await).await;
        match proof {
            Proof::Already => {
                let waiting = scene.in_line(&scene.cut, &name).await;
                scene.wires[1].set(Fault::Refuse);
                scene.wires[1].kill_connections();
                first.release().await.unwrap();
                patiently("the lease to be handed over", async {
                    while scene.waiters(&name).await > 0 {
                        tokio::time::sleep(ms(5)).await;
                    }
                })
                .await;
                return (Self { proof, name, earlier }, Ready::Already(waiting));
            }
            _ => first.release().await.unwrap(),
        }
        let ready = match proof {
            Proof::Granted => Ready::Granted,
            Proof::Set => Ready::Set,
            Proof::Converted => {
                let lock = scene.before.rwlock(&*name);
                Ready::Converted(at_last(async || lock.try_read().await).await)
            }
            Proof::Asked => {
                let guard = before().await;
                assert_eq!(scene.outsider.ask(&*name).await.unwrap(), 1);
                Ready::Renewed(guard)
            }
            Proof::Renewed => Ready::Renewed(before().await),
            Proof::Told | Proof::Already => {
                let guard = before().await;
                let waiting = scene.in_line(&scene.behind, &name).await;
                Ready::Told(guard, waiting)
            }
        };
        (Self { proof, name, earlier }, ready)
    }

    /// Has the client send the request, and looks at what it makes of the answer.
    async fn ask(&self, ready: Ready, scene: &Scene) -> Seen {
        let name = &*self.name;
        match ready {
            Ready::Granted => match scene.tried.mutex(name).try_lock().await {
                Ok(Some(guard)) => Seen::holds(vec![guard]),
                Ok(None) => Seen::not(Standing::Denied, None, vec![]),
                Err(error) => Seen::not(Standing::Withdrawn, Some(error), vec![]),
            },
            Ready::Set => {
                let other = "another".to_owned();
                match scene.tried.multi([name, other.as_str()]).try_lock().await {
                    Ok(Some(guards)) => Seen::holds(guards.into_guards()),
                    Ok(None) => Seen::not(Standing::Denied, None, vec![]),
                    Err(error) => Seen::not(Standing::Withdrawn, Some(error), vec![]),
                }
            }
            Ready::Converted(guard) => match guard.upgrade().await {
                Ok(guard) => Seen::holds(vec![guard.into_guard()]),
                Err(not) => {
                    let (guard, error) = not.into_parts();
                    Seen::not(Standing::Withdrawn, Some(error), vec![guard.into_guard()])
                }
            },
            Ready::Renewed(guard) => self.renew(guard).await,
            Ready::Already(waiting) => self.wait(scene, waiting, Standing::Withdrawn).await,
            Ready::Told(guard, waiting) => {
                // Whether it is carried out is what the message is about.
                drop(guard.release_outcome().await);
                self.wait(scene, waiting, Standing::Unsaid).await
            }
        }
    }

    async fn renew(&self, guard: Guard) -> Seen {
        let before = guard.until_deadline();
        match guard.renew_to(LONGER).await {
            Ok(()) => {
                assert!(guard.until_deadline() > before);
                assert_eq!(guard.is_asked(), self.proof == Proof::Asked);
                Seen::holds(vec![guard])
            }
            Err(error) => {
                assert!(guard.until_deadline() <= before, "{error}");
                assert!(!guard.is_asked(), "{error}");
                let denied = matches!(error.kind(), ErrorKind::Lost | ErrorKind::Late);
                assert_eq!(guard.is_held(), !denied, "{error}");
                let standing = if denied { Standing::Denied } else { Standing::Withdrawn };
                Seen::not(standing, Some(error), vec![guard])
            }
        }
    }

    /// Waits for a lease that is to come, or for long enough that it would have.
    async fn wait(
        &self,
        scene: &Scene,
        mut waiting: JoinHandle<Result<Guard>>,
        otherwise: Standing,
    ) -> Seen {
        let limit = if scene.stands(self.proof) == Standing::True { PATIENCE } else { HEARD };
        match timeout(limit, &mut waiting).await {
            Ok(ended) => match ended.unwrap() {
                Ok(guard) => Seen::holds(vec![guard]),
                Err(error) => Seen::not(otherwise, Some(error), vec![]),
            },
            Err(_) => {
                waiting.abort();
                Seen::not(otherwise, None, vec![])
            }
        }
    }

    /// What others see of it while the doubt lasts, where that does not keep them from seeing.
    async fn others_see(&self, seen: &Seen, scene: &Scene) {
        for guard in &seen.believed {
            let name = guard.key().as_str();
            assert!(guard.is_held(), "{:?}", self.proof);
            assert!(guard.is_held_by_store().await.unwrap(), "{:?}", self.proof);
            assert!(name != self.name || guard.fence().unwrap() > self.earlier, "{:?}", self.proof);
            let info = scene.outsider.inspect(name).await.unwrap().unwrap();
            assert_eq!(info.holders.len(), 1, "{info:?}");
            assert_eq!(info.holders[0].fence, guard.fence().unwrap());
            assert!(scene.outsider.rwlock(name).try_read().await.unwrap().is_none());
        }
    }

    /// What others can do after the doubt.
    async fn others_get(&self, seen: &Seen, scene: &Scene) {
        let look = patiently("the store to answer", async {
            loop {
                match scene.outsider.inspect(&*self.name).await {
                    Ok(look) => return look,
                    Err(_) => tokio::time::sleep(ms(20)).await,
                }
            }
        })
        .await;
        let denied = seen.error.as_ref().is_some_and(|error| error.effect() == Effect::NotApplied);
        if denied && matches!(self.proof, Proof::Granted | Proof::Set) {
            assert_eq!(look, None, "{:?}: {:?}", self.proof, seen.error);
        }
        let got = scene.outsider.mutex(&*self.name).try_lock().await.unwrap();
        let believed =
            seen.believed.iter().any(|guard| guard.key().as_str() == self.name && guard.is_held());
        assert!(got.is_none() || !believed, "two hold it: {:?}", self.proof);
    }
}

/// What errors are of, if it is the doubt that made them.
const fn cause(doubt: Doubt) -> &'static [ErrorKind] {
    match doubt {
        Doubt::Unreplicated => &[ErrorKind::NotReplicated],
        Doubt::Unconfirmable | Doubt::Aborted => &[ErrorKind::Denied],
        Doubt::Late | Doubt::Replica => &[ErrorKind::Unavailable],
        Doubt::Forgotten => &[ErrorKind::Unavailable, ErrorKind::Lost],
        Doubt::Elsewhere | Doubt::Outdated | Doubt::ClockSetBack => &[],
    }
}

/// Every proof under this doubt, or without any.
async fn try_all(doubt: Option<Doubt>) {
    let scene = Arc::new(Scene::new(doubt).await);
    let mut ready = Vec::new();
    let here = |proof: &Proof| doubt.is_none_or(|doubt| tried(*proof, doubt) == Tried::Here);
    for proof in Proof::ALL.into_iter().filter(here) {
        ready.push(Cell::prepare(proof, &scene).await);
    }
    let connected = scene.wires[1].stats().connections;
    if let Some(doubt) = doubt {
        scene.servers.bring_about(doubt, &scene.wires);
    }
    if doubt != Some(Doubt::Late) {
        scene.wires[1].set(Fault::Pass);
    }
    if here(&Proof::Already) {
        scene.wires[1].wait_for(|stats| stats.connections > connected).await;
    }
    let mut asking = JoinSet::new();
    for (cell, ready) in ready {
        let scene = Arc::clone(&scene);
        asking.spawn(async move {
            let seen = cell.ask(ready, &scene).await;
            (cell, seen)
        });
    }
    let answered = asking.join_all().await;
    for (cell, seen) in &answered {
        let (proof, error) = (cell.proof, seen.error.as_ref());
        assert_eq!(seen.standing, scene.stands(proof), "{proof:?} under {doubt:?}: {error:?}");
        if let (Some(error), Some(doubt)) = (error, doubt) {
            let told = cause(doubt).contains(&error.kind());
            assert!(told, "{proof:?} under {doubt:?} failed for another reason: {error}");
        }
        if seen.standing == Standing::True {
            cell.others_see(seen, &scene).await;
        }
    }
    if let Some(doubt) = doubt {
        scene.servers.lift(doubt, &scene.wires);
    }
    for (cell, seen) in &answered {
        cell.others_get(seen, &scene).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_doubt_every_proof_is_believed() {
    try_all(None).await;
}

/// A test for each doubt, and the list of those that have one.
macro_rules! tests {
    ($(async fn $name:ident() for $doubt:ident;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                try_all(Some(Doubt::$doubt)).await;
            }
        )*

        const TRIED: &[Doubt] = &[$(Doubt::$doubt),*];
    };
}

tests! {
    async fn nothing_that_replicas_lack_is_believed() for Unreplicated;
    async fn nothing_that_replicas_can_not_be_asked_about_is_believed() for Unconfirmable;
    async fn nothing_that_was_stopped_half_way_is_believed() for Aborted;
    async fn nothing_that_is_answered_too_late_is_believed() for Late;
    async fn nothing_that_a_server_may_have_forgotten_is_believed() for Forgotten;
    async fn nothing_that_a_replica_says_is_believed() for Replica;
}

#[test]
fn every_pair_is_tried_here_or_says_where() {
    for (doubt, proof) in Doubt::ALL.into_iter().flat_map(|one| Proof::ALL.map(|it| (one, it))) {
        match tried(proof, doubt) {
            Tried::Here => assert!(TRIED.contains(&doubt), "{doubt:?} has no test"),
            Tried::Elsewhere(why) => assert!(why.contains("`redis::"), "{proof:?}, {doubt:?}"),
        }
    }
}
