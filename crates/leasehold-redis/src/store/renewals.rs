//! Renews many leases, some dozen in a script.

use std::ops::Range;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use leasehold_core::{Error, ErrorKind, Renew, RenewRequest, Result};
use tokio::time::timeout;

use super::RedisStore;
use crate::classify::{Next, Verdict};
use crate::script::request::{Answer, Deadline, Delivery};
use crate::topology::slot::slot_of;
use crate::wire::reply;

/// How many locks one script renews: they occupy a server for less than 0.1 ms.
const RENEW_CHUNK: usize = 20;

/// How long a group waits for the answer to the group before.
const RENEW_APART: Duration = Duration::from_millis(1);

/// The renewals of one script, each with its index in the request.
type RenewalGroup<'g, 'a> = &'g [(usize, &'a RenewRequest)];

impl RedisStore {
    /// Renews group after group. Each is sent after the answer to the group before, or at most
    /// [`RENEW_APART`] after it. So other clients of the server wait for one group at most, and the
    /// distance of a server delays little.
    async fn renew_in_turn(
        &self,
        groups: &[RenewalGroup<'_, '_>],
        delivery: Delivery,
        deadline: Deadline,
    ) -> Vec<std::result::Result<Answer, Verdict>> {
        let mut under_way = FuturesOrdered::new();
        let mut answers = Vec::with_capacity(groups.len());
        let mut rest = groups;
        while !rest.is_empty() {
            // In a cluster most groups are of one lock. Several of them go together.
            let mut locks: usize = 0;
            let fitting = rest.iter().take_while(|group| {
                locks = locks.saturating_add(group.len());
                locks <= RENEW_CHUNK
            });
            let (together, later) = rest.split_at(fitting.count().max(1));
            let calls: Vec<_> = together.iter().map(|group| self.renew_call(group)).collect();
            under_way.push_back(async move { self.run_all(&calls, delivery, deadline).await });
            rest = later;
            if !rest.is_empty() && !deadline.is_over() {
                let answered = timeout(RENEW_APART, under_way.next()).await;
                answers.extend(answered.ok().flatten().unwrap_or_default());
            }
        }
        while let Some(answered) = under_way.next().await {
            answers.extend(answered);
        }
        answers
    }

    /// The renewals to send, each with its index in the request, and the ranges that form one
    /// script. A script has a limited number of locks. In a cluster, they share a slot.
    fn renewal_groups<'a>(
        &self,
        requests: &'a [RenewRequest],
    ) -> (Vec<(usize, &'a RenewRequest)>, Vec<Range<usize>>) {
        let mut all: Vec<_> = requests
            .iter()
            .enumerate()
            .filter(|(_, request)| self.check_ttl(request.ttl).is_ok())
            .collect();
        let chunks = |Range { start, end }: Range<usize>| {
            let starts = (start..end).step_by(RENEW_CHUNK);
            starts.map(move |start| start..end.min(start.saturating_add(RENEW_CHUNK)))
        };
        if !self.shared.transport.is_spread() {
            let groups = chunks(0..all.len()).collect();
            return (all, groups);
        }
        let slot = |request: &RenewRequest| slot_of(self.shared.names.record(&request.key));
        all.sort_by_cached_key(|(_, request)| slot(request));
        let mut groups = Vec::new();
        let mut start: usize = 0;
        for same in all.chunk_by(|(_, one), (_, other)| slot(one) == slot(other)) {
            let end = start.saturating_add(same.len());
            groups.extend(chunks(start..end));
            start = end;
        }
        (all, groups)
    }

    /// Renews all. A group that the server refused as a whole is renewed lock by lock, so
    /// that one bad lock does not fail the others.
    pub(super) async fn renew_all(
        &self,
        requests: &[RenewRequest],
        deadline: Deadline,
    ) -> Vec<Result<Renew>> {
        let shortest = requests.iter().map(|request| request.ttl.duration()).min();
        let delivery = self.confirmed_renewal(shortest.unwrap_or_default());
        let (all, ranges) = self.renewal_groups(requests);
        let groups: Vec<RenewalGroup<'_, '_>> =
            ranges.into_iter().filter_map(|range| all.get(range)).collect();
        let mut outcomes: Vec<Result<Renew>> = Vec::with_capacity(all.len());
        let answers = self.renew_in_turn(&groups, delivery, deadline).await;
        for (group, answer) in groups.into_iter().zip(answers) {
            match answer {
                Err(verdict)
                    if verdict.answered && verdict.next == Next::Fail && group.len() > 1 =>
                {
                    for one in group.chunks(1) {
                        let call = self.renew_call(one);
                        let answer = call.run(&*self.shared.transport, delivery, deadline).await;
                        outcomes.extend(renewed(answer, 1));
                    }
                }
                answer => outcomes.extend(renewed(answer, group.len())),
            }
        }
        let unanswered = || Err(Error::new(ErrorKind::Protocol, "no answer in the answer"));
        outcomes.resize_with(all.len(), unanswered);
        let mut results = self.as_asked(requests, &all, outcomes);
        for (result, request) in results.iter_mut().zip(requests) {
            if let Err(error) = result {
                *error = self.named(error.clone(), "renew", Some(&request.key));
            }
        }
        results
    }

    /// The outcomes in the order of the requests, with the reasons of requests that were not sent.
    fn as_asked(
        &self,
        requests: &[RenewRequest],
        renewals: RenewalGroup<'_, '_>,
        outcomes: Vec<Result<Renew>>,
    ) -> Vec<Result<Renew>> {
        if renewals.len() == requests.len() && !self.shared.transport.is_spread() {
            return outcomes;
        }
        let unasked = || Error::new(ErrorKind::Protocol, "it was not requested");
        let reason = |request: &RenewRequest| self.check_ttl(request.ttl).err();
        let mut results: Vec<Result<Renew>> =
            requests.iter().map(|request| Err(reason(request).unwrap_or_else(unasked))).collect();
        for ((place, _), outcome) in renewals.iter().zip(outcomes) {
            if let Some(result) = results.get_mut(*place) {
                *result = outcome;
            }
        }
        results
    }
}

/// Reads the answer to `count` renewals. Those that replicas may lack do not count: on the next
/// primary the lease may end when it would have ended before.
fn renewed(answer: std::result::Result<Answer, Verdict>, count: usize) -> Vec<Result<Renew>> {
    let failed = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
    let Answer { value, unconfirmed, epoch: _ } = match answer {
        Ok(answer) => answer,
        Err(verdict) => return failed(verdict.to_error()),
    };
    let mut outcomes = reply::renew(value, count);
    if let Some(missing) = unconfirmed {
        for outcome in &mut outcomes {
            if outcome.as_ref().is_ok_and(|renew| renew.proves().is_some()) {
                *outcome = Err(missing.to_error());
            }
        }
    }
    outcomes
}
