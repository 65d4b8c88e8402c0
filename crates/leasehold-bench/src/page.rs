//! Writes the table of docs/performance.md, its plots, and all tables as `plots/report.md`.

use std::path::Path;

use anyhow::Context as _;

use crate::command::{Program, Run};
use crate::plot::{self, Line};
use crate::report::{Document, Table, digits, number, ranged};
use crate::scale::Point;
use crate::stats::{Spread, median};
use crate::uncontended::Row as Cycles;

const BEGIN: &str = "<!-- measured: begin -->\n";
const END: &str = "<!-- measured: end -->";

fn shown(value: f64) -> String {
    if value.is_finite() { digits(value) } else { "–".to_owned() }
}

/// Puts the table between the marks of the page, and writes the plots and the report.
pub(crate) fn write(docs: &Path, document: &Document) -> anyhow::Result<()> {
    let path = docs.join("performance.md");
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (before, rest) = page.split_once(BEGIN).context("the page lacks the first mark")?;
    let (_, after) = rest.split_once(END).context("the page lacks the last mark")?;
    let plots = docs.join("plots");
    std::fs::create_dir_all(&plots)?;
    let charts = charts(document);
    for (name, _, chart) in &charts {
        std::fs::write(plots.join(name), chart)?;
    }
    let mut measured = format!("{}\n\n", document.head());
    paid(document).markdown(&mut measured);
    measured.push('\n');
    for (name, title, _) in &charts {
        measured.push_str(&format!("![{title}](plots/{name})\n\n"));
    }
    std::fs::write(plots.join("report.md"), report(document))?;
    std::fs::write(&path, format!("{before}{BEGIN}{measured}{END}{after}"))?;
    Ok(())
}

