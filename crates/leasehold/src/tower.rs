//! A layer for `tower` services: one request at a time for each key, in all processes.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::convert::Infallible;
//! use std::time::Duration;
//!
//! use leasehold::Client;
//! use leasehold::tower::SingleFlightLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! let client = Client::connect("memory:").await?;
//! // Requests are paths here; those to a report are made one after the other.
//! let reports = SingleFlightLayer::new(&client, |path: &String| {
//!     path.strip_prefix("/reports/").map(|name| format!("report/{name}"))
//! });
//! let service = ServiceBuilder::new()
//!     .layer(reports.within(Duration::from_secs(5)))
//!     .service(service_fn(async |path: String| Ok::<_, Infallible>(format!("made {path}"))));
//!
//! assert_eq!(service.oneshot("/reports/7".to_owned()).await?, "made /reports/7");
//! # Ok(()) }
//! ```
//!
//! # Whose answer
//!
//! The service answers each request. A waiting request does not get the answer of the one before
//! it, which may be in another process. A service that caches its answers looks there first, finds
//! it, and so does the work once.
//!
//! The lock is held until the service has its answer, which may be before a streamed body was read.
//! It is renewed meanwhile. When it is lost the service's future is dropped where it stands, as in
//! [`Mutex::run`](crate::Mutex::run).

use std::error::Error as StdError;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::Error;
use tower_layer::Layer;
use tower_service::Service;

use crate::{Client, LockOptions};

/// Lets one request at a time through for each key. See the [module](self).
///
/// A value, which sends its first request to the store with the first request to the service.
/// Clones share the client.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service has it"]
pub struct SingleFlightLayer<K> {
    gate: Gate<K>,
}

/// A service that lets one request at a time through for each key. See the [module](self).
#[derive(Clone, Debug)]
pub struct SingleFlight<S, K> {
    service: S,
    gate: Gate<K>,
}

#[derive(Clone)]
struct Gate<K> {
    client: Client,
    key_of: K,
    options: Arc<LockOptions>,
    within: Option<Duration>,
}

impl<K> SingleFlightLayer<K> {
    /// A layer that gets the lock's name of each request from `key_of`; `None` lets a request
    /// through without a lock.
    pub fn new(client: &Client, key_of: K) -> Self {
        let client = client.clone();
        Self { gate: Gate { client, key_of, options: Arc::default(), within: None } }
    }

    /// How long a request waits for its turn; zero refuses at once while another request has the
    /// lock. Without it a request waits until it has the lock, or until its future is dropped.
    pub fn within(mut self, limit: Duration) -> Self {
        self.gate.within = Some(limit);
        self
    }

    /// Options for holding and waiting. [`LockOptions::max_waiters`], for example, refuses requests
    /// when the queue is full.
    pub fn options(mut self, options: &LockOptions) -> Self {
        self.gate.options = Arc::new(options.clone());
        self
    }
}

impl<S, K: Clone> Layer<S> for SingleFlightLayer<K> {
    type Service = SingleFlight<S, K>;

    fn layer(&self, service: S) -> Self::Service {
        SingleFlight { service, gate: self.gate.clone() }
    }
}

/// A request that was not answered.
///
/// A free lock costs a round trip to take and one to release, as well as the time of the service.
#[derive(Debug)]
#[non_exhaustive]
pub enum SingleFlightError<E> {
    /// The lock was not acquired, or was lost before the service had its answer. Branch on
    /// [`Error::kind`]: [`Timeout`](crate::ErrorKind::Timeout) while others have it.
    Lock(Error),
    /// The service's own error.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for SingleFlightError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: StdError> StdError for SingleFlightError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Lock(error) => error.source(),
            Self::Service(error) => error.source(),
        }
    }
}

impl<S, K, R> Service<R> for SingleFlight<S, K>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    K: Fn(&R) -> Option<String>,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = SingleFlightError<S::Error>;
    /// Cancel safe: dropping it drops the service's future, and releases the lease or the position
    /// in the queue in the background.
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context).map_err(SingleFlightError::Service)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The service that is ready is used; its clone may not be.
        let clone = self.service.clone();
        let mut service = mem::replace(&mut self.service, clone);
        let Some(key) = (self.gate.key_of)(&request) else {
            let answer = service.call(request);
            return Box::pin(async move { answer.await.map_err(SingleFlightError::Service) });
        };
        let mutex = self.gate.client.mutex(key).options(&self.gate.options);
        let within = self.gate.within;
        Box::pin(async move {
            let guard = match within {
                Some(limit) => mutex.lock_within(limit).await,
                None => mutex.lock().await,
            };
            let guard = guard.map_err(SingleFlightError::Lock)?;
            match guard.run(|_| service.call(request)).await {
                Ok(answer) => answer.map_err(SingleFlightError::Service),
                Err(not) => match not.into_parts() {
                    // The service's error says more than the end of its lease.
                    (_, Some(Err(error))) => Err(SingleFlightError::Service(error)),
                    (error, _) => Err(SingleFlightError::Lock(error)),
                },
            }
        })
    }
}

impl<K> fmt::Debug for Gate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, key_of: _, options, within } = self;
        f.debug_struct("Gate")
            .field("client", client)
            .field("options", options)
            .field("within", within)
            .finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for SingleFlightLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightLayer").field("gate", &self.gate).finish()
    }
}
