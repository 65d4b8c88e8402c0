//! A connection that only receives notifications.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream as _;
use redis::aio::PubSubStream;
use redis::{Cmd, Msg, RedisResult, Value, cmd};

use crate::classify::{Stage, Verdict, judge};
use crate::dial::Socket;
use crate::request::judged;
use crate::resp::{Heard, Inbox, Outbox};

/// The longest message in bytes: notifications have a few hundred.
const SAID_MAX: usize = 1024 * 1024;

/// A subscribed connection, read by the task that waits for its messages.
pub(crate) struct Ear {
    socket: Socket,
    inbox: Inbox,
    outbox: Outbox,
}

impl Ear {
    /// Over an idle socket with version 2 of the protocol.
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, inbox: Inbox::new(SAID_MAX), outbox: Outbox::default() }
    }

    /// Subscribes to a channel, and returns once the server has confirmed it.
    pub(crate) async fn subscribe(&mut self, channel: &str) -> Result<(), Verdict> {
        let mut subscribe = cmd("SUBSCRIBE");
        subscribe.arg(channel);
        self.say(&subscribe);
        loop {
            let said = self.hear(|_| ()).await;
            match said.map_err(|error| judge(&error, Stage::Connecting))? {
                Heard::Message(()) => {}
                Heard::Other(said) => match judged(Ok(said))? {
                    Value::Array(parts) if is_word(parts.first(), b"subscribe") => return Ok(()),
                    _ => {}
                },
            }
        }
    }

    /// Requests a sign of life from the server. It is sent at the next [`hear`](Self::hear).
    pub(crate) fn ask_for_life(&mut self) {
        self.say(&cmd("PING"));
    }

    fn say(&mut self, command: &Cmd) {
        self.outbox.push(command);
    }

    /// The next message or reply; `read` converts a message. Cancel safe.
    pub(crate) async fn hear<T>(
        &mut self,
        mut read: impl FnMut(&[u8]) -> T,
    ) -> RedisResult<Heard<T>> {
        poll_fn(|cx| self.poll_hear(cx, &mut read)).await
    }

    fn poll_hear<T>(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut impl FnMut(&[u8]) -> T,
    ) -> Poll<RedisResult<Heard<T>>> {
        self.outbox.send(cx, Pin::new(&mut self.socket))?;
        loop {
            if let Some(heard) = self.inbox.hear(&mut *read)? {
                return Poll::Ready(Ok(heard));
            }
            ready!(self.inbox.poll_fill(cx, Pin::new(&mut self.socket)))?;
        }
    }
}

fn is_word(value: Option<&Value>, word: &[u8]) -> bool {
    matches!(value, Some(Value::BulkString(text)) if text == word)
}

/// The next message of a subscription; `None` when its connection has ended. Cancel safe.
pub(crate) async fn next_message(stream: &mut PubSubStream) -> Option<Msg> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}
