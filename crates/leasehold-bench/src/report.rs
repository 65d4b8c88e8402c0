//! What is printed: tables for people, or one document for a machine.

use std::io::Write as _;

use serde::Serialize;

use crate::cli::Args;
use crate::expiry::Expiry;
use crate::handoff::Handoff;
use crate::machine::Machine;
use crate::renew::Renewals;
use crate::scripts::Costs;
use crate::stats::Spread;
use crate::uncontended::Uncontended;

/// Counts up when a field changes its meaning or goes away.
const VERSION: u32 = 1;

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    version: u32,
    command: &'static str,
    rounds: u32,
    seconds: f64,
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uncontended: Option<Uncontended>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handoff: Option<Handoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handoff_delayed: Option<Handoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expiry: Option<Expiry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renew: Option<Renewals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scripts: Option<Costs>,
}

impl Document {
    pub(crate) fn new(args: &Args) -> Self {
        Self {
            version: VERSION,
            command: args.what.name(),
            rounds: args.rounds(),
            seconds: args.turn().as_secs_f64(),
            machine: Machine::look(),
            uncontended: None,
            handoff: None,
            handoff_delayed: None,
            expiry: None,
            renew: None,
            scripts: None,
        }
    }

    pub(crate) fn finish(&mut self) {
        self.machine.look_again();
    }
}

pub(crate) fn complain(error: &anyhow::Error) {
    // There is nobody left to tell if this fails too.
    drop(writeln!(std::io::stderr(), "leasehold-bench: {error:#}"));
}

pub(crate) fn print(document: &Document, json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if json {
        text = serde_json::to_string_pretty(document)?;
        text.push('\n');
    } else {
        people(document, &mut text);
    }
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn people(document: &Document, text: &mut String) {
    let Document { rounds, seconds, machine, .. } = document;
    text.push_str(&format!(
        "{}\n{rounds} rounds of {seconds} s for each; median (min–max) over the rounds, \
         ratios within a round\n",
        machine.line()
    ));
    if let Some(uncontended) = &document.uncontended {
        text.push_str(&format!("\nTake and release, {}\n", uncontended.server));
        let mut table = Table::new(&[
            "variant",
            "callers",
            "cycles/s",
            "of bare",
            "p50 µs",
            "p99 µs",
            "client µs",
            "server µs",
            "commands",
        ]);
        for row in &uncontended.rows {
            table.row([
                row.variant.to_owned(),
                row.callers.to_string(),
                number(row.cycles_per_second),
                ranged(row.ratio_to_bare),
                number(row.p50_us),
                number(row.p99_us),
                number(row.client_us_per_cycle),
                number(row.server_us_per_cycle),
                number(row.commands_per_cycle),
            ]);
        }
        table.print(text);
    }
    for handoff in [&document.handoff, &document.handoff_delayed].into_iter().flatten() {
        text.push_str(&format!(
            "\nHand-off, {}, {} ms added each way, round trip {} µs\n",
            handoff.server,
            handoff.delay_each_way_ms,
            ranged(handoff.rtt_us),
        ));
        let mut table = Table::new(&[
            "variant",
            "waiters",
            "hold ms",
            "per second",
            "p50 µs",
            "p99 µs",
            "p50 RTT",
            "p99 RTT",
            "commands",
            "publishes",
            "server µs",
            "client µs",
            "Jain",
            "longest",
        ]);
        for row in &handoff.rows {
            table.row([
                row.variant.to_owned(),
                row.waiters.to_string(),
                row.hold_ms.to_string(),
                number(row.handoffs_per_second),
                number(row.p50_us),
                number(row.p99_us),
                number(row.p50_rtt),
                number(row.p99_rtt),
                number(row.commands_per_handoff),
                number(row.publishes_per_handoff),
                number(row.server_us_per_handoff),
                number(row.client_us_per_handoff),
                number(row.jain),
                number(row.longest_wait),
            ]);
        }
        table.print(text);
        text.push_str("\nHand-offs per second, within a round\n");
        let mut table = Table::new(&["", "against", "hold ms", "ratio"]);
        for ratio in &handoff.ratios {
            table.row([
                ratio.above.clone(),
                ratio.below.clone(),
                ratio.hold_ms.to_string(),
                ranged(ratio.ratio),
            ]);
        }
        table.print(text);
    }
    if let Some(Expiry { server, takeovers, herd }) = &document.expiry {
        text.push_str(&format!("\nTaking over from a dead holder, {server}\n"));
        let mut table = Table::new(&[
            "other keys",
            "ttl ms",
            "take-overs",
            "late p50 µs",
            "p99 µs",
            "max µs",
            "commands",
            "early",
        ]);
        for row in takeovers {
            table.row([
                row.other_keys.to_string(),
                row.ttl_ms.to_string(),
                row.takeovers.to_string(),
                ranged(row.late_p50_us),
                ranged(row.late_p99_us),
                ranged(row.late_max_us),
                ranged(row.commands_per_takeover),
                row.early.to_string(),
            ]);
        }
        table.print(text);
        text.push_str(&format!(
            "with {} waiting clients: {} µs late, {} commands in all\n",
            herd.waiters,
            ranged(herd.late_us),
            ranged(herd.commands),
        ));
    }
    if let Some(renew) = &document.renew {
        text.push_str(&format!(
            "\n{} held locks with a ttl of {} ms, {} s, {}\n",
            renew.locks, renew.ttl_ms, renew.seconds, renew.server
        ));
        let mut table = Table::new(&["", "median (min–max)"]);
        for (name, value) in [
            ("renewals/s", renew.renewals_per_second),
            ("requests per renewal", renew.commands_per_renewal),
            ("client µs per renewal", renew.client_us_per_renewal),
            ("server µs per renewal", renew.server_us_per_renewal),
            ("bare pipeline, client µs", renew.bare_client_us_per_renewal),
            ("bare pipeline, server µs", renew.bare_server_us_per_renewal),
            ("renewals per cpu second, of bare", renew.ratio_to_bare),
            ("bytes per held lock", renew.bytes_per_lock),
        ] {
            table.row([name.to_owned(), ranged(value)]);
        }
        table.row(["renewals failed".to_owned(), renew.failed.to_string()]);
        table.row(["locks lost".to_owned(), renew.lost.to_string()]);
        table.print(text);
    }
    if let Some(costs) = &document.scripts {
        text.push_str(&format!(
            "\nThe server's µs for each lock in scripts, {} times a round, {}\n",
            costs.times, costs.server
        ));
        let mut table = Table::new(&["operation", "others", "locks in one", "server µs"]);
        for row in &costs.rows {
            table.row([
                row.operation.to_owned(),
                row.others.to_string(),
                row.batch.to_string(),
                ranged(row.server_us),
            ]);
        }
        table.print(text);
    }
}

/// The first column to the left, all others to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn print(&self, text: &mut String) {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    text.push_str(&format!("{cell:<width$}"));
                } else {
                    text.push_str(&format!("  {cell:>width$}"));
                }
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
    }
}

fn number(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "–".to_owned(), |spread| digits(spread.median))
}

fn ranged(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "–".to_owned(),
        |Spread { median, min, max }| {
            format!("{} ({}–{})", digits(median), digits(min), digits(max))
        },
    )
}

/// Three digits that count, and whole numbers above that.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}
