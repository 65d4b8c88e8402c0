//! Judges what a cluster's nodes and a primary's sentinels report.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::escape;

use crate::topology::addresses::{Heard, apart};
use crate::topology::sentinel::Said;
use crate::topology::sentinel::deployment::{Answer, deployments, newest, twins, voters};

/// How many slots or sentinels a finding names.
const NAMED_MAX: usize = 4;

/// Whether every slot of a cluster has a primary.
pub(super) fn whole(whole: bool) -> Option<Finding> {
    if whole {
        return None;
    }
    let finding = Finding::new(
        Severity::Problem,
        "slots",
        "some slots of the cluster have no node",
        "locks in them can't be taken, renewed or released",
    );
    Some(finding.advise("redis-cli --cluster check, and --cluster fix"))
}

/// A node of a cluster that could not be examined.
pub(super) fn unexamined_node(found: String) -> Finding {
    let means = "the locks in its slots can't be taken, renewed or released until it, or a \
                 replica, serves them";
    Finding::new(Severity::Problem, "node", found, means)
}

/// The slots that a node has begun to export or import, by its own answer to `CLUSTER NODES`. Only
/// the node itself reports them.
pub(super) fn half_moved(nodes: &str) -> Option<Finding> {
    let own = own_line(nodes)?;
    let mut slots: BTreeMap<u16, bool> = BTreeMap::new();
    for open in own.split(' ').filter_map(|word| word.strip_prefix('[')) {
        let Some((slot, way)) = open.split_once('-') else { continue };
        if let Ok(slot) = slot.parse() {
            slots.insert(slot, way.starts_with('>'));
        }
    }
    let leaving = slots.values().filter(|leaves| **leaves).count();
    let mut named: Vec<String> = slots.keys().take(NAMED_MAX).map(u16::to_string).collect();
    if slots.len() > NAMED_MAX {
        named.push("…".to_owned());
    }
    let named = named.join(", ");
    let (found, means) = match (slots.len(), leaving) {
        (0, _) => return None,
        (all, 0) => (
            format!("{} begun to move to this node: {named}", count(all)),
            "their locks are at one node or the other; a move that never ends slows them, and \
             harms when the other node fails over",
        ),
        (_, leaving) => (
            format!("{} begun to move away from this node: {named}", count(leaving)),
            "a replica that takes over from this node may grant locks that have moved, so two can \
             hold a lock; fences still grow",
        ),
    };
    let finding = Finding::new(Severity::Warning, "slots", found, means);
    Some(finding.advise(
        "finish the move soon: redis-cli --cluster fix; until then, check fences at the resource",
    ))
}

fn count(slots: usize) -> String {
    if slots == 1 { "1 slot has".to_owned() } else { format!("{slots} slots have") }
}

/// What sentinels report about agreeing on a fail-over.
pub(super) fn no_quorum(said: &[Said]) -> Option<Finding> {
    let lacking = said.iter().filter_map(|one| Some((&one.sentinel, one.no_quorum.as_ref()?)));
    let (sentinel, why) = lacking.clone().next()?;
    let found = format!(
        "{} of {} sentinels could not fail over; {sentinel} says: {}",
        lacking.count(),
        said.len(),
        escape::terminal(why)
    );
    let means = "without the primary no failover happens, and no lock can be taken, renewed or \
                 released";
    let finding = Finding::new(Severity::Warning, "fail-over", found, means);
    Some(finding.advise(
        "bring the missing sentinels back; if some are gone for good, SENTINEL SET a lower quorum, \
         and SENTINEL RESET on each",
    ))
}

