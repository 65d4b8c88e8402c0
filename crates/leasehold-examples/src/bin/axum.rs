//! A web service: one process at a time makes a report, and one at a time books on an account.
//!
//! Prometheus finds at `/metrics` how long requests waited for their locks and held them.
//!
//! `cargo run -p leasehold-examples --bin axum [store URL [address]]`, then
//! `curl 127.0.0.1:3000/reports/7` and `curl -X POST 127.0.0.1:3000/accounts/ann/30`
#![allow(clippy::print_stdout, reason = "it says where it listens")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use leasehold::tower::{SingleFlightError, SingleFlightLayer};
use leasehold::{Client, ErrorKind};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct App {
    locks: Client,
    /// Stands for what all processes share: a bucket of files, say.
    reports: Arc<Mutex<HashMap<u32, String>>>,
    accounts: Arc<Mutex<HashMap<String, i64>>>,
}

/// An error as an answer.
struct Refused(leasehold::Error);

impl From<leasehold::Error> for Refused {
    fn from(error: leasehold::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            // Other requests have the lock. The caller learns for how long their lease still runs.
            ErrorKind::Timeout => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Config => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let after = self.0.retry_after().unwrap_or(Duration::from_secs(1)).as_secs().max(1);
        (status, [(header::RETRY_AFTER, after.to_string())], self.0.to_string()).into_response()
    }
}

/// Which lock a request needs.
fn lock_of(request: &Request) -> Option<String> {
    let report = request.uri().path().strip_prefix("/reports/")?;
    Some(format!("report/{report}"))
}

async fn refused(error: SingleFlightError<std::convert::Infallible>) -> Response {
    match error {
        SingleFlightError::Lock(error) => Refused(error).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Under the layer's lock: a request that waited for the same report finds it made.
async fn report(State(app): State<App>, Path(id): Path<u32>) -> String {
    let made = app.reports.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
    if let Some(made) = made {
        return made;
    }
    // … an hour's work …
    let report = format!("report {id}\n");
    app.reports.lock().unwrap_or_else(PoisonError::into_inner).insert(id, report.clone());
    report
}

/// Under a lock of its own, by the attribute.
#[leasehold::locked("account/{name}", client = app.locks, within = PATIENCE)]
async fn book(
    State(app): State<App>,
    Path((name, amount)): Path<(String, i64)>,
) -> Result<String, Refused> {
    let mut accounts = app.accounts.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = accounts.entry(name).or_default();
    *sum += amount;
    Ok(format!("{sum}\n"))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().unwrap_or_else(|| "embedded:".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());

    // Before the first lock: earlier counts are lost.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let locks = Client::connect(&store).await?;
    let one_at_a_time = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(refused))
        .layer(SingleFlightLayer::new(&locks, lock_of).within(PATIENCE));
    let app = App { locks: locks.clone(), reports: Arc::default(), accounts: Arc::default() };
    let routes = Router::new()
        .route("/reports/{id}", get(report).layer(one_at_a_time))
        .route("/accounts/{name}/{amount}", post(book))
        .route("/metrics", get(async move || metrics.render()))
        .with_state(app);

    let mut term = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move {
            term.recv().await;
        })
        .await?;
    // The requests are answered; what they left behind is released before the process ends.
    locks.close().await?;
    Ok(())
}
