//! Merges the tables of several nodes: which primary has which slots, in which epoch.

use std::collections::HashMap;

use leasehold_core::Fence;

use crate::topology::address::Endpoint;
use crate::topology::slot::SLOTS;

/// A primary that has slots.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Primary {
    pub(crate) endpoint: Endpoint,
    /// Its configuration epoch: two primaries never had a slot in the same one.
    epoch: u64,
}

impl Primary {
    /// The epoch, limited to what a fence can hold.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.min(Fence::EPOCH_MAX)
    }
}

/// A node's table, read from `CLUSTER NODES`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Table {
    pub(crate) primaries: Vec<Primary>,
    /// Healthy primaries without slots: some slots may be moving to them, with their keys.
    pub(crate) vacant: Vec<Endpoint>,
    /// All other nodes, whose tables are read when no primary answers.
    pub(crate) others: Vec<Endpoint>,
    /// The index of each slot's primary in the list; beyond its end for a slot without one.
    owners: Vec<u16>,
    /// The node that sent this table.
    own: Option<Endpoint>,
}

const NOBODY: u16 = u16::MAX;

impl Table {
    /// Reads the answer of the node at `asked`; `None` if it is not a table.
    pub(crate) fn parse(text: &str, asked: &Endpoint) -> Option<Self> {
        let mut table = Self { owners: vec![NOBODY; usize::from(SLOTS)], ..Self::default() };
        for line in text.lines() {
            let mut fields = line.split(' ');
            let (_id, address, flags) = (fields.next()?, fields.next()?, fields.next()?);
            let epoch: u64 = fields.nth(3)?.parse().ok()?;
            let link = fields.next()?;
            // A node that is still joining, or without a known address, can't be reached.
            if flags.contains("handshake") || flags.contains("noaddr") {
                continue;
            }
            let Some(endpoint) = endpoint(address, asked) else { continue };
            if flags.split(',').any(|flag| flag == "myself") {
                table.own = Some(endpoint.clone());
            }
            let is_primary = flags.split(',').any(|flag| flag == "master");
            let mut ranges = fields.filter(|range| !range.starts_with('[')).peekable();
            if !is_primary || ranges.peek().is_none() {
                let healthy = link == "connected" && !flags.contains("fail");
                let list =
                    if is_primary && healthy { &mut table.vacant } else { &mut table.others };
                list.push(endpoint);
                continue;
            }
            let place = u16::try_from(table.primaries.len()).ok()?;
            for range in ranges {
                let (low, high) = range.split_once('-').unwrap_or((range, range));
                let (low, high): (usize, usize) = (low.parse().ok()?, high.parse().ok()?);
                if low > high {
                    return None;
                }
                table.owners.get_mut(low..=high)?.fill(place);
            }
            table.primaries.push(Primary { endpoint, epoch });
        }
        let known =
            [!table.primaries.is_empty(), !table.vacant.is_empty(), !table.others.is_empty()];
        known.contains(&true).then_some(table)
    }

    /// Merges the tables of several nodes; the node that probably knows best comes first. For each
    /// slot, the claim in the highest epoch counts. A claim for another node is ignored if that
    /// node itself does not make it.
    ///
    /// No table is newer as a whole. A node that imports a slot learns of all changes except for
    /// this slot. If the slot's primary fails over, the importing node keeps the old primary for
    /// ever.
    pub(crate) fn merged(tables: &[Self]) -> Self {
        let mut nodes: Vec<Primary> = Vec::new();
        let mut numbers: HashMap<&Endpoint, usize> = HashMap::new();
        for primary in tables.iter().flat_map(|table| &table.primaries) {
            let number = *numbers.entry(&primary.endpoint).or_insert(nodes.len());
            match nodes.get_mut(number) {
                Some(node) => node.epoch = node.epoch.max(primary.epoch),
                None => nodes.push(primary.clone()),
            }
        }
        // For each table and slot: the epoch and the node's number.
        let claims: Vec<Vec<Option<(u64, usize)>>> = tables
            .iter()
            .map(|table| {
                let known = |one: &Primary| (one.epoch, numbers.get(&one.endpoint).copied());
                let known: Vec<_> = table.primaries.iter().map(known).collect();
                let claim = |place: &u16| {
                    let (epoch, number) = known.get(usize::from(*place))?;
                    Some((*epoch, (*number)?))
                };
                table.owners.iter().map(claim).collect()
            })
            .collect();
        let mut own: Vec<Option<&Vec<_>>> = vec![None; nodes.len()];
        for (table, claims) in tables.iter().zip(&claims) {
            let number = table.own.as_ref().and_then(|own| numbers.get(own));
            if let Some(own) = number.and_then(|number| own.get_mut(*number)) {
                *own = Some(claims);
            }
        }
        let said = |claims: &Vec<Option<(u64, usize)>>, slot: usize| *claims.get(slot)?;
        let mut merged = Self::default();
        let mut places: Vec<Option<u16>> = vec![None; nodes.len()];
        for slot in 0..usize::from(SLOTS) {
            let stands = |(_, number): &(u64, usize)| match own.get(*number) {
                Some(Some(own)) => said(own, slot).is_some_and(|(_, its)| its == *number),
                _ => true,
            };
            let best = claims.iter().rev().filter_map(|claims| said(claims, slot)).filter(stands);
            // Of equal claims the last counts, which in this reverse order is from the first table.
            let owner = best.max_by_key(|(epoch, _)| *epoch).and_then(|(_, number)| {
                let place = places.get_mut(number)?;
                if place.is_none() {
                    *place = u16::try_from(merged.primaries.len()).ok();
                    merged.primaries.push(nodes.get(number)?.clone());
                }
                *place
            });
            merged.owners.push(owner.unwrap_or(NOBODY));
        }
        let lost = nodes.iter().zip(&places).filter(|(_, place)| place.is_none());
        let lost = lost.map(|(node, _)| &node.endpoint);
        let vacant = tables.iter().flat_map(|table| &table.vacant);
        for endpoint in vacant {
            if !merged.has_primary(endpoint) && !merged.vacant.contains(endpoint) {
                merged.vacant.push(endpoint.clone());
            }
        }
        for endpoint in lost.chain(tables.iter().flat_map(|table| &table.others)) {
            let known = merged.has_primary(endpoint) || merged.vacant.contains(endpoint);
            if !known && !merged.others.contains(endpoint) {
                merged.others.push(endpoint.clone());
            }
        }
        merged
    }

