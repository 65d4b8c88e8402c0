//! `doctor`: looks at where locks are kept, and says what that means for them.

use leasehold::redis::acl;
use leasehold::store::doctor::{self, Finding, Severity, worst};
use serde_json::{Value, json};

use super::probe::probe;
use crate::cli::{Doctor, Feature};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};

/// Where the topic of a finding begins.
const INDENT: usize = 9;

/// The columns that a line may have, unless a word is longer.
const COLUMNS: usize = 100;

pub(crate) async fn doctor(args: &Doctor, context: &Context) -> Outcome {
    if args.acl {
        return print_rule(args, context);
    }
    let (mut location, mut findings) = match context.connect_to_look().await? {
        Some(client) => (client.location().to_owned(), client.examine().await?),
        None => (context.settings.place(), vec![not_made_yet()]),
    };
    if args.probe {
        if !context.settings.store_is_absent() {
            findings.extend(probe(context).await?);
            doctor::sort(&mut findings);
        }
        let names = names_of(&location, &findings);
        let kind = location.split_once(':').map_or(&*location, |(kind, _)| kind);
        let version = env!("CARGO_PKG_VERSION");
        location = format!("leasehold {version} on a store of the kind {kind}");
        findings = findings.into_iter().map(|finding| without(finding, &names)).collect();
    }
    let worst = worst(&findings);
    if args.json {
        output::json(&json!({
            "version": JSON_VERSION,
            "store": location,
            "worst": worst.to_string(),
            "findings": findings.iter().map(finding_json).collect::<Vec<_>>(),
        }))?;
    } else {
        output::data(&report(&location, &findings))?;
    }
    Ok(if worst > Severity::Note { Exit::Unwell } else { Exit::Success })
}

/// What tells of a store where it is, each with what stands for it in a report to be shared.
fn names_of(location: &str, findings: &[Finding]) -> Vec<(String, String)> {
    let mut names: Vec<&str> = vec![location];
    names.extend(findings.iter().filter_map(|finding| finding.store.as_deref()));
    let places = names.iter().filter_map(|name| {
        let place = name.split_once(':')?.1.trim_start_matches("//");
        Some(place.split('?').next().unwrap_or(place))
    });
    let places: Vec<&str> = places.collect();
    let hosts = places.iter().filter(|place| !place.starts_with('/'));
    let hosts = hosts.flat_map(|place| place.split('/').next().unwrap_or(place).split(','));
    let hosts: Vec<&str> = hosts.collect();
    let bare = hosts.iter().filter_map(|host| Some(host.rsplit_once(':')?.0));
    let mut all: Vec<&str> =
        names.iter().chain(&places).chain(&hosts).copied().chain(bare).collect();
    all.retain(|name| !name.is_empty());
    all.sort_unstable();
    all.dedup();
    let mut named: Vec<_> =
        (1..).zip(all).map(|(n, name)| (name.to_owned(), format!("<{n}>"))).collect();
    // A host with its port before the host alone.
    named.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    named
}

/// The finding with these names replaced.
fn without(mut finding: Finding, names: &[(String, String)]) -> Finding {
    let replace = |text: &str| {
        names.iter().fold(text.to_owned(), |text, (name, stands)| text.replace(name, stands))
    };
    finding.found = replace(&finding.found).into();
    finding.means = replace(&finding.means).into();
    finding.advice = finding.advice.map(|advice| replace(&advice).into());
    finding.store = finding.store.map(|store| replace(&store).into());
    finding
}

fn not_made_yet() -> Finding {
    let means = "no lock is held in it; the first command that takes one makes it";
    Finding::new(Severity::Note, "store", "there is no store here yet", means)
        .advise("look again once a lock was taken here")
}

fn print_rule(args: &Doctor, context: &Context) -> Outcome {
    let features: Vec<acl::Feature> = match &*args.features {
        [] => acl::Feature::SERVICE.to_vec(),
        some => some.iter().copied().map(feature).collect(),
    };
    if !context.settings.is_on_a_server() {
        return Err(Failure::config(
            "only a Redis or Valkey server has users with rights of their own; name one with \
             --store redis://HOST",
        ));
    }
    // A name that was typed is to blame before the URL is.
    acl::rule("redis://host", &args.user, &[]).map_err(|error| Failure::of_argument(&error))?;
    let rule = acl::rule(context.settings.store(), &args.user, &features)?;
    output::data(&format!("{rule}\n"))?;
    Ok(Exit::Success)
}

