//! The consequences of an error: for its caller, for the request and for the connection.

use std::borrow::Cow;
use std::time::Duration;

use leasehold_core::{Effect, Error, ErrorKind, Reason, length};
use redis::RedisError;

/// When an error occurred.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// While a connection was made: no request was sent.
    Connecting,
    /// After a request was handed to a connection.
    Asked,
}

/// What to do about an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// Report the error to the caller.
    Fail,
    /// Close the connection, and report the error to the caller.
    Drop,
    /// The request was not carried out: wait, and send it again.
    Retry,
    /// This server will not carry out the request: close the connection, and send it on another.
    Reconnect,
    /// The server does not know the script yet: send all of it.
    SendSource,
}

/// A judged error. Its rare parts are boxed: every answer to a request has space for one.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) kind: ErrorKind,
    pub(crate) reason: Option<Reason>,
    pub(crate) effect: Effect,
    pub(crate) next: Next,
    message: Cow<'static, str>,
    pub(super) cause: Option<Box<RedisError>>,
    /// The node of a cluster to send the request to instead.
    pub(crate) redirect: Option<Box<Redirect>>,
    /// The server is a replica, so its connection can't serve requests for the primary.
    pub(crate) not_primary: bool,
    /// The server itself answered with the error.
    pub(crate) answered: bool,
    /// What the user lacks, if the error is about that.
    pub(crate) lack: Option<Lack>,
    /// The server's clock, in µs since the Unix epoch, if it refused the request because of its
    /// age.
    pub(crate) late_at: Option<u64>,
    /// How long until the server can carry out the request.
    pub(crate) passes_in: Option<Duration>,
}

