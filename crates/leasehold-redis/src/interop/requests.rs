//! Turns requests into script arguments, and the scripts' answers into outcomes.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_core::{AcquireRequest, Error, ErrorKind, Key, RenewRequest, Result, Token, Ttl};
use redis::Value;

use super::layout::{Layout, Shape, Signal};
use crate::script::Script;
use crate::script::call::Call;

/// The scripts of each type of value.
#[derive(Debug)]
struct Scripts {
    text: Three,
    hash: Three,
    set: Three,
    look: Script,
}

#[derive(Debug)]
struct Three {
    acquire: Script,
    renew: Script,
    end: Script,
}

static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    let script = Script::without_comments;
    let in_time = include_str!("scripts/in_time.lua");
    let three = |acquire, renew, end| Three {
        acquire: script(&[in_time, acquire].concat()),
        renew: script(renew),
        end: script(end),
    };
    Scripts {
        text: three(
            include_str!("scripts/text_acquire.lua"),
            include_str!("scripts/text_renew.lua"),
            include_str!("scripts/text_end.lua"),
        ),
        hash: three(
            include_str!("scripts/hash_acquire.lua"),
            include_str!("scripts/hash_renew.lua"),
            include_str!("scripts/hash_end.lua"),
        ),
        set: three(
            include_str!("scripts/set_acquire.lua"),
            include_str!("scripts/set_renew.lua"),
            include_str!("scripts/set_end.lua"),
        ),
        look: script(include_str!("scripts/look.lua")),
    }
});

/// An answer of the scripts.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Answered {
    Held {
        again: bool,
        /// The fence, 0 for none.
        number: u64,
    },
    Busy {
        /// Which lock it is; for a look, how many times it is held.
        place: usize,
        /// `None` without an expiry.
        left: Option<Duration>,
        value: Vec<u8>,
        adopted: bool,
    },
    Foreign {
        place: usize,
        sort: String,
    },
}

/// The settings of a store's requests.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    pub(super) layout: Layout,
    /// The expiry for a lock without one.
    pub(super) leftovers: Option<Ttl>,
    /// Whether the store is a cluster.
    pub(super) spread: bool,
}

impl Requests {
    fn three(&self) -> &'static Three {
        let Scripts { text, hash, set, .. } = &*SCRIPTS;
        match self.layout.shape() {
            Shape::Text => text,
            Shape::Hash => hash,
            Shape::Set => set,
        }
    }

    pub(super) fn acquire_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let layout = &self.layout;
        let shape = layout.shape();
        let mut keys: Vec<_> = requests.iter().map(|request| layout.key(&request.key)).collect();
        if shape != Shape::Text {
            keys.extend(requests.iter().filter_map(|request| layout.counter(&request.key)));
        }
        keys.extend(requests.iter().filter_map(|request| match layout.signal(&request.key) {
            Signal::List(list) => Some(list),
            Signal::None | Signal::Publish { .. } => None,
        }));
        let adopt = self.leftovers.map_or(0, Ttl::as_millis);
        let mut call = Call::new(&self.three().acquire, &keys);
        match (shape, requests) {
            (Shape::Text, requests) => {
                call.arg(u8::from(layout.token_is_last())).arg(adopt);
                for request in requests {
                    call.arg(layout.token(&request.token))
                        .arg(layout.value(request))
                        .arg(request.ttl.as_millis());
                }
            }
            (Shape::Hash, [request]) => {
                call.arg(layout.token(&request.token))
                    .arg(request.holds)
                    .arg(request.ttl.as_millis())
                    .arg(adopt);
            }
            (Shape::Set, [request]) => {
                call.arg(layout.value(request)).arg(request.ttl.as_millis());
            }
            _ => {
                let why = format!("locks of {layout} are taken one by one");
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        }
        call.not_after();
        Ok(call)
    }

    /// The value of a grant if a release only has to delete it: then the server's own command may
    /// do that. In a cluster scripts do it, since they are routed by their keys.
    pub(super) fn lasting_value(&self, request: &AcquireRequest) -> Option<String> {
        let layout = &self.layout;
        let tells_nobody = layout.signal(&request.key) == Signal::None;
        // A value that contains the time of day differs with each request.
        let lasts = layout.shape() == Shape::Text && !layout.token_is_last();
        (tells_nobody && lasts && !self.spread).then(|| layout.value(request))
    }

    pub(super) fn renew_call(&self, request: &RenewRequest) -> Call<'static> {
        let layout = &self.layout;
        let mut call = Call::new(&self.three().renew, &[layout.key(&request.key)]);
        if layout.shape() == Shape::Text {
            call.arg(u8::from(layout.token_is_last()));
        }
        call.arg(layout.token(&request.token))
            .arg(request.ttl.as_millis())
            .arg(u8::from(request.shorten));
        call
    }

    pub(super) fn end_call(&self, key: &Key, token: Token, remaining: u32) -> Call<'static> {
        let layout = &self.layout;
        let mut keys = vec![layout.key(key)];
        let (mut channel, mut message) = Default::default();
        match layout.signal(key) {
            Signal::None => {}
            Signal::List(list) => keys.push(list),
            Signal::Publish { channel: on, message: what } => (channel, message) = (on, what),
        }
        let token = layout.token(&token);
        let mut call = Call::new(&self.three().end, &keys);
        match layout.shape() {
            Shape::Text => {
                call.arg(u8::from(layout.token_is_last())).arg(token).arg(channel).arg(message);
            }
            Shape::Hash => {
                // Redisson's clients subscribe in the way that suits the server.
                let publish = if self.spread { "SPUBLISH" } else { "PUBLISH" };
                call.arg(token).arg(remaining).arg(channel).arg(message).arg(publish);
            }
            Shape::Set => {
                call.arg(token);
            }
        }
        call
    }

    pub(super) fn look_call(&self, key: &Key) -> Call<'static> {
        let layout = &self.layout;
        let mut call = Call::new(&SCRIPTS.look, &[layout.key(key)]);
        call.arg(match layout.shape() {
            Shape::Text => "string",
            Shape::Hash => "hash",
            Shape::Set => "zset",
        });
        call
    }

    /// Reads the counter of a fenced lock, like any other text.
    pub(super) fn look_at_counter_call(&self, key: &Key) -> Option<Call<'static>> {
        let mut call = Call::new(&SCRIPTS.look, &[self.layout.counter(key)?]);
        call.arg("string");
        Some(call)
    }
}

