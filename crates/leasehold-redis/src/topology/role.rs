//! Finds out what a server is: a primary, a replica, a sentinel, or a cluster's node.
//!
//! Only primaries keep locks. A replica answers from old data, and a writable replica grants locks
//! that its primary never learns of. So each server has to report its role before it is trusted.

use leasehold_core::{Effect, ErrorKind, Reason, escape};
use redis::aio::ConnectionLike;
use redis::{Cmd, Value, cmd};

use crate::classify::{Next, Verdict};
use crate::script::request::judged;
use crate::topology::address::Endpoint;

/// What a server is, according to its answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Role {
    role: Option<String>,
    /// `standalone`, `cluster` or `sentinel`.
    mode: Option<String>,
    /// The address of the primary that a replica follows.
    follows: Option<String>,
}

impl Role {
    /// The request that every user may send: it needs no right in an ACL.
    pub(crate) fn question() -> Cmd {
        cmd("HELLO")
    }

    /// Asks over an idle connection.
    ///
    /// If the answer is useless, because a proxy intervenes or an operator has renamed the
    /// commands, the role stays open.
    pub(crate) async fn ask(connection: &mut impl ConnectionLike) -> Result<Self, Verdict> {
        let hello = judged(connection.req_packed_command(&Self::question()).await);
        let mut known = match hello {
            Ok(value) => Self::of_hello(&value),
            Err(verdict) if !is_open(&verdict) => {
                return Err(verdict.with_effect(Effect::NotApplied));
            }
            Err(_) => Self::default(),
        };
        if known.is_primary() {
            return Ok(known);
        }
        // This answer has the primary's address, but needs a right.
        match judged(connection.req_packed_command(&cmd("ROLE")).await) {
            Ok(value) => known.add(&value),
            Err(verdict) if verdict.answered => {}
            Err(verdict) => return Err(verdict.with_effect(Effect::NotApplied)),
        }
        Ok(known)
    }

    /// Reads the answer to [`Role::question`].
    pub(crate) fn of_hello(value: &Value) -> Self {
        let field = |wanted: &str| match value {
            Value::Array(parts) => {
                let mut pairs = parts.chunks_exact(2);
                pairs.find_map(|pair| match pair {
                    [name, value] if text(name).as_deref() == Some(wanted) => text(value),
                    _ => None,
                })
            }
            Value::Map(pairs) => {
                let mut pairs = pairs.iter();
                pairs
                    .find(|(name, _)| text(name).as_deref() == Some(wanted))
                    .and_then(|it| text(&it.1))
            }
            _ => None,
        };
        Self { role: field("role"), mode: field("mode"), follows: None }
    }

    /// Adds the answer to `ROLE`.
    fn add(&mut self, value: &Value) {
        let Value::Array(parts) = value else { return };
        self.role = parts.first().and_then(text).or_else(|| self.role.take());
        if let [_, host, port, ..] = &**parts
            && let (Some(host), Value::Int(port)) = (text(host), port)
        {
            self.follows = Some(format!("{}:{port}", escape::terminal(&host)));
        }
    }

    /// Whether it reports that it is a primary.
    pub(crate) fn is_primary(&self) -> bool {
        self.role.as_deref() == Some("master") && !self.is_sentinel()
    }

    /// Whether it reports any other role.
    fn is_other(&self) -> bool {
        self.role.as_deref().is_some_and(|role| role != "master")
    }

    fn is_sentinel(&self) -> bool {
        self.mode.as_deref() == Some("sentinel") || self.role.as_deref() == Some("sentinel")
    }

    /// Whether it reports that it is a node of a cluster.
    fn is_node(&self) -> bool {
        self.mode.as_deref() == Some("cluster")
    }

    /// Refuses a server that should keep all locks alone, but does not.
    pub(crate) fn check_alone(&self, at: &Endpoint) -> Result<(), Verdict> {
        if self.is_node() {
            let scheme = if at.is_secured() { "rediss" } else { "redis" };
            return Err(Verdict::misconfigured(format!(
                "the server is a node of a cluster; write {scheme}+cluster://{} as the store's URL",
                at.address()
            )));
        }
        self.check()
    }

    /// Refuses an unsuitable server of a borrowed connection.
    ///
    /// Borrowed connections to a cluster are refused: their owner distributes requests over the
    /// nodes, so a request can't address a single node. They also hide epochs, and repeat requests
    /// that may have been carried out.
    pub(crate) fn check_borrowed(&self) -> Result<(), Verdict> {
        if self.is_node() {
            return Err(Verdict::refused(
                ErrorKind::Unsupported,
                Next::Fail,
                "a borrowed connection to a cluster can't carry locks; use a URL, as \
                 redis+cluster://host:port",
            ));
        }
        self.check()
    }

    /// Refuses a server in a URL that does not keep locks.
    pub(crate) fn check(&self) -> Result<(), Verdict> {
        if self.is_sentinel() {
            return Err(Verdict::refused(
                ErrorKind::Config,
                Next::Fail,
                "the server is a sentinel; write redis+sentinel://host:port/NAME, with its name \
                 for the primary",
            ));
        }
        if !self.is_other() {
            return Ok(());
        }
        let of = self.follows.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
        let mut verdict =
            Verdict::unconnected(format!("the server is a replica{of}; connect to the primary"));
        verdict.not_primary = true;
        Err(verdict.because(Reason::NotPrimary))
    }
}

/// Whether the answer leaves the server's role open.
fn is_open(verdict: &Verdict) -> bool {
    verdict.answered
        && (verdict.lack.is_some() || verdict.kind != ErrorKind::Denied)
        && verdict.kind != ErrorKind::Unavailable
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn hello(words: &str) -> Role {
        Role::of_hello(&Value::Array(words.split(' ').map(bulk).collect()))
    }

    #[test]
    fn only_what_says_that_it_is_none_is_refused() {
        assert!(hello("server redis mode standalone role master").check().is_ok());
        let in_cluster = hello("server redis mode cluster role master");
        assert!(in_cluster.check().is_ok());
        let tls = Some(crate::topology::address::TlsFiles::default());
        let at = Endpoint::Tcp { host: "h".into(), port: 7, tls };
        let refused = in_cluster.check_alone(&at).unwrap_err();
        assert!(refused.message().contains("rediss+cluster://h:7 "), "{}", refused.message());
        let socket = in_cluster.check_alone(&Endpoint::Unix("/s".into())).unwrap_err();
        assert!(socket.message().contains("redis+cluster://host:port "), "{}", socket.message());
        assert_eq!(in_cluster.check_borrowed().unwrap_err().kind, ErrorKind::Unsupported);
        assert!(Role::default().check().is_ok(), "a proxy tells nothing");
        for other in
            ["mode standalone role replica", "mode cluster role slave", "role active-replica"]
        {
            let verdict = hello(other).check().unwrap_err();
            assert!(verdict.not_primary && verdict.kind == ErrorKind::Unavailable, "{other}");
        }
        let map = Value::Map(vec![(bulk("role"), bulk("replica"))]);
        assert!(Role::of_hello(&map).check().is_err());
        let sentinel = hello("server redis mode sentinel modules x").check().unwrap_err();
        assert_eq!((sentinel.kind, sentinel.next), (ErrorKind::Config, Next::Fail));
    }

    #[test]
    fn a_replica_names_its_primary() {
        let mut role = hello("mode standalone role replica");
        role.add(&Value::Array(vec![bulk("slave"), bulk("10.0.0.1"), Value::Int(6379), bulk("x")]));
        let said = role.check().unwrap_err();
        assert!(said.message().contains("a replica of 10.0.0.1:6379"), "{}", said.message());
    }
}
