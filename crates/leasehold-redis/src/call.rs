//! Runs a script on a server: by its digest, or whole if the server does not know it.
//!
//! If the server says that it did not run the script, it is sent again.

use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BoxFuture, Fence};
use redis::{Cmd, ToRedisArgs};
use tokio::time::{Instant, sleep_until};

use crate::classify::{Next, Verdict};
use crate::forms::double_bytes;
use crate::resp;
use crate::script::Script;
use crate::slot::slot_of;
use crate::transport::{Answer, Body, Deadline, Delivery, Request, Stamp, Transport};
use crate::unsent::{Messages, Unsent};

/// Pauses before a request that the server did not carry out is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What most requests take for a lock with its key and arguments, and beside the locks.
const BYTES: usize = 160;
const REST: usize = 160;

/// What a request says of its client takes.
const CLIENT: usize = 26;

/// Behind the digest, the number of keys stands before the first key.
const FIRST_KEY: usize = 1;

/// What stands before the script takes less.
const HEAD: usize = 48;

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'a Script,
    /// What follows the digest, as it is sent in the least epoch, and how many arguments that are.
    rest: Vec<u8>,
    arguments: usize,
    /// Where the first key stands in it.
    first_key: Range<usize>,
    /// Where the fail-over epoch stands in it, and the least that it is.
    epoch: Option<(usize, u64)>,
    /// Where the moment stands in it after which it is late.
    not_after: Option<usize>,
    unsent: Option<Arc<Unsent>>,
}

/// An epoch as scripts take it, in the first bytes of an argument.
fn epoch_bytes(epoch: u64) -> [u8; 2] {
    u16::try_from(epoch.min(Fence::EPOCH_MAX)).unwrap_or(u16::MAX).to_le_bytes()
}

impl<'a> Call<'a> {
    pub(crate) fn new<K: AsRef<[u8]>>(
        script: &'a Script,
        keys: impl IntoIterator<Item = K, IntoIter: ExactSizeIterator>,
    ) -> Self {
        let keys = keys.into_iter();
        let mut call = Self::about(script, keys.len());
        for key in keys {
            call.put(key);
        }
        call
    }

    /// One about so many locks, whose keys are to follow first.
    pub(crate) fn about(script: &'a Script, locks: usize) -> Self {
        let room = BYTES.saturating_mul(locks).saturating_add(REST);
        let (rest, first_key) = (Vec::with_capacity(room), 0..0);
        let (epoch, not_after, unsent) = (None, None, None);
        let mut call = Self { script, rest, arguments: 0, first_key, epoch, not_after, unsent };
        call.number(u64::try_from(locks).unwrap_or(u64::MAX));
        call
    }

    /// Sends the messages that the server lets no script send.
    pub(crate) fn telling(mut self, unsent: &Arc<Unsent>) -> Self {
        self.unsent = Some(Arc::clone(unsent));
        self
    }

