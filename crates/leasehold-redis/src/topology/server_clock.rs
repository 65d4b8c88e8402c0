//! Estimates a server's clock, so that the server can refuse delayed requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::VALID_FOR;
use redis::{Cmd, Value, cmd};
use tokio::time::Instant;

use crate::classify::Verdict;

/// The clock of one server, relative to this process's clock.
///
/// The estimate is ahead by the time that the server's answer took. So the server refuses a request
/// no later than its caller stops waiting for it.
#[derive(Debug)]
pub(crate) struct ServerClock {
    since: Instant,
    /// What the clock showed at `since`: µs since the Unix epoch, 0 if unknown.
    showed: AtomicU64,
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

impl ServerClock {
    pub(crate) fn unknown() -> Self {
        Self { since: Instant::now(), showed: AtomicU64::new(0) }
    }

    /// Reads the clock; every user of scripts has the right.
    pub(crate) fn question() -> Cmd {
        cmd("TIME")
    }

    /// Records the answer to the [request](Self::question), which has just arrived. For a server
    /// without the command, the clock stays unknown.
    pub(crate) fn read<E>(&self, answer: &Result<Value, E>) {
        let Ok(Value::Array(parts)) = answer else { return };
        let number = |part: &Value| match part {
            Value::BulkString(digits) => str::from_utf8(digits).ok()?.parse::<u64>().ok(),
            _ => None,
        };
        let [seconds, micros] = &**parts else { return };
        if let (Some(seconds), Some(micros)) = (number(seconds), number(micros)) {
            self.shows(seconds.saturating_mul(1_000_000).saturating_add(micros));
        }
    }

    /// Records the time in the error of a server that has refused a delayed request.
    pub(crate) fn hear(&self, verdict: &Verdict) {
        if let Some(time) = verdict.late_at {
            self.shows(time);
        }
    }

    fn shows(&self, time: u64) {
        let then = time.saturating_sub(micros(self.since.elapsed()));
        self.showed.store(then, Ordering::Relaxed);
    }

    /// The time after which the server must refuse a request that is sent now and abandoned at
    /// `given_up`; 0 if unknown.
    pub(crate) fn late_after(&self, given_up: Instant) -> u64 {
        let now = Instant::now();
        self.at(now.checked_add(VALID_FOR).map_or(given_up, |last| last.min(given_up)))
    }

    /// What it shows at this process's `moment`, or 0.
    fn at(&self, moment: Instant) -> u64 {
        match self.showed.load(Ordering::Relaxed) {
            0 => 0,
            then => then.saturating_add(micros(moment.saturating_duration_since(self.since))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{self, Stage};
    use crate::script::SCRIPTS;
    use crate::wire::forms::Pack as _;
    use leasehold_testkit::server::RedisServer;

    #[tokio::test]
    async fn a_request_that_was_sent_before_the_clock_was_set_back_is_late() {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).unwrap();
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
        let mut connection = connection.unwrap();
        let now = leasehold_clock::wall::unix_micros();
        let clock = ServerClock::unknown();
        for (ahead_s, is_late) in [(3_600_u64, true), (11, true), (2, false)] {
            let not_after = now + ahead_s * 1_000_000;
            let (mut client, mut last) = (Vec::new(), Vec::new());
            client.short(0).double(not_after).double(0).double(0);
            last.double(not_after);
            let of_others = include_str!("../interop/scripts/in_time.lua");
            let mut ours = redis::cmd("EVAL");
            ours.arg(&SCRIPTS.renew.source).arg(0).arg(client);
            let mut others = redis::cmd("EVAL");
            others.arg(of_others).arg(0).arg(last);
            for request in [ours, others] {
                let answer: Result<Value, _> = request.query_async(&mut connection).await;
                assert_eq!(answer.is_err(), is_late, "{ahead_s} s: {answer:?}");
                if let Err(error) = answer {
                    clock.hear(&classify::judge(&error, Stage::Asked));
                    assert!(clock.at(Instant::now()) < now + 10_000_000, "{error}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_goes_on_from_what_was_last_heard_of_it() {
        let clock = ServerClock::unknown();
        let later = |ms| Instant::now() + Duration::from_millis(ms);
        assert_eq!(clock.at(later(5)), 0);
        tokio::time::advance(Duration::from_secs(3)).await;
        let time = ["1700000000", "000017"].map(|digits| Value::BulkString(digits.into()));
        clock.read::<()>(&Ok(Value::Array(time.to_vec())));
        assert_eq!(clock.at(later(0)), 1_700_000_000_000_017);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.at(later(2)), 1_700_000_001_002_017);
        clock.read::<()>(&Ok(Value::Nil));
        assert_eq!(clock.at(later(0)), 1_700_000_001_000_017);
        clock.hear(&classify::server("LATE", "1699999999 500000 "));
        assert_eq!(clock.at(later(0)), 1_699_999_999_500_000);
    }
}
