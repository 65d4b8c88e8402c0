//! Sends requests over connections of the program's, or of its pool.

use std::fmt::{self, Debug, Display};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{BoxFuture, ErrorKind, escape};
use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::classify::{self, Stage, Verdict};
use crate::connect::transport::Transport;
use crate::script::call::Request;
use crate::script::request::{Answer, Deadline, Delivery, Stamp, all_failed, here, judged};
use crate::topology::role::Role;
use crate::topology::server_clock::ServerClock;

/// How often a borrowed connection checks the role of its server.
const ROLE_EVERY: Duration = Duration::from_secs(2);

/// Connections that the program looks after.
pub(crate) struct Borrowed<F> {
    provide: F,
    /// When a server last said that it is a primary.
    known: Mutex<Option<Instant>>,
    clock: ServerClock,
}

impl<F> Borrowed<F> {
    pub(crate) fn new(provide: F) -> Self {
        Self { provide, known: Mutex::new(None), clock: ServerClock::unknown() }
    }

    fn known(&self) -> MutexGuard<'_, Option<Instant>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Debug for Borrowed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Borrowed")
    }
}

impl<F, Fut, C, E> Borrowed<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send,
    C: ConnectionLike + Send,
    E: Display,
{
    async fn connection(&self, deadline: Deadline) -> Result<C, Verdict> {
        here()?;
        let mut connection = self.lent(deadline).await?;
        if self.known().is_none_or(|since| since.elapsed() >= ROLE_EVERY) {
            let asking = timeout_at(deadline.at, Role::ask(&mut connection)).await;
            let role = asking.unwrap_or_else(|_| Err(deadline.missed_unsent(None)))?;
            role.check_borrowed()?;
            let question = ServerClock::question();
            let asking = connection.req_packed_command(&question);
            let time = timeout_at(deadline.at, asking).await;
            self.clock.read(&time.map_err(|_| deadline.missed_unsent(None))?);
            *self.known() = Some(Instant::now());
        }
        Ok(connection)
    }

    fn stamp(&self, deadline: Deadline) -> Stamp {
        Stamp { epoch: 0, not_after: self.clock.late_after(deadline.not_after) }
    }

    fn noted(&self, answer: RedisResult<Value>) -> Result<Answer, Verdict> {
        let value = judged(answer).inspect_err(|verdict| self.clock.hear(verdict))?;
        Ok(Answer::new(value, 0))
    }

    async fn lent(&self, deadline: Deadline) -> Result<C, Verdict> {
        match timeout_at(deadline.at, (self.provide)()).await {
            Ok(Ok(_)) if deadline.is_over() => Err(deadline.missed_unsent(None)),
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => {
                let said = error.to_string();
                Err(Verdict::unconnected(format!(
                    "the pool gave no connection: {}",
                    escape::terminal(&said)
                ))
                .give_up())
            }
            Err(_) => Err(deadline.missed_unsent(None)),
        }
    }
}

fn confirms_nothing(request: &Request<'_>) -> Result<(), Verdict> {
    match request.delivery {
        Delivery::None | Delivery::InOrder => Ok(()),
        Delivery::Confirmed { .. } => Err(Verdict::refused(
            ErrorKind::Unsupported,
            classify::Next::Fail,
            "waiting for replicas would hold up a connection that others share; let the store \
             make its own, with a URL",
        )),
    }
}

impl<F, Fut, C, E> Transport for Borrowed<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: ConnectionLike + Send + 'static,
    E: Display + Send + 'static,
{
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        Box::pin(async move {
            confirms_nothing(request)?;
            let mut connection = self.connection(deadline).await?;
            let cmd = request.packed(self.stamp(deadline)).into_cmd();
            match timeout_at(deadline.at, connection.req_packed_command(&cmd)).await {
                Ok(answer) => self.noted(answer),
                Err(_) => Err(deadline.missed()),
            }
        })
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        Box::pin(async move {
            if let Err(verdict) = requests.iter().try_for_each(confirms_nothing) {
                return all_failed(requests.len(), &verdict);
            }
            let mut connection = match self.connection(deadline).await {
                Ok(connection) => connection,
                Err(verdict) => return all_failed(requests.len(), &verdict),
            };
            let mut pipeline = Pipeline::with_capacity(requests.len());
            for request in requests {
                pipeline.add_command(request.packed(self.stamp(deadline)).into_cmd());
            }
            let answers = connection.req_packed_commands(&pipeline, 0, pipeline.len());
            match timeout_at(deadline.at, answers).await {
                Ok(Ok(answers)) => answers.into_iter().map(|value| self.noted(Ok(value))).collect(),
                Ok(Err(error)) => {
                    all_failed(requests.len(), &classify::judge(&error, Stage::Asked))
                }
                Err(_) => all_failed(requests.len(), &deadline.missed()),
            }
        })
    }
}
