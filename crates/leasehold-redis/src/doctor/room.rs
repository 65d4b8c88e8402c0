//! Checks that a server has capacity for more clients: connections, and buffered data.

use leasehold_core::doctor::{Finding, Severity};

use super::facts::{Facts, word};

/// The percentage of a server's client limit from which on a warning is due.
const CLIENTS_FULL: u64 = 90;

/// An answer or a burst of notifications below this size must not cost a connection. Inspecting a
/// lock with some thousand waiters needs as much.
const BUFFER_LEAST: u64 = 1 << 20;

pub(super) fn clients(facts: &Facts) -> Option<Finding> {
    let (there, limit) = (facts.number("connected_clients")?, facts.client_limit()?);
    let means = "at the limit no further client can connect, and without a connection no lock is \
                 taken, renewed or released";
    let advice = "raise maxclients and the server's limit of open files, or find the clients with \
                  most connections";
    let found = format!("{there} of {limit} clients are connected");
    if there >= limit.saturating_mul(CLIENTS_FULL).div_ceil(100) {
        let finding = Finding::new(Severity::Warning, "clients", found, means);
        return Some(finding.advise(advice));
    }
    let turned_away = facts.number("rejected_connections").unwrap_or(0);
    if turned_away > 0 {
        let found = format!("{found}; {turned_away} were refused since the server started");
        return Some(Finding::new(Severity::Note, "clients", found, means).advise(advice));
    }
    Some(Finding::new(Severity::Fine, "clients", found, means))
}

/// Whether the server disconnects clients that read slowly.
pub(super) fn buffers(facts: &Facts) -> Option<Finding> {
    let topic = "buffers";
    let limits = facts.setting("client-output-buffer-limit")?;
    let short = |class: &[&str]| least(limits, class).filter(|bytes| *bytes < BUFFER_LEAST);
    let found = |class: &str, bytes: u64| {
        format!("client-output-buffer-limit ends connections of {class} at {} KiB", bytes >> 10)
    };
    let advice = "CONFIG SET client-output-buffer-limit \"CLASS 0 0 0\" or with some MiB";
    if let Some(bytes) = short(&["normal"]) {
        let means = "a larger answer, as of `ls`, ends the connection for all renewals of a \
                     process";
        let finding = Finding::new(Severity::Warning, topic, found("clients", bytes), means);
        return Some(finding.advise(advice.replace("CLASS", "normal")));
    }
    if let Some(bytes) = short(&["slave", "replica"]) {
        let means = "replicas fall behind and start again, and one that takes over lacks the \
                     newest locks";
        let finding = Finding::new(Severity::Warning, topic, found("replicas", bytes), means);
        return Some(finding.advise(advice.replace("CLASS", "replica")));
    }
    if let Some(bytes) = short(&["pubsub"]) {
        let means = "a slow waiter loses its notifications for a while, so it gets a free lock \
                     later";
        let finding = Finding::new(Severity::Note, topic, found("subscribers", bytes), means);
        return Some(finding.advise(advice.replace("CLASS", "pubsub")));
    }
    if let Some(limit) = facts.setting("maxmemory-clients").filter(|limit| *limit != "0") {
        let found = format!("maxmemory-clients is {}", word(limit));
        let means = "above that the server ends the largest connection, and requests on their way \
                     have an unknown outcome";
        return Some(Finding::new(Severity::Note, topic, found, means));
    }
    let means = "no connection is ended for an answer or a notification";
    Some(Finding::new(Severity::Fine, topic, "output buffers have room", means))
}

/// The lowest limit of a class of clients in `normal 0 0 0 slave 268435456 67108864 60 …`, be it
/// immediate or after some seconds.
fn least(limits: &str, class: &[&str]) -> Option<u64> {
    let mut words = limits.split_ascii_whitespace();
    words.find(|word| class.contains(word))?;
    let both = words.take(2).filter_map(|bytes| bytes.parse::<u64>().ok());
    both.filter(|bytes| *bytes > 0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(info: &str, settings: &[(&str, &str)]) -> Facts {
        let mut facts = Facts::default();
        facts.add_info(info);
        settings.iter().for_each(|(name, value)| facts.add_setting(name, value));
        facts
    }

    #[test]
    fn clients_that_nearly_fill_the_server_are_a_warning() {
        let severity = |there: u64, more: &str| {
            let info = format!("connected_clients:{there}\r\nmaxclients:100\r\n{more}");
            clients(&judged(&info, &[])).unwrap().severity
        };
        assert_eq!(severity(89, ""), Severity::Fine);
        assert_eq!(severity(90, ""), Severity::Warning);
        assert_eq!(severity(100, ""), Severity::Warning);
        assert_eq!(severity(1, "rejected_connections:3\r\n"), Severity::Note);
        let by_setting = judged("connected_clients:10\r\n", &[("maxclients", "10")]);
        assert_eq!(clients(&by_setting).unwrap().severity, Severity::Warning);
        assert!(clients(&Facts::default()).is_none());
    }

    #[test]
    fn a_buffer_that_is_too_small_is_found_by_the_client_that_it_cuts_off() {
        let told = |limits: &str| {
            let settings = [("client-output-buffer-limit", limits), ("maxmemory-clients", "0")];
            let finding = buffers(&judged("", &settings)).unwrap();
            (finding.severity, finding.advice.map(|it| it.into_owned()).unwrap_or_default())
        };
        let usual = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        assert_eq!(told(usual).0, Severity::Fine);
        for (limits, severity, class) in [
            ("normal 65536 0 0 slave 0 0 0 pubsub 0 0 0", Severity::Warning, "\"normal "),
            ("normal 0 1000 10 slave 0 0 0 pubsub 0 0 0", Severity::Warning, "\"normal "),
            ("normal 0 0 0 replica 0 4096 1 pubsub 0 0 0", Severity::Warning, "\"replica "),
            ("normal 0 0 0 slave 0 0 0 pubsub 33554432 8192 60", Severity::Note, "\"pubsub "),
        ] {
            let (found, advice) = told(limits);
            assert_eq!(found, severity, "{limits}");
            assert!(advice.contains(class), "{limits}: {advice}");
        }
        let evicts = [("client-output-buffer-limit", usual), ("maxmemory-clients", "1%")];
        assert_eq!(buffers(&judged("", &evicts)).unwrap().severity, Severity::Note);
    }
}
