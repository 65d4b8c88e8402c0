//! The numbered replies of a forum's thread, its "floors", from any of several servers.
//!
//! Each number is given once, and none is left out. The lock is re-entrant, so that the code that
//! posts a reply can call the code that posts a quote under the same lock.
//!
//! `cargo run -p leasehold --example thread_floors [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::fencing::FencedCell;
use leasehold::{Client, Owner};

const SERVERS: usize = 4;
const REPLIES_EACH: usize = 3;

type Thread = BTreeMap<u64, String>;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A web server of the forum.
#[derive(Clone)]
struct Server {
    client: Client,
    /// The poster: one owner for each request, through all of its functions.
    owner: Owner,
    /// Stands for a table of replies. It checks the fence, so a server that was paused can't write.
    thread: Arc<FencedCell<Thread>>,
}

impl Server {
    /// Posts a reply on the next floor, and returns its number.
    async fn post(&self, text: &str) -> Result<u64> {
        let guard = self.client.reentrant("example/thread/7", &self.owner).lock().await?;
        let floor = self.thread.update(guard.fence()?, |thread| {
            let floor = thread.last_key_value().map_or(1, |(last, _)| last + 1);
            thread.insert(floor, text.to_owned());
            floor
        })?;
        guard.release().await?;
        Ok(floor)
    }

    /// Posts a quote and the answer to it on two floors, with none between them.
    async fn quote(&self, quoted: &str, answer: &str) -> Result<(u64, u64)> {
        let guard = self.client.reentrant("example/thread/7", &self.owner).lock().await?;
        // Each takes the lock once more: all others wait until the outer guard is released.
        let quote = self.post(quoted).await?;
        let answer = self.post(answer).await?;
        guard.release().await?;
        Ok((quote, answer))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> Result<()> {
    let client = Client::connect(url).await?;
    let thread = Arc::new(FencedCell::new(Thread::new()));
    let mut servers = Vec::new();
    for n in 1..=SERVERS {
        let owner = Owner::named(format!("web-{n}"));
        let server = Server { client: client.clone(), owner, thread: Arc::clone(&thread) };
        servers.push(tokio::spawn(async move {
            for _ in 0..REPLIES_EACH {
                server.post(&format!("a reply by web-{n}")).await?;
            }
            let (quote, answer) =
                server.quote("> a reply", &format!("an answer by web-{n}")).await?;
            assert_eq!(answer, quote + 1, "no reply came between them");
            Result::Ok(())
        }));
    }
    for server in servers {
        server.await.expect("a task panicked")?;
    }
    let reader = client.mutex("example/thread/7").lock().await?;
    let replies = thread.read(reader.fence()?, Thread::clone)?;
    reader.release().await?;
    for (floor, text) in &replies {
        println!("{floor}  {text}");
    }
    let floors = SERVERS * (REPLIES_EACH + 2);
    assert!(replies.keys().copied().eq(1..=floors as u64), "no floor is left out or given twice");
    Ok(client.close().await?)
}
