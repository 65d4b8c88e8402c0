//! What a node knows about its cluster: which primary has which slots, in which epoch.

use leasehold_core::Fence;

use crate::address::Endpoint;
use crate::slot::SLOTS;

/// A primary that has slots.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Primary {
    pub(crate) endpoint: Endpoint,
    /// Its configuration epoch: no two primaries ever had a slot in the same one.
    pub(crate) epoch: u64,
}

/// Read from `CLUSTER NODES`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Table {
    pub(crate) primaries: Vec<Primary>,
    /// Healthy primaries without slots: some may be on their way to them, with their keys.
    pub(crate) vacant: Vec<Endpoint>,
    /// All the others, who are asked for a table when no primary answers.
    pub(crate) others: Vec<Endpoint>,
    /// The place of each slot's primary in the list; beyond its end for a slot that nobody has.
    owners: Vec<u16>,
    /// The highest epoch in it, before it is made to fit a fence.
    pub(crate) newest: u64,
}

const NOBODY: u16 = u16::MAX;

impl Table {
    /// Reads the answer of the node at `asked`; `None` when it is not one.
    pub(crate) fn parse(text: &str, asked: &Endpoint) -> Option<Self> {
        let mut table = Self { owners: vec![NOBODY; usize::from(SLOTS)], ..Self::default() };
        for line in text.lines() {
            let mut fields = line.split(' ');
            let (_id, address, flags) = (fields.next()?, fields.next()?, fields.next()?);
            let epoch: u64 = fields.nth(3)?.parse().ok()?;
            let link = fields.next()?;
            // A node that is only being met, or whose address nobody knows, can't be asked.
            if flags.contains("handshake") || flags.contains("noaddr") {
                continue;
            }
            let Some(endpoint) = endpoint(address, asked) else { continue };
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
            table.newest = table.newest.max(epoch);
            table.primaries.push(Primary { endpoint, epoch: epoch.min(Fence::EPOCH_MAX) });
        }
        let known =
            [!table.primaries.is_empty(), !table.vacant.is_empty(), !table.others.is_empty()];
        known.contains(&true).then_some(table)
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

/// Reads `10.0.0.1:7000@17000,host.example,…`; both the port of the bus and the name may be
/// missing, and the address is when a node does not know its own.
fn endpoint(text: &str, asked: &Endpoint) -> Option<Endpoint> {
    let mut parts = text.split(',');
    let (ip, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('='));
    let secure = matches!(asked, Endpoint::Tcp { tls: Some(_), .. });
    let host = match name {
        // A certificate is more likely to have the name in it than the address.
        Some(name) if secure => name,
        _ if ip.is_empty() => asked.host(),
        _ => ip,
    };
    Some(asked.sibling(host, port.parse().ok().filter(|port| *port != 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::TlsFiles;

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
        assert_eq!(table.newest, 9);
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
    fn a_slot_that_nobody_has_has_no_owner() {
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
        assert_eq!(table.owner(5).unwrap().epoch, Fence::EPOCH_MAX);
        assert_eq!(table.newest, 99_999);
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
