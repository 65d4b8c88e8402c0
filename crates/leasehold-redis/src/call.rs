//! Running a script on a server: by its digest, whole if the server does not know it, and again
//! if it said that it did not run it.

use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::time::{Instant, sleep_until};

use crate::classify::{Next, Verdict};
use crate::script::Script;
use crate::transport::{Deadline, Transport};

/// Pauses before a request that the server did not carry out is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'a Script,
    keys: usize,
    arguments: Vec<String>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(script: &'a Script, keys: Vec<String>) -> Self {
        Self { script, keys: keys.len(), arguments: keys }
    }

    pub(crate) fn arg(&mut self, argument: impl ToString) -> &mut Self {
        self.arguments.push(argument.to_string());
        self
    }

    /// The request, with all of the script or only its digest.
    pub(crate) fn request(&self, whole: bool) -> Cmd {
        let mut request = if whole {
            let mut request = cmd("EVAL");
            request.arg(&self.script.source);
            request
        } else {
            let mut request = cmd("EVALSHA");
            request.arg(&self.script.digest);
            request
        };
        request.arg(self.keys);
        for argument in &self.arguments {
            request.arg(argument);
        }
        request
    }

    /// Runs it.
    pub(crate) async fn run(
        &self,
        transport: &dyn Transport,
        deadline: Deadline,
    ) -> Result<Value, Verdict> {
        let mut whole = false;
        let mut reconnected = false;
        let mut pause = PAUSE_MIN;
        loop {
            let verdict = match transport.one(&self.request(whole), deadline).await {
                Ok(value) => return Ok(value),
                Err(verdict) => verdict,
            };
            match verdict.next {
                Next::SendSource if !whole => whole = true,
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
