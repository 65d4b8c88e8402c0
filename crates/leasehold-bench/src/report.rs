//! Prints the measurements: tables for people, or one document for a machine.

use std::io::Write as _;

use serde::Serialize;

use crate::cli::Args;
use crate::command::Run;
use crate::expiry::Expiry;
use crate::handoff::Handoff;
use crate::machine::Machine;
use crate::others::Others;
use crate::peers::Peers;
use crate::postgres::Postgres;
use crate::renew::Renewals;
use crate::scale::Scale;
use crate::scripts::Costs;
use crate::stats::Spread;
use crate::uncontended::Uncontended;

/// Increased when a field changes its meaning or is removed.
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
    pub(crate) others: Option<Others>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scripts: Option<Costs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) postgres: Option<Postgres>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<Peers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<Scale>,
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
            others: None,
            scripts: None,
            postgres: None,
            peers: None,
            run: None,
            scale: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        use clap::Parser as _;
        Self::new(&Args::parse_from(["leasehold-bench", "report"]))
    }

    /// The measured machine and settings.
    pub(crate) fn head(&self) -> String {
        let Self { rounds, seconds, machine, .. } = self;
        format!(
            "{}.\n{rounds} rounds of {seconds} s for each; median (min–max) over the rounds, ratios \
             within a round, in which most take turns every 50 ms.",
            machine.line()
        )
    }

    pub(crate) fn finish(&mut self) {
        self.machine.look_again();
    }
}

pub(crate) fn complain(error: &anyhow::Error) {
    // If this fails too, there is no way left to report it.
    drop(writeln!(std::io::stderr(), "leasehold-bench: {error:#}"));
}

/// Prints the progress of a report to stderr.
pub(crate) fn progress(part: u32, parts: u32, elapsed: std::time::Duration, what: &str) {
    let bar: String = (0..parts).map(|at| if at < part { '#' } else { '.' }).collect();
    // If this fails, there is no way to report it.
    drop(writeln!(std::io::stderr(), "[{bar}] {:4} s  {what}", elapsed.as_secs()));
}

