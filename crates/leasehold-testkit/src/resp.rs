//! Parses as much of the Redis protocol as a test tool needs: replies and frames.
//!
//! The reader serves [`crate::server`], which uses RESP2 with its own server. The scanner serves
//! [`crate::proxy`], which must find frame boundaries in a foreign conversation, RESP2 or RESP3,
//! cut anywhere. The stores under test bring their own clients.

use std::io::{self, BufRead, Read as _};

/// A reply of a server (RESP2).
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// Several replies in one.
    Array(Vec<Self>),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// An error, code first: `WRONGTYPE Operation against …`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A null.
    Nil,
    /// A short status: `OK`, `PONG`.
    Status(String),
}

impl std::fmt::Display for Reply {
    /// One line per element, nested arrays flattened, as `redis-cli` prints into a pipe.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
                let separator = if index == 0 { "" } else { "\n" };
                write!(f, "{separator}{item}")
            }),
            Self::Bulk(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Error(text) | Self::Status(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Nil => Ok(()),
        }
    }
}

/// The bytes of one command.
pub(crate) fn encode(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
    bytes
}

/// Reads one reply.
pub(crate) fn read_reply(stream: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end_matches(['\r', '\n']);
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(malformed)?;
    let number = || rest.parse::<i64>().map_err(|_| malformed());
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Integer(number()?),
        "$" => match u64::try_from(number()?) {
            Ok(length) => {
                let mut bytes = Vec::new();
                stream.take(length).read_to_end(&mut bytes)?;
                let mut end = [0; 2];
                stream.read_exact(&mut end)?;
                Reply::Bulk(bytes)
            }
            Err(_) => Reply::Nil,
        },
        "*" => match usize::try_from(number()?) {
            Ok(length) => {
                Reply::Array((0..length).map(|_| read_reply(stream)).collect::<io::Result<_>>()?)
            }
            Err(_) => Reply::Nil,
        },
        _ => return Err(malformed()),
    })
}

/// Whether a frame answers a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Sent by the server on its own: RESP3 push.
    Push,
    /// Anything else, requests included.
    Reply,
}

/// Finds the boundaries of RESP frames in a stream of bytes cut anywhere.
///
/// An attribute counts as part of the reply that follows it. Bytes outside RESP (an inline command,
/// TLS) count as lines of text. So the scanner never gets stuck, but its counts are then
/// meaningless.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// Elements still missing in each open aggregate, outermost first.
    open: Vec<usize>,
    /// Bytes of a bulk payload still to come, its line end included.
    payload: usize,
    /// The header line so far: the type byte and the length.
    header: Vec<u8>,
    in_frame: bool,
}

/// Longer than any header that matters: a type byte and 20 digits. Beyond it, a line is text.
const HEADER_LENGTH_MAX: usize = 24;

impl Scanner {
    /// Whether the next byte begins a frame.
    pub(crate) fn at_start(&self) -> bool {
        !self.in_frame
    }

    /// The kind of a frame that begins with `first`.
    pub(crate) fn kind(first: u8) -> Kind {
        if first == b'>' { Kind::Push } else { Kind::Reply }
    }

