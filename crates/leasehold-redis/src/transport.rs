//! How requests get to a server: through a connection of ours, a borrowed one, or a pool.

use std::fmt::{self, Debug, Display};
use std::future::Future;
use std::time::Duration;

use leasehold_core::{BoxFuture, Effect, escape};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::classify::{self, Stage, Verdict};

/// Until when a call may take, and how long that was, to say so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    within: Duration,
}

impl Deadline {
    pub(crate) fn after(within: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(within).unwrap_or_else(|| now + Duration::from_secs(86_400));
        Self { at, within }
    }

    /// How much time is left.
    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    /// Nothing was sent in time.
    pub(crate) fn missed_unsent(self, last: Option<&Verdict>) -> Verdict {
        let within = self.within;
        let message = match last {
            Some(last) => format!("no connection within {within:?}: {}", last.message()),
            None => format!("no connection within {within:?}; is the address right"),
        };
        Verdict::out_of_time(Effect::NotApplied, message)
    }

    /// No answer came in time.
    pub(crate) fn missed(self) -> Verdict {
        let within = self.within;
        Verdict::out_of_time(Effect::Unknown, format!("no answer within {within:?}"))
    }
}

/// Carries requests to a server. Sends each once.
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// One request, one answer; an error that the server answers with is judged.
    fn one<'a>(&'a self, cmd: &'a Cmd, deadline: Deadline)
    -> BoxFuture<'a, Result<Value, Verdict>>;

    /// Several requests in one go; the answers may be errors.
    fn many<'a>(
        &'a self,
        pipeline: &'a Pipeline,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Vec<Value>, Verdict>>;
}

/// Judges an answer to one request.
pub(crate) fn judged(answer: RedisResult<Value>) -> Result<Value, Verdict> {
    match answer {
        Ok(Value::ServerError(error)) => {
            Err(classify::server(error.code(), error.details().unwrap_or("")))
        }
        Ok(value) => Ok(value),
        Err(error) => Err(classify::judge(&error, Stage::Asked)),
    }
}

/// Connections that somebody else looks after.
pub(crate) struct Borrowed<F>(pub(crate) F);

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
        match timeout_at(deadline.at, (self.0)()).await {
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

impl<F, Fut, C, E> Transport for Borrowed<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: ConnectionLike + Send + 'static,
    E: Display + Send + 'static,
{
    fn one<'a>(
        &'a self,
        cmd: &'a Cmd,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Value, Verdict>> {
        Box::pin(async move {
            let mut connection = self.connection(deadline).await?;
            match timeout_at(deadline.at, connection.req_packed_command(cmd)).await {
                Ok(answer) => judged(answer),
                Err(_) => Err(deadline.missed()),
            }
        })
    }

    fn many<'a>(
        &'a self,
        pipeline: &'a Pipeline,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Vec<Value>, Verdict>> {
        Box::pin(async move {
            let mut connection = self.connection(deadline).await?;
            let answers = connection.req_packed_commands(pipeline, 0, pipeline.len());
            match timeout_at(deadline.at, answers).await {
                Ok(answers) => answers.map_err(|error| classify::judge(&error, Stage::Asked)),
                Err(_) => Err(deadline.missed()),
            }
        })
    }
}
