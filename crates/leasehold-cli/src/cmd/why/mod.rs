//! `leasehold why`: explain what keeps a lock from its waiters, and what to do.

mod process;

use std::time::{Duration, UNIX_EPOCH};

use leasehold::store::doctor::{Finding, Severity};
use leasehold::store::{Kind, LogEntry, escape};
use leasehold::{Client, Fence, HolderInfo, LockInfo};
use serde_json::{Value, json};

use self::process::Process;
use super::doctor::finding_json;
use crate::arguments;
use crate::cli::Why;
use crate::cmd::last_run::LastRun;
use crate::context::Context;
use crate::describe::{end, lock_json, mode, notes};
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Outcome, chain};
use crate::graph::{self, Chain, Step};
use crate::outer::Name;
use crate::output::{self, JSON_VERSION};
use crate::secret;
use crate::typed;

/// The number of each that a reader still reads.
const SHOWN_MAX: usize = 20;

/// As many events of a log are looked at.
const LOOK_AT: usize = 200;

/// What is known about a lock.
#[derive(Debug)]
struct Findings {
    info: LockInfo,
    /// The process of each printed holder, if its name or the log identifies it.
    processes: Vec<Option<Known>>,
    /// What the holders wait for themselves, or why that is not known.
    waits: Result<Vec<Chain>, String>,
    /// The last run of a lock that is cooling down, if the store keeps a log.
    last_run: Option<LastRun>,
    store: Fitness,
}

/// What is amiss with the store of a lock that is free, or why that is not known.
type Fitness = Result<Vec<Finding>, String>;

/// A holder's process, and from where it is known.
#[derive(Debug)]
struct Known {
    process: Process,
    by: &'static str,
}

pub(crate) async fn why(args: &Why, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    let client = context.connect_to_look().await?;
    let info = match &client {
        Some(client) => client.inspect(&key).await?,
        None => None,
    };
    let store = match &client {
        Some(client) if info.as_ref().is_none_or(is_free) => fitness(client).await,
        _ => Ok(Vec::new()),
    };
    let (Some(client), Some(info)) = (client, info) else {
        if args.json {
            output::json(&json!({
                "version": JSON_VERSION,
                "place": context.settings.place(),
                "key": key.as_str(),
                "lock": null,
                "store": fitness_json(&store),
            }))?;
        } else {
            let at = context.settings.place_looked_at();
            let mut lines = vec![format!("\"{key}\" is free at {at}, without holders and waiters")];
            lines.extend(of_store(&store));
            output::data(&secret::redact(&(lines.join("\n") + "\n")))?;
        }
        return Ok(Exit::Success);
    };
    let waits = match info.holders.is_empty() {
        true => Ok(Vec::new()),
        // Who may look at one lock need not be allowed to list all.
        false => match client.list("").await {
            Ok(listing) => Ok(graph::chains(&info, &listing.locks, &Name::around)),
            Err(error) => Err(chain(&error)),
        },
    };
    let processes = processes(&client, &info).await;
    let last_run = LastRun::of(&client, &info).await;
    let findings = Findings { info, processes, waits, last_run, store };
    if args.json {
        output::json(&document(&findings, &context.settings.place())?)?;
    } else {
        output::data(&secret::redact(&text(&findings)))?;
    }
    Ok(Exit::Success)
}

/// Whether only the store can prevent a grant.
fn is_free(info: &LockInfo) -> bool {
    info.holders.is_empty() && info.closed_for.is_none()
}

async fn fitness(client: &Client) -> Fitness {
    let mut findings = client.examine().await.map_err(|error| chain(&error))?;
    findings.retain(|finding| finding.severity > Severity::Note);
    Ok(findings)
}

fn fitness_json(store: &Fitness) -> Option<Value> {
    let findings = store.as_ref().ok()?;
    Some(findings.iter().map(finding_json).collect())
}

fn of_store(store: &Fitness) -> Vec<String> {
    let findings = match store {
        Ok(findings) if findings.is_empty() => return Vec::new(),
        Ok(findings) => findings,
        Err(why) => {
            let why = escape::terminal(why);
            return vec![format!("the store could not be examined: {why}")];
        }
    };
    let mut lines = vec!["problems of its store that may prevent a grant, or lose it:".to_owned()];
    for finding in findings {
        let of = finding.store.as_ref().map_or_else(String::new, |store| format!(" ({store})"));
        let line = format!("{}{of}: {}; {}", finding.topic, finding.found, finding.means);
        lines.push(format!("  {}", escape::terminal(&line)));
        if let Some(advice) = &finding.advice {
            lines.push(format!("    => {}", escape::terminal(advice)));
        }
    }
    lines
}

