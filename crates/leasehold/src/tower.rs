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
//! # Who gets what
//!
//! Each request is answered by the service. Those that waited are not given the answer of the one before
//! them, which is in another process: a service that keeps what it makes, in a cache, say, looks there
//! first, finds it, and so does the work once.
//!
//! The lock is held until the service has its answer, which need not be until a body that streams has been
//! read. It is renewed meanwhile. When it is lost the service's future is dropped where it stands, as in
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
/// A value: nothing is sent before a request comes. Clones share the client.
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
    /// A layer that asks `key_of` for the lock's name of each request; `None` lets a request through
    /// without a lock.
    pub fn new(client: &Client, key_of: K) -> Self {
        let client = client.clone();
        Self { gate: Gate { client, key_of, options: Arc::default(), within: None } }
    }

    /// How long a request waits for its turn; zero refuses at once while another is at it. Without it a
    /// request waits for as long as it takes, or until its future is dropped.
    pub fn within(mut self, limit: Duration) -> Self {
        self.gate.within = Some(limit);
        self
    }

    /// How the locks are held and waited for; [`LockOptions::max_waiters`], for one, refuses those that
    /// come when the line is full.
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
/// With a round trip to take a free lock, and one to release it, on top of what the service takes.
#[derive(Debug)]
#[non_exhaustive]
pub enum SingleFlightError<E> {
    /// The lock could not be had, or was lost before the service had its answer. What to branch on is
    /// [`Error::kind`]: [`Timeout`](crate::ErrorKind::Timeout) while others are at it.
    Lock(Error),
    /// What the service says.
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
    /// Cancel safe: dropping it drops the service's future, and gives up the place in line or the lease
    /// in the background.
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context).map_err(SingleFlightError::Service)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The one that is ready goes along; a clone need not be.
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
                    // What the service says says more than that its lease was over by then.
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
