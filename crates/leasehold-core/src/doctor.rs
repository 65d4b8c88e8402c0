//! Findings of an examination: facts about a store, judged by what they mean for a lock.
//!
//! A store looks at its surroundings ([`Store::examine`](crate::Store::examine)) and reports what
//! it found, without changing a setting. Findings are advice for people. They take part in no
//! decision about a lease.

use std::borrow::Cow;
use std::fmt;

/// How much a finding matters to a user that relies on locks.
///
/// The order is from harmless to harmful.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Worth knowing; no action is needed.
    Note,
    /// A lock can be lost, or held twice, by a fault that is likely to happen some day; or no lock
    /// is granted for a while.
    Warning,
    /// Locks don't work here, or are lost in ordinary operation.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

/// One thing that was examined.
///
/// The texts are for people, without secrets; words of a server in them are escaped for a
/// terminal. The topic is for programs: it stays the same word.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was looked at, in a lower-case word or two such as `eviction`.
    pub topic: Cow<'static, str>,
    /// What was found.
    pub found: Cow<'static, str>,
    /// What that means for a lock.
    pub means: Cow<'static, str>,
    /// What to set or do, if something is wrong.
    pub advice: Option<Cow<'static, str>>,
    /// Which store it is about, if the examined one consists of several.
    pub store: Option<Cow<'static, str>>,
}

impl Finding {
    /// A finding without advice.
    #[must_use]
    pub fn new(
        severity: Severity,
        topic: &'static str,
        found: impl Into<Cow<'static, str>>,
        means: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            severity,
            topic: Cow::Borrowed(topic),
            found: found.into(),
            means: means.into(),
            advice: None,
            store: None,
        }
    }

    /// Adds what to set or do.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Names one of several stores, unless the finding names one already: for stores that consist
    /// of others and pass on their findings.
    #[must_use]
    pub fn at_store(mut self, location: impl Into<Cow<'static, str>>) -> Self {
        if self.store.is_none() {
            self.store = Some(location.into());
        }
        self
    }
}

/// The topic of a store's identity. Two stores with the same finding are one store under two names.
pub const IDENTITY: &str = "identity";

/// The topic of a store's clock.
pub const CLOCK: &str = "clock";

/// The topic of what a restart leaves of a store's locks.
pub const PERSISTENCE: &str = "persistence";

/// The topic of how waiters are woken.
pub const WAKE: &str = "wake";

/// Sorts the worst findings to the front; equal ones keep their order.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
}

/// The worst severity; [`Severity::Fine`] without findings.
#[must_use]
pub fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, topic: &'static str) -> Finding {
        Finding::new(severity, topic, "", "")
    }

    #[test]
    fn the_worst_comes_first_and_equals_stay_in_order() {
        let mut findings = [
            finding(Severity::Fine, "a"),
            finding(Severity::Problem, "b"),
            finding(Severity::Note, "c"),
            finding(Severity::Problem, "d"),
            finding(Severity::Warning, "e"),
        ];
        sort(&mut findings);
        let topics: String = findings.iter().map(|finding| &*finding.topic).collect();
        assert_eq!(topics, "bdeca");
        assert_eq!(worst(&findings), Severity::Problem);
        assert_eq!(worst(&[]), Severity::Fine);
    }

    #[test]
    fn a_finding_keeps_the_innermost_store_that_it_is_about() {
        let finding = finding(Severity::Fine, "a").at_store("node").at_store("all of them");
        assert_eq!(finding.store.as_deref(), Some("node"));
    }
}
