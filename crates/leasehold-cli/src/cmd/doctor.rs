//! `leasehold doctor`: examine a store, and say what that means for its locks.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use leasehold::redis::acl;
use leasehold::store::doctor::{self, Finding, Severity, worst};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::probe::probe;
use crate::cli::{Doctor, Feature};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};
use crate::place;
use crate::signals::unless_interrupted;

/// Where the topic of a finding begins.
const INDENT: usize = 9;

/// The columns that a line may have, unless a word is longer.
const COLUMNS: usize = 100;

pub(crate) async fn doctor(args: &Doctor, context: &Context) -> Outcome {
    if args.acl {
        return print_rule(args, context);
    }
    let mut signals = context.catch_signals()?;
    let work = examine(args, context);
    let (location, findings) = unless_interrupted(&mut signals, work).await??;
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

/// What was found, and of what.
async fn examine(args: &Doctor, context: &Context) -> Outcome<(String, Vec<Finding>)> {
    let (mut location, mut findings) = match context.connect_to_look().await? {
        Some(client) => (client.location().to_owned(), client.examine().await?),
        None => (context.settings.place(), vec![not_made_yet("no store is here yet")]),
    };
    if args.probe {
        if context.settings.store_is_absent() {
            findings = probe_beside(context).await?;
        } else {
            findings.extend(probe(context).await?);
        }
        doctor::sort(&mut findings);
        let names = names_of(&location, &findings);
        let kind = location.split_once(':').map_or(&*location, |(kind, _)| kind);
        let version = env!("CARGO_PKG_VERSION");
        location = format!("leasehold {version} on a store of the kind {kind}");
        findings = findings.into_iter().map(|finding| without(finding, &names)).collect();
    }
    Ok((location, findings))
}

/// The experiments, for a store that is not there yet: in one beside the place where it will be,
/// which is gone again after.
async fn probe_beside(context: &Context) -> Outcome<Vec<Finding>> {
    let not_made = |why: &str| {
        let found = format!("no store is here yet, and no experiment was made: {why}");
        let means = "whether locks work here is unknown; the first command that takes a lock makes the \
             store";
        vec![
            Finding::new(Severity::Warning, "store", found, means)
                .advise("take a lock, and examine again"),
        ]
    };
    let settings = &context.settings;
    let Some(directory) = place::directory(settings.store()) else {
        return Ok(not_made("it is made of several directories"));
    };
    let scratch = match Scratch::beside(&directory) {
        Ok(scratch) => scratch,
        Err(error) => return Ok(not_made(&format!("no directory can be made beside it: {error}"))),
    };
    let store = settings.at(place::with_directory(settings.store(), &scratch.path.join("locks")));
    let context = Context::new(store, context.inherited, Vec::new(), context.quiet);
    let probed = probe(&context).await;
    let names = names_of(&context.settings.place(), &[]);
    context.close().await;
    drop(scratch);
    let probed = probed?.into_iter().map(|finding| without(finding, &names)).collect();
    let found = "no store is here yet: the experiments ran in a temporary one beside it, on the same \
                 file system";
    let note = not_made_yet(found);
    Ok([vec![note], probed].concat())
}

/// What the names of such directories begin with.
const SCRATCH: &str = ".leasehold-probe-";
/// How often a directory is made that another probe takes for one that was left.
const SCRATCH_TRIES: u32 = 5;

/// A directory that is there for a while, locked for as long: it is left over when it is not
/// locked.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    _locked: OwnedFd,
}

impl Scratch {
    /// In the directory in which this one is, or will be: on the same file system.
    fn beside(directory: &Path) -> io::Result<Self> {
        let above = directory.ancestors().skip(1).find(|above| above.exists());
        let above = above.ok_or(io::ErrorKind::NotFound)?;
        let device = fs::metadata(above)?.dev();
        if fs::metadata(directory).is_ok_and(|is| is.dev() != device) {
            return Err(io::Error::other("it is on a file system of its own"));
        }
        remove_leftovers(above);
        let mut failed = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 1..=SCRATCH_TRIES {
            let path = above.join(format!("{SCRATCH}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            match lock_directory(&path) {
                Ok(Some(locked)) => return Ok(Self { path, _locked: locked }),
                Ok(None) => {}
                Err(error) => failed = error,
            }
            // Another probe took it for one that was left, and removes it, unless it can't.
            drop(fs::remove_dir(&path));
        }
        Err(failed)
    }
}

/// Removes this user's directories of probes that were killed.
fn remove_leftovers(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(SCRATCH))
            && let Ok(Some(_locked)) = lock_directory(&entry.path())
        {
            // A later probe tries it again.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// Locks a directory of this user's, unless it is locked or is another by now.
fn lock_directory(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())?;
    if rustix::fs::fstat(&opened)?.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    if let Err(refused) = rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        return if refused == Errno::WOULDBLOCK { Ok(None) } else { Err(refused.into()) };
    }
    let (locked, there) = (rustix::fs::fstat(&opened)?, rustix::fs::lstat(path)?);
    let is_same = (locked.st_dev, locked.st_ino) == (there.st_dev, there.st_ino);
    Ok(is_same.then_some(opened))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            output::message(&format!("can't remove {}: {error}", self.path.display()));
        }
    }
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

fn not_made_yet(found: &'static str) -> Finding {
    let means = "no lock is held; the first command that takes a lock makes the store";
    Finding::new(Severity::Note, "store", found, means)
        .advise("examine again after a lock was taken here")
}

fn print_rule(args: &Doctor, context: &Context) -> Outcome {
    let features: Vec<acl::Feature> = match &*args.features {
        [] => acl::Feature::SERVICE.to_vec(),
        some => some.iter().copied().map(feature).collect(),
    };
    if context.settings.is_in_postgresql() {
        let setup = crate::typed::command("setup");
        return Err(Failure::config(format!(
            "a PostgreSQL database has grants instead, which `{setup}` prints"
        )));
    }
    if !context.settings.is_on_a_server() {
        return Err(Failure::config(
            "only Redis and Valkey servers have users with rights; name one with --store \
             redis://HOST",
        ));
    }
    let scheme = context.settings.store().split(':').next().unwrap_or_default();
    let several = match scheme {
        "spread" => Some(("spread store", "")),
        _ if scheme.starts_with("quorum") => Some(("quorum", ", and add --feature quorum")),
        _ => None,
    };
    if let Some((whole, feature)) = several {
        return Err(Failure::config(format!(
            "each server of a {whole} has its own users; name one with --store \
             redis://HOST{feature}"
        )));
    }
    // A name that was typed is to blame before the URL is.
    acl::rule("redis://host", &args.user, &[]).map_err(|error| Failure::of_argument(&error))?;
    let store = context.settings.store();
    let rule = match &args.interop {
        Some(layout) => acl::rule_for_layout(store, &args.user, layout)?,
        None => acl::rule(store, &args.user, &features)?,
    };
    output::data(&format!("{rule}\n"))?;
    Ok(Exit::Success)
}

fn feature(feature: Feature) -> acl::Feature {
    match feature {
        Feature::Lock => acl::Feature::Lock,
        Feature::Wait => acl::Feature::Wait,
        Feature::Share => acl::Feature::Share,
        Feature::List => acl::Feature::List,
        Feature::Log => acl::Feature::Log,
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

pub(super) fn finding_json(finding: &Finding) -> Value {
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
