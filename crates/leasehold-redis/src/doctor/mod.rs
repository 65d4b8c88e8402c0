//! Examines a server: reads its state and tries what locks need.
//!
//! [`judge`] and [`rights`] have the judgement.
//!
//! It does not write. Trials use a lock and a channel with random names.

mod facts;
mod judge;
mod replicas;
mod rights;
mod room;
mod structs;
mod topology;
mod wake;

use std::collections::HashMap;
use std::time::Duration;

use leasehold_clock::wall::unix_micros;
use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::{ClientId, Error, ErrorKind, Key, Result, Store as _};
use redis::Value;
use tokio::time::Instant;

use self::facts::{Facts, SETTINGS};
use self::judge::ClockReading;
use self::rights::{Lacking, Spare};
use crate::classify::{Next, Verdict};
use crate::connect::transport::{Part, Transport};
use crate::script::call::{Body, Request};
use crate::script::request::{Deadline, Delivery};
use crate::store::RedisStore;
use crate::topology::replication::{Age, Replication};
use crate::topology::slot::slot_of;

/// How often the clock is read; the quickest answer counts.
const CLOCK_SAMPLES: u32 = 5;

/// How many names are tried to find one in the slots of a node, which may have only one slot.
const SPARES_MAX: u32 = 1_000_000;

/// The findings about one server.
struct Look {
    findings: Vec<Finding>,
    lacking: Vec<Lacking>,
    user: Option<String>,
}

impl RedisStore {
    pub(crate) async fn look_at_server(&self, within: Duration) -> Result<Vec<Finding>> {
        let deadline = Deadline::after(within);
        let client = ClientId::generate()?;
        let transport = &*self.shared.transport;
        let parts = transport.parts(deadline.of_one()).await.map_err(|it| self.unexamined(&it))?;
        let mut findings = Vec::new();
        let mut whole = match parts {
            None => {
                // Detects a silent server.
                self.ask(transport, vec![redis::cmd("TIME")], deadline.of_one()).await?;
                self.look_at(transport, self.spare(client, &[])?, deadline).await?
            }
            Some(parts) => {
                findings.extend(topology::whole(parts.whole));
                findings.extend(topology::strangers(&parts.views));
                findings.extend(topology::loners(&parts.loners));
                findings.extend(topology::too_few_to_elect(&parts.views));
                self.look_at_each(parts.servers, client, &mut findings, deadline).await?
            }
        };
        if let Some(said) = transport.sentinels().await {
            findings.push(topology::sentinels(&said));
            findings.extend(topology::no_quorum(&said));
        }
        if let Some(heard) = transport.addresses().await {
            findings.push(topology::addresses(&heard));
        }
        findings.push(judge::security(&self.shared.security));
        findings.extend(judge::protocol(self.shared.resp3));
        // Last, because a server that does not answer here uses up all remaining time.
        let spare = self.spare(client, &[])?;
        let wake = self.try_wake(client, &spare, &mut whole.lacking, deadline).await;
        findings.append(&mut whole.findings);
        let Look { lacking, user, .. } = whole;
        // For a cluster's nodes this was judged above, except for what only showed now.
        if !transport.is_spread() || !lacking.is_empty() {
            findings.extend(rights::judge(&lacking, user.as_deref(), &self.shared.names));
        }
        findings.extend(wake);
        findings.extend(wake::lost(self.messages_lost()));
        Ok(findings)
    }

    /// Examines every node of a cluster that has slots. Missing rights are judged node by node,
    /// since each has its own users. A missing right to subscribe is left to the caller.
    async fn look_at_each(
        &self,
        parts: Vec<Part>,
        client: ClientId,
        findings: &mut Vec<Finding>,
        deadline: Deadline,
    ) -> Result<Look> {
        let mut parts: Vec<_> = parts.into_iter().filter(|it| !it.slots.is_empty()).collect();
        let mut whole = Look { findings: Vec::new(), lacking: Vec::new(), user: None };
        let (mut answered, mut failure) = (false, None);
        while let Some(Part { server, location, slots }) = parts.pop() {
            // A silent node must leave time for the other nodes and the notification channel.
            let shares = u32::try_from(parts.len()).unwrap_or(u32::MAX).saturating_add(2);
            let turn = deadline.at_most(deadline.left() / shares);
            let looked = self.look_at(&*server, self.spare(client, &slots)?, turn).await;
            let of_node = match looked {
                Ok(Look { mut findings, lacking, user }) => {
                    answered = true;
                    let names = &self.shared.names;
                    findings.extend(rights::judge(&lacking, user.as_deref(), names));
                    whole.user = user;
                    findings
                }
                Err(error) => {
                    let found = format!("a node was not examined: {error}");
                    failure = Some(error);
                    vec![topology::unexamined_node(found)]
                }
            };
            findings.extend(of_node.into_iter().map(|it| it.at_store(location.clone())));
        }
        match failure {
            Some(failure) if !answered => Err(failure),
            _ => Ok(whole),
        }
    }