fn feature(feature: Feature) -> acl::Feature {
    match feature {
        Feature::Lock => acl::Feature::Lock,
        Feature::Wait => acl::Feature::Wait,
        Feature::Share => acl::Feature::Share,
        Feature::List => acl::Feature::List,
        Feature::Quorum => acl::Feature::Quorum,
        Feature::Doctor => acl::Feature::Doctor,
    }
}

/// One paragraph per finding, the worst first; those that are fine without their reasons.
fn report(location: &str, findings: &[Finding]) -> String {
    let topics = findings.iter().map(|finding| heading(finding).chars().count());
    let width = topics.max().unwrap_or_default();
    let mut text = format!("{}\n", shown(location));
    for finding in findings {
        let heading = heading(finding);
        let start = format!("{:INDENT$}{heading:width$}  ", finding.severity);
        let margin = " ".repeat(start.chars().count());
        paragraph(&mut text, &start, &margin, &shown(&finding.found));
        if finding.severity == Severity::Fine {
            continue;
        }
        paragraph(&mut text, &margin, &margin, &shown(&finding.means));
        if let Some(advice) = &finding.advice {
            // In one line, because it may be a command, to be copied.
            text.push_str(&format!("{margin}=> {}\n", shown(advice)));
        }
    }
    text
}

/// Appends lines that are broken between words: the first after `start`, the others after `margin`.
fn paragraph(text: &mut String, start: &str, margin: &str, words: &str) {
    let mut line = start.to_owned();
    let mut column = start.chars().count();
    let mut is_first = true;
    for word in words.split(' ') {
        let length = word.chars().count();
        if !is_first && column.saturating_add(length) >= COLUMNS {
            text.push_str(&line);
            text.push('\n');
            line = margin.to_owned();
            column = margin.chars().count();
            is_first = true;
        }
        if !is_first {
            line.push(' ');
            column = column.saturating_add(1);
        }
        line.push_str(word);
        column = column.saturating_add(length);
        is_first = false;
    }
    text.push_str(&line);
    text.push('\n');
}

fn heading(finding: &Finding) -> String {
    match &finding.store {
        Some(store) => format!("{} ({})", shown(&finding.topic), shown(store)),
        None => shown(&finding.topic),
    }
}

fn shown(text: &str) -> String {
    leasehold::store::escape::terminal(text).to_string()
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.to_string(),
        "topic": finding.topic,
        "found": finding.found,
        "means": finding.means,
        "advice": finding.advice,
        "store": finding.store,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_aligned_and_says_why_only_where_something_is_amiss() {
        let findings = [
            Finding::new(Severity::Problem, "eviction", "it evicts", "locks go").advise("set it"),
            Finding::new(Severity::Note, "uptime", "it is young", "it may forget").at_store("n1"),
            Finding::new(Severity::Fine, "clock", "it is right", "never shown"),
        ];
        assert_eq!(
            report("redis://h:6379", &findings),
            "redis://h:6379\n\
             problem  eviction     it evicts\n\
            \x20                     locks go\n\
            \x20                     => set it\n\
             note     uptime (n1)  it is young\n\
            \x20                     it may forget\n\
             fine     clock        it is right\n"
        );
    }

    #[test]
    fn a_report_to_be_shared_names_no_host_and_no_directory() {
        let text = "db.example:6379 answers, db.example has /srv/locks";
        let finding =
            Finding::new(Severity::Note, "t", text, text).at_store("redis://db.example:6379");
        let of_server = names_of("redis://db.example:6379/3", std::slice::from_ref(&finding));
        let directory = names_of("embedded:/srv/locks", &[]);
        let finding = without(without(finding, &of_server), &directory);
        let shown = report("s", &[finding]);
        assert!(!shown.contains("example") && !shown.contains("srv"), "{shown}");
        assert!(shown.contains("> answers, <"), "{shown}");
    }

    #[test]
    fn long_lines_are_broken_between_words_and_stay_aligned() {
        let long = "word ".repeat(40);
        let long = long.trim().to_owned();
        let text = report("s", &[Finding::new(Severity::Note, "t", long.clone(), long)]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(lines.iter().skip(1).all(|line| line.starts_with(&" ".repeat(12))), "{text}");
        assert_eq!(text.matches("word").count(), 80, "nothing is left out");
    }

    #[test]
    fn what_a_server_says_can_not_steer_a_terminal() {
        let finding = Finding::new(Severity::Note, "t", "a\x1b[2J", "b\u{202e}").advise("c\u{9b}");
        let text = report("redis://h\x07", &[finding.at_store("n\n1")]);
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers) && text.lines().count() == 4, "{text:?}");
    }
}
