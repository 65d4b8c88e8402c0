//! Decides what an error means: what failed, whether the request took effect, what to do.
//!
//! This is the one place that judges errors; it has no side effects. It repeats a server's words
//! only if they help, and never words that may contain what was sent.

mod codes;
mod verdict;

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use leasehold_core::{Effect, Error, ErrorKind, Reason, escape};
use redis::RedisError;

use self::codes::{known, message_of, missing_right};
pub(crate) use self::verdict::{Lack, Next, Redirect, Stage, Verdict};

/// The message about an unreadable lock.
const DAMAGED: &str =
    "the stored lock is damaged; end all work under the lock, then delete its key";

fn unreadable() -> Verdict {
    Verdict::refused(ErrorKind::Corrupt, Next::Fail, DAMAGED)
}

/// A lock that can't be read. It was left unchanged.
pub(crate) fn damaged() -> Error {
    unreadable().to_error()
}

/// A value that leasehold did not write is stored at the lock's key.
pub(crate) fn foreign() -> Error {
    server("LEASEHOLDFOREIGN", "").to_error()
}

/// A record of another format version is stored at the lock's key.
pub(crate) fn other_version(version: &str) -> Error {
    server("LEASEHOLDVERSION", version).to_error()
}

/// Judges an error of the client library.
pub(crate) fn judge(error: &RedisError, stage: Stage) -> Verdict {
    use redis::ErrorKind as Kind;
    match error.kind() {
        Kind::Server(_) | Kind::Extension => {
            server(error.code().unwrap_or("ERR"), error.detail().unwrap_or(""))
        }
        Kind::AuthenticationFailed => {
            Verdict::refused(ErrorKind::Denied, Next::Fail, codes::WRONG_PASSWORD)
                .because(Reason::WrongPassword)
        }
        Kind::RESP3NotSupported => Verdict::refused(
            ErrorKind::Unsupported,
            Next::Fail,
            "the server does not speak RESP3; leave protocol=resp3 out of the URL",
        ),
        Kind::Io => {
            // The client library wraps its cause in a box.
            let shown = StdError::source(error)
                .and_then(|cause| cause.downcast_ref::<Arc<dyn StdError + Send + Sync>>())
                .and_then(|cause| cause.downcast_ref::<io::Error>());
            let mut verdict = match shown {
                Some(cause) => io_error(cause, stage),
                None if error.is_connection_refusal() => {
                    io_error(&io::ErrorKind::ConnectionRefused.into(), stage)
                }
                None if error.is_connection_dropped() => {
                    io_error(&io::ErrorKind::ConnectionReset.into(), stage)
                }
                None => io_error(&io::Error::other(error.to_string()), stage),
            };
            verdict.cause = Some(Box::new(error.clone()));
            verdict
        }
        Kind::InvalidClientConfig => Verdict::misconfigured(format!("{error}")),
        // The client library reports this if the connection ends within an answer.
        Kind::Parse if error.to_string().contains("Unexpected end of input") => {
            io_error(&cut_off(), stage)
        }
        Kind::Parse | Kind::UnexpectedReturnType => Verdict::new(
            ErrorKind::Protocol,
            unless_connecting(stage),
            Next::Drop,
            "the answer is not Redis protocol; check that the address is a Redis or Valkey server",
        ),
        _ => Verdict::new(
            ErrorKind::Protocol,
            unless_connecting(stage),
            Next::Drop,
            format!("the Redis client failed: {}", error.category()),
        ),
    }
}

fn unless_connecting(stage: Stage) -> Effect {
    match stage {
        Stage::Connecting => Effect::NotApplied,
        Stage::Asked => Effect::Unknown,
    }
}

/// A connection that ended within an answer.
pub(crate) fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection ended within an answer")
}

