//! Clients of servers that may need a while.

use std::time::Duration;

use leasehold::{Client, ClientBuilder};

/// A client of what is up, however long it takes to connect.
pub(crate) async fn connected(builder: ClientBuilder, url: &str) -> Client {
    let mut failure = None;
    let connecting = async {
        loop {
            match builder.clone().connect(url).await {
                Ok(client) => return client,
                Err(error) => failure = Some(error),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let connected = tokio::time::timeout(Duration::from_secs(60), connecting).await;
    connected.unwrap_or_else(|_| panic!("connected in vain: {failure:?}"))
}
