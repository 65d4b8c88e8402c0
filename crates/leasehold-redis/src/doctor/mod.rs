//! Examines a server: asks what can be asked, tries what has to work, and leaves the judgement to
//! [`judge`] and [`rights`].
//!
//! Nothing is written. What is tried is tried on a lock and a channel with random names.

mod facts;
mod judge;
mod rights;

use std::collections::HashMap;
use std::time::Duration;

use leasehold_clock::wall::unix_micros;
use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::{ClientId, Error, ErrorKind, Key, Result, Store as _, Wake};
use redis::Value;
use tokio::time::{Instant, timeout_at};

use self::facts::{Facts, SETTINGS};
use self::judge::ClockReading;
use self::rights::{Lacking, Spare};
use crate::call::Call;
use crate::classify::{Lack, Next, Verdict};
use crate::store::RedisStore;
use crate::transport::{Body, Care, Deadline, Request};

/// How often the clock is read; the quickest answer counts.
const CLOCK_SAMPLES: u32 = 5;

/// A number that no waiter has: clients count theirs from 0.
const TICKET: u64 = u64::MAX;

impl RedisStore {
    pub(crate) async fn look_at_server(&self, within: Duration) -> Result<Vec<Finding>> {
        let deadline = Deadline::after(within);
        let clock = self.read_clock(deadline).await?;
        let client = ClientId::generate()?;
        let [record, crowd, order] = self.shared.names.keys(&Key::new(format!("doctor/{client}"))?);
        let channel = self.shared.names.channel(client);
        let spare = Spare { record, crowd, order, channel };

        let facts = self.ask_facts(deadline).await?;
        let user = self.ask_user(deadline).await?;
        let mut lacking = self.try_commands(&spare, deadline).await?;
        let scripts = self.try_script(&spare, deadline).await?;
        // Last, because a server that does not answer here takes all the time that is left.
        let wake = self.try_wake(client, &spare.channel, &mut lacking, deadline).await;

        let mut findings = judge::settings(&facts);
        findings.extend(clock.map(judge::clock));
        findings.push(judge::door(&self.shared.door));
        findings.extend(judge::protocol(self.shared.resp3));
        findings.extend(rights::judge(&lacking, user.as_deref(), &self.shared.names));
        findings.extend(scripts);
        findings.extend(wake);
        Ok(findings)
    }

    fn unexamined(&self, verdict: &Verdict) -> Error {
        verdict.to_error().during("examine").at_store(self.location())
    }

    /// The server's answers to several commands at once, each of which may be an error. They are
    /// not sent again, so that a server that is busy or loading is seen as it is.
    async fn ask(
        &self,
        commands: Vec<redis::Cmd>,
        deadline: Deadline,
    ) -> Result<Vec<std::result::Result<Value, Verdict>>> {
        let requests: Vec<_> = commands.iter().map(Request::plain).collect();
        let answers = self.shared.transport.many(&requests, deadline).await;
        let values = answers.into_iter().map(|answer| match answer {
            Ok(answer) => Ok(Ok(answer.value)),
            Err(verdict) if verdict.answered => Ok(Err(verdict)),
            Err(verdict) => Err(self.unexamined(&verdict)),
        });
        values.collect()
    }

    /// Compares the server's clock with ours; `None` when the user may not ask it.
    async fn read_clock(&self, deadline: Deadline) -> Result<Option<ClockReading>> {
        let mut best: Option<ClockReading> = None;
        for _ in 0..CLOCK_SAMPLES {
            let (sent_at, our_us) = (Instant::now(), unix_micros());
            let answer = self.ask(vec![redis::cmd("TIME")], deadline).await?.pop();
            let round_trip = sent_at.elapsed();
            let time = answer.and_then(|it| redis::from_redis_value::<(u64, u64)>(it.ok()?).ok());
            let Some((seconds, us)) = time else { return Ok(best) };
            let uncertainty = round_trip / 2;
            let half_us = u64::try_from(uncertainty.as_micros()).unwrap_or(u64::MAX);
            let theirs = seconds.saturating_mul(1_000_000).saturating_add(us);
            let ours = our_us.saturating_add(half_us);
            let ahead_us = i64::try_from(i128::from(theirs).saturating_sub(ours.into()));
            let reading = ClockReading { ahead_us: ahead_us.unwrap_or(i64::MAX), uncertainty };
            if best.is_none_or(|best| uncertainty < best.uncertainty) {
                best = Some(reading);
            }
        }
        Ok(best)
    }

