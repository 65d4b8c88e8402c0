//! Jobs that move from one queue to another. Both are locked at once, so that each job is in
//! exactly one of them. Workers that name the queues in another order don't deadlock.
//!
//! `cargo run -p leasehold --example job_queue [store URL]`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(dead_code, reason = "its test runs it without `main`")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::Client;

const JOBS: u32 = 12;
const WORKERS: u32 = 3;

#[derive(Default)]
struct Queues {
    todo: VecDeque<u32>,
    done: Vec<u32>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned())).await
}

pub(crate) async fn run(url: &str) -> leasehold::Result<()> {
    let client = Client::connect(url).await?;
    let queues = Arc::new(Mutex::new(Queues { todo: (1..=JOBS).collect(), ..Queues::default() }));

    let mut workers = Vec::new();
    for worker in 1..=WORKERS {
        let names = ["example/queue/todo", "example/queue/done"];
        let both = if worker % 2 == 0 {
            client.multi(names)
        } else {
            client.multi(names.into_iter().rev())
        };
        let queues = Arc::clone(&queues);
        workers.push(tokio::spawn(async move {
            loop {
                let guard = both.lock().await?;
                guard.check()?;
                let moved = {
                    let mut queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
                    let job = queues.todo.pop_front();
                    queues.done.extend(job);
                    job
                };
                guard.release().await?;
                match moved {
                    Some(job) => println!("worker {worker} moved job {job}"),
                    None => return Ok::<_, leasehold::Error>(()),
                }
            }
        }));
    }
    for worker in workers {
        worker.await.expect("a task panicked")?;
    }
    let done = queues.lock().unwrap_or_else(PoisonError::into_inner).done.clone();
    assert!(done.iter().copied().eq(1..=JOBS), "in order, each once");
    client.close().await
}