    /// An unused lock, in one of these slots if there are any.
    fn spare(&self, client: ClientId, slots: &[u16]) -> Result<Spare> {
        let names = &self.shared.names;
        let mut number = 0_u32;
        loop {
            let key = Key::new(format!("doctor/{client}/{number}"))?;
            let record = names.record(&key);
            number = number.saturating_add(1);
            let fits = slots.is_empty() || slots.binary_search(&slot_of(&record)).is_ok();
            if fits || number == SPARES_MAX {
                return Ok(Spare { key, record, channel: names.channel(client) });
            }
        }
    }

    async fn look_at(
        &self,
        server: &dyn Transport,
        spare: Spare,
        deadline: Deadline,
    ) -> Result<Look> {
        let clock = self.read_clock(server, deadline).await?;
        let facts = self.ask_facts(server, deadline).await?;
        let user = self.ask_user(server, deadline).await?;
        let lacking = self.try_commands(server, &spare, deadline).await?;
        let scripts = match self.try_structs(server, &spare, deadline).await? {
            // This also explains why no script runs.
            Some(lacking) => Some(lacking),
            None => self.try_script(server, &spare, deadline).await?,
        };
        let is_spread = self.shared.transport.is_spread();
        let mut findings = judge::settings(&facts, is_spread, self.shared.replication);
        findings.extend(replicas::replication(&facts, self.shared.replication));
        findings.extend(clock.map(judge::clock));
        findings.extend(scripts);
        if is_spread {
            findings.extend(self.half_moved(server, deadline).await?);
        }
        findings.extend(self.look_at_replicas(server, &facts, clock, deadline).await);
        Ok(Look { findings, lacking, user })
    }

    /// Examines the replicas that may replace a server.
    async fn look_at_replicas(
        &self,
        server: &dyn Transport,
        primary: &Facts,
        clock: Option<ClockReading>,
        deadline: Deadline,
    ) -> Vec<Finding> {
        let (transport, confirming) = (&self.shared.transport, self.shared.replication);
        let all = primary.followers();
        let mut findings = Vec::new();
        let (mut looked_at, mut appending, mut staying) = (0_usize, 0_usize, 0_usize);
        // The later trials need time, too.
        let deadline = deadline.at_most(deadline.left() / 2);
        for (place, follower) in all.iter().enumerate().take(replicas::LOOKED_AT_MAX) {
            let Some(replica) = server.neighbour(&follower.host, follower.port) else { break };
            let left = u32::try_from(all.len().saturating_sub(place)).unwrap_or(u32::MAX);
            let turn = deadline.at_most(deadline.left() / left.max(1));
            let of_one = match self.look_at_replica(&*replica.server, turn).await {
                Ok((facts, its_clock)) => {
                    looked_at += 1;
                    appending += usize::from(facts.appends() == Some(true));
                    staying += usize::from(facts.stays_replica(transport.is_spread()));
                    let apart = its_clock.zip(clock).map(|(its, other)| its.less(other));
                    replicas::examined(&facts, primary, apart, confirming)
                }
                Err(error) => {
                    let found = format!("a replica was not examined: {error}");
                    vec![replicas::unexamined(found, transport.fails_over())]
                }
            };
            findings.extend(of_one.into_iter().map(|it| it.at_store(replica.location.clone())));
        }
        if all.len() > replicas::LOOKED_AT_MAX {
            findings.push(replicas::too_many(all.len() - replicas::LOOKED_AT_MAX));
        }
        if !all.is_empty() && staying == all.len() {
            findings.push(replicas::none_takes_over(transport.is_spread(), transport.fails_over()));
        }
        if let Some(wanted) = confirming.filter(|it| it.fsync) {
            findings.extend(replicas::on_disk(appending, looked_at, all.len(), wanted.replicas));
        }
        findings
    }

    async fn look_at_replica(
        &self,
        replica: &dyn Transport,
        deadline: Deadline,
    ) -> Result<(Facts, Option<ClockReading>)> {
        let clock = self.read_clock(replica, deadline).await?;
        Ok((self.ask_facts(replica, deadline).await?, clock))
    }

