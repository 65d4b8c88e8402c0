//! Finds where each answer of the server ends, and writes requests.
//!
//! The client library reads the answers, but does not tell where one ends. The format is
//! [RESP](https://redis.io/docs/latest/develop/reference/protocol-spec/), 2 and 3.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use crate::classify;

/// How much is read at once at least.
const ROOM: usize = 4096;

/// By how many bytes the buffer grows at most ahead of the data.
const GROWS_BY: usize = 1 << 20;

/// The size up to which a buffer is kept after use.
const ROOM_KEPT: usize = 64 * 1024;

/// The longest line in bytes; servers' errors are shorter.
const LINE_MAX: usize = 64 * 1024;

/// The deepest nesting of answers, as in the client library.
const DEPTH_MAX: usize = 100;

/// The data received from a server.
#[derive(Debug)]
pub(crate) struct Inbox {
    room: BytesMut,
    /// How many bytes of the present answer were looked at.
    at: usize,
    /// How many parts each unfinished array lacks, from the outermost.
    missing: Vec<usize>,
    /// How many bytes are needed before another look makes sense.
    needed: usize,
    /// The longest answer, in bytes.
    most: usize,
}

impl Inbox {
    /// For answers of at most `most` bytes. A longer one is an error, before memory is reserved for
    /// it.
    pub(crate) fn new(most: usize) -> Self {
        Self { room: BytesMut::new(), at: 0, missing: Vec::new(), needed: 0, most }
    }

    /// Whether an answer has begun to arrive, as opposed to a push.
    pub(crate) fn has_answer(&self) -> bool {
        self.room.first().is_some_and(|kind| !matches!(kind, b'>' | b'|'))
    }

    /// Reads some of the arrived data. It is an error if the server has closed the connection.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        mut stream: Pin<&mut (impl AsyncRead + ?Sized)>,
    ) -> Poll<io::Result<()>> {
        if self.room.is_empty() && self.room.capacity() > ROOM_KEPT {
            self.room = BytesMut::new();
        }
        self.room.reserve(self.needed.saturating_sub(self.room.len()).clamp(ROOM, GROWS_BY));
        let read = ready!(pin!(stream.read_buf(&mut self.room)).poll(cx))?;
        Poll::Ready(match read {
            0 if self.room.is_empty() => Err(io::ErrorKind::BrokenPipe.into()),
            0 => Err(classify::cut_off()),
            _ => Ok(()),
        })
    }

    /// Takes out the next answer or push, if it is complete.
    pub(crate) fn take(&mut self) -> RedisResult<Option<Value>> {
        while self.room.len() >= self.needed.max(1) {
            match part(self.room.get(self.at..).unwrap_or_default())? {
                Part::Needs(bytes) => self.needed = self.at.saturating_add(bytes),
                Part::Ends { at, parts } => {
                    self.at = self.at.saturating_add(at);
                    self.missing.push(parts);
                }
            }
            if self.needed > self.most {
                return Err(
                    (redis::ErrorKind::Parse, "the answer of the server is too long").into()
                );
            }
            if self.missing.len() > DEPTH_MAX {
                return Err(garbage());
            }
            while self.missing.last() == Some(&0) {
                self.missing.pop();
                match self.missing.last_mut() {
                    Some(outer) => *outer = outer.saturating_sub(1),
                    None => return self.parse().map(Some),
                }
            }
        }
        Ok(None)
    }

    /// Has the client library read the answer that ends here.
    fn parse(&mut self) -> RedisResult<Value> {
        let value = redis::parse_redis_value(self.room.get(..self.at).unwrap_or_default());
        self.room.advance(self.at);
        (self.at, self.needed) = (0, 0);
        value
    }
}

/// What bytes begin with.
enum Part {
    /// A text, a number, or the head of an array of `parts`, with its end.
    Ends { at: usize, parts: usize },
    /// At least this many bytes are needed.
    Needs(usize),
}