/// The processes of the printed holders. One with a name of its own is looked for in the log, where
/// the store keeps one: its grant has the process beside the owner.
async fn processes(client: &Client, info: &LockInfo) -> Vec<Option<Known>> {
    let holders = info.holders.iter().take(SHOWN_MAX);
    let by_name = |holder: &HolderInfo| {
        let process = Process::named(holder.owner.as_str())?;
        Some(Known { process, by: "name" })
    };
    let mut known: Vec<Option<Known>> = holders.clone().map(by_name).collect();
    if known.iter().any(Option::is_none)
        && let Ok(entries) = client.log(&info.key, LOOK_AT).await
    {
        for (known, holder) in known.iter_mut().zip(holders).filter(|(known, _)| known.is_none()) {
            // Others write of a lease only that they have taken it away.
            let its = |entry: &&LogEntry| entry.fence == holder.fence && entry.event != "forced";
            let process =
                entries.iter().rfind(its).and_then(|entry| Process::named(entry.process.as_str()));
            *known = process.map(|process| Known { process, by: "log entry" });
        }
    }
    known
}

fn text(findings: &Findings) -> String {
    let Findings { info, processes, waits, last_run, store } = findings;
    let mut lines = Vec::new();
    if let Kind::Semaphore { limit } = info.kind {
        let (held, free) = (info.permits_held(), info.permits_free());
        lines.push(format!("\"{}\": {held} of {limit} permits are held, {free} free", info.key));
    }
    for (holder, process) in info.holders.iter().zip(processes) {
        lines.extend(of_holder(info, holder, process.as_ref()));
    }
    lines.extend(more(info.holders.len(), "holders"));
    if let Some(left) = info.closed_for {
        lines.extend(of_closing(info, left, last_run.as_ref()));
    } else if info.holders.is_empty() {
        lines.push(format!("\"{}\" is free, and goes to the first in the queue", info.key));
    }
    if !info.clock_set_back.is_zero() {
        lines.push(format!(
            "the store's clock was set back by {}; leases from before count from the first request \
             after that",
            duration::show(info.clock_set_back)
        ));
    }
    lines.extend(of_store(store));
    if !info.waiters.is_empty() {
        lines.push(format!("{} in the queue:", info.waiting()));
    }
    for (place, waiter) in (1_usize..).zip(info.waiters.iter().take(SHOWN_MAX)) {
        let says = match notes(&waiter.metadata) {
            says if says.is_empty() => says,
            says => format!(" ({says})"),
        };
        let waited = duration::show(waiter.waited);
        let behind = match waiter.behind {
            0 => String::new(),
            behind => format!(", and {behind} more in its process"),
        };
        lines.push(format!(
            "  {place}. {}{says}, {}, for {waited}{behind}",
            waiter.owner,
            mode(waiter.mode)
        ));
    }
    lines.extend(more(info.waiters.len(), "waiters"));
    match waits {
        Ok(chains) => lines.extend(chains.iter().flat_map(of_chain)),
        Err(why) => {
            let why = escape::terminal(why);
            lines.push(format!("whether the holders wait themselves is unknown: {why}"));
        }
    }
    lines.extend(advice(info, processes));
    lines.join("\n") + "\n"
}

fn more(all: usize, of: &str) -> Option<String> {
    let more = all.checked_sub(SHOWN_MAX).filter(|more| *more > 0)?;
    Some(format!("  and {more} more {of}"))
}

fn of_holder(info: &LockInfo, holder: &HolderInfo, known: Option<&Known>) -> Vec<String> {
    let mut lines = vec![format!(
        "\"{}\" is held by {} for {}, {}, with fence {}",
        info.key,
        holder.owner,
        duration::show(holder.held_for),
        mode(holder.mode),
        holder.fence,
    )];
    match notes(&holder.metadata) {
        none if none.is_empty() => {}
        notes => lines.push(format!("  notes: {notes}")),
    }
    if let Some(Known { process, by }) = known {
        lines.push(format!("  by its {by}: {process}"));
    }
    lines.push(format!(
        "  its lease expires in {} unless renewed, as a live holder does",
        duration::show(holder.remaining)
    ));
    // Only the holder itself knows that it makes progress; a renewal says that its process lives.
    lines.push(format!(
        "  the store does not know whether its work makes progress; it has held the lock for {}",
        duration::show(holder.held_for)
    ));
    if let Some(by) = &holder.asked_by {
        lines.push(format!("  {by} has requested its release"));
    }
    lines
}

fn of_closing(info: &LockInfo, left: Duration, last_run: Option<&LastRun>) -> Vec<String> {
    let left = duration::show(left);
    let mut lines = vec![format!(
        "\"{}\" is cooling down for another {left} (--cooldown or --once-per), and is free after \
         that",
        info.key
    )];
    if let Some(last_run) = last_run {
        lines.extend(last_run.lines());
    } else if info.holders.is_empty() {
        lines.push(match granted_at(info.last_fence) {
            Some(at) => format!(
                "  it was taken last at about {at} by the store's clock; a store with a log knows \
                 the holder (see `leasehold log --help`)"
            ),
            None => "  the store does not know its last holder".to_owned(),
        });
    }
    lines
}

