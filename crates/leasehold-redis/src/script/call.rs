//! A request: a script with its keys and arguments, or a plain command.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use leasehold_core::Fence;
use redis::{Cmd, ToRedisArgs};

use crate::connect::resp::{self, Write};
use crate::script::Script;
use crate::script::request::{Delivery, Stamp};
use crate::script::unsent::Unsent;
use crate::topology::slot::slot_of;
use crate::wire::forms::{CLIENT_SIZE, double_bytes};

/// Room for one lock with its key and arguments, and for the rest of a request. Most need no more.
const BYTES: usize = 160;
const REST: usize = 160;

/// The index of the first key. The number of keys comes before it.
const FIRST_KEY: usize = 1;

/// Room for what comes before the script.
const HEAD: usize = 48;

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'a Script,
    /// The arguments after the digest, encoded for the lowest epoch, and their number.
    rest: Vec<u8>,
    arguments: usize,
    /// Where the first key is in `rest`.
    first_key: Range<usize>,
    /// Where the fail-over epoch is in `rest`, and its lowest value.
    epoch: Option<(usize, u64)>,
    /// Where in `rest` the moment is after which the server refuses the request.
    not_after: Option<usize>,
    pub(crate) unsent: Option<Arc<Unsent>>,
}

/// An epoch as scripts read it, in the first two bytes of an argument.
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

    /// A call about this number of locks. Their keys must be added first.
    pub(crate) fn about(script: &'a Script, locks: usize) -> Self {
        let room = BYTES.saturating_mul(locks).saturating_add(REST);
        let (rest, first_key) = (Vec::with_capacity(room), 0..0);
        let (epoch, not_after, unsent) = (None, None, None);
        let mut call = Self { script, rest, arguments: 0, first_key, epoch, not_after, unsent };
        call.number(u64::try_from(locks).unwrap_or(u64::MAX));
        call
    }

    /// Sends notifications as commands if the server lets no script publish them.
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

    /// An argument of these bytes.
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
        self.put(itoa::Buffer::new().format(number))
    }

    /// The moment after which the server refuses the request, by the server's clock.
    /// [`Self::write`] enters it.
    #[cfg(feature = "interop")]
    pub(crate) fn not_after(&mut self) -> &mut Self {
        self.put(double_bytes(0));
        self.not_after = Some(self.rest.len().saturating_sub(resp::END.len()).saturating_sub(8));
        self
    }

    /// The argument with a request: some bytes about the client, and then these parts, in order.
    ///
    /// It begins with the epoch, which is at least `floor`, and the moment after which the server
    /// refuses the request. [`Self::write`] enters both. The highest sequence that the client has
    /// seen follows, and how long a lock is remembered, in µs.
    pub(crate) fn request_of<'t>(
        &mut self,
        [floor, seen, retention]: [u64; 3],
        parts: impl Iterator<Item = &'t [u8]> + Clone,
    ) -> &mut Self {
        let mut client = [0; CLIENT_SIZE];
        let numbers = [0, seen, retention].into_iter().flat_map(double_bytes);
        let bytes = epoch_bytes(floor).into_iter().chain(numbers);
        for (place, byte) in client.iter_mut().zip(bytes) {
            *place = byte;
        }
        let begin = resp::put_parts(&client, parts, &mut self.rest);
        self.arguments = self.arguments.saturating_add(1);
        self.epoch = Some((begin, floor));
        self.not_after = Some(begin.saturating_add(2));
        self
    }

    /// The slot of the first key. In a cluster, all keys of a call share it.
    pub(crate) fn slot(&self) -> u16 {
        match self.rest.get(self.first_key.clone()) {
            Some(record @ [_, ..]) => slot_of(record),
            _ => 0,
        }
    }

    /// Appends the request in the protocol's form, with the whole script or only its digest.
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

    /// The request, with only the script's digest.
    pub(crate) fn by_digest(&self, delivery: Delivery) -> Request<'_> {
        Request { body: Body::Script { call: self, whole: false }, delivery }
    }
}

/// The content of a request.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    /// A command without keys.
    Plain(&'a Cmd),
    /// A script, sent whole or as its digest.
    Script { call: &'a Call<'a>, whole: bool },
}

/// A request for any connection. The connection adds the [`Stamp`] of its server.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) body: Body<'a>,
    pub(crate) delivery: Delivery,
}

impl<'a> Request<'a> {
    pub(crate) fn plain(cmd: &'a Cmd) -> Self {
        Self { body: Body::Plain(cmd), delivery: Delivery::None }
    }

    /// The slot of the keys in it, if there are any.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self.body {
            Body::Plain(_) => None,
            Body::Script { call, .. } => Some(call.slot()),
        }
    }

    /// The request with the stamp of its server.
    pub(crate) fn packed(&self, stamp: Stamp) -> Packed<'a> {
        match self.body {
            Body::Plain(cmd) => Packed::Command(Cow::Borrowed(cmd)),
            Body::Script { call, whole } => Packed::Script { call, whole, stamp },
        }
    }
}

/// A request that is ready to be sent.
pub(crate) enum Packed<'a> {
    Command(Cow<'a, Cmd>),
    Script { call: &'a Call<'a>, whole: bool, stamp: Stamp },
}

impl Packed<'_> {
    /// As a command of the client library.
    pub(crate) fn into_cmd(self) -> Cmd {
        match self {
            Self::Command(cmd) => cmd.into_owned(),
            Self::Script { call, whole, stamp } => call.request(whole, stamp),
        }
    }
}

impl Write for Packed<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Command(cmd) => cmd.write(out),
            Self::Script { call, whole, stamp } => call.write(*whole, *stamp, out),
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
            let parts: [&[u8]; 2] = [b"one", b"\0\n"];
            call.request_of([7, 3, 5], parts.into_iter())
                .number(0)
                .number(u64::MAX)
                .arg(5_u8)
                .put("");
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
                            b"one",
                            b"\0\n",
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