fn part(bytes: &[u8]) -> RedisResult<Part> {
    let Some(end) = bytes.windows(2).position(|two| two == END) else {
        let is_long = bytes.len() > LINE_MAX;
        return if is_long {
            Err(garbage())
        } else {
            Ok(Part::Needs(bytes.len().saturating_add(1)))
        };
    };
    let line = bytes.get(..end).unwrap_or_default();
    let at = end.saturating_add(END.len());
    Ok(match line.first() {
        Some(b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_') => Part::Ends { at, parts: 0 },
        Some(b'$' | b'=' | b'!') => match length(line)? {
            None => Part::Ends { at, parts: 0 },
            Some(text) => {
                let at = at.saturating_add(text).saturating_add(END.len());
                match bytes.get(..at) {
                    None => Part::Needs(at),
                    Some(whole) if whole.ends_with(END) => Part::Ends { at, parts: 0 },
                    Some(_) => return Err(garbage()),
                }
            }
        },
        Some(b'*' | b'~' | b'>') => Part::Ends { at, parts: length(line)?.unwrap_or(0) },
        Some(b'%') => Part::Ends { at, parts: length(line)?.unwrap_or(0).saturating_mul(2) },
        // The attribute's pairs, and the value after them.
        Some(b'|') => {
            let pairs = length(line)?.unwrap_or(0);
            Part::Ends { at, parts: pairs.saturating_mul(2).saturating_add(1) }
        }
        _ => return Err(garbage()),
    })
}

/// The length that a line states; `None` for a null.
fn length(line: &[u8]) -> RedisResult<Option<usize>> {
    let number = line.get(1..).and_then(|digits| str::from_utf8(digits).ok());
    match number {
        Some("-1") => Ok(None),
        number => number.and_then(|number| number.parse().ok()).map(Some).ok_or_else(garbage),
    }
}

fn garbage() -> RedisError {
    (redis::ErrorKind::Parse, "the answer is not Redis protocol").into()
}

/// The end of every line.
pub(crate) const END: &[u8] = b"\r\n";

/// Appends the number of texts that follow.
pub(crate) fn put_count(count: usize, out: &mut Vec<u8>) {
    put_length(b'*', count, out);
}

/// Appends a text.
pub(crate) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    put_length(b'$', text.len(), out);
    out.extend_from_slice(text);
    out.extend_from_slice(END);
}

/// Appends one text of a first part and others, and returns where it begins.
pub(crate) fn put_parts<'t>(
    first: &[u8],
    others: impl Iterator<Item = &'t [u8]> + Clone,
    out: &mut Vec<u8>,
) -> usize {
    let others_length: usize = others.clone().map(<[u8]>::len).sum();
    put_length(b'$', first.len().saturating_add(others_length), out);
    let begin = out.len();
    out.extend_from_slice(first);
    others.for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(END);
    begin
}

fn put_length(kind: u8, length: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(END);
}

/// The texts of a request.
pub(crate) fn texts(request: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    match redis::parse_redis_value(request) {
        Ok(Value::Array(texts)) => texts,
        _ => Vec::new(),
    }
    .into_iter()
    .filter_map(|text| match text {
        Value::BulkString(text) => Some(text),
        _ => None,
    })
}

/// A request that can be sent.
pub(crate) trait Write: Sync {
    /// Appends the request.
    fn write(&self, out: &mut Vec<u8>);
}

impl Write for Cmd {
    fn write(&self, out: &mut Vec<u8>) {
        self.write_packed_command(out);
    }
}

/// The data to send.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// How much of it was sent.
    sent: usize,
    /// Whether the stream accepts no more for now. It then has the waker of the last task.
    is_blocked: bool,
}

impl Outbox {
    pub(crate) fn push(&mut self, command: &impl Write) {
        command.write(&mut self.bytes);
    }