pub(crate) fn print(document: &Document, json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if json {
        text = serde_json::to_string_pretty(document)?;
        text.push('\n');
    } else {
        text.push_str(&document.head());
        text.push('\n');
        document.sections(&mut |title, table| {
            text.push_str(&format!("\n{title}\n"));
            table.print(&mut text);
        });
    }
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

impl Document {
    /// Each table with its title.
    pub(crate) fn sections(&self, section: &mut dyn FnMut(&str, &Table)) {
        if let Some(postgres) = &self.postgres {
            let mut table = Table::new(&["what", "leasehold", "floor", "unit", "ratio", "aim"]);
            for row in &postgres.rows {
                table.row([
                    row.work.clone(),
                    ranged(row.ours),
                    ranged(row.floor),
                    row.unit.to_owned(),
                    ranged(row.ratio),
                    row.aim.to_owned(),
                ]);
            }
            section("PostgreSQL, against bare statements", &table);
        }
        if let Some(uncontended) = &self.uncontended {
            let title = format!("Take and release, {}", uncontended.server);
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
            section(&title, &table);
        }
        for handoff in [&self.handoff, &self.handoff_delayed].into_iter().flatten() {
            let title = format!(
                "Hand-off, {}, {} ms added each way, round trip {} µs",
                handoff.server,
                handoff.delay_each_way_ms,
                ranged(handoff.rtt_us),
            );
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
            section(&title, &table);
            let mut table = Table::new(&["", "against", "hold ms", "ratio"]);
            for ratio in &handoff.ratios {
                table.row([
                    ratio.above.clone(),
                    ratio.below.clone(),
                    ratio.hold_ms.to_string(),
                    ranged(ratio.ratio),
                ]);
            }
            section("Hand-offs per second, within a round", &table);
        }
        if let Some(Expiry { server, takeovers, herd }) = &self.expiry {
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
            let title = format!(
                "Taking over from a dead holder, {server}; with {} waiting clients: {} µs late, {} \
             commands in all",
                herd.waiters,
                ranged(herd.late_us),
                ranged(herd.commands),
            );
            section(&title, &table);
        }
        if let Some(renew) = &self.renew {
            let title = format!(
                "{} held locks with a ttl of {} ms, {} s, {}",
                renew.locks, renew.ttl_ms, renew.seconds, renew.server
            );
            let mut table = Table::new(&["", "median (min–max)"]);
            for (name, value) in [
                ("renewals/s", renew.renewals_per_second),
                ("requests per renewal", renew.commands_per_renewal),
                ("client µs per renewal", renew.client_us_per_renewal),
                ("server µs per renewal", renew.server_us_per_renewal),
                ("bytes per held lock", renew.bytes_per_lock),
            ] {
                table.row([name.to_owned(), ranged(value)]);
            }
            for bare in &renew.bare {
                let name = |what| format!("bare pipelines of {}, {what}", bare.scripts);
                table.row([name("client µs"), ranged(bare.client_us_per_renewal)]);
                table.row([name("server µs"), ranged(bare.server_us_per_renewal)]);
                table.row([name("renewals per cpu second, of these"), ranged(bare.ratio)]);
            }
            table.row(["renewals failed".to_owned(), renew.failed.to_string()]);
            table.row(["locks lost".to_owned(), renew.lost.to_string()]);
            section(&title, &table);
        }
        if let Some(others) = &self.others {
            let title = format!(
                "PING of another connection while {} leases with a ttl of {} s are renewed, {}",
                others.leases,
                others.ttl_ms as f64 / 1e3,
                others.server
            );
            let mut table = Table::new(&["", "p50 µs", "p99 µs"]);
            for (name, p50, p99) in [
                ("idle", others.idle_p50_us, others.idle_p99_us),
                ("renewing", others.renewing_p50_us, others.renewing_p99_us),
            ] {
                table.row([name.to_owned(), ranged(p50), ranged(p99)]);
            }
            section(&title, &table);
        }
        if let Some(costs) = &self.scripts {
            let title = format!(
                "The server's µs for each lock in scripts, {} times a round, {}",
                costs.times, costs.server
            );
            let mut table = Table::new(&["operation", "others", "locks in one", "server µs"]);
            for row in &costs.rows {
                table.row([
                    row.operation.to_owned(),
                    row.others.to_string(),
                    row.batch.to_string(),
                    ranged(row.server_us),
                ]);
            }
            section(&title, &table);
        }
        if let Some(run) = &self.run {
            let title =
                format!("A command under a lock of the embedded store, {} times", run.times);
            let mut table = Table::new(&["", "ms, median (min–max)"]);
            table.row(["true".to_owned(), ranged(run.nothing_ms)]);
            table.row(["flock FILE true".to_owned(), ranged(run.flock_ms)]);
            let builds = [(Some(&run.shared), ""), (run.fixed.as_ref(), ", the static program")];
            for (program, which) in builds {
                let Some(program) = program else { continue };
                table.row([format!("leasehold --version{which}"), ranged(program.version_ms)]);
                table.row([format!("leasehold run KEY -- true{which}"), ranged(program.run_ms)]);
            }
            section(&title, &table);
        }
    }
}

/// The first column to the left, all others to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self::of(head.iter().map(|&cell| cell.to_owned()).collect())
    }

    pub(crate) fn of(head: Vec<String>) -> Self {
        Self { rows: vec![head] }
    }

    pub(crate) fn markdown(&self, text: &mut String) {
        for (number, row) in self.rows.iter().enumerate() {
            text.push_str(&format!("| {} |\n", row.join(" | ")));
            if number == 0 {
                let others = "| --: ".repeat(row.len().saturating_sub(1));
                text.push_str(&format!("| --- {others}|\n"));
            }
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
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

pub(crate) fn number(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "–".to_owned(), |spread| digits(spread.median))
}

pub(crate) fn ranged(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "–".to_owned(),
        |Spread { median, min, max }| {
            format!("{} ({}–{})", digits(median), digits(min), digits(max))
        },
    )
}

/// Three significant digits, and whole numbers above that.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}
