//! Serves a few pages: a bounded number of connections, one request each.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::failure::{Failure, Outcome};

/// How long a connection may take to say what it wants.
pub(crate) const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// The pause after a failed accept, as without free descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Connections that are open at all, for each that is answered.
const OPEN: usize = 8;

/// Where connections come in. This number is answered at a time; others wait. The same number of
/// silent connections is kept; the longest silent one makes room for the next.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    bounds: Arc<Bounds>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Bounds {
    accepted: Arc<Semaphore>,
    places: Semaphore,
    /// Those that have not said what they want, the oldest first, and how many of them are kept.
    silent: Mutex<VecDeque<Arc<Notify>>>,
    silent_max: usize,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    bounds: Arc<Bounds>,
    gone: Arc<Notify>,
    _accepted: OwnedSemaphorePermit,
}

impl Bounds {
    fn silent(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in one that has come. When it is notified, it has to go.
    fn enter(&self) -> Arc<Notify> {
        let one = Arc::new(Notify::new());
        let mut silent = self.silent();
        silent.push_back(Arc::clone(&one));
        if silent.len() > self.silent_max
            && let Some(oldest) = silent.pop_front()
        {
            oldest.notify_one();
        }
        one
    }

    /// It has said what it wants, or is gone.
    fn leave(&self, one: &Arc<Notify>) {
        self.silent().retain(|other| !Arc::ptr_eq(other, one));
    }
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr, connections_max: usize) -> Outcome<Self> {
        let attempt = format!("listen on {address}");
        let system = |error: std::io::Error| Failure::system(&attempt, &error);
        let listener = TcpListener::bind(address).await.map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        let bounds = Bounds {
            accepted: Arc::new(Semaphore::new(connections_max.saturating_mul(OPEN))),
            places: Semaphore::new(connections_max),
            silent: Mutex::default(),
            silent_max: connections_max,
        };
        Ok(Self { listener, bounds: Arc::new(bounds), address })
    }

    /// With the port that was free for port 0.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, or `None` after one that could not be accepted. Cancel safe.
    pub(crate) async fn accept(&self) -> Option<Connection> {
        let accepted = Arc::clone(&self.bounds.accepted).acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, _)) => {
                let (bounds, gone) = (Arc::clone(&self.bounds), self.bounds.enter());
                Some(Connection { stream, bounds, gone, _accepted: accepted })
            }
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
        let Self { stream, bounds, gone, _accepted } = self;
        // Kept until the whole answer is sent.
        let place = Mutex::new(None);
        let answer = service_fn(|mut request: Request<Incoming>| {
            bounds.leave(&gone);
            // The answer to HEAD is that to GET without its body, which hyper leaves out.
            if request.method() == Method::HEAD {
                *request.method_mut() = Method::GET;
            }
            let response = respond(request);
            let (bounds, place) = (&bounds, &place);
            async move {
                let taken = bounds.places.acquire().await.ok();
                *place.lock().unwrap_or_else(PoisonError::into_inner) = taken;
                Ok::<_, Infallible>(response.await)
            }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(REQUEST_WITHIN).keep_alive(false);
        // A connection that breaks is the other side's business.
        tokio::select! {
            served = server.serve_connection(TokioIo::new(stream), answer) => drop(served),
            () = gone.notified() => {}
        }
        bounds.leave(&gone);
    }
}