    /// The size of the buffer.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// How many bytes are left to send.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len().saturating_sub(self.sent)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Sends as much as the stream accepts. If some is left, the stream will wake the task.
    pub(crate) fn send(
        &mut self,
        cx: &mut Context<'_>,
        mut stream: Pin<&mut (impl AsyncWrite + ?Sized)>,
    ) -> io::Result<()> {
        if self.bytes.is_empty() && !self.is_blocked {
            return Ok(());
        }
        self.is_blocked = true;
        while let Some(rest @ [_, ..]) = self.bytes.get(self.sent..) {
            match stream.as_mut().poll_write(cx, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => self.sent = self.sent.saturating_add(written),
                Poll::Pending => {
                    if self.sent >= self.bytes.len() / 2 {
                        self.bytes.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(ROOM_KEPT);
        self.sent = 0;
        self.is_blocked = stream.poll_flush(cx)?.is_pending();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The values that a reader takes from bytes in pieces, with the rest.
    fn read(pieces: &[&[u8]]) -> Result<Vec<Value>, RedisError> {
        let mut inbox = Inbox::new(10_000_000);
        let mut values = Vec::new();
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let mut piece = *piece;
            let mut cx = Context::from_waker(std::task::Waker::noop());
            while !piece.is_empty() {
                assert!(inbox.poll_fill(&mut cx, Pin::new(&mut piece)).is_ready());
                while let Some(value) = inbox.take()? {
                    values.push(value);
                }
            }
        }
        Ok(values)
    }

    /// An answer as a server writes it.
    fn answer() -> impl Strategy<Value = Vec<u8>> {
        let text = || proptest::collection::vec(any::<u8>(), 0..40);
        let word = || "[ -~]{0,30}";
        let leaf = prop_oneof![
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            text().prop_map(|text| {
                let mut bytes = format!("${}\r\n", text.len()).into_bytes();
                bytes.extend(text);
                bytes.extend(b"\r\n");
                bytes
            }),
            word().prop_map(|word| format!("+{word}\r\n").into_bytes()),
            word().prop_map(|word| format!("-ERR {word}\r\n").into_bytes()),
            word().prop_map(|word| format!("={}\r\ntxt:{word}\r\n", word.len() + 4).into_bytes()),
            word().prop_map(|word| format!("!{}\r\nERR {word}\r\n", word.len() + 4).into_bytes()),
            Just(b"+OK\r\n".to_vec()),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            Just(b"_\r\n".to_vec()),
            Just(b"#t\r\n".to_vec()),
            Just(b",1.5\r\n".to_vec()),
            Just(b"(12345678901234567890123\r\n".to_vec()),
            Just(b"*0\r\n".to_vec()),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            let several = proptest::collection::vec(inner, 0..6);
            (prop_oneof![Just(b'*'), Just(b'~'), Just(b'%'), Just(b'>'), Just(b'|')], several)
                .prop_map(|(kind, parts)| {
                    let (of_each, behind) = match kind {
                        b'%' => (2, ""),
                        b'|' => (2, ":7\r\n"),
                        _ => (1, ""),
                    };
                    let count = parts.len() / of_each;
                    let begin = if kind == b'>' { "+message\r\n" } else { "" };
                    let length = count + usize::from(kind == b'>');
                    let mut bytes = format!("{}{length}\r\n{begin}", char::from(kind)).into_bytes();
                    bytes.extend(parts.into_iter().take(count * of_each).flatten());
                    bytes.extend(behind.as_bytes());
                    bytes
                })
        })
    }

    proptest! {
        #[test]
        fn answers_read_as_the_client_library_reads_them_however_they_come(
            answers in proptest::collection::vec(answer(), 1..4),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
        ) {
            let expected: Vec<Value> =
                answers.iter().map(|answer| redis::parse_redis_value(answer).unwrap()).collect();
            let all = answers.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len())).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|two| &all[two[0]..two[1]]).collect();
            prop_assert_eq!(&read(&pieces).unwrap(), &expected);
            let bytes: Vec<&[u8]> = all.chunks(1).collect();
            prop_assert_eq!(read(&bytes).unwrap(), expected);
        }

        #[test]
        fn whatever_comes_it_ends(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            drop(read(&[&bytes]));
        }
    }