    /// An argument of any type.
    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        for argument in argument.to_redis_args() {
            self.put(argument);
        }
        self
    }

    /// An argument as it stands.
    pub(crate) fn put(&mut self, argument: impl AsRef<[u8]>) -> &mut Self {
        let bytes = argument.as_ref();
        resp::put_text(bytes, &mut self.rest);
        if self.arguments == FIRST_KEY {
            let end = self.rest.len().saturating_sub(resp::END.len());
            self.first_key = end.saturating_sub(bytes.len())..end;
        }
        self.arguments = self.arguments.saturating_add(1);
        self
    }

    /// An argument that is a number.
    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        let mut left = &mut digits[..];
        // There is room for any.
        let _written = write!(left, "{number}");
        let width = 20_usize.saturating_sub(left.len());
        self.put(digits.get(..width).unwrap_or_default())
    }

    /// An argument that is made of all of these, one behind the other.
    pub(crate) fn joined<'t>(&mut self, mut parts: impl ExactSizeIterator<Item = &'t [u8]>) {
        if parts.len() == 1 {
            self.put(parts.next().unwrap_or_default());
        } else {
            self.put(parts.collect::<Vec<_>>().concat());
        }
    }

    /// The argument that says when the request is late, by the clock of the server which gets it.
    #[cfg(feature = "interop")]
    pub(crate) fn not_after(&mut self) -> &mut Self {
        self.put(double_bytes(0));
        self.not_after = Some(self.rest.len().saturating_sub(resp::END.len()).saturating_sub(8));
        self
    }

    /// The argument that says of the client: the epoch of whichever server gets the request, and at least this one; when
    /// the request is late; the highest sequence that the client has seen; and for how long a lock is remembered, in µs.
    pub(crate) fn client(&mut self, floor: u64, seen: u64, retention: u64) -> &mut Self {
        let mut argument = [0; CLIENT];
        let [first, second] = epoch_bytes(floor);
        let numbers = [0, seen, retention].into_iter().flat_map(double_bytes);
        let bytes = [first, second].into_iter().chain(numbers);
        for (place, byte) in argument.iter_mut().zip(bytes) {
            *place = byte;
        }
        self.put(argument);
        let begin = self.rest.len().saturating_sub(resp::END.len()).saturating_sub(CLIENT);
        self.epoch = Some((begin, floor));
        self.not_after = Some(begin.saturating_add(2));
        self
    }

    /// The slot that all its keys share, for a call about one lock.
    pub(crate) fn slot(&self) -> u16 {
        match self.rest.get(self.first_key.clone()) {
            Some(record @ [_, ..]) => slot_of(record),
            _ => 0,
        }
    }

    /// Appends the request as it is sent, with all of the script or only its digest.
    pub(crate) fn write(&self, whole: bool, stamp: Stamp, out: &mut Vec<u8>) {
        let Script { source, digest, .. } = self.script;
        let (name, script) = if whole { ("EVAL", source) } else { ("EVALSHA", digest) };
        out.reserve(self.rest.len().saturating_add(script.len()).saturating_add(HEAD));
        resp::put_count(self.arguments.saturating_add(2), out);
        resp::put_text(name.as_bytes(), out);
        resp::put_text(script.as_bytes(), out);
        let begin = out.len();
        out.extend_from_slice(&self.rest);
        let mut enter = |at: usize, bytes: &[u8]| {
            let at = begin.saturating_add(at);
            if let Some(place) = out.get_mut(at..at.saturating_add(bytes.len())) {
                place.copy_from_slice(bytes);
            }
        };
        if let Some((at, floor)) = self.epoch {
            enter(at, &epoch_bytes(stamp.epoch.max(floor)));
        }
        if let Some(at) = self.not_after {
            enter(at, &double_bytes(stamp.not_after));
        }
    }

    /// The same as a command of the client library.
    pub(crate) fn request(&self, whole: bool, stamp: Stamp) -> Cmd {
        let mut bytes = Vec::new();
        self.write(whole, stamp, &mut bytes);
        let mut request = Cmd::new();
        for argument in resp::texts(&bytes) {
            request.arg(argument);
        }
        request
    }

    /// An answer to it, after the messages that came with it were sent.
    pub(crate) async fn told(
        &self,
        mut answer: Answer,
        transport: &dyn Transport,
        deadline: Deadline,
    ) -> Answer {
        if let Some(sending) = self.tell(&mut answer, transport, deadline) {
            sending.await;
        }
        answer
    }

    /// Takes from an answer the messages that came with it; what sends them.
    fn tell<'c>(
        &'c self,
        answer: &mut Answer,
        transport: &'c dyn Transport,
        deadline: Deadline,
    ) -> Option<BoxFuture<'c, ()>> {
        let unsent = self.unsent.as_ref()?;
        let messages = Messages::take_from(&mut answer.value)?;
        Some(Box::pin(async move { unsent.send(&messages, transport, deadline).await }))
    }

    /// As a part of many.
    pub(crate) fn by_digest(&self, delivery: Delivery) -> Request<'_> {
        Request { body: Body::Script { call: self, whole: false }, delivery }
    }

    /// Runs it. What is seldom needed has a place of its own, since each request makes room for the rest.
    pub(crate) async fn run(
        &self,
        transport: &dyn Transport,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        match transport.one(&self.by_digest(delivery), deadline).await {
            Ok(mut answer) => {
                if let Some(sending) = self.tell(&mut answer, transport, deadline) {
                    sending.await;
                }
                Ok(answer)
            }
            Err(verdict) => Box::pin(self.run_on(verdict, transport, delivery, deadline)).await,
        }
    }

    /// Goes on after this became of the first try.
    async fn run_on(
        &self,
        mut verdict: Verdict,
        transport: &dyn Transport,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        let mut whole = false;
        let mut reconnected = false;
        let mut pause = PAUSE_MIN;
        loop {
            match verdict.next {
                Next::SendSource if !whole => whole = true,
                Next::Reconnect if !reconnected => reconnected = true,
                Next::Retry => {
                    // It may be another server that is asked next.
                    whole = false;
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
            let request = Request { body: Body::Script { call: self, whole }, delivery };
            verdict = match transport.one(&request, deadline).await {
                Ok(answer) => return Ok(self.told(answer, transport, deadline).await),
                Err(verdict) => verdict,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn a_call_is_sent_as_the_client_library_would_send_it() {
        let script = Script::new("return 1".to_owned());
        for keys in [vec![], vec!["leasehold:a"], vec!["leasehold:{ü}b", "leasehold:{ü}c"]] {
            let mut call = Call::new(&script, &keys);
            call.client(7, 3, 5).number(0).number(u64::MAX).arg(5_u8).put("");
            call.put([0, 255, b'\r', b'\n']);
            call.put(vec![b'x'; 12_345]);
            for (whole, epoch, first) in
                [(false, 0, 7_u16), (false, 7, 7_u16), (true, 8, 8), (false, 1234, 1234)]
            {
                let not_after = 1_700_000_000_000_000 + epoch;
                let stamp = Stamp { epoch, not_after };
                let mut expected = cmd(if whole { "EVAL" } else { "EVALSHA" });
                expected.arg(if whole { &script.source } else { &script.digest });
                expected
                    .arg(keys.len())
                    .arg(&keys)
                    .arg(
                        [
                            &first.to_le_bytes()[..],
                            &double_bytes(not_after),
                            &3_f64.to_le_bytes(),
                            &5_f64.to_le_bytes(),
                        ]
                        .concat(),
                    )
                    .arg(0)
                    .arg(u64::MAX)
                    .arg(5);
                expected.arg("").arg(&[0_u8, 255, b'\r', b'\n']).arg(vec![b'x'; 12_345]);
                let mut sent = Vec::new();
                call.write(whole, stamp, &mut sent);
                let wanted = expected.get_packed_command();
                assert_eq!(String::from_utf8_lossy(&sent), String::from_utf8_lossy(&wanted));
                assert_eq!(call.request(whole, stamp).get_packed_command(), wanted);
            }
            if let Some(key) = keys.first() {
                assert_eq!(call.slot(), slot_of(key.as_bytes()));
            }
        }
    }
}