/// Judges a failure of the connection itself.
pub(crate) fn io_error(error: &io::Error, stage: Stage) -> Verdict {
    match stage {
        Stage::Connecting => {
            let message = match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    "connection refused; check that the server is running and the port is right"
                        .to_owned()
                }
                io::ErrorKind::NotFound => {
                    "no such socket; check that the server is running and the path is right".into()
                }
                io::ErrorKind::PermissionDenied => {
                    return Verdict::refused(
                        ErrorKind::Denied,
                        Next::Fail,
                        "no permission for the socket; give this user read and write permission on \
                         it",
                    )
                    .because(Reason::FilePermission);
                }
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => {
                    "the server closed the connection at once: it may expect TLS, have too many \
                     clients, or be a proxy that can't carry locks (twemproxy); name the server \
                     itself"
                        .into()
                }
                _ if crate::connect::alert::refuses_certificate(error) => {
                    return Verdict::misconfigured(format!(
                        "the server refused the client certificate: {}; check certfile and keyfile \
                         in the store's URL",
                        escape::terminal(&error.to_string())
                    ))
                    .because(Reason::Certificate);
                }
                _ if crate::connect::alert::wants_certificate(error) => {
                    return Verdict::misconfigured(
                        "the server requires a client certificate; name its files with certfile \
                         and keyfile in the store's URL",
                    )
                    .because(Reason::Certificate);
                }
                _ => format!("connection failed: {}", escape::terminal(&error.to_string())),
            };
            let verdict = Verdict::unconnected(message);
            match Reason::of_system(error) {
                Some(reason) => verdict.because(reason),
                None => verdict,
            }
        }
        Stage::Asked => Verdict::new(
            ErrorKind::Unavailable,
            Effect::Unknown,
            Next::Drop,
            "the connection was lost before the answer came",
        )
        .because(Reason::Disconnected),
    }
}

/// Errors that a server raises inside a script only at its first write: nothing has changed by
/// then.
const BEFORE_THE_FIRST_WRITE: [&str; 4] = ["MISCONF", "NOREPLICAS", "OOM", "READONLY"];

/// Whether an error stopped a script, by what servers then add to the text. Errors that a script
/// returns lack that addition; scripts return errors only before they write.
fn stopped_a_script(detail: &str) -> bool {
    detail.contains("@user_script") || detail.contains(" script: ")
}

/// Whether it is an error of the scripting language. Leasehold's scripts raise one only if they
/// can't parse a record, before they write to that lock. If that happens in a call about several
/// independent locks, each is requested separately.
fn is_bewildered(detail: &str) -> bool {
    detail.contains("user_script:")
        && ["attempt to ", "bad argument "].iter().any(|it| detail.contains(it))
}

/// Judges an error that the server answered with.
pub(crate) fn server(code: &str, detail: &str) -> Verdict {
    let verdict = answered(code, detail);
    let code = inner_code(code, detail).map_or(code, |(code, _)| code);
    if stopped_a_script(detail) && !BEFORE_THE_FIRST_WRITE.contains(&code) {
        return verdict.half_way();
    }
    verdict
}

/// The code of an error inside a script, and the text after it. Until Redis 7, servers gave all
/// such errors the code `ERR`.
fn inner_code<'a>(code: &str, detail: &'a str) -> Option<(&'a str, &'a str)> {
    if code != "ERR" || !detail.contains("script") {
        return None;
    }
    let mut words = detail.split(|c: char| !c.is_ascii_alphanumeric());
    let code = words.find(|word| known(word).is_some())?;
    Some((code, detail.split_once(code).map_or("", |(_, rest)| rest.trim())))
}

fn answered(code: &str, detail: &str) -> Verdict {
    if let Some((code, rest)) = inner_code(code, detail) {
        return answered(code, rest);
    }
    // The answer to a command that waits for replicas and does not write.
    if code == "ERR" && detail.starts_with("WAIT") && detail.contains("cannot be used with") {
        return answered("READONLY", "");
    }
    let mut verdict = match known(code) {
        Some(&(_, kind, next, reason, message)) => {
            let mut verdict = Verdict::refused(kind, next, message_of(code, detail, message));
            verdict.reason = reason;
            verdict
        }
        None if code == "ERR" => general(detail),
        None => {
            let text = shortened(detail);
            unclear(format!("{} {}", escape::terminal(code), escape::terminal(&text)))
        }
    };
    match code {
        "MOVED" | "ASK" => {
            verdict.redirect = Redirect::parse(code == "ASK", detail).map(Box::new);
        }
        "READONLY" | "MASTERDOWN" => verdict.not_primary = true,
        "LATE" => verdict.late_at = late_at(detail),
        // The write before it was carried out.
        "UNBLOCKED" => verdict.effect = Effect::Applied,
        _ => {}
    }
    verdict.answered = true;
    verdict.lack = lack(code, detail);
    verdict
}

/// Reads `SECONDS MICROS`.
fn late_at(detail: &str) -> Option<u64> {
    let (seconds, micros) = detail.trim().split_once(' ')?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)
}

