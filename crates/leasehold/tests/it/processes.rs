//! Waiters in several real processes, on a real server: their order, and what is left of it when
//! some of them are killed, stopped or cancelled.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::{Client, Release};
use leasehold_testkit::process::TestProcess;
use leasehold_testkit::server::RedisServer;

use crate::support::{PATIENCE, ms, secs};

const URL: &str = "LEASEHOLD_TEST_WORKER_URL";
const KEY: &str = "line";
const TTL: Duration = secs(3);

/// The program of a worker process: this test binary, started again. In an ordinary run of the
/// tests it has nothing to do.
#[test]
fn worker() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&url).await.unwrap();
        let (sender, mut orders) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut waiters = HashMap::new();
        let mut releases = HashMap::new();
        say("ready");
        while let Some(order) = orders.recv().await {
            let (verb, n) = order.split_once(' ').unwrap();
            let n: usize = n.parse().unwrap();
            match verb {
                "wait" => {
                    let mutex = client.mutex(KEY).ttl(TTL).metadata(n.to_string());
                    let (release, released) = tokio::sync::oneshot::channel::<()>();
                    releases.insert(n, release);
                    waiters.insert(
                        n,
                        tokio::spawn(async move {
                            let guard = mutex.lock().await.unwrap();
                            say(&format!("held {n}"));
                            let _dropped = released.await;
                            let outcome = guard.release_outcome().await.unwrap();
                            say(&format!("released {n} {}", outcome == Release::Released));
                        }),
                    );
                }
                "release" => drop(releases.remove(&n)),
                "cancel" => waiters.remove(&n).unwrap().abort(),
                other => panic!("an order that no worker knows: {other}"),
            }
        }
    });
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").unwrap();
    out.flush().unwrap();
}

struct Worker {
    process: TestProcess,
    orders: ChildStdin,
}

/// Worker processes, and what they say.
struct Crew {
    workers: Vec<Worker>,
    said: mpsc::Receiver<String>,
}

impl Crew {
    fn start(url: &str, workers: usize) -> Self {
        let (sender, said) = mpsc::channel();
        let start = |_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["processes::worker", "--exact", "--nocapture", "--test-threads=1"]);
            command.env(URL, url).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = TestProcess::spawn(command).unwrap();
            let orders = process.child().stdin.take().unwrap();
            let lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in lines {
                    let Ok(line) = line else { return };
                    if let Some(line) = line.strip_prefix("> ")
                        && sender.send(line.to_owned()).is_err()
                    {
                        return;
                    }
                }
            });
            Worker { process, orders }
        };
        let crew = Self { workers: (0..workers).map(start).collect(), said };
        for _ in 0..workers {
            assert_eq!(crew.hear(), "ready");
        }
        crew
    }

    fn order(&mut self, verb: &str, n: usize) {
        let worker = n % self.workers.len();
        writeln!(self.workers[worker].orders, "{verb} {n}").unwrap();
    }

    fn hear(&self) -> String {
        self.said.recv_timeout(PATIENCE).expect("no worker said anything for a long time")
    }

    /// Waits for the next holder.
    fn next_holder(&self) -> usize {
        loop {
            let said = self.hear();
            if let Some(n) = said.strip_prefix("held ") {
                return n.parse().unwrap();
            }
            assert!(said.ends_with("true"), "a lease was not held to its end: {said}");
        }
    }
}

/// Puts `count` waiters of a crew into the queue behind a holder, one after the other.
async fn line_up(crew: &mut Crew, client: &Client, count: usize) {
    for n in 0..count {
        crew.order("wait", n);
        tokio::time::timeout(PATIENCE, async {
            while waiting(client).await <= n {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await
        .expect("a waiter never came into the line");
    }
}

async fn waiting(client: &Client) -> usize {
    client.inspect(KEY).await.unwrap().map_or(0, |info| info.waiters.len())
}

async fn names_in_line(client: &Client) -> Vec<usize> {
    let waiters = client.inspect(KEY).await.unwrap().map(|info| info.waiters).unwrap_or_default();
    waiters.iter().map(|waiter| waiter.metadata.as_str().parse().unwrap()).collect()
}

async fn nothing_is_left(client: &Client) {
    tokio::time::timeout(PATIENCE, async {
        while !client.list("").await.unwrap().locks.is_empty() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await
    .expect("a process still holds or waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fifty_waiters_in_five_processes_are_served_in_the_order_in_which_they_came() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let mut crew = Crew::start(&server.url(), 5);
    let guard = client.mutex(KEY).lock().await.unwrap();
    line_up(&mut crew, &client, 50).await;
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let order: Vec<usize> = (0..50)
        .map(|_| {
            let n = crew.next_holder();
            crew.order("release", n);
            n
        })
        .collect();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    nothing_is_left(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_survivors_of_kills_pauses_and_cancellations_keep_their_order() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let mut crew = Crew::start(&server.url(), 5);
    let guard = client.mutex(KEY).lock().await.unwrap();
    line_up(&mut crew, &client, 50).await;
    // Worker 1 dies, worker 3 stands still, and of the others every seventh waiter stops waiting.
    let (dead, still) = (1, 3);
    let cancelled: BTreeSet<usize> =
        (0..50).filter(|n| n % 7 == 0 && ![dead, still].contains(&(n % 5))).collect();
    crew.workers[dead].process.kill();
    crew.workers[still].process.pause();
    for n in &cancelled {
        crew.order("cancel", *n);
    }
    tokio::time::timeout(PATIENCE, async {
        while names_in_line(&client).await.iter().any(|n| cancelled.contains(n)) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await
    .expect("a cancelled waiter never left the line");
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let survivors: Vec<usize> =
        (0..50).filter(|n| ![dead, still].contains(&(n % 5)) && !cancelled.contains(n)).collect();
    let order: Vec<usize> = survivors
        .iter()
        .map(|_| {
            let n = crew.next_holder();
            crew.order("release", n);
            n
        })
        .collect();
    assert_eq!(order, survivors);
    crew.workers[still].process.resume();
    let woken: BTreeSet<usize> = (0..10)
        .map(|_| {
            let n = crew.next_holder();
            crew.order("release", n);
            n
        })
        .collect();
    assert_eq!(woken, (0..50).filter(|n| n % 5 == still).collect());
    nothing_is_left(&client).await;
}
