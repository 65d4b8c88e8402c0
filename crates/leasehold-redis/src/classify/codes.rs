//! What the codes of servers' errors mean.

use std::borrow::Cow;

use ErrorKind::{Denied, Foreign, Full, NotReplicated, Protocol, Unavailable, Unsupported};
use Next::{Fail, Reconnect, Retry, SendSource};
use leasehold_core::{ErrorKind, Reason, escape};

use super::verdict::Next;

/// What the code of an error means: the kind, what to do, the reason, and the message. The code is
/// also part of the text of a script's error before Redis 7.
pub(super) type Meaning = (&'static str, ErrorKind, Next, Option<Reason>, &'static str);

pub(super) const WRONG_PASSWORD: &str =
    "wrong user name or password (in a URL, special characters are percent-encoded)";

#[rustfmt::skip]
const KNOWN: &[Meaning] = &[
    ("ASK", Unsupported, Fail, None, NODE),
    ("BUSY", Unavailable, Retry, Some(Reason::Busy), BUSY),
    ("CLUSTERDOWN", Unavailable, Retry, Some(Reason::Unreachable),
        "the cluster is down: most primaries, or one with slots, are missing; `redis-cli \
         --cluster check` shows which"),
    ("CROSSSLOT", Unsupported, Fail, None,
        "the server is a node of a cluster, which takes no request for several slots; write \
         redis+cluster:// in the URL"),
    ("DENIED", Denied, Fail, None,
        "the server is in protected mode and refuses other hosts; set a password on it, or \
         protected-mode no"),
    ("LATE", Unavailable, Retry, None, "the request reached the server after its time"),
    ("LEASEHOLDFOREIGN", Foreign, Fail, None, FOREIGN),
    ("LEASEHOLDVERSION", Unsupported, Fail, Some(Reason::OtherVersion), ""),
    ("LOADING", Unavailable, Retry, Some(Reason::Busy),
        "the server is loading its data; try again when it is up"),
    ("MASTERDOWN", Unavailable, Retry, Some(Reason::NotPrimary),
        "the server is a replica without its primary; connect to a primary"),
    ("MISCONF", Unavailable, Fail, None,
        "the server takes no writes, since it cannot save to its disk; see its log"),
    ("MOVED", Unsupported, Fail, None, NODE),
    ("NOAUTH", Denied, Reconnect, Some(Reason::NoPassword),
        "the server requires a password, and none was given"),
    ("NOPERM", Denied, Fail, Some(Reason::MissingRight), ""),
    ("NOREPLICAS", Unavailable, Retry, Some(Reason::ReplicasMissing),
        "the server takes no writes, since it has fewer replicas than min-replicas-to-write; \
         start them, or lower that"),
    ("NOSCRIPT", Protocol, SendSource, None, "the server forgot a script at once"),
    ("OOM", Full, Fail, Some(Reason::MemoryFull),
        "the server is at its memory limit; free memory or raise maxmemory"),
    ("READONLY", Unavailable, Reconnect, Some(Reason::NotPrimary),
        "the server is a read-only replica; connect to the primary"),
    ("TRYAGAIN", Unavailable, Retry, None, "the cluster is moving the slot of this lock"),
    ("UNBLOCKED", NotReplicated, Fail, None,
        "the wait for replicas was cut short, so whether they have it is unknown"),
    ("UNKILLABLE", Unavailable, Retry, Some(Reason::Busy), BUSY),
    ("WRONGPASS", Denied, Fail, Some(Reason::WrongPassword), WRONG_PASSWORD),
    ("WRONGTYPE", Foreign, Fail, None, FOREIGN),
];

const NODE: &str = "the server is a node of a cluster; write redis+cluster:// in the URL";

const BUSY: &str = "the server is busy with a long script; find it with CLIENT LIST, and end it \
                    with SCRIPT KILL";

const FOREIGN: &str = "its key holds a value that leasehold did not write; use another name or \
                       prefix=, or delete that key";

pub(super) fn known(code: &str) -> Option<&'static Meaning> {
    KNOWN.iter().find(|(known, ..)| *known == code)
}

/// What the server's text adds to the message of the table.
pub(super) fn message_of(code: &str, detail: &str, message: &'static str) -> Cow<'static, str> {
    match code {
        "CLUSTERDOWN" if detail.contains("not served") => {
            "no primary of the cluster serves the slot of this lock; check it with `redis-cli \
             --cluster check`"
                .into()
        }
        "LEASEHOLDVERSION" => format!(
            "the lock is stored in format {}, and this version reads format 1; update this program",
            escape::terminal(if detail.is_empty() { "another" } else { detail })
        )
        .into(),
        "NOPERM" => missing_right(detail).into(),
        _ => message.into(),
    }
}

/// Names the missing right, as exactly as the server's error does.
pub(super) fn missing_right(detail: &str) -> String {
    let command = detail.split('\'').nth(1).filter(|name| {
        name.len() < 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'|')
    });
    let what = match command {
        Some(command) => format!("may not run {}", command.to_ascii_uppercase().replace('|', " ")),
        None if detail.contains("channel") => "may not use the channels of this prefix".into(),
        None if detail.contains("key") => "may not use the keys of this prefix".into(),
        None => "lacks the right to a command that a script runs".into(),
    };
    format!("by the server's ACL this user {what}, which locks need")
}