/// Where a node of a cluster sends a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Redirect {
    /// For this one request only, announced with `ASKING`: the slot is moving.
    pub(crate) ask: bool,
    /// Empty if it is the host of the redirecting node.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Redirect {
    /// Reads `3999 127.0.0.1:6381`.
    pub(super) fn parse(ask: bool, detail: &str) -> Option<Self> {
        let (host, port) = detail.split(' ').nth(1)?.rsplit_once(':')?;
        let host = if host == "?" { "" } else { host };
        Some(Self { ask, host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl Verdict {
    pub(super) fn new(
        kind: ErrorKind,
        effect: Effect,
        next: Next,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        let message = message.into();
        Self {
            kind,
            // The caller of an operation did not choose the connection's settings.
            reason: (kind == ErrorKind::Config).then_some(Reason::StoreSettings),
            effect,
            next,
            message,
            cause: None,
            redirect: None,
            not_primary: false,
            answered: false,
            lack: None,
            late_at: None,
            passes_in: None,
        }
    }

    /// The server did not carry out the request.
    pub(crate) fn refused(
        kind: ErrorKind,
        next: Next,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(kind, Effect::NotApplied, next, message)
    }

    /// The connection failed, for the reason in the message.
    pub(crate) fn unconnected(message: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(ErrorKind::Unavailable, Next::Reconnect, message).because(Reason::Unreachable)
    }

    /// The process has no thread for connections, as the error says.
    pub(crate) fn without_thread(error: &Error) -> Self {
        let verdict = Self::refused(ErrorKind::Unavailable, Next::Fail, error.to_string());
        match error.reason() {
            Some(reason) => verdict.because(reason),
            None => verdict,
        }
    }

    /// The parent process has the connections.
    pub(crate) fn forked() -> Self {
        let message = "this store belongs to the parent process; make one of its own after a fork";
        Self::refused(ErrorKind::Misuse, Next::Fail, message)
    }

    /// The settings of the connection are wrong.
    pub(crate) fn misconfigured(message: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(ErrorKind::Config, Next::Fail, message)
    }

    /// No server can take the request at the moment.
    pub(crate) fn nobody_yet(message: impl Into<Cow<'static, str>>) -> Self {
        Self::refused(ErrorKind::Unavailable, Next::Retry, message).because(Reason::Unreachable)
    }

    /// The request was sent to a server that was replaced before it answered.
    pub(crate) fn replaced() -> Self {
        let message = "the server was replaced before the answer came";
        Self::new(ErrorKind::Unavailable, Effect::Unknown, Next::Fail, message)
            .because(Reason::Disconnected)
    }

    /// Not enough replicas confirmed the change.
    pub(crate) fn not_replicated(effect: Effect, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NotReplicated, effect, Next::Fail, message)
    }

    /// The request timed out; `effect` depends on whether it had been sent.
    pub(crate) fn out_of_time(effect: Effect, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, effect, Next::Fail, message).because(Reason::NoAnswer)
    }

    /// Sets the reason.
    pub(crate) fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Names the server in the message, for one that the user did not name.
    pub(crate) fn about(mut self, server: &str) -> Self {
        self.message = format!("{server}: {}", self.message).into();
        self
    }

    /// The server is warming up: it was started recently and may have forgotten leases.
    pub(crate) fn too_young(left: Duration) -> Self {
        let mut verdict = Self::refused(
            ErrorKind::Unavailable,
            Next::Fail,
            "the server is warming up after its start (set keep_leases=yes in the URL if it keeps \
             its data through restarts)",
        );
        verdict.passes_in = Some(left);
        verdict.because(Reason::TooYoung)
    }

    /// The server's clock is behind the server's start, so its age is unknown.
    pub(crate) fn set_back(by: Duration, left: Duration) -> Self {
        let mut verdict = Self::refused(
            ErrorKind::Unavailable,
            Next::Fail,
            format!(
                "the server's clock is {} behind its start, so it is warming up (set that clock \
                 right, or keep_leases=yes in the URL if it keeps its data)",
                length::measured(by)
            ),
        );
        verdict.passes_in = Some(left);
        verdict.because(Reason::TooYoung)
    }

    /// The server does not report how long it has run.
    pub(crate) fn ageless() -> Self {
        Self::refused(
            ErrorKind::Protocol,
            Next::Fail,
            "the server does not report its start in INFO; set keep_leases=yes in the URL if it \
             keeps its data through restarts",
        )
    }

    /// Makes it the error of a request for the server's age.
    pub(crate) fn of_age(mut self) -> Self {
        let message = format!("the age of the server is unknown: {}", self.message);
        self.message = message.into();
        self.with_effect(Effect::NotApplied)
    }

    /// Adds the names of several locks, one of which it is about.
    pub(crate) fn of_one_of(mut self, names: &str) -> Self {
        self.message = format!("of one of {names}: {}", self.message).into();
        self
    }

    /// Adds the error that prevented a remedy.
    pub(crate) fn beside(mut self, why: &Self) -> Self {
        self.message = format!("{}; {}", self.message, why.message).into();
        self
    }

    /// Makes it a passing error that is worth a retry.
    pub(crate) fn outage(mut self) -> Self {
        self.kind = ErrorKind::Unavailable;
        self.next = Next::Retry;
        self
    }

    /// Ends all attempts to handle it.
    pub(crate) fn give_up(mut self) -> Self {
        self.next = Next::Fail;
        self
    }

    /// Makes it an error to retry after a pause, if the request was not carried out and a later try
    /// may succeed.
    pub(crate) fn again(mut self) -> Self {
        if self.effect == Effect::NotApplied && self.kind == ErrorKind::Unavailable {
            self.next = Next::Retry;
        }
        self
    }

    /// Sets the effect.
    pub(crate) fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Makes it the error of the confirmation of a request that was carried out.
    pub(crate) fn of_confirmation(mut self) -> Self {
        self.message = format!("not confirmed: {}", self.message).into();
        self.with_effect(Effect::Applied).give_up()
    }

    /// Adapts it to an error raised inside a script, which may have written before.
    pub(super) fn half_way(mut self) -> Self {
        if self.effect == Effect::NotApplied && self.kind != ErrorKind::Corrupt {
            self.effect = Effect::Unknown;
        }
        if matches!(self.next, Next::Retry | Next::SendSource) {
            self.next = Next::Fail;
        }
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn to_error(&self) -> Error {
        let error = Error::new(self.kind, &*self.message).with_effect(self.effect);
        let error = match self.reason {
            Some(reason) => error.with_reason(reason),
            None => error,
        };
        let error = match self.passes_in {
            Some(left) => error.passes_in(left),
            None => error,
        };
        match &self.cause {
            Some(cause) => error.caused_by((**cause).clone()),
            None => error,
        }
    }
}

/// What a user lacks to run a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lack {
    /// The right to the command.
    Command,
    /// The right to the requested keys.
    Keys,
    /// The right to the requested channel.
    Channels,
    /// The command itself: it is a different server product, or an operator renamed the command.
    Unknown,
}