/// Nodes of the store's URL that belong to different clusters, by their answers to `CLUSTER NODES`.
pub(super) fn strangers(views: &[(String, String)]) -> Option<Finding> {
    let ids = |text: &str| {
        let ids = text.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned()));
        ids.collect::<BTreeSet<_>>()
    };
    let views: Vec<_> =
        views.iter().filter_map(|(at, text)| Some((at, own_line(text)?, ids(text)))).collect();
    let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let apart = views.iter().enumerate().find_map(|(place, (at, own, known))| {
        let others = views.iter().skip(place.saturating_add(1));
        let stranger = others
            .into_iter()
            .find(|(_, other, knows)| !known.contains(&id(other)) || !knows.contains(&id(own)));
        stranger.map(|(other, ..)| (*at, *other))
    });
    let (one, other) = apart?;
    let found = format!("{one} and {other} are not of one cluster");
    let means = "the node with the higher epoch is believed, so locks move to it while they are \
                 held, and two can hold a lock";
    let finding = Finding::new(Severity::Problem, "cluster", found, means);
    Some(finding.advise("name the nodes of one cluster only in the store's URL"))
}

/// Servers of the store's URL that belong to no cluster.
pub(super) fn loners(named: &[String]) -> Option<Finding> {
    let (last, others) = named.split_last()?;
    let found = match others.len() {
        0 => format!("{last} is not a node of a cluster"),
        _ => format!("{} and {last} are not nodes of a cluster", others.join(", ")),
    };
    let means = "no lock is taken there; if the other nodes of the URL are gone, no client finds \
                 the cluster";
    let finding = Finding::new(Severity::Warning, "cluster", found, means);
    Some(finding.advise("name the nodes of the cluster only in the store's URL"))
}

/// How many primaries with slots are needed for a majority to remain if one is gone.
const ELECTORS_MIN: usize = 3;

/// Whether a replica could be elected to replace a primary, by the nodes' answers to
/// `CLUSTER NODES`. A fail-over is expected only if some primary has a replica.
pub(super) fn too_few_to_elect(views: &[(String, String)]) -> Option<Finding> {
    let (mut electors, mut replicas) = (BTreeSet::new(), BTreeSet::new());
    for line in views.iter().flat_map(|(_, text)| text.lines()) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [id, _, flags, _, _, _, _, _, slots @ ..] = &*fields else { continue };
        let is = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
        if is("slave") {
            replicas.insert(*id);
        } else if is("master") && slots.iter().any(|slots| !slots.starts_with('[')) {
            electors.insert(*id);
        }
    }
    if replicas.is_empty() || electors.is_empty() || electors.len() >= ELECTORS_MIN {
        return None;
    }
    let found = match electors.len() {
        1 => "only 1 primary has slots".to_owned(),
        count => format!("only {count} primaries have slots"),
    };
    let means = "failover needs the votes of most primaries with slots; while one is gone, locks \
                 in its slots can't be taken, renewed or released";
    let finding = Finding::new(Severity::Warning, "fail-over", found, means);
    Some(finding.advise("spread the slots over at least three primaries"))
}

/// A node's line about itself, in its answer to `CLUSTER NODES`.
fn own_line(nodes: &str) -> Option<&str> {
    nodes.lines().find(|line| {
        let flags = line.split(' ').nth(2);
        flags.is_some_and(|flags| flags.split(',').any(|flag| flag == "myself"))
    })
}

/// Judges the addresses of a server's name.
pub(super) fn addresses(heard: &[Heard]) -> Finding {
    let topic = "addresses";
    let count = heard.len();
    if let Some((one, other)) = apart(heard) {
        let (one, other) = (one.at, other.at);
        let unsure = heard.iter().any(Heard::is_nameless);
        let found = if unsure {
            format!("{one} and {other}, of one name, may be different servers")
        } else {
            format!("{one} and {other}, of one name, are different servers")
        };
        let means = "each grants its own locks, so two can hold a lock; clients refuse to connect";
        let finding = Finding::new(Severity::Problem, topic, found, means);
        return finding.advise(if unsure {
            "give the user the right to INFO, or write one address into the store's URL"
        } else {
            "write one address into the store's URL, or remove the other from the name"
        });
    }
    let silent: Vec<String> =
        heard.iter().filter(|one| one.is_silent()).map(|one| one.at.to_string()).collect();
    if silent.is_empty() {
        let found = format!("the server's name has {count} addresses, with one primary");
        return Finding::new(
            Severity::Fine,
            topic,
            found,
            "no other server answers under its name",
        );
    }
    let found =
        format!("of {count} addresses of the server's name, {} gave no answer", silent.join(", "));
    let means =
        "a server that is started there, while this one is away, would grant locks of its own";
    let finding = Finding::new(Severity::Note, topic, found, means);
    finding.advise("write the address of the server into the store's URL")
}

