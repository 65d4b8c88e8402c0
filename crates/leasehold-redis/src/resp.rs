//! Parses the server's protocol as it arrives, and writes requests.
//!
//! It reads texts, numbers and arrays of them in one pass: scripts answer with these, and messages
//! consist of them. For everything else it only finds the end, and the client library reads it. The
//! format is [RESP](https://redis.io/docs/latest/develop/reference/protocol-spec/), 2 and 3.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread::LocalKey;

use redis::{Cmd, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::classify;

/// The size of the buffer for reading; a longer answer gets a larger one while it arrives.
const ROOM: usize = 4096;

/// By how many bytes the buffer grows at most ahead of the data.
const GROWS_BY: usize = 1 << 20;

/// The size up to which the buffer for sending is kept after use.
const ROOM_KEPT: usize = 64 * 1024;

thread_local! {
    /// The buffers of the thread's last idle connection, for the next one. With many connections,
    /// each one's own buffers would have left the processor's cache by its turn.
    static WRITTEN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Takes the spare buffer, unless the thread is ending.
fn spare(room: &'static LocalKey<Cell<Vec<u8>>>) -> Vec<u8> {
    room.try_with(Cell::take).unwrap_or_default()
}

fn put_back(room: Vec<u8>, place: &'static LocalKey<Cell<Vec<u8>>>) {
    let _ended: Result<(), _> = place.try_with(|place| place.set(room));
}

/// The longest line in bytes; servers' errors are shorter.
const LINE_MAX: usize = 64 * 1024;

/// For how many parts of an array space is reserved at once.
const PARTS: usize = 256;

/// How much unfinished data is parsed again from its start each time that more arrives.
const AT_ONCE_MAX: usize = 1024 * 1024;

/// The deepest nesting of answers, as in the client library.
const DEPTH_MAX: usize = 100;

/// The data received from a server.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Empty while no data is in it.
    room: Vec<u8>,
    /// The part that was received but not yet taken out.
    from: usize,
    to: usize,
    /// How many bytes are needed before parsing again makes sense.
    needed: usize,
    /// The unfinished arrays, from the outermost, each with its missing parts and its finished
    /// ones, so that a long array is parsed once.
    begun: Vec<(usize, Vec<Value>)>,
    /// The longest answer, and how much of the present one was already taken out of the buffer.
    most: usize,
    taken: usize,
}

impl Inbox {
    /// For answers of at most `most` bytes. A longer one is an error, before memory is reserved for
    /// it.
    pub(crate) fn new(most: usize) -> Self {
        let (room, begun) = (Vec::new(), Vec::new());
        Self { room, from: 0, to: 0, needed: 0, begun, most, taken: 0 }
    }

    /// Whether an answer has begun to arrive, as opposed to a push.
    pub(crate) fn has_answer(&self) -> bool {
        let begin = self.room.get(self.from..self.to).and_then(<[u8]>::first);
        !self.begun.is_empty() || begin.is_some_and(|kind| !matches!(kind, b'>' | b'|'))
    }

    /// Reads some of the arrived data. It is an error if the server has closed the connection.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: Pin<&mut (impl AsyncRead + ?Sized)>,
    ) -> Poll<io::Result<()>> {
        self.make_room();
        let mut free = ReadBuf::new(self.room.get_mut(self.to..).unwrap_or_default());
        let read = stream.poll_read(cx, &mut free).map_ok(|()| free.filled().len());
        if read.is_pending() && self.from == self.to && self.room.len() == ROOM {
            put_back(std::mem::take(&mut self.room), &READ);
        }
        let read = ready!(read)?;
        self.to = self.to.saturating_add(read);
        Poll::Ready(match read {
            0 if self.from < self.to || !self.begun.is_empty() => Err(classify::cut_off()),
            0 => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        })
    }

    /// Makes space for the rest of the present answer, or for new data.
    fn make_room(&mut self) {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            self.room.truncate(ROOM);
            self.room.shrink_to(ROOM);
            if self.room.is_empty() {
                self.room = spare(&READ);
            }
        }
        let missing = self.needed.saturating_sub(self.to.saturating_sub(self.from)).max(ROOM / 8);
        if self.room.len().saturating_sub(self.to) >= missing {
            return;
        }
        if self.from > 0 {
            self.room.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to.saturating_sub(self.from));
        }
        let wanted = self.to.saturating_add(missing.min(GROWS_BY)).max(ROOM);
        if self.room.len() < wanted {
            self.room.resize(wanted.max(self.room.len().saturating_mul(2)), 0);
        }
    }

    /// Takes out the next answer or push, if it is complete.
    pub(crate) fn take(&mut self) -> Result<Option<Value>, RedisError> {
        loop {
            let depth = self.begun.len().saturating_add(1);
            let mut value = match self.read(|reader| reader.part(depth))? {
                None => return Ok(None),
                Some(Part::Whole(value)) => value,
                Some(Part::Array(length, room)) => {
                    self.begun.push((length, Vec::with_capacity(room)));
                    continue;
                }
            };
            // Completes all arrays of which it is the last part.
            loop {
                let Some((missing, parts)) = self.begun.last_mut() else {
                    self.taken = 0;
                    return Ok(Some(value));
                };
                parts.push(value);
                *missing = missing.saturating_sub(1);
                if *missing > 0 {
                    break;
                }
                value = Value::Array(std::mem::take(parts));
                self.begun.pop();
            }
        }
    }

    /// As [`take`](Self::take), on a subscribed connection: `read` converts a message, and anything
    /// else is returned as a value.
    pub(crate) fn hear<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<Heard<T>>, RedisError> {
        if self.begun.is_empty() {
            match self.read(|reader| reader.message())? {
                None => return Ok(None),
                Some(Some(message)) => {
                    let message = read(message);
                    self.taken = 0;
                    return Ok(Some(Heard::Message(message)));
                }
                Some(None) => {}
            }
        }
        Ok(self.take()?.map(Heard::Other))
    }

    fn read<'a, T>(
        &'a mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Stop>,
    ) -> Result<Option<T>, RedisError> {
        let bytes = self.room.get(self.from..self.to).unwrap_or_default();
        if bytes.is_empty() || bytes.len() < self.needed {
            return Ok(None);
        }
        let mut reader = Reader { bytes, at: 0 };
        match read(&mut reader) {
            Ok(read) => {
                self.from = self.from.saturating_add(reader.at);
                self.taken = self.taken.saturating_add(reader.at);
                self.needed = 0;
                Ok(Some(read))
            }
            Err(Stop::Needs(bytes)) if self.taken.saturating_add(bytes) > self.most => {
                Err((redis::ErrorKind::Parse, "the answer of the server is too long").into())
            }
            Err(Stop::Needs(bytes)) => {
                self.needed = bytes;
                Ok(None)
            }
            Err(Stop::Garbage) => Err(garbage()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
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

fn put_length(kind: u8, length: usize, out: &mut Vec<u8>) {
    // A fast path: most texts are short.
    let digit = |part: usize| b'0'.saturating_add(u8::try_from(part % 10).unwrap_or_default());
    let [ones, tens] = [length, length / 10].map(digit);
    let [carriage_return, line_feed] = *b"\r\n";
    match length {
        0..10 => out.extend_from_slice(&[kind, ones, carriage_return, line_feed]),
        10..100 => out.extend_from_slice(&[kind, tens, ones, carriage_return, line_feed]),
        100..1000 => {
            let hundreds = digit(length / 100);
            out.extend_from_slice(&[kind, hundreds, tens, ones, carriage_return, line_feed]);
        }
        _ => out.extend_from_slice(format!("{}{length}\r\n", char::from(kind)).as_bytes()),
    }
}

/// The texts of a request.
pub(crate) fn texts(request: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader { bytes: request, at: 0 };
    let count = reader.kind(1).and_then(|_| reader.length());
    let count = count.ok().flatten().unwrap_or(0);
    (0..count).map_while(move |_| reader.bulk().ok())
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
        if self.bytes.capacity() == 0 {
            self.bytes = spare(&WRITTEN);
        }
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
        let mut room = std::mem::take(&mut self.bytes);
        room.clear();
        room.shrink_to(ROOM_KEPT);
        put_back(room, &WRITTEN);
        self.sent = 0;
        self.is_blocked = stream.poll_flush(cx)?.is_pending();
        Ok(())
    }
}

/// What arrives on a subscribed connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard<T> {
    Message(T),
    Other(Value),
}

fn garbage() -> RedisError {
    (redis::ErrorKind::Parse, "the answer is not Redis protocol").into()
}

/// Why nothing was read.
enum Stop {
    /// At least this many bytes are needed.
    Needs(usize),
    Garbage,
    Failed(RedisError),
}

/// A part of an answer.
enum Part {
    Whole(Value),
    /// An array of this many parts, and for how many of them to reserve space.
    Array(usize, usize),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn part(&mut self, depth: usize) -> Result<Part, Stop> {
        let begin = self.at;
        Ok(Part::Whole(match self.kind(depth)? {
            b':' => Value::Int(number(self.line()?)?),
            b'$' => match self.length()? {
                Some(length) => Value::BulkString(self.text(length)?.to_vec()),
                None => Value::Nil,
            },
            b'*' => match self.length()? {
                Some(0) => Value::Array(Vec::new()),
                Some(length) => {
                    return Ok(Part::Array(length, length.min(PARTS)));
                }
                None => Value::Nil,
            },
            b'+' => match self.line()? {
                b"OK" => Value::Okay,
                line => match std::str::from_utf8(line) {
                    Ok(line) => Value::SimpleString(line.to_owned()),
                    Err(_) => return Err(Stop::Garbage),
                },
            },
            _ => {
                self.at = begin;
                self.skip(depth).map_err(|stop| match stop {
                    Stop::Needs(bytes) if bytes > AT_ONCE_MAX => Stop::Garbage,
                    stop => stop,
                })?;
                let whole = self.bytes.get(begin..self.at).unwrap_or_default();
                redis::parse_redis_value(whole).map_err(Stop::Failed)?
            }
        }))
    }

    /// A message to a channel, in version 2 of the protocol; `None` for anything else.
    fn message(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        const BEGIN: &[u8] = b"*3\r\n$7\r\nmessage\r\n";
        if !self.bytes.starts_with(BEGIN) {
            let may_be = BEGIN.starts_with(self.bytes);
            return if may_be {
                Err(self.needs(self.bytes.len().saturating_add(1)))
            } else {
                Ok(None)
            };
        }
        self.at = BEGIN.len();
        self.bulk()?;
        self.bulk().map(Some)
    }

    fn bulk(&mut self) -> Result<&'a [u8], Stop> {
        match (self.kind(1)?, self.length()?) {
            (b'$', Some(length)) => self.text(length),
            _ => Err(Stop::Garbage),
        }
    }

    /// Skips a value of any type.
    fn skip(&mut self, depth: usize) -> Result<(), Stop> {
        let parts = match self.kind(depth)? {
            b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_' => {
                self.line()?;
                return Ok(());
            }
            b'$' | b'=' | b'!' => {
                if let Some(length) = self.length()? {
                    self.text(length)?;
                }
                return Ok(());
            }
            b'*' | b'~' | b'>' => self.length()?.unwrap_or(0),
            b'%' => self.length()?.unwrap_or(0).saturating_mul(2),
            // The attribute's pairs, and the value after them.
            b'|' => self.length()?.unwrap_or(0).saturating_mul(2).saturating_add(1),
            _ => return Err(Stop::Garbage),
        };
        for _ in 0..parts {
            self.skip(depth.saturating_add(1))?;
        }
        Ok(())
    }

    fn kind(&mut self, depth: usize) -> Result<u8, Stop> {
        if depth > DEPTH_MAX {
            return Err(Stop::Garbage);
        }
        let Some(kind) = self.bytes.get(self.at) else { return Err(self.needs(1)) };
        self.at = self.at.saturating_add(1);
        Ok(*kind)
    }

    /// The bytes before the end of the line.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(length) = rest.windows(2).position(|two| two == END) else {
            let is_long = rest.len() > LINE_MAX;
            return Err(if is_long { Stop::Garbage } else { self.needs(rest.len() + 1) });
        };
        self.at = self.at.saturating_add(length).saturating_add(2);
        Ok(rest.get(..length).unwrap_or_default())
    }

    /// A length; `None` for a null.
    fn length(&mut self) -> Result<Option<usize>, Stop> {
        match number(self.line()?)? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| Stop::Garbage),
        }
    }

    /// A text of this length, and the end of its line.
    fn text(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let whole = length.saturating_add(2);
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(text) = rest.get(..whole) else { return Err(self.needs(whole)) };
        let Some(text) = text.strip_suffix(b"\r\n") else { return Err(Stop::Garbage) };
        self.at = self.at.saturating_add(whole);
        Ok(text)
    }

    fn needs(&self, more: usize) -> Stop {
        Stop::Needs(self.at.saturating_add(more))
    }
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    let (negative, digits) = match line {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(Stop::Garbage);
    }
    let mut number = 0_i64;
    for digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return Err(Stop::Garbage);
        }
        let value = i64::from(value);
        let value = if negative { value.wrapping_neg() } else { value };
        let tens = number.checked_mul(10).and_then(|tens| tens.checked_add(value));
        number = tens.ok_or(Stop::Garbage)?;
    }
    Ok(number)
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
        inbox.make_room();
        assert!(inbox.room.len() <= 2 * GROWS_BY, "{}", inbox.room.len());

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
                            Err(_) => return inbox.room.len(),
                        }
                    }
                }
            }
            panic!("nothing was too long");
        };
        assert_eq!(ends(b"$100001\r\n".to_vec()), ROOM);
        assert_eq!(ends([b"*99999999\r\n".to_vec(), b":1\r\n".repeat(30_000)].concat()), ROOM);
        assert!(ends([b"+".to_vec(), vec![b'x'; 200_000]].concat()) <= 4 * LINE_MAX);
        // Data that was already taken out does not count.
        let short = [b"*2\r\n:1\r\n+a\r\n".repeat(30_000), b"$100000\r\n".to_vec()].concat();
        assert_eq!(ends([short, vec![b'x'; 100_000], b"\r\n$100001\r\n".to_vec()].concat()), ROOM);
    }

    #[test]
    fn what_has_come_of_a_long_array_is_read_once() {
        let mut inbox = Inbox::new(10_000_000_000);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut begin: &[u8] = b"*3\r\n*2\r\n:1\r\n:2\r\n$3\r\nabc\r\n:";
        assert!(inbox.poll_fill(&mut cx, Pin::new(&mut begin)).is_ready());
        assert_eq!(inbox.take().unwrap(), None);
        assert_eq!(inbox.to - inbox.from, 1, "only the number without its end is kept");
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
    fn messages_are_told_from_all_else_however_they_come() {
        let said = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n\
                    *3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nfirst\r\n\
                    *2\r\n$4\r\npong\r\n$0\r\n\r\n+PONG\r\n\
                    *3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n-ERR no\r\n";
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for piece in [1, 2, 5, 17, said.len()] {
            let mut inbox = Inbox::new(10_000_000_000);
            let (mut messages, mut others) = (Vec::new(), 0);
            for mut piece in said.as_bytes().chunks(piece) {
                assert!(inbox.poll_fill(&mut cx, Pin::new(&mut piece)).is_ready());
                while let Some(heard) = inbox.hear(<[u8]>::to_vec).unwrap() {
                    match heard {
                        Heard::Message(message) => messages.push(message),
                        Heard::Other(_) => others += 1,
                    }
                }
            }
            assert_eq!(messages, [b"first".to_vec(), Vec::new()]);
            assert_eq!(others, 4);
        }
        let mut bad: &[u8] = b"*3\r\n$7\r\nmessage\r\n:1\r\n$0\r\n\r\n";
        let mut inbox = Inbox::new(10_000_000_000);
        assert!(inbox.poll_fill(&mut cx, Pin::new(&mut bad)).is_ready());
        assert!(inbox.hear(|_| ()).is_err());
    }

    #[test]
    fn an_end_within_an_answer_is_told_from_one_between_them() {
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
