//! Judges what went wrong: the kind of an error, and whether the statement may have taken effect.

use std::error::Error as _;
use std::time::Duration;

use leasehold_core::{Effect, Error, ErrorKind, Reason, escape};
use tokio::time::Instant;
use tokio_postgres::error::DbError;

/// The end of a call's time, and its length for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    within: Duration,
}

impl Deadline {
    pub(crate) fn after(within: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(within).unwrap_or_else(|| now + Duration::from_secs(86_400));
        Self { at, within }
    }

    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// No answer came in time.
    pub(crate) fn missed(self, effect: Effect) -> Fault {
        let within = leasehold_core::length::measured(self.within);
        let why = format!("no answer within {within}");
        let error = Error::new(ErrorKind::Unavailable, why).with_reason(Reason::NoAnswer);
        Fault { error: error.with_effect(effect), next: Next::Fail }
    }
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    Fail,
    /// The statement was undone, since another transaction came first: the same again may succeed.
    Again,
    /// Another transaction keeps the row locked.
    Locked,
    /// This connection is of no use any more.
    Reconnect,
    /// The tables are not there.
    SetUp,
}

/// A failed statement.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) error: Error,
    pub(crate) next: Next,
}

impl Fault {
    /// The same, with what is known of the statement's effect.
    pub(crate) fn with_effect(self, effect: Effect) -> Self {
        Self { error: self.error.with_effect(effect), ..self }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { error, next: Next::Fail }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

/// Judges the failure of a statement, or of connecting if nothing was sent.
pub(crate) fn judge(error: &tokio_postgres::Error, was_sent: bool) -> Fault {
    if let Some(said) = error.as_db_error() {
        return refused(said, was_sent);
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(tls) = inner.downcast_ref::<tokio_rustls::rustls::Error>() {
            return untrusted(tls);
        }
        let io = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(tls) = io.and_then(|inner| inner.downcast_ref::<tokio_rustls::rustls::Error>())
        {
            return untrusted(tls);
        }
        cause = inner.source();
    }
    let said = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let said = escape::terminal(&said).to_string();
    let (reason, effect, why) = if was_sent {
        (
            Reason::Disconnected,
            Effect::Unknown,
            format!("the connection ended before the answer: {said}"),
        )
    } else {
        (Reason::Unreachable, Effect::NotApplied, format!("no connection: {said}"))
    };
    let error = Error::new(ErrorKind::Unavailable, why).with_reason(reason).with_effect(effect);
    Fault { error, next: Next::Reconnect }
}

fn untrusted(error: &tokio_rustls::rustls::Error) -> Fault {
    let said = error.to_string();
    let why = format!(
        "no TLS connection: {}; check the server's certificate and name, and sslrootcert",
        escape::terminal(&said)
    );
    Error::new(ErrorKind::Config, why).with_reason(Reason::Certificate).into()
}

/// The fault of a database without leasehold's tables.
pub(crate) fn missing() -> Fault {
    let why = "the database lacks leasehold's tables; apply `leasehold setup`, or connect once with create=yes in the \
               URL, as a user that may create a schema";
    let error = Error::new(ErrorKind::Config, why).with_reason(Reason::StoreSettings);
    Fault { error, next: Next::SetUp }
}

/// The fault of a commit that did not wait for its standby.
pub(crate) fn not_replicated() -> Fault {
    let why = "the server warned that it did not wait for its standby, which may lack the write";
    Error::new(ErrorKind::NotReplicated, why).with_effect(Effect::Unknown).into()
}

/// The fault of a server whose commits wait for no standby, though the URL requires it.
pub(crate) fn not_synchronous() -> Fault {
    let why = "commits wait for no standby, which synchronous=require forbids; set synchronous_standby_names, and \
               synchronous_commit to on";
    Error::new(ErrorKind::Config, why).with_reason(Reason::StoreSettings).into()
}

fn refused(said: &DbError, was_sent: bool) -> Fault {
    let (code, message) = (said.code().code(), escape::terminal(said.message()).to_string());
    let fault = |kind, reason: Option<Reason>, why: String, next| {
        let error = Error::new(kind, why);
        let error = match reason {
            Some(reason) => error.with_reason(reason),
            None => error,
        };
        Fault { error, next }
    };
    let said = format!("{message} (SQLSTATE {code})");
    match code {
        "40001" | "40P01" => fault(ErrorKind::Unavailable, Some(Reason::Busy), said, Next::Again),
        "55P03" => fault(ErrorKind::Unavailable, Some(Reason::Busy), said, Next::Locked),
        "57014" => fault(ErrorKind::Unavailable, Some(Reason::Busy), said, Next::Fail),
        "28P01" | "28000" => {
            fault(ErrorKind::Denied, Some(Reason::WrongPassword), said, Next::Fail)
        }
        "42501" => fault(ErrorKind::Denied, Some(Reason::MissingRight), said, Next::Fail),
        "3D000" => fault(ErrorKind::Config, Some(Reason::StoreSettings), said, Next::Fail),
        "3F000" | "42P01" | "42883" => missing(),
        // Of the setup.
        "LH002" => {
            let why = "the tables have a later format than this version knows; use a newer one";
            fault(ErrorKind::Config, Some(Reason::OtherVersion), why.to_owned(), Next::Fail)
        }
        // Of commit_1.
        "LH003" => not_synchronous(),
        "22P05" | "22021" => {
            let why = format!("{said}; the database must have the encoding UTF8");
            fault(ErrorKind::Config, Some(Reason::StoreSettings), why, Next::Fail)
        }
        "53100" => fault(ErrorKind::Full, Some(Reason::DiskFull), said, Next::Fail),
        "53200" => fault(ErrorKind::Full, Some(Reason::MemoryFull), said, Next::Fail),
        "53300" => fault(ErrorKind::Unavailable, Some(Reason::ServerFull), said, Next::Reconnect),
        "57P03" => fault(ErrorKind::Unavailable, Some(Reason::Busy), said, Next::Reconnect),
        // A standby refuses writes, and reads of a table that is not logged.
        "25006" | "0A000" => {
            let why = format!(
                "the server is a standby, or read only: {said}; name the primary in the URL, or all hosts"
            );
            fault(ErrorKind::Unavailable, Some(Reason::NotPrimary), why, Next::Reconnect)
        }
        _ if code.starts_with("08") || code.starts_with("57P") => {
            let mut ended =
                fault(ErrorKind::Unavailable, Some(Reason::Disconnected), said, Next::Reconnect);
            if was_sent {
                ended.error = ended.error.with_effect(Effect::Unknown);
            }
            ended
        }
        _ => fault(
            ErrorKind::Protocol,
            None,
            format!("the server refused a statement: {said}"),
            Next::Fail,
        ),
    }
}