/// Judges the reports of all sentinels in the URL.
pub(super) fn sentinels(said: &[Said]) -> Finding {
    let topic = "sentinels";
    let deployments = deployments(said);
    if let [most, strangers, ..] = &*deployments {
        return of_two_deployments(voters(said.iter()), most, strangers);
    }
    let best = deployments.first().and_then(|all| newest(all));
    let (mut agree, mut others) = (Vec::new(), Vec::new());
    for one in said {
        match &one.found {
            Ok(found) if Some(found) == best => agree.push(one),
            Ok(found) => others.push(format!(
                "{} names {} in epoch {}",
                one.sentinel, found.endpoint, found.epoch
            )),
            Err(verdict) => others.push(verdict.message().to_owned()),
        }
    }
    let (agreeing, named) = (voters(agree.into_iter()), voters(said.iter()));
    let mut found = format!("{agreeing} of {named} sentinels answer and name the same primary");
    if let Some(best) = best {
        found.push_str(&format!(", {} in epoch {}", best.endpoint, best.epoch));
    }
    if let Some((one, other)) = twins(said) {
        found.push_str(&format!("; {one} and {other} are one sentinel"));
        let means = "it counts once, so fewer sentinels may fail than the URL suggests";
        let finding = Finding::new(Severity::Warning, topic, found, means);
        return finding.advise("name each sentinel once in the store's URL");
    }
    if named < 2 {
        let means = "without it the primary is not found";
        let finding = Finding::new(Severity::Warning, topic, found, means);
        return finding.advise("name all sentinels in the store's URL");
    }
    if agreeing < named {
        others.truncate(NAMED_MAX);
        for other in others {
            found.push_str(&format!("; {}", escape::terminal(&other)));
        }
        return Finding::new(
            Severity::Warning,
            topic,
            found,
            "the others are gone, behind, or refuse this user; without a majority of them no \
             failover happens",
        )
        .advise("start the others, or remove them from the store's URL");
    }
    Finding::new(Severity::Fine, topic, found, "a primary that is replaced is found again")
}