/// All tables except the page's, as Markdown.
fn report(document: &Document) -> String {
    let mut text = format!("# Everything that a report measured\n\n{}\n\n", document.head());
    if let Some(peers) = &document.peers {
        text.push_str(&format!(
            "## Other libraries, {}\n\nThe rate, its share of leasehold's within a round in brackets, \
             and the processor time of the process that takes the locks. Of the others only \
             redisson-fenced has a fence. Each asks again as often as it does by default, or as \
             its row says.\n\n",
            peers.server
        ));
        let mut head = vec!["library".to_owned()];
        head.extend(peers.jobs.iter().map(|job| job.name()));
        let mut table = Table::of(head);
        for row in &peers.rows {
            let rates = row.rates.iter().zip(&row.client_us).map(|(rate, client_us)| match rate {
                Some((rate, share)) => {
                    let (rate, share) = (digits(rate.median), digits(share.median));
                    format!("{rate} ({share}), {} µs", number(*client_us))
                }
                None => "–".to_owned(),
            });
            table.row(std::iter::once(row.library.clone()).chain(rates));
        }
        table.markdown(&mut text);
        for missing in &peers.missing {
            text.push_str(&format!("\nNot measured: {missing}\n"));
        }
        text.push('\n');
    }
    document.sections(&mut |title, table| {
        text.push_str(&format!("## {title}\n\n"));
        table.markdown(&mut text);
        text.push('\n');
    });
    scale(document, &mut text);
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn scale(document: &Document, text: &mut String) {
    let Some(scale) = &document.scale else { return };
    let curve = |title: &str, size: &str, rate: &str, points: &[Point], text: &mut String| {
        text.push_str(&format!("## {title}\n\n"));
        let head = [size, rate, "of bare", "client µs", "server µs", "bytes each"];
        let mut table = Table::new(&head);
        for point in points {
            table.row([
                point.size.to_string(),
                number(point.per_second),
                ranged(point.ratio),
                number(point.client_us),
                number(point.server_us),
                number(point.bytes),
            ]);
        }
        table.markdown(text);
        text.push('\n');
    };
    let names = "Many names: 64 callers beside locks that the server remembers";
    curve(names, "names", "cycles/s", &scale.names, text);
    curve("Many clients, one caller each", "clients", "cycles/s", &scale.clients, text);
    let held = "Many held leases, with a ttl of 3 s";
    curve(held, "leases", "renewals per second of processor", &scale.holders, text);
    let inside = "One lock and many waiters of one client";
    curve(inside, "waiters", "hand-offs/s", &scale.waiters, text);
    for (title, size, crowds) in [
        ("One lock with many clients in its line, in the server's µs", "waiters", &scale.line),
        ("One lock that many share, in the server's µs", "holders", &scale.shared),
        ("One lock with many permits given away, in the server's µs", "holders", &scale.permits),
    ] {
        text.push_str(&format!("## {title}\n\n"));
        let operations = crowds.first().map_or(&[][..], |crowd| &crowd.operations);
        let mut head = vec![size.to_owned()];
        head.extend(operations.iter().map(|(operation, _)| (*operation).to_owned()));
        head.push("bytes each".to_owned());
        let mut table = Table::of(head);
        for crowd in crowds {
            let costs = crowd.operations.iter().map(|(_, cost)| ranged(*cost));
            let all = std::iter::once(crowd.others.to_string()).chain(costs);
            table.row(all.chain([number(crowd.bytes)]));
        }
        table.markdown(text);
        text.push('\n');
    }
    on_paper(document, text);
}

/// The share of a cluster that a million operations a second would need, extrapolated from one.
fn on_paper(document: &Document, text: &mut String) {
    let clients = document.scale.as_ref().and_then(|scale| scale.clients.last());
    let together = document.uncontended.as_ref().and_then(|all| all.row("leasehold", 64));
    let renew = document.renew.as_ref();
    let rows = [
        (
            clients.map_or_else(String::new, |it| {
                format!("cycles of {} clients, each alone", it.size)
            }),
            clients.and_then(|it| it.server_us.zip(it.client_us)),
        ),
        (
            "cycles of 64 callers of a client, on one server".to_owned(),
            together.and_then(|it| it.server_us_per_cycle.zip(it.client_us_per_cycle)),
        ),
        (
            "renewals, twenty in a call".to_owned(),
            renew.and_then(|it| it.server_us_per_renewal.zip(it.client_us_per_renewal)),
        ),
    ];
    let mut table = Table::new(&[
        "a million a second",
        "server µs",
        "client µs",
        "servers' cores",
        "clients' cores",
        "primaries, two thirds busy",
    ]);
    for (name, costs) in rows {
        let Some((server, client)) = costs else { continue };
        // One µs for each of a million a second is one core.
        table.row([
            name,
            digits(server.median),
            digits(client.median),
            format!("{:.1}", server.median),
            format!("{:.1}", client.median),
            format!("{:.0}", (server.median * 1.5).ceil()),
        ]);
    }
    text.push_str("## A million locks a second over a cluster, on paper\n\n");
    table.markdown(text);
    text.push_str(
        "\nNames share nothing, so a cluster does as much as its primaries together. Requests share a \
         call only if their names share a slot, so a client with many names is nearer to the first \
         row than to the second. A million held leases with a ttl of 30 s are renewed 100 000 times \
         a second: a tenth of the last row.\n\n",
    );
}

/// For each thing: its cost, its ratio to a yardstick, the aim, and the floor's ratio. The floor is
/// the best that any lock could do in the same run.
fn paid(document: &Document) -> Table {
    let mut table = Table::new(&["what", "costs", "ratio", "aim", "floor"]);
    let mut row = |what: String, costs: String, ratio: f64, aim: &str, floor: f64| {
        table.row([what, costs, shown(ratio), aim.to_owned(), shown(floor)]);
    };
    let rate = |per_second, p50| format!("{}/s, p50 {} µs", number(per_second), number(p50));
    if let Some(uncontended) = &document.uncontended {
        for callers in uncontended.callers() {
            let of = |variant| uncontended.row(variant, callers);
            let (Some(ours), Some(bare), Some(floor)) = (of("leasehold"), of("bare"), of("floor"))
            else {
                continue;
            };
            let aim = match callers {
                1 => "≥ 0.95",
                1000.. => "≥ 1.0",
                _ => "≥ 0.9",
            };
            let s = if callers == 1 { "" } else { "s" };
            row(
                format!("take and release at a server, {callers} caller{s}"),
                rate(ours.cycles_per_second, ours.p50_us),
                median(ours.ratio_to_bare),
                aim,
                median(floor.ratio_to_bare),
            );
            if callers > 1 {
                for (side, value) in [
                    ("server", (|row| row.server_us_per_cycle) as fn(&Cycles) -> Option<Spread>),
                    ("client", |row| row.client_us_per_cycle),
                ] {
                    row(
                        format!("the {side}'s time for each of these"),
                        format!("{} µs", number(value(ours))),
                        median(value(ours)) / median(value(bare)),
                        "≤ 1.3",
                        median(value(floor)) / median(value(bare)),
                    );
                }
            }
        }
        let share = |above, below| {
            let both = uncontended.row(above, 1).zip(uncontended.row(below, 1));
            median(both.and_then(|(above, below)| Spread::of_ratios(&above.rates, &below.rates)))
        };
        let costs = |variant| {
            let found = uncontended.row(variant, 1);
            found.map_or_else(|| "–".to_owned(), |it| rate(it.cycles_per_second, it.p50_us))
        };
        row(
            "the same in the embedded store, of flock(2)".to_owned(),
            costs("embedded"),
            share("embedded", "flock"),
            "≥ 0.3",
            share("embedded-floor", "flock"),
        );
        row(
            "the same in memory, of a map".to_owned(),
            costs("memory"),
            share("memory", "map"),
            "–",
            1.0,
        );
    }
    for handoff in document.handoff.iter() {
        for it in handoff.rows.iter().filter(|row| row.variant == "leasehold") {
            row(
                format!("hand-off at a server, {} waiters, of a bare queue", it.waiters),
                rate(it.handoffs_per_second, it.p50_us),
                median(handoff.ratio("leasehold", "bare-fifo", it.waiters)),
                "≥ 0.95",
                median(handoff.ratio("line-floor-apart", "bare-fifo", it.waiters)),
            );
        }
    }
    for handoff in document.handoff_delayed.iter() {
        for it in handoff.rows.iter().filter(|row| row.variant == "leasehold") {
            let floor = handoff.row("line-floor-apart", it.waiters);
            for (part, us, rtt, floor, aim) in [
                ("p50", it.p50_us, it.p50_rtt, floor.and_then(|floor| floor.p50_rtt), "≤ 1.05"),
                ("p99", it.p99_us, it.p99_rtt, floor.and_then(|floor| floor.p99_rtt), "≤ 1.2"),
            ] {
                let waiters = it.waiters;
                row(
                    format!(
                        "hand-off over 1 ms each way, {waiters} waiters, {part}, of a round trip"
                    ),
                    format!("{} µs", number(us)),
                    median(rtt),
                    aim,
                    median(floor),
                );
            }
        }
    }
    if let Some(takeover) = document.expiry.as_ref().and_then(|it| it.takeovers.first()) {
        row(
            "take-over from a dead holder, after the lease's end, p50".to_owned(),
            format!("{} µs", number(takeover.late_p50_us)),
            f64::NAN,
            "–",
            f64::NAN,
        );
    }
    if let Some(renew) = &document.renew {
        let per_second = |client, server| 1e6 / (median(client) + median(server));
        let (client, server) = (renew.client_us_per_renewal, renew.server_us_per_renewal);
        row(
            "renewals per second of processor, both sides".to_owned(),
            format!("{} + {} µs each", number(client), number(server)),
            per_second(client, server),
            "≥ 400 000",
            renew.bare.first().map_or(f64::NAN, |bare| {
                per_second(bare.client_us_per_renewal, bare.server_us_per_renewal)
            }),
        );
        // Zero if memory was reused that had been freed before.
        let bytes = renew.bytes_per_lock.filter(|bytes| bytes.median > 0.0);
        row(
            "client memory for a held lease, bytes".to_owned(),
            number(bytes),
            f64::NAN,
            "≤ 500",
            f64::NAN,
        );
    }
    if let Some(others) = &document.others {
        row(
            format!("others' PING while {} leases are renewed, p99, of idle", others.leases),
            format!("{} µs", number(others.renewing_p99_us)),
            median(others.ratio),
            "≤ 2",
            1.0,
        );
    }
    if let Some(Run { shared, fixed, .. }) = &document.run {
        let name = "`run KEY -- true`, embedded, of flock(1)";
        let costs = |program: &Program| format!("{} ms", number(program.run_ms));
        row(name.to_owned(), costs(shared), shared.ratio, "≤ 1.5", shared.floor);
        if let Some(fixed) = fixed {
            let name = format!("{name}, the static program");
            row(name, costs(fixed), fixed.ratio, "≤ 1.5", fixed.floor);
        }
    }
    table
}

/// Name, title and picture of each plot.
fn charts(document: &Document) -> Vec<(&'static str, &'static str, String)> {
    let mut all = Vec::new();
    if let Some(uncontended) = &document.uncontended {
        let names = ["leasehold", "bare", "bare-fence", "floor", "rslock"];
        let line = |name: &str| Line {
            name: name.to_owned(),
            points: uncontended
                .rows
                .iter()
                .filter(|row| row.variant == name)
                .map(|row| (row.callers as f64, median(row.cycles_per_second)))
                .collect(),
        };
        let chart = plot::lines("Cycles a second", "callers", &names.map(line));
        all.push(("callers.svg", "Cycles a second by callers", chart));
    }
    if let Some(handoff) = &document.handoff {
        let names =
            ["leasehold", "bare-fifo", "publish-to-all", "blocking-pop", "blocking-pop-in-turn"];
        let line = |name: &str| Line {
            name: name.to_owned(),
            points: handoff
                .rows
                .iter()
                .filter(|row| row.variant == name)
                .map(|row| (row.waiters as f64, median(row.handoffs_per_second)))
                .collect(),
        };
        let chart = plot::lines("Hand-offs a second", "waiters", &names.map(line));
        all.push(("handoff.svg", "Hand-offs a second by waiters", chart));
    }
    if let Some(peers) = &document.peers {
        let rate = |row: &crate::peers::Row| {
            let rate = row.rates.get(1)?.as_ref()?;
            Some((row.library.clone(), rate.0.median))
        };
        let bars: Vec<_> = peers.rows.iter().filter_map(rate).collect();
        let title = peers.jobs.get(1).map_or_else(String::new, |job| job.name());
        let chart = plot::bars(&title, &bars);
        all.push(("peers.svg", "Cycles a second of several libraries", chart));
    }
    if let Some(scale) = &document.scale {
        let line = |name: &str, points: &[Point]| Line {
            name: name.to_owned(),
            points: points.iter().map(|it| (it.size as f64, median(it.per_second))).collect(),
        };
        let all_lines = [
            line("names, cycles", &scale.names),
            line("clients, cycles", &scale.clients),
            line("leases, renewals/CPU s", &scale.holders),
        ];
        let chart = plot::lines("A second", "names, clients, leases", &all_lines);
        all.push(("scale.svg", "By size", chart));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_around_the_marks_stays() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("performance.md");
        std::fs::write(&page, format!("a\n{BEGIN}former figures\n{END}\nb\n")).unwrap();
        let document = Document::empty();
        write(folder.path(), &document).unwrap();
        let written = std::fs::read_to_string(&page).unwrap();
        assert!(
            written.starts_with(&format!("a\n{BEGIN}"))
                && written.ends_with(&format!("{END}\nb\n"))
        );
        assert!(!written.contains("former figures"));
        assert!(folder.path().join("plots/report.md").exists());
        std::fs::write(&page, "no marks").unwrap();
        assert!(write(folder.path(), &document).is_err());
    }
}