    /// Takes bytes up to the end of the current frame. Returns how many, and whether the frame is
    /// complete; if it is not, all of them were taken.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut taken = 0;
        while taken < bytes.len() {
            self.in_frame = true;
            if self.payload > 0 {
                let step = self.payload.min(bytes.len() - taken);
                self.payload -= step;
                taken += step;
                if self.payload > 0 || !self.element_ended() {
                    continue;
                }
                return (taken, true);
            }
            let byte = bytes[taken];
            taken += 1;
            if byte != b'\n' {
                if self.header.len() < HEADER_LENGTH_MAX {
                    self.header.push(byte);
                }
                continue;
            }
            if self.header_ended() {
                return (taken, true);
            }
        }
        (taken, false)
    }

    /// Takes all of `bytes` and returns how many frames they complete.
    pub(crate) fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut frames = 0;
        while !bytes.is_empty() {
            let (taken, complete) = self.advance(bytes);
            frames += u64::from(complete);
            bytes = &bytes[taken..];
        }
        frames
    }

    /// Interprets the header line; true if it ended the frame.
    fn header_ended(&mut self) -> bool {
        let header = std::mem::take(&mut self.header);
        let (kind, rest) =
            header.split_first().map_or((b'\r', &[][..]), |(kind, rest)| (*kind, rest));
        let length = || std::str::from_utf8(rest).ok().and_then(|text| text.trim().parse().ok());
        let children: usize = match kind {
            b'$' | b'=' | b'!' => {
                // A null has length -1 and no payload.
                if let Some(length) = length() {
                    self.payload = usize::saturating_add(length, "\r\n".len());
                    return false;
                }
                0
            }
            b'*' | b'~' | b'>' => length().unwrap_or(0),
            b'%' => usize::saturating_mul(length().unwrap_or(0), 2),
            // The value that the attribute describes follows its pairs.
            b'|' => usize::saturating_mul(length().unwrap_or(0), 2).saturating_add(1),
            _ => 0,
        };
        if children == 0 {
            return self.element_ended();
        }
        self.open.push(children);
        false
    }

    /// Closes every aggregate that this element completes; true if it ended the frame.
    fn element_ended(&mut self) -> bool {
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.open.pop();
        }
        self.in_frame = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of every shape, each exactly one.
    const FRAMES: &[&str] = &[
        "+OK\r\n",
        "-ERR no\r\n",
        ":42\r\n",
        "$3\r\nfoo\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n$1\r\na\r\n:1\r\n",
        "*2\r\n*2\r\n:1\r\n*0\r\n$4\r\n\r\n\r\n\r\n",
        "_\r\n",
        "#t\r\n",
        ",3.25\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "!5\r\nERR x\r\n",
        "=7\r\ntxt:abc\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
        "%0\r\n",
        "~2\r\n:1\r\n:2\r\n",
        "|1\r\n+ttl\r\n:3600\r\n*1\r\n:1\r\n",
        "|0\r\n:1\r\n",
        ">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        "PING\r\n",
    ];

    #[test]
    fn every_frame_is_one_frame_however_it_is_cut() {
        for frame in FRAMES {
            let bytes = frame.as_bytes();
            let mut whole = Scanner::default();
            assert_eq!(whole.advance(bytes), (bytes.len(), true), "{frame:?}");
            for cut in 1..bytes.len() {
                let mut scanner = Scanner::default();
                assert_eq!(scanner.advance(&bytes[..cut]), (cut, false), "{frame:?} at {cut}");
                assert!(!scanner.at_start());
                assert_eq!(scanner.advance(&bytes[cut..]), (bytes.len() - cut, true));
                assert!(scanner.at_start());
            }
        }
    }

    #[test]
    fn a_stream_has_as_many_frames_as_went_in() {
        let stream = FRAMES.concat().into_bytes();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let mut scanner = Scanner::default();
            let mut rest = &stream[..];
            let mut frames = 0;
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(random.usize(1..=rest.len().min(20)));
                frames += scanner.count(chunk);
                rest = after;
            }
            assert_eq!(frames, FRAMES.len() as u64);
        }
    }

    #[test]
    fn advance_stops_at_the_boundary() {
        let mut scanner = Scanner::default();
        assert_eq!(scanner.advance(b"+OK\r\n:1\r\n"), (5, true));
    }

    #[test]
    fn only_a_push_is_not_a_reply() {
        for frame in FRAMES {
            let expected = if frame.starts_with('>') { Kind::Push } else { Kind::Reply };
            assert_eq!(Scanner::kind(frame.as_bytes()[0]), expected);
        }
    }

    #[test]
    fn noise_does_not_stop_the_scanner() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..2_000 {
            let noise: Vec<u8> = (0..200).map(|_| random.u8(..)).collect();
            let mut scanner = Scanner::default();
            scanner.count(&noise);
            scanner.count(b"$99999999999999999999999999\r\n%18446744073709551615\r\n");
        }
    }

    #[test]
    fn replies_are_read_back() {
        let mut bytes = &b"*4\r\n+OK\r\n$2\r\nab\r\n$-1\r\n*1\r\n:-7\r\n-ERR no\r\n"[..];
        let array = read_reply(&mut bytes).unwrap();
        assert_eq!(
            array,
            Reply::Array(vec![
                Reply::Status("OK".to_owned()),
                Reply::Bulk(b"ab".to_vec()),
                Reply::Nil,
                Reply::Array(vec![Reply::Integer(-7)]),
            ])
        );
        assert_eq!(array.to_string(), "OK\nab\n\n-7");
        assert_eq!(read_reply(&mut bytes).unwrap(), Reply::Error("ERR no".to_owned()));
        assert_eq!(read_reply(&mut bytes).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