    /// Whether every slot has a primary.
    pub(crate) fn is_whole(&self) -> bool {
        !self.owners.contains(&NOBODY)
    }

    /// The slots of one primary.
    pub(crate) fn slots_of(&self, endpoint: &Endpoint) -> Vec<u16> {
        let its = |slot: &u16| self.owner(*slot).is_some_and(|owner| owner.endpoint == *endpoint);
        (0..SLOTS).filter(its).collect()
    }

    /// The primary of a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Primary> {
        self.primaries.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    pub(crate) fn has_primary(&self, endpoint: &Endpoint) -> bool {
        self.primaries.iter().any(|primary| primary.endpoint == *endpoint)
    }
}

/// Reads `10.0.0.1:7000@17000,host.example,…`. The bus port and the name may be missing; so may the
/// address, if a node does not know its own.
fn endpoint(text: &str, asked: &Endpoint) -> Option<Endpoint> {
    let mut parts = text.split(',');
    let (ip, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('='));
    let secure = matches!(asked, Endpoint::Tcp { tls: Some(_), .. });
    let host = match name {
        // A certificate is more likely to contain the name than the address.
        Some(name) if secure => name,
        _ if ip.is_empty() => asked.host(),
        _ => ip,
    };
    Some(asked.sibling(host, port.parse().ok().filter(|port| *port != 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::address::TlsFiles;

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: None }
    }

    fn parse(lines: &[&str]) -> Option<Table> {
        Table::parse(&lines.join("\n"), &at("asked", 1))
    }

    #[test]
    fn a_table_says_who_has_which_slot_in_which_epoch() {
        let table = parse(&[
            "aa 10.0.0.1:7000@17000,host1 myself,master - 0 0 3 connected 0-99 200 [300->-bb]",
            "bb 10.0.0.2:7001@17001 master - 0 0 9 connected 100-199 201-16383",
            "cc ::1:7002@17002,,shard-id=x slave aa 0 0 3 connected",
            "dd 10.0.0.4:7003@17003 master,fail - 0 0 1 disconnected",
            "ee :0@0 handshake - 0 0 0 disconnected",
            "ff :0 slave,noaddr bb 0 0 0 disconnected",
            "",
        ])
        .unwrap();
        let first = Primary { endpoint: at("10.0.0.1", 7000), epoch: 3 };
        let second = Primary { endpoint: at("10.0.0.2", 7001), epoch: 9 };
        for (slot, owner) in [(0, &first), (99, &first), (100, &second), (200, &first)] {
            assert_eq!(table.owner(slot), Some(owner), "{slot}");
        }
        assert_eq!(table.owner(16_383), Some(&second));
        assert_eq!(table.others, [at("::1", 7002), at("10.0.0.4", 7003)]);
        assert_eq!(table.own, Some(at("10.0.0.1", 7000)));
        assert!(table.is_whole());
        assert_eq!(table.slots_of(&at("10.0.0.1", 7000)).len(), 101);
    }

    #[test]
    fn a_healthy_primary_without_slots_is_known_apart() {
        let table = parse(&[
            "aa 10.0.0.1:7000@17000 master - 0 0 3 connected 0-16382",
            "bb 10.0.0.2:7001@17001 master - 0 0 9 connected",
            "cc 10.0.0.3:7002@17002 master,fail? - 0 0 9 connected",
        ])
        .unwrap();
        assert_eq!(table.vacant, [at("10.0.0.2", 7001)]);
        assert_eq!(table.others, [at("10.0.0.3", 7002)]);
        assert!(!table.is_whole(), "one slot has no primary");
    }

    #[test]
    fn a_slot_without_a_node_has_no_owner() {
        let table = parse(&["aa 10.0.0.1:7000@17000 master - 0 0 3 connected 5"]).unwrap();
        assert!(table.owner(5).is_some() && table.owner(4).is_none());
    }

    #[test]
    fn a_node_that_does_not_know_its_own_address_is_where_it_was_asked() {
        let table = parse(&["aa :7000@17000 myself,master - 0 0 3 connected 5"]).unwrap();
        assert!(table.has_primary(&at("asked", 7000)));
    }

    #[test]
    fn names_are_for_certificates() {
        let tls = Some(TlsFiles::default());
        let secure = Endpoint::Tcp { host: "asked".into(), port: 1, tls };
        let line = "aa 10.0.0.1:7000@17000,host1 master - 0 0 3 connected 5";
        assert!(Table::parse(line, &secure).unwrap().has_primary(&secure.sibling("host1", 7000)));
        assert!(parse(&[line]).unwrap().has_primary(&at("10.0.0.1", 7000)));
    }

    #[test]
    fn epochs_that_do_not_fit_a_fence_count_as_the_highest_that_does() {
        let table = parse(&["aa h:7000@17000 master - 0 0 99999 connected 5"]).unwrap();
        assert_eq!(table.owner(5).unwrap().epoch(), Fence::EPOCH_MAX);
    }

    /// The owner's port of a slot.
    fn port(table: &Table, slot: u16) -> Option<u16> {
        match &table.owner(slot)?.endpoint {
            Endpoint::Tcp { port, .. } => Some(*port),
            other => panic!("{other:?}"),
        }
    }

    /// The state after a node failed over that was exporting a slot. The importing node knows of
    /// the promotion, but still has the slot at its old primary.
    #[test]
    fn a_node_that_is_behind_in_one_slot_misleads_no_client() {
        let behind = parse(&[
            "dd h:1@1 master,fail - 0 0 3 connected 200",
            "aa h:2@1 myself,master - 0 0 4 connected 0-99 [200-<-dd]",
            "bb h:3@1 master - 0 0 5 connected 100-199 201-16383",
        ])
        .unwrap();
        let promoted = parse(&[
            "dd h:1@1 master,fail - 0 0 3 disconnected",
            "aa h:2@1 master - 0 0 4 connected 0-99",
            "bb h:3@1 myself,master - 0 0 5 connected 100-16383",
        ])
        .unwrap();
        for tables in [[behind.clone(), promoted.clone()], [promoted, behind]] {
            let table = Table::merged(&tables);
            assert_eq!((port(&table, 200), port(&table, 99)), (Some(3), Some(2)));
            assert!(!table.has_primary(&at("h", 1)) && table.others.contains(&at("h", 1)));
            assert!(table.is_whole());
        }
    }

    #[test]
    fn a_node_is_not_said_to_have_what_it_does_not_claim_itself() {
        // Its later epoch is about other slots.
        let hearsay = parse(&[
            "aa h:1@1 myself,master - 0 0 2 connected 0",
            "bb h:2@1 master - 0 0 9 connected 1-2",
        ])
        .unwrap();
        let own = parse(&[
            "bb h:2@1 myself,master - 0 0 9 connected 1",
            "cc h:3@1 master - 0 0 5 connected 2",
        ])
        .unwrap();
        let table = Table::merged(&[hearsay.clone(), own]);
        assert_eq!([0, 1, 2].map(|slot| port(&table, slot)), [Some(1), Some(2), Some(3)]);
        let table = Table::merged(&[hearsay]);
        assert_eq!(port(&table, 2), Some(2), "there is nothing better");
    }

    #[test]
    fn of_equal_claims_the_first_counts_and_later_epochs_count_before_earlier_ones() {
        let of = |port: u16, epoch: u64| {
            parse(&[&*format!("aa h:{port}@1 master - 0 0 {epoch} connected 7")]).unwrap()
        };
        assert_eq!(port(&Table::merged(&[of(1, 4), of(2, 4)]), 7), Some(1));
        assert_eq!(port(&Table::merged(&[of(1, 4), of(2, 5), of(3, 3)]), 7), Some(2));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for bad in [
            "",
            "nonsense",
            "aa h:7000@17000 master - 0 0 x connected 5",
            "aa h:7000@17000 master - 0 0 1 connected five",
            "aa h:7000@17000 master - 0 0 1 connected 5-16384",
            "aa h:7000@17000 master - 0 0 1 connected 6-5",
        ] {
            assert_eq!(parse(&[bad]), None, "{bad}");
        }
    }
}
