//! Waits until replicas have confirmed a connection's writes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Effect, ErrorKind, Reason, Ttl, margin};
use redis::{Cmd, Value, cmd};
use tokio::time::Instant;

use crate::classify::Verdict;
use crate::wire::reply::{self, Uptime};

/// How many replicas must confirm a grant before it counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Replication {
    pub(crate) replicas: u32,
    /// How long to wait for them.
    pub(crate) timeout: Duration,
    /// Whether the replicas, and the server itself, must have it on their disks.
    pub(crate) fsync: bool,
    /// The longest lease of any client, if servers may forget leases by a restart. For this time
    /// after its start, a server's grants don't count.
    pub(crate) longest: Option<Ttl>,
}

/// The run of a server, as this process first met it.
///
/// A server whose clock was set back behind its start reports no age. It has still run for as long
/// as this process knows it.
#[derive(Debug, Default)]
pub(crate) struct Acquaintance(Mutex<Option<(String, Instant)>>);

impl Acquaintance {
    /// How long the server has certainly run, by its answer to [`Age::question`] that has just
    /// come.
    pub(crate) fn age(&self, info: &Value, told: Duration) -> Duration {
        let Some(run) = reply::run_id(info) else { return told };
        let now = Instant::now();
        let mut met = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match &*met {
            Some((known, since)) if *known == run => *since,
            _ => met.insert((run, now)).1,
        };
        told.max(now.saturating_duration_since(since))
    }
}

/// How long a server has run, as reported on a connection, which ends with the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    asked_at: Instant,
    then: Uptime,
}

impl Age {
    /// Reads the answer to a request that was sent at `asked_at`.
    pub(crate) fn read(asked_at: Instant, info: Value) -> Result<Self, Verdict> {
        let then = reply::uptime(info).map_err(|_| Verdict::ageless())?;
        Ok(Self { asked_at, then })
    }

    /// The request for a server's age.
    pub(crate) fn question() -> Cmd {
        let mut info = cmd("INFO");
        info.arg("server");
        info
    }

    fn now(self) -> Duration {
        self.then.at_least.saturating_add(self.asked_at.elapsed())
    }
}

impl Replication {
    /// Checks that a server of this age remembers all running leases. If not, the error has the
    /// reason and the time left.
    pub(crate) fn believes(self, age: Age) -> Result<(), Verdict> {
        match self.doubts(age.now()) {
            None => Ok(()),
            Some(left) => Err(match age.then.set_back {
                None => Verdict::too_young(left),
                Some(by) => Verdict::set_back(by, left),
            }),
        }
    }