/// When a fence was issued, by the store's clock, which is a part of it.
fn granted_at(fence: Fence) -> Option<String> {
    let since = fence.sequence().checked_add(Fence::ORIGIN_UNIX_US)?;
    let at = UNIX_EPOCH.checked_add(Duration::from_micros(since))?;
    Some(humantime::format_rfc3339_seconds(at).to_string())
}

fn of_chain(chain: &Chain) -> Vec<String> {
    let mut lines: Vec<String> = chain.steps().collect();
    if let Chain::Circle(steps) = chain {
        lines.push(match &steps[..] {
            [_] => "deadlock: it waits for itself until it times out or is ended".to_owned(),
            _ => "deadlock: they wait for each other until one of them times out, releases or is \
                  ended"
                .to_owned(),
        });
    }
    lines
}

/// The commands that help, the gentlest first.
fn advice(info: &LockInfo, processes: &[Option<Known>]) -> Vec<String> {
    let Some(holder) = info.holders.first() else { return Vec::new() };
    let ask = typed::command_on("ask", &info.key);
    let force = typed::command_on(&format!("force-release --fence {}", holder.fence), &info.key);
    let shells = typed::shells_for(&ask);
    let mut lines = vec![format!("to end that, {shells}in this order:")];
    // The others were not examined.
    let has_ended = |known: &Option<Known>| known.as_ref().is_some_and(|it| it.process.has_ended());
    if processes.len() == info.holders.len() && processes.iter().all(has_ended) {
        if processes.iter().flatten().any(|known| known.process.may_be_in_a_container()) {
            lines.push(format!(
                "  {ask}    # if its process is in a container; else nothing happens"
            ));
        }
        lines.push(format!(
            "  wait: its lease expires {}, unless `leasehold renew` renews it",
            end(holder)
        ));
        lines.push(format!("  {force}    # at once; work under `leasehold acquire` goes on"));
        return lines;
    }
    let found = processes.iter().flatten().filter(|known| known.process.lives());
    let found: Vec<u32> = found.map(|known| known.process.to_end()).collect();
    let end = match &found[..] {
        [] => "  end the process that holds it".to_owned(),
        all => {
            let numbers: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("  kill {}    # ends the holder on this host", numbers.join(" "))
        }
    };
    lines.extend([
        format!("  {ask}    # requests the release; the holder decides"),
        end,
        format!("  {force}    # works on until its next renewal"),
    ]);
    lines
}

fn document(findings: &Findings, place: &str) -> Outcome<Value> {
    let Findings { info, processes, waits, last_run, store } = findings;
    let step = |Step { waiter, within, waits_for, held_by }: &Step| {
        let (waiter, held_by) = (waiter.as_str(), held_by.as_str());
        let within = within.as_ref().map(leasehold::OwnerName::as_str);
        let waits_for = waits_for.as_str();
        json!({ "waiter": waiter, "within": within, "waits_for": waits_for, "held_by": held_by })
    };
    let chains = waits.as_ref().map_or(Value::Null, |chains| {
        let chain = |chain: &Chain| {
            let (steps, circle) = match chain {
                Chain::Open(steps) => (steps, false),
                Chain::Circle(steps) => (steps, true),
            };
            json!({ "circle": circle, "steps": steps.iter().map(step).collect::<Vec<_>>() })
        };
        chains.iter().map(chain).collect()
    });
    let processes = processes.iter().map(|process| {
        process.as_ref().map_or(Value::Null, |Known { process, .. }| {
            let (host, id) = (&process.host, process.id);
            json!({ "host": host, "id": id, "here": process.state.as_ref().map(ToString::to_string) })
        })
    });
    Ok(json!({
        "version": JSON_VERSION,
        "place": place,
        "key": info.key.as_str(),
        "lock": lock_json(info)?,
        "processes": processes.collect::<Vec<_>>(),
        "granted_at": granted_at(info.last_fence),
        "chains": chains,
        "last_run": last_run.as_ref().map(LastRun::document),
        "store": fitness_json(store),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::tests::{hostile, steers};

    #[test]
    fn what_strangers_wrote_can_not_steer_the_terminal_of_who_asks_why() {
        let info = hostile();
        let waits = Ok(graph::chains(&info, std::slice::from_ref(&info), &Name::around));
        let text = text(&Findings {
            info,
            processes: vec![None],
            waits,
            last_run: None,
            store: Ok(Vec::new()),
        });
        assert!(!steers(&text), "{text:?}");
        assert!(text.contains("web\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn a_fence_shows_when_it_was_issued() {
        // A million seconds.
        let fence = Fence::new(3, 1_000_000_000_000).unwrap();
        assert_eq!(granted_at(fence).unwrap(), "2020-01-12T13:46:40Z");
    }
}