/// Judges an error with the general code `ERR`. Until Redis 7, errors inside a script had it as
/// well.
fn general(detail: &str) -> Verdict {
    let refused = |kind, next, message: &'static str| Verdict::refused(kind, next, message);
    if detail.contains("can't run this command")
        || detail.contains("ACL failure")
        // While it connects, the client library reports the text without its code.
        || detail.contains("has no permissions to run")
    {
        return Verdict::refused(ErrorKind::Denied, Next::Fail, missing_right(detail))
            .because(Reason::MissingRight);
    }
    if is_bewildered(detail) {
        // The place in the script does not help to repair the lock.
        tracing::debug!(said = %escape::terminal(&shortened(detail)), "a script can't parse a lock's record");
        return unreadable();
    }
    if detail.contains("non local key") {
        return answered("CROSSSLOT", "");
    }
    if detail.contains("cluster support disabled") {
        return refused(
            ErrorKind::Config,
            Next::Fail,
            "the server is not a node of a cluster; write redis://host:port",
        );
    }
    if detail.contains("No such master") {
        return refused(
            ErrorKind::Config,
            Next::Fail,
            "the sentinels watch no primary of this name; correct the part after the last / of the \
             store's URL",
        );
    }
    if detail.contains("WAITAOF cannot be used") {
        return refused(
            ErrorKind::Unsupported,
            Next::Fail,
            "the server has no append-only file to wait for; set appendonly yes, or leave fsync \
             out",
        );
    }
    if let Some(name) = unknown_command(detail) {
        return unknown(name);
    }
    if detail.contains("DB index") {
        return refused(
            ErrorKind::Config,
            Next::Fail,
            "the server has no database of that number; change the number in the URL",
        );
    }
    if detail.contains("max number of clients") {
        return Verdict::unconnected(
            "the server takes no more clients; raise its maxclients, or close unused connections",
        )
        .because(Reason::ServerFull);
    }
    unclear(escape::terminal(&shortened(detail)).to_string())
}

/// Judges that a server lacks a command.
fn unknown(name: &str) -> Verdict {
    let (kind, message) = match &*name.to_ascii_uppercase() {
        "WAITAOF" => (
            ErrorKind::Unsupported,
            "the server cannot wait for disks (Redis 7.2 and Valkey 7.2 can); leave fsync out",
        ),
        "SENTINEL" => (
            ErrorKind::Config,
            "a server of the URL is not a sentinel; write redis://host:port for the server itself",
        ),
        "CLUSTER" => (
            ErrorKind::Config,
            "a server of the URL is not a node of a cluster; write redis://host:port, or for a \
             sentinel redis+sentinel://host:port/NAME",
        ),
        "" | "EVAL" | "EVALSHA" => (
            ErrorKind::Unsupported,
            "the server runs no scripts, or EVALSHA and EVAL are renamed; allow both",
        ),
        _ => {
            let name = escape::terminal(name);
            let message = format!(
                "the server has no command {name}, or it is renamed; allow it, or use another \
                 server"
            );
            return Verdict::refused(ErrorKind::Unsupported, Next::Fail, message);
        }
    };
    Verdict::refused(kind, Next::Fail, message)
}

/// The unknown command in a server's error; empty if the error lacks its name.
fn unknown_command(detail: &str) -> Option<&str> {
    let rest = detail.strip_prefix("unknown command")?;
    Some(rest.split(['\'', '`']).nth(1).unwrap_or_default())
}

/// A script may have stopped half-way, so the effect of an unclear error is unknown.
fn unclear(text: String) -> Verdict {
    Verdict::new(
        ErrorKind::Protocol,
        Effect::Unknown,
        Next::Fail,
        format!("the server answered with an error: {text}"),
    )
}

/// What the user lacks according to a server's error, if it is about that.
pub(crate) fn lack(code: &str, detail: &str) -> Option<Lack> {
    match code {
        // The command's name is in quotes, and could be any word.
        "NOPERM" if detail.contains('\'') => Some(Lack::Command),
        "NOPERM" if detail.contains("channel") => Some(Lack::Channels),
        "NOPERM" if detail.contains("key") => Some(Lack::Keys),
        "NOPERM" => Some(Lack::Command),
        "ERR" if detail.starts_with("unknown command") => Some(Lack::Unknown),
        _ => None,
    }
}

/// Enough of a foreign text to look it up.
fn shortened(text: &str) -> String {
    text.chars().take(160).collect()
}

#[cfg(test)]
mod tests;
