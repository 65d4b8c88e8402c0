//! Decides which sentinels to believe if they name different primaries.
//!
//! Of one deployment, the highest epoch counts: one that was cut off, or is behind, may still name
//! a primary that has been replaced. Sentinels of another deployment, which watch another primary
//! by the same name, have epochs of their own, which say nothing. They are told apart by whom each
//! of them knows.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::Endpoint;
use crate::classify::Verdict;

/// What one sentinel says.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) sentinel: Endpoint,
    pub(crate) found: Result<Found, Verdict>,
    /// Whom it knows, if it was to be learnt.
    pub(crate) circle: Option<Circle>,
    /// Why no fail-over can be agreed on, if it was asked and says so.
    pub(crate) no_quorum: Option<String>,
}

/// A primary.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Found {
    pub(crate) endpoint: Endpoint,
    pub(crate) epoch: u64,
}

/// A sentinel's own id, and those of the others that it knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circle {
    pub(super) own: String,
    pub(super) others: Vec<String>,
}

impl Circle {
    fn meets(&self, other: &Self) -> bool {
        let ids = |circle: &'_ Self| [vec![circle.own.clone()], circle.others.clone()].concat();
        let theirs = ids(other);
        ids(self).iter().any(|id| theirs.contains(id))
    }
}

/// An answer that names a primary, and whose it is.
pub(crate) type Answer<'a> = (&'a Said, &'a Found);

/// The answers by deployment, the one with most sentinels first.
pub(crate) fn deployments(said: &[Said]) -> Vec<Vec<Answer<'_>>> {
    let mut all: Vec<Vec<Answer<'_>>> = Vec::new();
    for one in said {
        let Ok(found) = &one.found else { continue };
        let belongs = |of: &Vec<Answer<'_>>| of.iter().any(|other| same(other, &(one, found)));
        let (same, others): (Vec<_>, Vec<_>) = all.into_iter().partition(belongs);
        let mut joined: Vec<Answer<'_>> = same.into_iter().flatten().collect();
        joined.push((one, found));
        all = others;
        all.push(joined);
    }
    all.sort_by_key(|deployment| std::cmp::Reverse(voters(deployment.iter().map(|(one, _)| *one))));
    all
}

/// How many sentinels these are. One that is reached under several names counts once, if it says
/// who it is.
pub(crate) fn voters<'a>(said: impl Iterator<Item = &'a Said>) -> usize {
    let (named, nameless): (Vec<_>, Vec<_>) =
        said.map(|one| &one.circle).partition(|it| it.is_some());
    let ids: BTreeSet<_> = named.into_iter().flatten().map(|circle| &circle.own).collect();
    ids.len().saturating_add(nameless.len())
}

/// Two names under which one sentinel answers.
pub(crate) fn twins(said: &[Said]) -> Option<(&Endpoint, &Endpoint)> {
    let mut known = BTreeMap::new();
    said.iter().find_map(|one| {
        let first = known.insert(&one.circle.as_ref()?.own, &one.sentinel)?;
        Some((first, &one.sentinel))
    })
}

/// Whether two sentinels are of one deployment, as far as can be told: one may know nobody for a
/// moment, after a reset, and not every user may ask whom they know.
fn same((one, found): &Answer<'_>, (other, theirs): &Answer<'_>) -> bool {
    match (&one.circle, &other.circle) {
        (Some(one), Some(other)) => found.endpoint == theirs.endpoint || one.meets(other),
        _ => true,
    }
}

/// The primary to believe in; `None` where no sentinel names one. That of most sentinels, and of
/// their answers that of the highest epoch.
pub(crate) fn believed(said: &[Said]) -> Option<Result<Found, Verdict>> {
    let deployments = deployments(said);
    let most = deployments.first()?;
    let count = |of: &Vec<Answer<'_>>| voters(of.iter().map(|(one, _)| *one));
    let rival = deployments.get(1).filter(|rival| count(rival) == count(most));
    if let (Some((one, found)), Some((other, theirs))) =
        (most.first(), rival.and_then(|rival| rival.first()))
    {
        return Some(Err(Verdict::nobody_yet(format!(
            "sentinel {} names {}, sentinel {} names {}, neither knows the other, and as many \
             say so; name the sentinels of one deployment alone",
            one.sentinel, found.endpoint, other.sentinel, theirs.endpoint
        ))));
    }
    newest(most).cloned().map(Ok)
}

