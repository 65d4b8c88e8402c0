//! What is done while it is counted.

use leasehold::Client;
use tokio::task::JoinSet;

/// Cycles of this many callers on one client, each on its own lock.
pub(crate) async fn cycles(client: &Client, callers: usize, each: usize) {
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let mutex = client.mutex(format!("counted/{caller}"));
        tasks.spawn(async move {
            for _ in 0..each {
                mutex.try_lock().await.unwrap().unwrap().release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Hand-offs among clients that all want the same lock, `each` per client.
pub(crate) async fn handoffs(clients: &[Client], each: usize) {
    let mut tasks = JoinSet::new();
    for client in clients {
        let mutex = client.mutex("counted/by-turns");
        tasks.spawn(async move {
            for _ in 0..each {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