/// Sentinels that don't know each other, and name different primaries.
fn of_two_deployments(named: usize, most: &[Answer<'_>], strangers: &[Answer<'_>]) -> Finding {
    let count = voters(most.iter().map(|(one, _)| *one));
    let primary = newest(most).map(|best| best.endpoint.to_string());
    let names = |(one, found): &Answer<'_>| format!("{} names {}", one.sentinel, found.endpoint);
    let strangers: Vec<String> = strangers.iter().take(NAMED_MAX).map(names).collect();
    let found = format!(
        "of {named} sentinels {count} know each other and name {}; another deployment's are: {}",
        primary.unwrap_or_default(),
        escape::terminal(&strangers.join("; "))
    );
    let means = "the primary that most sentinels name is used; while the others are away, a held \
                 lock may be granted again at a wrong one";
    let finding = Finding::new(Severity::Problem, "sentinels", found, means);
    finding.advise("name the sentinels of one deployment alone in the store's URL")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::Verdict;
    use crate::topology::address::Endpoint;
    use crate::topology::sentinel::Found;

    #[test]
    fn only_a_nodes_own_word_says_which_slots_are_half_moved() {
        let own = "aa 10.0.0.1:7000@17000 myself,master - 0 0 3 connected 0-99";
        let other = "bb 10.0.0.2:7001@17001 master - 0 0 9 connected 100-199 [5->-cc]";
        assert!(half_moved(&format!("{own}\n{other}\n")).is_none());
        let leaving = half_moved(&format!("{own} [5->-bb] [7-<-bb]\n{other}\n")).unwrap();
        assert_eq!(leaving.severity, Severity::Warning);
        assert!(leaving.found.contains("1 slot has begun to move away"), "{leaving:?}");
        assert!(leaving.found.ends_with("5, 7"), "{leaving:?}");
        let coming = half_moved(&format!("{own} [7-<-bb]")).unwrap();
        assert!(coming.found.contains("to this node: 7"), "{coming:?}");
        let many: String = (0..9).map(|slot| format!(" [{slot}->-bb]")).collect();
        assert!(half_moved(&format!("{own}{many}")).unwrap().found.ends_with("0, 1, 2, 3, …"));
        assert!(half_moved("").is_none());
    }

    #[test]
    fn fewer_than_three_primaries_with_slots_elect_no_replacement_of_one() {
        let node = |id: &str, flags: &str, slots: &str| {
            format!("{id} 10.0.0.1:7000@17000 {flags} - 0 0 3 connected{slots}\n")
        };
        let seen = |nodes: &[String]| too_few_to_elect(&[("a".to_owned(), nodes.concat())]);
        let [one, two, three] = [("aa", " 0-9"), ("bb", " 10-19 [7-<-aa]"), ("cc", " 20")]
            .map(|(id, slots)| node(id, "master", slots));
        let vacant = node("dd", "myself,master", "");
        let importing = node("ee", "master", " [5-<-aa]");
        let replica = node("ff", "slave", "");
        let of_two = [one.clone(), two.clone(), vacant, importing, replica.clone()];
        let finding = seen(&of_two).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.found.starts_with("only 2 primaries"), "{finding:?}");
        assert!(
            seen(&[one.clone(), replica.clone()]).unwrap().found.starts_with("only 1 primary ")
        );
        assert!(seen(&[one.clone(), two.clone(), three, replica]).is_none());
        assert!(seen(&[one, two]).is_none(), "no fail-over is expected");
        assert!(too_few_to_elect(&[]).is_none());
    }

    #[test]
    fn sentinels_that_are_behind_are_named_with_what_they_say() {
        let at = |port| Endpoint::Tcp { host: "h".into(), port, tls: None };
        let says = |port, epoch| Ok(Found { endpoint: at(port), epoch });
        let said = |all: Vec<Result<Found, Verdict>>| {
            let numbered = all.into_iter().zip(1_u16..);
            let all: Vec<Said> = numbered
                .map(|(found, port)| Said {
                    sentinel: at(port),
                    found,
                    circle: None,
                    no_quorum: None,
                })
                .collect();
            sentinels(&all)
        };
        let agreed = said(vec![says(100, 4), says(100, 4)]);
        assert_eq!(agreed.severity, Severity::Fine);
        assert!(agreed.found.ends_with("primary, h:100 in epoch 4"), "{agreed:?}");
        let gone = Err(Verdict::unconnected("sentinel h:3 does not answer"));
        let behind = said(vec![says(100, 4), says(99, 3), gone]);
        assert_eq!(behind.severity, Severity::Warning);
        assert!(behind.found.contains("1 of 3"), "{behind:?}");
        assert!(behind.found.contains("h:2 names h:99 in epoch 3"), "{behind:?}");
        assert!(behind.found.contains("sentinel h:3 does not answer"), "{behind:?}");
        let same_place = said(vec![says(100, 4), says(100, 3)]);
        assert_eq!(same_place.severity, Severity::Warning, "an epoch behind: {same_place:?}");
        assert_eq!(said(vec![says(100, 4)]).severity, Severity::Warning, "only one is named");
    }
}