    #[test]
    fn a_long_text_takes_no_more_room_than_has_come_and_gives_it_back() {
        let mut inbox = Inbox::new(10_000_000_000);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut said: &[u8] = b"$9000000000\r\nabc";
        assert!(inbox.poll_fill(&mut cx, Pin::new(&mut said)).is_ready());
        assert_eq!(inbox.take().unwrap(), None);
        let mut more: &[u8] = b"def";
        assert!(inbox.poll_fill(&mut cx, Pin::new(&mut more)).is_ready());
        assert!(inbox.room.capacity() <= 2 * GROWS_BY, "{}", inbox.room.capacity());

        let text = vec![b'x'; 3_000_000];
        let mut whole = format!("${}\r\n", text.len()).into_bytes();
        whole.extend(&text);
        whole.extend(b"\r\n:1\r\n");
        assert_eq!(read(&[&whole]).unwrap(), [Value::BulkString(text), Value::Int(1)]);
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error_before_there_is_room_for_it() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut ends = |said: Vec<u8>| {
            let mut inbox = Inbox::new(100_000);
            for mut piece in said.chunks(3000) {
                while !piece.is_empty() {
                    assert!(inbox.poll_fill(&mut cx, Pin::new(&mut piece)).is_ready());
                    loop {
                        match inbox.take() {
                            Ok(None) => break,
                            Ok(Some(_)) => {}
                            Err(_) => return inbox.room.capacity(),
                        }
                    }
                }
            }
            panic!("nothing was too long");
        };
        assert!(ends(b"$100001\r\n".to_vec()) <= 2 * ROOM);
        let array = [b"*99999999\r\n".to_vec(), b":1\r\n".repeat(30_000)].concat();
        assert!(ends(array) <= 300_000);
        assert!(ends([b"+".to_vec(), vec![b'x'; 200_000]].concat()) <= 4 * LINE_MAX);
        // Data that was already taken out does not count.
        let short = [b"*2\r\n:1\r\n+a\r\n".repeat(30_000), b"$100000\r\n".to_vec()].concat();
        let long = [short, vec![b'x'; 100_000], b"\r\n$100001\r\n".to_vec()].concat();
        assert!(ends(long) <= 300_000);
    }

    #[test]
    fn a_long_array_is_looked_at_once() {
        let mut inbox = Inbox::new(10_000_000_000);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut begin: &[u8] = b"*3\r\n*2\r\n:1\r\n:2\r\n$3\r\nabc\r\n:";
        assert!(inbox.poll_fill(&mut cx, Pin::new(&mut begin)).is_ready());
        assert_eq!(inbox.take().unwrap(), None);
        assert_eq!(
            inbox.room.len() - inbox.at,
            1,
            "only the number without its end is looked at again"
        );
        let mut end: &[u8] = b"3\r\n";
        assert!(inbox.poll_fill(&mut cx, Pin::new(&mut end)).is_ready());
        let two = Value::Array(vec![Value::Int(1), Value::Int(2)]);
        let whole = Value::Array(vec![two, Value::BulkString(b"abc".to_vec()), Value::Int(3)]);
        assert_eq!(inbox.take().unwrap(), Some(whole));
    }

    #[test]
    fn what_is_no_answer_is_garbage() {
        for bad in [
            "HTTP/1.1 400 Bad Request\r\n",
            ":x\r\n",
            ":\r\n",
            ":9223372036854775808\r\n",
            "$-2\r\n",
            "$3\r\nabcde\r\n",
            "*1\r\n?\r\n",
            "*2\r\n*1\r\n$x\r\n",
            ">1\r\n:1\r\n",
            "#x\r\n",
        ] {
            assert!(read(&[bad.as_bytes()]).is_err(), "{bad}");
        }
        for nested in ["*1\r\n", "|1\r\n+k\r\n:1\r\n", "%1\r\n+k\r\n"] {
            assert!(read(&[&nested.as_bytes().repeat(DEPTH_MAX + 1)]).is_err(), "{nested}");
        }
    }

    #[test]
    fn an_end_within_an_answer_is_distinguished_from_one_between_them() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut end = |said: &[u8]| {
            let mut inbox = Inbox::new(10_000_000_000);
            let (mut said, mut nothing): (&[u8], &[u8]) = (said, b"");
            assert!(inbox.poll_fill(&mut cx, Pin::new(&mut said)).is_ready());
            while inbox.take().unwrap().is_some() {}
            match inbox.poll_fill(&mut cx, Pin::new(&mut nothing)) {
                Poll::Ready(Err(error)) => error.kind(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end(b"*2\r\n:1\r\n"), io::ErrorKind::ConnectionAborted);
        assert_eq!(end(b"*2\r\n:1\r\n:"), io::ErrorKind::ConnectionAborted);
        assert_eq!(end(b":1\r\n"), io::ErrorKind::BrokenPipe);
    }
}
