//! Ends a lease by a server's own command that deletes a key if it has a given value.
//!
//! Such a command takes the server a seventh of a script's time, and the same single round trip.
//! The first release sends it together with the script, and remembers whether the server has it.
//! For any answer but "deleted", the script's answer decides.

use std::sync::atomic::{AtomicU8, Ordering};

use leasehold_core::Effect;
use redis::{Cmd, Value};

use crate::classify::{Next, Verdict};
use crate::connect::transport::Transport;
use crate::script::call::Call;
use crate::script::call::{Body, Request};
use crate::script::request::{Answer, Deadline, Delivery};

/// Which command the server has, according to the tries so far.
#[derive(Debug, Default)]
pub(super) struct Native(AtomicU8);

const TRY_DELIFEQ: u8 = 0;
const HAS_DELIFEQ: u8 = 1;
const TRY_DELEX: u8 = 2;
const HAS_DELEX: u8 = 3;
const HAS_NONE: u8 = 4;

impl Native {
    fn state(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records whether the server has the command that was tried in this state.
    fn learn(&self, state: u8, has_it: bool) {
        let next = match (state, has_it) {
            (TRY_DELIFEQ | HAS_DELIFEQ, true) => HAS_DELIFEQ,
            (TRY_DELIFEQ | HAS_DELIFEQ, false) => TRY_DELEX,
            (TRY_DELEX | HAS_DELEX, true) => HAS_DELEX,
            _ => HAS_NONE,
        };
        // Another call may have recorded more.
        self.0.fetch_max(next, Ordering::Relaxed);
    }

    /// Deletes a key that has this value, or else returns the script's answer.
    pub(super) async fn end(
        &self,
        (key, value): (&str, &str),
        script: &Call<'_>,
        transport: &dyn Transport,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        let state = self.state();
        let command = match state {
            TRY_DELIFEQ | HAS_DELIFEQ => deletes("DELIFEQ", key, None, value),
            TRY_DELEX | HAS_DELEX => deletes("DELEX", key, Some("IFEQ"), value),
            _ => return script.run(transport, delivery, deadline).await,
        };
        let native = Request { body: Body::Plain(&command), delivery };
        if matches!(state, HAS_DELIFEQ | HAS_DELEX) {
            match transport.one(&native, deadline).await {
                Ok(answer) if answer.value == Value::Int(1) => return Ok(answer),
                Err(verdict) if verdict.lack.is_some() => self.learn(state, false),
                Err(verdict) if verdict.effect == Effect::Unknown && !verdict.answered => {
                    return Err(verdict);
                }
                _ => {}
            }
            return script.run(transport, delivery, deadline).await;
        }
        let both = [native, script.by_digest(delivery)];
        let mut answers = transport.many(&both, deadline).await.into_iter();
        match answers.next() {
            Some(Ok(answer)) => {
                self.learn(state, true);
                if answer.value == Value::Int(1) {
                    return Ok(answer);
                }
            }
            Some(Err(verdict)) if verdict.lack.is_some() => self.learn(state, false),
            _ => {}
        }
        match answers.next() {
            Some(Err(verdict)) if !matches!(verdict.next, Next::Fail | Next::Drop) => {
                script.run(transport, delivery, deadline).await
            }
            Some(answer) => answer,
            None => script.run(transport, delivery, deadline).await,
        }
    }
}

fn deletes(name: &str, key: &str, condition: Option<&str>, value: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key).arg(condition).arg(value);
    command
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use leasehold_core::BoxFuture;

    use super::*;
    use crate::classify;
    use crate::script::Script;

    /// A server with one of the commands, or none, and this answer to it.
    #[derive(Debug, Default)]
    struct Server {
        has: &'static str,
        deleted: i64,
        denies: bool,
        asked: Mutex<Vec<String>>,
    }

    impl Server {
        fn answer(&self, request: &Request<'_>) -> Result<Answer, Verdict> {
            let command = request.packed(Default::default()).into_cmd();
            let name = match command.args_iter().next() {
                Some(redis::Arg::Simple(name)) => String::from_utf8(name.to_vec()).unwrap(),
                _ => panic!("a command without a name"),
            };
            self.asked.lock().unwrap().push(name.clone());
            let value = match &*name {
                "EVALSHA" => 7,
                name if name != self.has => {
                    return Err(classify::server("ERR", "unknown command 'x'"));
                }
                _ if self.denies => {
                    return Err(classify::server(
                        "NOPERM",
                        "no permissions to run the 'x' command",
                    ));
                }
                _ => self.deleted,
            };
            Ok(Answer::new(Value::Int(value), 0))
        }
    }

    impl Transport for Server {
        fn one<'a>(
            &'a self,
            request: &'a Request<'a>,
            _: Deadline,
        ) -> BoxFuture<'a, Result<Answer, Verdict>> {
            Box::pin(std::future::ready(self.answer(request)))
        }

        fn many<'a>(
            &'a self,
            requests: &'a [Request<'a>],
            _: Deadline,
        ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
            let answers = requests.iter().map(|request| self.answer(request)).collect();
            Box::pin(std::future::ready(answers))
        }
    }

    /// The result of a release, and the commands that the server got for it.
    async fn release(native: &Native, server: &Server) -> (i64, String) {
        let script = Script::new("return 7".to_owned());
        let call = Call::new(&script, &["a"]);
        let deadline = Deadline::after(Duration::from_secs(60));
        let answer = native.end(("a", "v"), &call, server, Delivery::None, deadline).await;
        let Value::Int(answer) = answer.unwrap().value else { panic!("no number") };
        (answer, std::mem::take(&mut *server.asked.lock().unwrap()).join(" "))
    }

    #[tokio::test]
    async fn a_command_that_the_server_has_is_all_that_is_sent_from_then_on() {
        let (native, mut server) =
            (Native::default(), Server { has: "DELIFEQ", deleted: 1, ..Server::default() });
        assert_eq!(release(&native, &server).await, (1, "DELIFEQ EVALSHA".to_owned()));
        assert_eq!(release(&native, &server).await, (1, "DELIFEQ".to_owned()));
        // The value has changed, so the script decides whose lease it is.
        server.deleted = 0;
        assert_eq!(release(&native, &server).await, (7, "DELIFEQ EVALSHA".to_owned()));
        server.denies = true;
        assert_eq!(release(&native, &server).await, (7, "DELIFEQ EVALSHA".to_owned()));
        assert_eq!(release(&native, &server).await, (7, "DELEX EVALSHA".to_owned()));
        assert_eq!(release(&native, &server).await, (7, "EVALSHA".to_owned()));
    }

    #[tokio::test]
    async fn the_other_command_is_tried_once_and_then_the_script_is_all() {
        let (native, server) =
            (Native::default(), Server { has: "DELEX", deleted: 1, ..Server::default() });
        assert_eq!(release(&native, &server).await, (7, "DELIFEQ EVALSHA".to_owned()));
        assert_eq!(release(&native, &server).await, (1, "DELEX EVALSHA".to_owned()));
        assert_eq!(release(&native, &server).await, (1, "DELEX".to_owned()));
        let (native, server) = (Native::default(), Server::default());
        for expected in ["DELIFEQ EVALSHA", "DELEX EVALSHA", "EVALSHA", "EVALSHA"] {
            assert_eq!(release(&native, &server).await, (7, expected.to_owned()));
        }
    }
}
