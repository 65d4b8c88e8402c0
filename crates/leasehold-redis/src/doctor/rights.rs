//! Finds the rights that this user lacks, by trying.
//!
//! Each command is tried without effect, on unused keys and an unused channel. So the user needs no
//! administrative rights, and every version answers. The trials find key and channel patterns,
//! renamed commands and the restrictions of hosted servers alike. A server records a refusal in its
//! `ACL LOG`.

use leasehold_core::Key;
use leasehold_core::doctor::{Finding, Severity, WAKE};
use redis::Cmd;

use super::facts::word;
use crate::acl::{self, Feature};
use crate::classify::Lack;
use crate::wire::forms::CLIENT_SIZE;
use crate::wire::names::Names;

/// An unused lock and channel.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) key: Key,
    pub(super) record: String,
    pub(super) channel: String,
}

/// A command and what the user lacks for it.
pub(super) type Lacking = (&'static str, Lack);

/// Commands that depend on the store's URL.
const OF_URL: [&str; 4] = ["asking", "info", "wait", "waitaof"];

/// The commands of the log, if the store's URL enables it.
pub(super) fn trials_of_log(names: &Names, spare: &Spare) -> [(&'static str, Cmd); 2] {
    let log = names.log(&spare.key);
    let (mut append, mut read) = (redis::cmd("XADD"), redis::cmd("XREVRANGE"));
    // Does not create a stream.
    append.arg(&log).arg("NOMKSTREAM").arg("*").arg("-").arg("-");
    read.arg(&log).arg("+").arg("-").arg("COUNT").arg("1");
    [("xadd", append), ("xrevrange", read)]
}

/// The commands to try, each without effect.
pub(super) fn trials(names: &Names, spare: &Spare, digest: &str) -> Vec<(&'static str, Cmd)> {
    let Spare { key: _, record, channel } = spare;
    let trial = |name: &'static str, words: &[&str]| {
        let mut cmd = redis::cmd(&name.to_ascii_uppercase());
        for word in words {
            cmd.arg(word);
        }
        (name, cmd)
    };
    vec![
        trial("ping", &[]),
        trial("evalsha", &[digest, "1", record, &"\0".repeat(CLIENT_SIZE)]),
        trial("eval", &["return 0", "1", record]),
        trial("time", &[]),
        trial("pttl", &[record]),
        trial("hget", &[record, "-"]),
        trial("hgetall", &[record]),
        // A field without a value is refused, but only after the check of rights.
        trial("hset", &[record, "-", "-", "-"]),
        trial("hdel", &[record, "-"]),
        trial("pexpire", &[record, "1"]),
        trial("publish", &[channel, "-"]),
        trial("scan", &["0", "MATCH", &names.pattern(""), "COUNT", "1"]),
    ]
}

/// Judges, feature by feature, what is missing.
pub(super) fn judge(lacking: &[Lacking], user: Option<&str>, names: &Names) -> Vec<Finding> {
    let who = user.map_or_else(|| "this user".to_owned(), |user| format!("user {}", word(user)));
    let mut findings = Vec::new();
    for feature in Feature::SERVICE.into_iter().chain([Feature::Log]) {
        let mut of_feature: Vec<Lacking> = Vec::new();
        for one in lacking.iter().filter(|(command, _)| feature.commands().contains(command)) {
            of_feature.push(*one);
        }
        if of_feature.is_empty() {
            continue;
        }
        let (severity, means) = meaning(feature, &of_feature);
        let found = format!("{who} {}", what_is_lacking(&of_feature));
        let topic = if only_messages(&of_feature) { WAKE } else { "rights" };
        let finding = Finding::new(severity, topic, found, means);
        findings.push(finding.advise(what_to_give(&of_feature, user, names)));
    }
    let of_url: Vec<Lacking> =
        lacking.iter().copied().filter(|it| OF_URL.contains(&it.0)).collect();
    if !of_url.is_empty() {
        let found = format!("{who} {}", what_is_lacking(&of_url));
        let means = if of_url.iter().all(|(command, _)| *command == "asking") {
            "locks in a slot that is being moved can't be taken, renewed or released"
        } else {
            "replicas or disks can't confirm a grant, as the URL demands, so no lock can be taken"
        };
        let finding = Finding::new(Severity::Problem, "rights", found, means);
        findings.push(finding.advise(what_to_give(&of_url, user, names)));
    }
    if findings.is_empty() {
        findings.push(Finding::new(
            Severity::Fine,
            "rights",
            format!("{who} may do all that locks need"),
            "locks can be taken, shared, waited for and listed",
        ));
    }
    findings
}

/// Whether waiters only lack notifications.
fn only_messages(lacking: &[Lacking]) -> bool {
    lacking.iter().all(|(command, _)| matches!(*command, "publish" | "subscribe"))
}

fn meaning(feature: Feature, lacking: &[Lacking]) -> (Severity, &'static str) {
    match feature {
        Feature::Wait if only_messages(lacking) => (
            Severity::Warning,
            "waiters get no notification and poll, so they get a free lock later",
        ),
        Feature::Wait => (Severity::Problem, "no caller can wait in the queue of a lock"),
        Feature::Share => (Severity::Warning, "read-write locks and semaphores can't be used"),
        Feature::List => (Severity::Note, "locks can't be listed"),
        Feature::Log => (
            Severity::Warning,
            "this user can't write or read the log of the store's URL; locks work without it",
        ),
        _ => (Severity::Problem, "locks can't be taken, renewed or released correctly"),
    }
}

fn what_is_lacking(lacking: &[Lacking]) -> String {
    let commands = |kind: Lack| {
        let named = lacking.iter().filter(|(_, lack)| *lack == kind);
        named.map(|(command, _)| command.to_ascii_uppercase()).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    for (kind, said) in [
        (Lack::Command, "may not run"),
        (Lack::Keys, "may not use the keys of this prefix with"),
        (Lack::Channels, "may not use the channels of this prefix with"),
        (Lack::Unknown, "finds no command"),
    ] {
        let commands = commands(kind);
        if !commands.is_empty() {
            parts.push(format!("{said} {commands}"));
        }
    }
    parts.join("; ")
}

fn what_to_give(lacking: &[Lacking], user: Option<&str>, names: &Names) -> String {
    if lacking.iter().all(|(_, lack)| *lack == Lack::Unknown) {
        return "undo the renaming of commands, or use a server that has them".to_owned();
    }
    let mut words = vec!["ACL SETUSER".to_owned(), user.map_or_else(|| "USER".to_owned(), word)];
    let any = |kind: Lack| lacking.iter().any(|(_, lack)| *lack == kind);
    // A server checks commands first, so a user without a command may lack its keys as well.
    if any(Lack::Keys) {
        words.push(acl::keys(names));
    }
    if any(Lack::Channels) {
        words.push(acl::channels(names));
    }
    let commands = lacking.iter().filter(|(_, lack)| *lack == Lack::Command);
    words.extend(commands.map(|(command, _)| format!("+{command}")));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_judged_by_what_it_is_for() {
        let names = Names::standard();
        let judged = |lacking: &[Lacking]| {
            let findings = judge(lacking, Some("bob"), &names);
            findings.into_iter().map(|it| (it.severity, it.advice)).collect::<Vec<_>>()
        };
        let advice = |text: &str| Some(text.to_owned().into());
        assert_eq!(judged(&[]), [(Severity::Fine, None)]);
        assert_eq!(
            judged(&[("publish", Lack::Command), ("subscribe", Lack::Channels)]),
            [(Severity::Warning, advice("ACL SETUSER bob &leasehold:wake:* +publish"))]
        );
        assert_eq!(
            judged(&[("scan", Lack::Command)]),
            [(Severity::Note, advice("ACL SETUSER bob +scan"))]
        );
        assert_eq!(
            judged(&[("xadd", Lack::Command)]),
            [(Severity::Warning, advice("ACL SETUSER bob +xadd"))]
        );
        let of_both = judged(&[("hset", Lack::Command), ("publish", Lack::Channels)]);
        assert_eq!(
            of_both,
            [
                (Severity::Problem, advice("ACL SETUSER bob +hset")),
                (Severity::Warning, advice("ACL SETUSER bob &leasehold:wake:*")),
            ]
        );
        let renamed = judge(&[("evalsha", Lack::Unknown)], None, &names);
        assert_eq!(renamed[0].severity, Severity::Problem);
        assert_eq!(renamed[0].found, "this user finds no command EVALSHA");
    }

    #[test]
    fn every_command_of_a_service_is_tried_or_listened_for() {
        let [record, channel] = ["r", "w"].map(str::to_owned);
        let spare = Spare { key: Key::new("k").unwrap(), record, channel };
        let names = Names::standard();
        let tried: Vec<&str> =
            trials(&names, &spare, "").into_iter().map(|(command, _)| command).collect();
        for command in Feature::SERVICE.iter().flat_map(|feature| feature.commands()) {
            assert!(*command == "subscribe" || tried.contains(command), "{command}");
        }
        let of_log = trials_of_log(&names, &spare).map(|(command, _)| command);
        assert_eq!(of_log, Feature::Log.commands());
    }
}
