//! Serving a few pages: connections within bounds, each for one request.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::{Failure, Outcome};

/// How long a connection may take to say what it wants.
pub(crate) const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// After a connection that could not be accepted, say for want of files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where connections come in, so many at a time; others wait.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    address: SocketAddr,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr, connections_max: usize) -> Outcome<Self> {
        let attempt = format!("listen on {address}");
        let system = |error: std::io::Error| Failure::system(&attempt, &error);
        let listener = TcpListener::bind(address).await.map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        Ok(Self { listener, places: Arc::new(Semaphore::new(connections_max)), address })
    }

    /// With the port that was free if none was asked for.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, or `None` after one that could not be accepted. Cancel safe.
    pub(crate) async fn accept(&self) -> Option<Connection> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, _)) => Some(Connection { stream, _place: place }),
            Err(_) => {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                None
            }
        }
    }
}

impl Connection {
    /// Answers its request.
    #[expect(clippy::future_not_send, reason = "it is, where what answers is")]
    pub(crate) async fn serve<B, F>(self, respond: impl Fn(Request<Incoming>) -> F)
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
        F: Future<Output = Response<B>>,
    {
        let answer = service_fn(|request| {
            let response = respond(request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(REQUEST_WITHIN).keep_alive(false);
        // A connection that breaks is the other side's business.
        drop(server.serve_connection(TokioIo::new(self.stream), answer).await);
    }
}