/// Of one deployment's answers, the one that counts: that of the highest epoch. Sentinels agree on
/// a primary within an epoch, unless somebody is pointing them at another one after the other; then
/// it is what most of them say, and the first that answered where as many say the one as the other.
pub(crate) fn newest<'a>(deployment: &[Answer<'a>]) -> Option<&'a Found> {
    let epoch = deployment.iter().map(|(_, found)| found.epoch).max()?;
    let newest = || deployment.iter().filter(|(_, found)| found.epoch == epoch);
    let votes = |for_it: &Found| {
        voters(newest().filter(|(_, found)| found.endpoint == for_it.endpoint).map(|(one, _)| *one))
    };
    let candidates = newest().map(|(_, found)| *found);
    candidates.reduce(|best, next| if votes(next) > votes(best) { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Endpoint {
        Endpoint::Tcp { host: "h".into(), port, tls: None }
    }

    /// A sentinel that names a primary in an epoch, and the ids that it knows, its own first.
    fn says(port: u16, epoch: u64, ids: Option<&str>) -> Said {
        let circle = ids.map(|ids| {
            let mut ids = ids.chars().map(String::from);
            Circle { own: ids.next().unwrap(), others: ids.collect() }
        });
        Said {
            sentinel: at(1),
            found: Ok(Found { endpoint: at(port), epoch }),
            circle,
            no_quorum: None,
        }
    }

    fn primary(said: &[Said]) -> Option<Endpoint> {
        believed(said).unwrap().ok().map(|found| found.endpoint)
    }

    #[test]
    fn who_is_ahead_counts_among_those_who_know_each_other() {
        let said = [says(7, 4, Some("abc")), says(8, 5, Some("bac")), says(7, 4, Some("cab"))];
        assert_eq!(primary(&said), Some(at(8)));
        let reset = [says(7, 4, Some("a")), says(8, 5, Some("bac"))];
        assert_eq!(primary(&reset), Some(at(8)), "one that knows nobody just now is known");
        let apart = [says(7, 4, Some("ac")), says(8, 5, Some("bc"))];
        assert_eq!(primary(&apart), Some(at(8)), "both know a third");
        assert_eq!(primary(&[says(7, 4, Some("a"))]), Some(at(7)), "one is enough");
        assert!(believed(&[]).is_none());
    }

    #[test]
    fn most_count_where_those_who_know_each_other_disagree_in_one_epoch() {
        let (here, moved) = (says(7, 3, Some("abc")), says(8, 3, Some("cab")));
        for said in [[&moved, &here, &here], [&here, &moved, &here], [&here, &here, &moved]] {
            let mut said = said.map(Clone::clone);
            // Told apart, as three sentinels are.
            for (one, id) in said.iter_mut().zip(["a", "b", "c"]) {
                one.circle.as_mut().unwrap().own = id.to_owned();
            }
            assert_eq!(primary(&said), Some(at(7)));
        }
        assert_eq!(primary(&[moved, here]), Some(at(8)), "the first, where as many say either");
    }

    #[test]
    fn another_deployment_is_outvoted_whatever_its_epoch_and_its_place() {
        let ours = [says(7, 0, Some("abc")), says(7, 0, Some("bac")), says(7, 0, Some("cab"))];
        for epoch in [0, 9] {
            for place in 0..=3 {
                let mut said = ours.to_vec();
                said.insert(place, says(8, epoch, Some("x")));
                assert_eq!(primary(&said), Some(at(7)), "epoch {epoch}, place {place}");
            }
        }
        // Three in two deployments, and two that came late to one of them.
        let late = [says(7, 0, Some("ab")), says(8, 9, Some("x")), says(7, 0, Some("ba"))];
        assert_eq!(primary(&late), Some(at(7)));
        assert_eq!(deployments(&late).len(), 2);
    }

    #[test]
    fn a_sentinel_counts_once_under_however_many_names() {
        let stranger = says(8, 9, Some("x"));
        for names in 1..=4 {
            let mut said = vec![stranger.clone(); names];
            said.extend([says(7, 0, Some("abc")), says(7, 0, Some("bac"))]);
            assert_eq!(primary(&said), Some(at(7)), "{names} names");
            assert_eq!(twins(&said).is_some(), names > 1);
        }
        let even = [stranger.clone(), says(7, 0, Some("a")), stranger];
        assert!(believed(&even).unwrap().is_err(), "one against one");
    }

    #[test]
    fn as_many_on_either_side_decide_nothing_unless_they_agree() {
        let even = [says(7, 0, Some("ab")), says(8, 9, Some("xy"))];
        let verdict = believed(&even).unwrap().unwrap_err();
        assert!(verdict.message().contains("neither knows the other"), "{verdict:?}");
        let agreed = [says(7, 0, Some("a")), says(7, 3, Some("x"))];
        assert_eq!(primary(&agreed), Some(at(7)));
    }

    #[test]
    fn where_nobody_may_ask_whom_they_know_the_highest_epoch_counts() {
        let said = [says(7, 0, None), says(8, 1, None), says(7, 0, Some("ab"))];
        assert_eq!(primary(&said), Some(at(8)));
    }
}
