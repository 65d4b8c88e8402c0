//! Running a script on a server: by its digest, whole if the server does not know it, and again
//! if it said that it did not run it.

use std::time::Duration;

use redis::{Arg, Cmd, ToRedisArgs, Value, cmd};
use tokio::time::{Instant, sleep_until};

use crate::classify::{Next, Verdict};
use crate::script::Script;
use crate::transport::{Deadline, Transport};

/// Pauses before a request that the server did not carry out is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What most requests take with their keys and arguments.
const BYTES: usize = 640;
const ARGUMENTS: usize = 24;

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'a Script,
    /// The request as it is sent first: with the digest of the script.
    brief: Cmd,
}

impl<'a> Call<'a> {
    pub(crate) fn new(script: &'a Script, keys: impl AsRef<[String]>) -> Self {
        let keys = keys.as_ref();
        let mut brief = Cmd::with_capacity(ARGUMENTS, BYTES);
        brief.arg("EVALSHA").arg(&script.digest).arg(keys.len()).arg(keys);
        Self { script, brief }
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.brief.arg(argument);
        self
    }

    /// The request, with all of the script or only its digest.
    pub(crate) fn request(&self, whole: bool) -> Cmd {
        if !whole {
            return self.brief.clone();
        }
        let mut request = cmd("EVAL");
        request.arg(&self.script.source);
        for argument in self.brief.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                request.arg(bytes);
            }
        }
        request
    }

    /// Runs it.
    pub(crate) async fn run(
        &self,
        transport: &dyn Transport,
        deadline: Deadline,
    ) -> Result<Value, Verdict> {
        let mut whole = None;
        let mut reconnected = false;
        let mut pause = PAUSE_MIN;
        loop {
            let verdict = match transport.one(whole.as_ref().unwrap_or(&self.brief), deadline).await
            {
                Ok(value) => return Ok(value),
                Err(verdict) => verdict,
            };
            match verdict.next {
                Next::SendSource if whole.is_none() => whole = Some(self.request(true)),
                Next::Reconnect if !reconnected => reconnected = true,
                Next::Retry => {
                    let next = Instant::now() + pause.mul_f64(1.0 + fastrand::f64() / 2.0);
                    if next >= deadline.at {
                        return Err(verdict);
                    }
                    sleep_until(next).await;
                    pause = pause.saturating_mul(2).min(PAUSE_MAX);
                }
                Next::Fail | Next::Drop | Next::Reconnect | Next::SendSource => {
                    return Err(verdict);
                }
            }
        }
    }
}