/// Whether replicas have to confirm an answer.
pub(super) fn is_grant(value: &Value) -> bool {
    matches!(value, Value::Array(parts) if matches!(parts.first(), Some(Value::Int(1 | 2))))
}

fn bytes(value: Option<&Value>) -> Option<Vec<u8>> {
    match value? {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        _ => None,
    }
}

fn number(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

fn left(value: Option<&Value>) -> Option<Option<Duration>> {
    Some(u64::try_from(number(value)?).ok().map(Duration::from_millis))
}

/// The index of a lock in its request, which scripts count from 1.
fn place(value: Option<&Value>) -> usize {
    let counted = number(value).and_then(|number| usize::try_from(number).ok());
    counted.unwrap_or_default().saturating_sub(1)
}

fn foreign(parts: &[Value]) -> Option<Answered> {
    let sort = String::from_utf8_lossy(&bytes(parts.get(1))?).into_owned();
    Some(Answered::Foreign { place: place(parts.get(2)), sort })
}

/// Reads the answer to an acquisition.
pub(super) fn acquired(value: Value) -> Option<Answered> {
    let Value::Array(parts) = value else { return None };
    match number(parts.first())? {
        kind @ (1 | 2) => Some(Answered::Held {
            again: kind == 2,
            number: u64::try_from(number(parts.get(1))?).ok()?,
        }),
        0 => Some(Answered::Busy {
            place: place(parts.get(1)),
            left: left(parts.get(2))?,
            value: bytes(parts.get(3))?,
            adopted: number(parts.get(4)) == Some(1),
        }),
        -1 => foreign(&parts),
        _ => None,
    }
}

/// Reads the answer to a look: `Some(None)` for a free lock.
#[expect(clippy::option_option, reason = "an answer that can't be read is not a free lock")]
pub(super) fn looked(value: Value) -> Option<Option<Answered>> {
    let Value::Array(parts) = value else { return None };
    let answered = match parts.first() {
        None => return Some(None),
        Some(Value::Int(0)) => Answered::Busy {
            place: usize::try_from(number(parts.get(3))?).ok()?,
            left: left(parts.get(1))?,
            value: bytes(parts.get(2))?,
            adopted: false,
        },
        Some(Value::Int(-1)) => foreign(&parts)?,
        Some(_) => return None,
    };
    Some(Some(answered))
}
