//! Examines the nodes: which of them answer, and which have a vote.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::{self, Finding, Severity};
use leasehold_core::{BoxFuture, Error, Key, Result, length};

use crate::nodes::Nodes;
use crate::round::Round;

impl Nodes {
    pub(crate) async fn examine(self: &Arc<Self>, within: Duration) -> Result<Vec<Finding>> {
        let mut round = Round::new();
        for node in 0..self.count() {
            round.ask(node, self.ask(node, within, |store, within| store.examine(within)));
        }
        let (mut answers, mut silent) = (Vec::new(), Vec::new());
        while let Some((node, answer)) = round.next().await {
            match answer {
                Ok(found) => answers.push((node, found)),
                Err(error) => silent.push((node, error)),
            }
        }
        if answers.len() < self.majority() {
            let errors = silent.into_iter().map(|(_, error)| error).collect();
            return Err(self.too_few(answers.len(), "answered", errors));
        }
        let location = |node: usize| self.stores.get(node).map(|store| store.location());
        let location = |node: usize| location(node).unwrap_or_default();
        let voteless = self.voteless(answers.iter().map(|(node, _)| *node), within).await;
        let twins = twins(&answers);
        let mut findings = Vec::new();
        for (topic, what, errors) in
            [("node", "was not examined", &silent), ("quorum", "has no vote", &voteless)]
        {
            findings.extend(errors.iter().map(|(node, error)| {
                let found = format!("this node {what}: {error}");
                let means = "it counts as a missing node";
                let finding = Finding::new(Severity::Warning, topic, found, means);
                finding.at_store(location(*node))
            }));
        }
        findings.extend(twins.iter().map(|(one, other)| {
            let found = format!("{} and {} are one server", location(*one), location(*other));
            let means = "it has one vote, so fewer servers may fail than it seems";
            let finding = Finding::new(Severity::Problem, doctor::IDENTITY, found, means);
            finding.advise("name each server once in the quorum's URL")
        }));
        for (node, found) in answers {
            let found = found.into_iter().filter_map(|finding| self.as_of_node(finding));
            findings.extend(found.map(|finding| finding.at_store(location(node))));
        }
        let mut missing: BTreeMap<usize, Option<Duration>> = BTreeMap::new();
        let errors = silent.iter().chain(&voteless);
        missing.extend(errors.map(|(node, error)| (*node, error.retry_after())));
        missing.extend(twins.iter().map(|(_, other)| (*other, None)));
        let only_answers = voteless.is_empty() && twins.is_empty();
        let has = if only_answers { "answer" } else { "have a vote" };
        findings.push(self.whole(has, &missing, location));
        Ok(findings)
    }

    /// What the quorum can do without the `missing` nodes, each with the time after which it
    /// counts, if known.
    fn whole(
        &self,
        has: &str,
        missing: &BTreeMap<usize, Option<Duration>>,
        location: impl Fn(usize) -> String,
    ) -> Finding {
        let (count, spare) = (self.count(), self.spare());
        let found = match missing.len() {
            0 => format!("all {count} nodes {has}"),
            away => {
                let missing: Vec<String> = missing.keys().map(|node| location(*node)).collect();
                let there = count.saturating_sub(away);
                format!("{there} of {count} nodes {has}, not {}", missing.join(", "))
            }
        };
        let mut ends: Vec<Duration> = missing.values().flatten().copied().collect();
        ends.sort_unstable();
        let lacking = missing.len().saturating_sub(spare);
        let means = match (lacking, spare.saturating_sub(missing.len())) {
            (0, 0) => "if one more node fails, no lock can be taken".to_owned(),
            (0, more) => format!("locks can be taken until {more} more fail"),
            _ => match ends.get(lacking.saturating_sub(1)) {
                Some(left) => {
                    format!("no lock can be taken for another {}", length::measured(*left))
                }
                None => "no lock can be taken".to_owned(),
            },
        };
        let severity = match (missing.len(), spare) {
            (missing, spare) if missing > spare => Severity::Problem,
            (0, 1..) => Severity::Fine,
            _ => Severity::Warning,
        };
        let finding = Finding::new(severity, "quorum", found, means);
        match (missing.len(), spare) {
            (0, 0) => finding.advise("use 3 or 5 nodes"),
            (0, _) => finding,
            (missing, _) if missing == ends.len() => finding.advise(
                "wait until they count, or set keep_leases=yes if every node writes each lease to \
                 its disk (appendonly yes, appendfsync always)",
            ),
            _ => finding.advise("bring the missing nodes back, one at a time"),
        }
    }

    /// A node's finding, with its meaning for the quorum.
    fn as_of_node(&self, mut finding: Finding) -> Option<Finding> {
        match &*finding.topic {
            // A quorum uses no notifications of its nodes.
            doctor::WAKE => return None,
            doctor::PERSISTENCE if !self.keep_leases && finding.severity == Severity::Warning => {
                finding.severity = Severity::Note;
                finding.means =
                    "after a restart a node has no vote until all leases that it may have lost are \
                     over"
                        .into();
                finding.advice = None;
            }
            doctor::CLOCK if finding.severity > Severity::Fine && !self.keep_leases => {
                finding.means = format!(
                    "where the clocks of nodes differ by {} or more and nodes lose their data, a \
                     later fence can be lower",
                    self.max_ttl
                )
                .into();
            }
            _ => {}
        }
        Some(finding)
    }

    /// The nodes that fail at what every grant needs, and why.
    async fn voteless(
        self: &Arc<Self>,
        nodes: impl Iterator<Item = usize>,
        within: Duration,
    ) -> Vec<(usize, Error)> {
        let mut round = Round::new();
        for node in nodes {
            if self.keep_leases {
                let look = self.ask(node, within, |store, within| {
                    Box::pin(async move {
                        let key = Key::new("leasehold")?;
                        store.inspect(&key, within).await
                    }) as BoxFuture<'_, _>
                });
                round.ask(node, async { look.await.map(drop) });
            } else {
                round.ask(node, self.ask_age(node, within));
            }
        }
        let mut voteless = Vec::new();
        while let Some((node, answer)) = round.next().await {
            if let Err(error) = answer {
                voteless.push((node, error));
            }
        }
        voteless
    }
}

/// Nodes that are one store under two names, the second name last.
fn twins(answers: &[(usize, Vec<Finding>)]) -> Vec<(usize, usize)> {
    let mut named: Vec<_> = answers
        .iter()
        .flat_map(|(node, found)| {
            let who = found.iter().filter(|finding| finding.topic == doctor::IDENTITY);
            who.map(|finding| (*node, &finding.found))
        })
        .collect();
    named.sort_unstable_by_key(|(node, _)| *node);
    let mut known = HashMap::new();
    let second = |(node, who)| {
        let first = *known.entry(who).or_insert(node);
        (first != node).then_some((first, node))
    };
    named.into_iter().filter_map(second).collect()
}
