//! Builders who add floors to one building: each floor stands on the one before. The lock is
//! re-entrant, so that what builds a floor can call what measures it.
//!
//! `cargo run -p leasehold --example building_floors [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::sync::{Arc, Mutex, PoisonError};

use leasehold::{Client, Owner};

const BUILDERS: usize = 4;
const FLOORS_EACH: usize = 3;

/// A building site that several processes share.
#[derive(Clone)]
struct Site {
    client: Client,
    /// Who works here: one owner for each builder, whatever tasks it uses.
    owner: Owner,
    floors: Arc<Mutex<Vec<String>>>,
}

impl Site {
    /// How high the building is. Takes the lock, whether or not the caller has it.
    async fn height(&self) -> leasehold::Result<usize> {
        let guard = self.client.reentrant("example/building", &self.owner).lock().await?;
        let height = self.floors.lock().unwrap_or_else(PoisonError::into_inner).len();
        guard.release().await?;
        Ok(height)
    }

    /// Builds the next floor.
    async fn build(&self) -> leasehold::Result<usize> {
        let guard = self.client.reentrant("example/building", &self.owner).lock().await?;
        let below = self.height().await?;
        // Nobody else has built since: this owner has the lock all the time.
        guard.check()?;
        let floor = format!("floor {} by {:?}", below + 1, self.owner);
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).push(floor);
        let height = self.height().await?;
        assert_eq!(height, below + 1, "two floors on one level");
        guard.release().await?;
        Ok(height)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    let floors = Arc::default();
    let mut builders = Vec::new();
    for n in 1..=BUILDERS {
        let owner = Owner::named(format!("builder {n}"));
        let site = Site { client: client.clone(), owner, floors: Arc::clone(&floors) };
        builders.push(tokio::spawn(async move {
            for _ in 0..FLOORS_EACH {
                site.build().await?;
            }
            site.height().await
        }));
    }
    for builder in builders {
        builder.await.expect("a task panicked")?;
    }
    let floors = floors.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for floor in &floors {
        println!("{floor}");
    }
    assert_eq!(floors.len(), BUILDERS * FLOORS_EACH);
    client.close().await
}