    /// For how much longer a server of this age may have forgotten running leases.
    pub(crate) fn doubts(self, age: Duration) -> Option<Duration> {
        let longest = self.longest?;
        let enough = longest.duration().saturating_add(margin(longest.duration()));
        enough.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// The command that waits, for the connection that wrote.
    pub(crate) fn wait(self, left: Duration) -> Cmd {
        // For a server, 0 means without limit.
        let ms = self.timeout.min(left).as_millis().max(1);
        let timeout = u64::try_from(ms).unwrap_or(u64::MAX);
        let mut wait = if self.fsync { cmd("WAITAOF") } else { cmd("WAIT") };
        if self.fsync {
            wait.arg(1);
        }
        wait.arg(self.replicas).arg(timeout);
        wait
    }

    /// The command's name, and a form of it that returns at once.
    pub(crate) fn trial(self) -> (&'static str, Cmd) {
        let name = if self.fsync { "waitaof" } else { "wait" };
        let mut wait = cmd(&name.to_ascii_uppercase());
        if self.fsync {
            wait.arg(0);
        }
        wait.arg(0).arg(1);
        (name, wait)
    }

    /// The error if the answer to [`Replication::wait`] shows missing confirmations.
    pub(crate) fn missing(self, answer: Result<Value, Verdict>) -> Option<Verdict> {
        let Self { replicas, timeout, fsync, longest: _ } = self;
        let wanted = i64::from(replicas);
        let what = match answer {
            Ok(Value::Int(reached)) if !fsync && reached >= wanted => return None,
            Ok(Value::Int(reached)) if !fsync => {
                format!("{reached} of {replicas} replicas had it within {timeout:?}")
            }
            Ok(Value::Array(parts)) if fsync => match &*parts {
                [Value::Int(local), Value::Int(reached)] if *local >= 1 && *reached >= wanted => {
                    return None;
                }
                [Value::Int(0), _] => {
                    format!("the server did not have it on its disk within {timeout:?}")
                }
                [_, Value::Int(reached)] => format!(
                    "{reached} of {replicas} replicas had it on their disks within {timeout:?}"
                ),
                _ => "the answer to WAITAOF is unreadable".to_owned(),
            },
            Ok(_) => "the answer to WAIT is unreadable".to_owned(),
            // A wrong setting or a missing right fails every grant, so its own kind is reported.
            // The grant itself was carried out.
            Err(verdict) if verdict.kind != ErrorKind::Unavailable => {
                return Some(verdict.of_confirmation());
            }
            Err(verdict) => {
                let what = format!("whether replicas have it is unknown: {}", verdict.message());
                let reason = verdict.reason.unwrap_or(Reason::NoAnswer);
                return Some(Verdict::not_replicated(Effect::Applied, what).because(reason));
            }
        };
        Some(Verdict::not_replicated(Effect::Applied, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{self, Next};

    const TWO: Replication = Replication {
        replicas: 2,
        timeout: Duration::from_millis(500),
        fsync: false,
        longest: None,
    };

    fn packed(cmd: &Cmd) -> String {
        String::from_utf8(cmd.get_packed_command()).unwrap().replace("\r\n", " ")
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_clock_was_set_back_has_run_for_as_long_as_it_is_known() {
        let info = |run: &str| Value::BulkString(format!("run_id:{run}\r\n").into_bytes());
        let (known, seconds) = (Acquaintance::default(), Duration::from_secs);
        let age = |run| known.age(&info(run), Duration::ZERO);
        assert_eq!(age("one"), seconds(0));
        tokio::time::advance(seconds(5)).await;
        assert_eq!(age("one"), seconds(5));
        assert_eq!(known.age(&info("one"), seconds(60)), seconds(60));
        assert_eq!(age("two"), seconds(0), "it was restarted");
        tokio::time::advance(seconds(3)).await;
        assert_eq!(age("two"), seconds(3));
        let anonymous = Value::BulkString(Vec::new());
        assert_eq!(known.age(&anonymous, Duration::ZERO), seconds(0));
    }

    #[test]
    fn a_count_that_is_not_reached_is_missing_replicas() {
        assert!(TWO.missing(Ok(Value::Int(2))).is_none());
        let verdict = TWO.missing(Ok(Value::Int(1))).unwrap();
        assert_eq!(verdict.kind, ErrorKind::NotReplicated);
        assert!(verdict.message().contains("1 of 2 replicas"), "{}", verdict.message());
        let lost = Verdict::out_of_time(Effect::Unknown, "no answer within 1s");
        assert_eq!(TWO.missing(Err(lost)).unwrap().kind, ErrorKind::NotReplicated);
        assert!(TWO.missing(Ok(Value::Nil)).is_some());
    }

    #[test]
    fn what_was_done_and_cannot_be_confirmed_was_done() {
        let no_right = "User u has no permissions to run the 'wait' command";
        let no_file = "WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
        for (code, detail, kind) in [
            ("NOPERM", no_right, ErrorKind::Denied),
            ("ERR", no_file, ErrorKind::Unsupported),
            ("ERR", "unknown command 'WAITAOF', with args…", ErrorKind::Unsupported),
            ("LOADING", "…", ErrorKind::NotReplicated),
            ("UNBLOCKED", "…", ErrorKind::NotReplicated),
            ("ERR", "WAIT cannot be used with replica instances. …", ErrorKind::NotReplicated),
            ("ERR", "WAITAOF cannot be used with replica instances. …", ErrorKind::NotReplicated),
            ("ERR", "WAIT cannot be used with slave instances. …", ErrorKind::NotReplicated),
        ] {
            let missing = TWO.missing(Err(classify::server(code, detail))).unwrap();
            assert_eq!((missing.kind, missing.effect), (kind, Effect::Applied), "{code}");
            assert_eq!(missing.next, Next::Fail, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_believed_once_it_is_older_than_any_lease_that_it_may_have_forgotten() {
        let info = |seconds: i64| {
            let text = format!("# Server\r\nuptime_in_seconds:{seconds}\r\n");
            Age::read(Instant::now(), Value::BulkString(text.into_bytes())).unwrap()
        };
        let wary = Replication { longest: Some(Ttl::new(Duration::from_secs(60)).unwrap()), ..TWO };
        assert!(wary.believes(info(62)).is_ok());
        assert!(TWO.believes(info(0)).is_ok(), "nobody asked for it");
        for seconds in [0, 1, 61, -23] {
            let verdict = wary.believes(info(seconds)).unwrap_err();
            let found = (verdict.kind, verdict.effect, verdict.next);
            assert_eq!(found, (ErrorKind::Unavailable, Effect::NotApplied, Next::Fail));
        }
        let precise = "uptime_in_seconds:51\r\nserver_time_usec:1795633803400000\r\n";
        let precise = Age::read(Instant::now(), Value::BulkString(precise.into())).unwrap();
        let told = wary.believes(precise).unwrap_err();
        // `INFO` has the start in whole seconds only: it was 50.4 to 51.4 s ago.
        assert_eq!(told.passes_in, Some(Duration::from_millis(10_202)));
        let told = wary.believes(info(11)).unwrap_err();
        assert!(told.message().contains("warming up"), "{}", told.message());
        assert_eq!(told.passes_in, Some(Duration::from_millis(50_602)));
        let young = info(-23);
        let told = wary.believes(young).unwrap_err();
        assert!(told.message().contains("23.0s behind its start"), "{}", told.message());
        assert!(told.message().contains("set that clock right"), "{}", told.message());
        tokio::time::advance(Duration::from_millis(60_601)).await;
        assert!(wary.believes(young).is_err(), "the margin is more than that");
        tokio::time::advance(Duration::from_millis(2)).await;
        assert!(wary.believes(young).is_ok(), "it has run for so long since");
    }

    #[test]
    fn a_disk_counts_only_when_asked_for_and_then_the_servers_own_too() {
        let synced = Replication { fsync: true, ..TWO };
        let counts =
            |local, reached| Ok(Value::Array(vec![Value::Int(local), Value::Int(reached)]));
        assert!(synced.missing(counts(1, 2)).is_none());
        assert!(synced.missing(counts(0, 2)).is_some());
        assert!(synced.missing(counts(1, 1)).is_some());
        assert!(synced.missing(Ok(Value::Int(2))).is_some());
    }

    #[test]
    fn a_wait_never_lasts_for_ever() {
        let wait = TWO.wait(Duration::ZERO);
        assert!(packed(&wait).ends_with("$1 2 $1 1 "), "{}", packed(&wait));
        let wait = Replication { fsync: true, ..TWO }.wait(Duration::from_secs(9));
        assert!(packed(&wait).contains("WAITAOF $1 1 $1 2 $3 500"), "{}", packed(&wait));
    }
}