    /// Asks a node of a cluster which of its slots are moving.
    async fn half_moved(
        &self,
        server: &dyn Transport,
        deadline: Deadline,
    ) -> Result<Option<Finding>> {
        let mut nodes = redis::cmd("CLUSTER");
        nodes.arg("NODES");
        let answer = self.ask(server, vec![nodes], deadline).await?.pop();
        let text = answer.and_then(|it| redis::from_redis_value::<String>(it.ok()?).ok());
        Ok(text.and_then(|text| topology::half_moved(&text)))
    }

    fn unexamined(&self, verdict: &Verdict) -> Error {
        verdict.to_error().during("examine").at_store(self.location())
    }

    /// Sends several commands at once; each answer may be an error. Errors are not retried, so that
    /// a busy or loading server is seen as it is.
    async fn ask(
        &self,
        server: &dyn Transport,
        commands: Vec<redis::Cmd>,
        deadline: Deadline,
    ) -> Result<Vec<std::result::Result<Value, Verdict>>> {
        let requests: Vec<_> = commands.iter().map(Request::plain).collect();
        let answers = server.many(&requests, deadline).await;
        let values = answers.into_iter().map(|answer| match answer {
            Ok(answer) => Ok(Ok(answer.value)),
            Err(verdict) if verdict.answered => Ok(Err(verdict)),
            Err(verdict) => Err(self.unexamined(&verdict)),
        });
        values.collect()
    }

    /// Compares the server's clock with this machine's; `None` if the user may not read it.
    async fn read_clock(
        &self,
        server: &dyn Transport,
        deadline: Deadline,
    ) -> Result<Option<ClockReading>> {
        let mut best: Option<ClockReading> = None;
        for _ in 0..CLOCK_SAMPLES {
            let (sent_at, our_us) = (Instant::now(), unix_micros());
            let answer = self.ask(server, vec![redis::cmd("TIME")], deadline).await?.pop();
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

    async fn ask_facts(&self, server: &dyn Transport, deadline: Deadline) -> Result<Facts> {
        let mut commands = vec![redis::cmd("INFO")];
        commands.extend(SETTINGS.iter().map(|setting| {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg(setting);
            command
        }));
        let mut answers = self.ask(server, commands, deadline).await?.into_iter();
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

    async fn ask_user(&self, server: &dyn Transport, deadline: Deadline) -> Result<Option<String>> {
        let mut whoami = redis::cmd("ACL");
        whoami.arg("WHOAMI");
        let answer = self.ask(server, vec![whoami], deadline).await?.pop();
        Ok(answer.and_then(|answer| redis::from_redis_value(answer.ok()?).ok()))
    }

    async fn try_commands(
        &self,
        server: &dyn Transport,
        spare: &Spare,
        deadline: Deadline,
    ) -> Result<Vec<Lacking>> {
        let digest = &self.shared.scripts.inspect.digest;
        let mut trials = rights::trials(&self.shared.names, spare, digest);
        // First, so that it does not apply to a command that the node could then carry out.
        if self.shared.transport.is_spread() {
            trials.insert(0, ("asking", redis::cmd("ASKING")));
        }
        trials.extend(self.shared.replication.map(Replication::trial));
        if self.shared.replication.is_some_and(|replication| replication.longest.is_some()) {
            trials.push(("info", Age::question()));
        }
        if self.shared.log > 0 {
            trials.extend(rights::trials_of_log(&self.shared.names, spare));
        }
        let (names, commands): (Vec<_>, Vec<_>) = trials.into_iter().unzip();
        let answers = self.ask(server, commands, deadline).await?;
        let lacks = names.into_iter().zip(&answers);
        Ok(lacks.filter_map(|(name, answer)| Some((name, answer.as_ref().err()?.lack?))).collect())
    }

    /// Runs a script that only reads. A missing right is returned as such.
    async fn try_script(
        &self,
        server: &dyn Transport,
        spare: &Spare,
        deadline: Deadline,
    ) -> Result<Option<Finding>> {
        let call = self.inspect_call(&spare.key);
        let mut outcome = Err(deadline.missed());
        for whole in [false, true] {
            let request =
                Request { body: Body::Script { call: &call, whole }, delivery: Delivery::None };
            outcome = server.one(&request, deadline).await;
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
                "locks can't be taken, renewed or released",
            )),
        })
    }
}
