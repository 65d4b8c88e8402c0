//! Decides which sentinels to believe if they name different primaries.
//!
//! Within one deployment, the highest epoch counts. A sentinel that was cut off, or lags behind,
//! may still name a replaced primary. Sentinels of another deployment watch another primary by the
//! same name, and their epochs can't be compared. Deployments are distinguished by which sentinels
//! know each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::classify::Verdict;
use crate::topology::address::Endpoint;

/// The answer of one sentinel.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) sentinel: Endpoint,
    pub(crate) found: Result<Found, Verdict>,
    /// The sentinels that it knows, if they could be read.
    pub(crate) circle: Option<Circle>,
    /// Why a fail-over can't be agreed on, if it reports that.
    pub(crate) no_quorum: Option<String>,
}

/// A primary.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Found {
    pub(crate) endpoint: Endpoint,
    pub(crate) epoch: u64,
}

/// A sentinel's own id, and the ids of the others that it knows.
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

/// An answer that names a primary, with its sentinel.
pub(crate) type Answer<'a> = (&'a Said, &'a Found);

/// The answers by deployment, the largest deployment first.
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

/// How many sentinels these are. A sentinel that is reached under several names counts once, if it
/// reports its id.
pub(crate) fn voters<'a>(said: impl Iterator<Item = &'a Said>) -> usize {
    let (named, nameless): (Vec<_>, Vec<_>) =
        said.map(|one| &one.circle).partition(|it| it.is_some());
    let ids: BTreeSet<_> = named.into_iter().flatten().map(|circle| &circle.own).collect();
    ids.len().saturating_add(nameless.len())
}

/// Two names of the same sentinel.
pub(crate) fn twins(said: &[Said]) -> Option<(&Endpoint, &Endpoint)> {
    let mut known = BTreeMap::new();
    said.iter().find_map(|one| {
        let first = known.insert(&one.circle.as_ref()?.own, &one.sentinel)?;
        Some((first, &one.sentinel))
    })
}

/// Whether two sentinels belong to one deployment. It is assumed if it is unknown: after a reset a
/// sentinel may briefly know no others, and some users lack the right to read which it knows.
fn same((one, found): &Answer<'_>, (other, theirs): &Answer<'_>) -> bool {
    match (&one.circle, &other.circle) {
        (Some(one), Some(other)) => found.endpoint == theirs.endpoint || one.meets(other),
        _ => true,
    }
}

/// The primary to use: from the deployment with the most sentinels, the answer in the highest
/// epoch. `None` if no sentinel names a primary.
pub(crate) fn believed(said: &[Said]) -> Option<Result<Found, Verdict>> {
    let deployments = deployments(said);
    let most = deployments.first()?;
    let count = |of: &Vec<Answer<'_>>| voters(of.iter().map(|(one, _)| *one));
    let rival = deployments.get(1).filter(|rival| count(rival) == count(most));
    if let (Some((one, found)), Some((other, theirs))) =
        (most.first(), rival.and_then(|rival| rival.first()))
    {
        return Some(Err(Verdict::nobody_yet(format!(
            "sentinel {} names {}, and sentinel {} names {}: they do not know each other; name the \
             sentinels of one deployment only",
            one.sentinel, found.endpoint, other.sentinel, theirs.endpoint
        ))));
    }
    newest(most).cloned().map(Ok)
}

/// The answer of one deployment that counts: the one in the highest epoch.
///
/// Within an epoch, sentinels agree on a primary, unless an operator is redirecting them one after
/// the other. Then the majority counts, and the first answer if there is none.
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

    /// A sentinel that names a primary in an epoch, with the ids that it knows, its own first.
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
            // Distinct, like three sentinels.
            for (one, id) in said.iter_mut().zip(["a", "b", "c"]) {
                one.circle.as_mut().unwrap().own = id.to_owned();
            }
            assert_eq!(primary(&said), Some(at(7)));
        }
        assert_eq!(primary(&[moved, here]), Some(at(8)), "the first, where as many say either");
    }

    #[test]
    fn another_deployment_is_outvoted_whatever_its_epoch_and_its_position() {
        let ours = [says(7, 0, Some("abc")), says(7, 0, Some("bac")), says(7, 0, Some("cab"))];
        for epoch in [0, 9] {
            for place in 0..=3 {
                let mut said = ours.to_vec();
                said.insert(place, says(8, epoch, Some("x")));
                assert_eq!(primary(&said), Some(at(7)), "epoch {epoch}, place {place}");
            }
        }
        // Three in two deployments, and two late ones of one of them.
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
        assert!(verdict.message().contains("they do not know each other"), "{verdict:?}");
        let agreed = [says(7, 0, Some("a")), says(7, 3, Some("x"))];
        assert_eq!(primary(&agreed), Some(at(7)));
    }

    #[test]
    fn where_no_user_may_list_sentinels_the_highest_epoch_counts() {
        let said = [says(7, 0, None), says(8, 1, None), says(7, 0, Some("ab"))];
        assert_eq!(primary(&said), Some(at(8)));
    }
}