    async fn ask_facts(&self, deadline: Deadline) -> Result<Facts> {
        let mut commands = vec![redis::cmd("INFO")];
        commands.extend(SETTINGS.iter().map(|setting| {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg(setting);
            command
        }));
        let mut answers = self.ask(commands, deadline).await?.into_iter();
        let mut facts = Facts::default();
        if let Some(Ok(info)) = answers.next()
            && let Ok(info) = redis::from_redis_value::<String>(info)
        {
            facts.add_info(&info);
        }
        for answer in answers.flatten() {
            if let Ok(settings) = redis::from_redis_value::<HashMap<String, String>>(answer) {
                for (name, value) in settings {
                    facts.add_setting(&name, &value);
                }
            }
        }
        Ok(facts)
    }

    async fn ask_user(&self, deadline: Deadline) -> Result<Option<String>> {
        let mut whoami = redis::cmd("ACL");
        whoami.arg("WHOAMI");
        let answer = self.ask(vec![whoami], deadline).await?.pop();
        Ok(answer.and_then(|answer| redis::from_redis_value(answer.ok()?).ok()))
    }

    async fn try_commands(&self, spare: &Spare, deadline: Deadline) -> Result<Vec<Lacking>> {
        let digest = &self.shared.scripts.inspect.digest;
        let trials = rights::trials(&self.shared.names, spare, digest);
        let (names, commands): (Vec<_>, Vec<_>) = trials.into_iter().unzip();
        let answers = self.ask(commands, deadline).await?;
        let lacks = names.into_iter().zip(&answers);
        Ok(lacks.filter_map(|(name, answer)| Some((name, answer.as_ref().err()?.lack?))).collect())
    }

    /// Runs a script that only reads. A right that it lacks is told as such.
    async fn try_script(&self, spare: &Spare, deadline: Deadline) -> Result<Option<Finding>> {
        let keys = vec![spare.record.clone(), spare.crowd.clone(), spare.order.clone()];
        let call = Call::new(&self.shared.scripts.inspect, keys);
        let mut outcome = Err(deadline.missed());
        for whole in [false, true] {
            let request = Request { body: Body::Script { call: &call, whole }, care: Care::None };
            outcome = self.shared.transport.one(&request, deadline).await;
            if let Err(verdict) = &outcome
                && !verdict.answered
            {
                return Err(self.unexamined(verdict));
            }
            if !matches!(&outcome, Err(verdict) if verdict.next == Next::SendSource) {
                break;
            }
        }
        Ok(match outcome {
            Ok(_) => Some(Finding::new(
                Severity::Fine,
                "scripts",
                "the server runs leasehold's scripts",
                "every operation on a lock is one step",
            )),
            Err(verdict) if verdict.kind == ErrorKind::Denied => None,
            Err(verdict) => Some(Finding::new(
                Severity::Problem,
                "scripts",
                format!("a script that only reads did not run: {}", verdict.message()),
                "locks can't be taken, renewed and released",
            )),
        })
    }

    /// Subscribes as a client that waits does, publishes as a script does, and sees whether the
    /// message arrives.
    async fn try_wake(
        &self,
        client: ClientId,
        channel: &str,
        lacking: &mut Vec<Lacking>,
        deadline: Deadline,
    ) -> Option<Finding> {
        if !self.capability().wake {
            let finding = Finding::new(
                Severity::Note,
                "wake",
                "a store on a lent connection has no wake channel",
                "who waits finds out by asking, so hand-overs take longer",
            );
            return Some(finding.advise("give the store's builder a client for subscriptions"));
        }
        let silent = |why: String| {
            let finding = Finding::new(
                Severity::Warning,
                "wake",
                why,
                "who waits is not woken and finds out by asking, so hand-overs take longer",
            );
            Some(
                finding.advise("let clients subscribe, and keep proxies that can't out of the way"),
            )
        };
        let mut listener = match self.listen(client, deadline.left() / 2).await {
            Ok(listener) => listener,
            Err(error) if error.kind() == ErrorKind::Denied => {
                let by_channel = error.to_string().contains("channel");
                lacking
                    .push(("subscribe", if by_channel { Lack::Channels } else { Lack::Command }));
                return None;
            }
            Err(error) => return silent(format!("no subscription could be made: {error}")),
        };
        if lacking.iter().any(|(command, _)| *command == "publish") {
            return None;
        }
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg(format!("first {TICKET} 0"));
        if let Err(verdict) = self.shared.transport.one(&Request::plain(&publish), deadline).await {
            return silent(format!("no message could be published: {}", verdict.message()));
        }
        loop {
            match timeout_at(deadline.at, listener.next()).await {
                Ok(Wake::First { ticket: TICKET, .. }) => {
                    return Some(Finding::new(
                        Severity::Fine,
                        "wake",
                        "a message came through a subscription",
                        "who waits is woken when the lock comes free",
                    ));
                }
                Ok(_) => {}
                Err(_) => return silent("a message that was published did not arrive".to_owned()),
            }
        }
    }
}
