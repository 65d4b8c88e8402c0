//! The measured part of docs/performance.md, and its plots.

use std::path::Path;

use anyhow::Context as _;

use crate::command::Run;
use crate::plot::{self, Line};
use crate::report::{Document, Table, digits, number, ranged};
use crate::scale::Point;
use crate::stats::{Spread, median};

const BEGIN: &str = "<!-- measured: begin -->\n";
const END: &str = "<!-- measured: end -->";

fn shown(value: f64) -> String {
    if value.is_finite() { digits(value) } else { "–".to_owned() }
}

/// Puts the tables between the marks of the page, and the plots beside it.
pub(crate) fn write(docs: &Path, document: &Document) -> anyhow::Result<()> {
    let path = docs.join("performance.md");
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (before, rest) = page.split_once(BEGIN).context("the page lacks the first mark")?;
    let (_, after) = rest.split_once(END).context("the page lacks the last mark")?;
    let plots = docs.join("plots");
    std::fs::create_dir_all(&plots)?;
    for (name, chart) in charts(document) {
        std::fs::write(plots.join(name), chart)?;
    }
    let measured = measured(document);
    std::fs::write(&path, format!("{before}{BEGIN}{measured}{END}{after}"))?;
    Ok(())
}

/// The tables, as Markdown.
pub(crate) fn measured(document: &Document) -> String {
    let mut text = String::new();
    text.push_str(&format!("{}\n\n", document.head()));
    aims(document, &mut text);
    if let Some(peers) = &document.peers {
        text.push_str(&format!(
            "### Other libraries, {}\n\nA rate, in brackets what share of leasehold's that is within \
             a round, and the processor time of the process that takes the locks for each, in µs. \
             None of the others has a fence but redisson-fenced; each asks again as often as it does \
             by itself, or as said.\n\n",
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
        text.push_str("\n![Cycles a second of several libraries](plots/peers.svg)\n\n");
    }
    document.sections(&mut |title, table| {
        text.push_str(&format!("### {title}\n\n"));
        table.markdown(&mut text);
        text.push('\n');
    });
    if document.uncontended.is_some() {
        text.push_str("![Cycles a second by callers](plots/callers.svg)\n\n");
    }
    if document.handoff.is_some() {
        text.push_str("![Hand-offs a second by waiters](plots/handoff.svg)\n\n");
    }
    scale(document, &mut text);
    text
}

fn scale(document: &Document, text: &mut String) {
    let Some(scale) = &document.scale else { return };
    let curve = |title: &str, size: &str, rate: &str, points: &[Point], text: &mut String| {
        text.push_str(&format!("### {title}\n\n"));
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
        text.push_str(&format!("### {title}\n\n"));
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
    text.push_str("![By size](plots/scale.svg)\n\n");
    on_paper(document, text);
}

/// What a million a second would take of a cluster, from what one of them costs.
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
        // A µs for each of a million a second is one core.
        table.row([
            name,
            digits(server.median),
            digits(client.median),
            format!("{:.1}", server.median),
            format!("{:.1}", client.median),
            format!("{:.0}", (server.median * 1.5).ceil()),
        ]);
    }
    text.push_str("### A million locks a second over a cluster, on paper\n\n");
    table.markdown(text);
    text.push_str(
        "\nNames share nothing, so a cluster does as much as its primaries do together. In one, \
         requests share a call only where their names share a slot, so a client with many names is \
         nearer to the first row than to the second. A million held leases with a ttl of 30 s are \
         renewed a hundred thousand times a second: a tenth of the last row.\n\n",
    );
}

/// Each aim beside what was measured, and what no lock could do better in the same run.
fn aims(document: &Document, text: &mut String) {
    text.push_str("### Aims\n\nAs shares of the bare pair of commands, unless said otherwise.\n\n");
    let mut table = Table::new(&["what", "measured", "aim", "floor"]);
    let mut row = |what: String, measured: f64, aim: &str, floor: f64| {
        table.row([what, shown(measured), aim.to_owned(), shown(floor)]);
    };
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
                format!("cycle with fence, {callers} caller{s}"),
                median(ours.ratio_to_bare),
                aim,
                median(floor.ratio_to_bare),
            );
            if callers > 1 {
                let share = |value: fn(&crate::uncontended::Row) -> Option<Spread>| {
                    let bare = median(value(bare));
                    (median(value(ours)) / bare, median(value(floor)) / bare)
                };
                let (server, server_floor) = share(|row| row.server_us_per_cycle);
                let (client, client_floor) = share(|row| row.client_us_per_cycle);
                row(format!("server time, {callers} callers"), server, "≤ 1.3", server_floor);
                row(format!("client time, {callers} callers"), client, "≤ 1.3", client_floor);
            }
        }
        let share = |above, below| {
            let both = uncontended.row(above, 1).zip(uncontended.row(below, 1));
            median(both.and_then(|(above, below)| Spread::of_ratios(&above.rates, &below.rates)))
        };
        row(
            "embedded cycle, of flock(2)".to_owned(),
            share("embedded", "flock"),
            "≥ 0.3",
            share("embedded-floor", "flock"),
        );
        row("cycle in memory, of a map's".to_owned(), share("memory", "map"), "–", 1.0);
    }
    for handoff in document.handoff_delayed.iter() {
        for it in handoff.rows.iter().filter(|row| row.variant == "leasehold") {
            let floor = handoff.row("line-floor-apart", it.waiters);
            let name = |part| {
                format!("hand-off over 1 ms each way, {} waiters, {part}, round trips", it.waiters)
            };
            let p50 = median(floor.and_then(|floor| floor.p50_rtt));
            row(name("p50"), median(it.p50_rtt), "≤ 1.05", p50);
            let p99 = median(floor.and_then(|floor| floor.p99_rtt));
            row(name("p99"), median(it.p99_rtt), "≤ 1.2", p99);
        }
    }
    for handoff in document.handoff.iter() {
        for it in handoff.rows.iter().filter(|row| row.variant == "leasehold") {
            let share = handoff.ratio("leasehold", "bare-fifo", it.waiters);
            let name = format!("hand-offs/s, {} waiters, of a bare FIFO", it.waiters);
            let floor = handoff.ratio("line-floor-apart", "bare-fifo", it.waiters);
            row(name, median(share), "≥ 0.95", median(floor));
        }
    }
    if let Some(renew) = &document.renew {
        let per_second = |client, server| 1e6 / (median(client) + median(server));
        row(
            "renewals per second of processor, both sides".to_owned(),
            per_second(renew.client_us_per_renewal, renew.server_us_per_renewal),
            "≥ 400 000",
            renew.bare.first().map_or(f64::NAN, |bare| {
                per_second(bare.client_us_per_renewal, bare.server_us_per_renewal)
            }),
        );
        row(
            "client memory per held lease, bytes".to_owned(),
            // None where memory was used again that had been freed before.
            Some(median(renew.bytes_per_lock)).filter(|bytes| *bytes > 0.0).unwrap_or(f64::NAN),
            "≤ 500",
            f64::NAN,
        );
    }
    if let Some(others) = &document.others {
        let name = format!("others' PING p99 while {} leases are renewed, of idle", others.leases);
        row(name, median(others.ratio), "≤ 2", 1.0);
    }
    if let Some(Run { shared, fixed, .. }) = &document.run {
        let name = "`run KEY -- true`, embedded, of flock(1)";
        row(name.to_owned(), shared.ratio, "≤ 1.5", shared.floor);
        if let Some(fixed) = fixed {
            row(format!("{name}, the static program"), fixed.ratio, "≤ 1.5", fixed.floor);
        }
    }
    table.markdown(text);
    text.push_str(
        "\nFloor: for cycles, 32 locks in a script call that reads and writes one record for each, knows when a \
         lease ends, and gives a fence, on keys that expire, with no owner, line or late release; for hand-offs a \
         line without heartbeats that reads and writes records of leasehold's length, gives fences, and has a \
         connection for requests and one for messages; for renewals pipelines of 20 compare-and-extend scripts, \
         which keep others waiting as long as leasehold's do, as often as those; for the embedded store two \
         transactions of one record, each with a word of shared memory taken and given back; for the command \
         `leasehold --version`, and then `true` by \
         itself.\n\n",
    );
}

fn charts(document: &Document) -> Vec<(&'static str, String)> {
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
        all.push(("callers.svg", chart));
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
        all.push(("handoff.svg", chart));
    }
    if let Some(peers) = &document.peers {
        let rate = |row: &crate::peers::Row| {
            let rate = row.rates.get(1)?.as_ref()?;
            Some((row.library.clone(), rate.0.median))
        };
        let bars: Vec<_> = peers.rows.iter().filter_map(rate).collect();
        let title = peers.jobs.get(1).map_or_else(String::new, |job| job.name());
        all.push(("peers.svg", plot::bars(&title, &bars)));
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
        all.push(("scale.svg", plot::lines("A second", "names, clients, leases", &all_lines)));
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
        std::fs::write(&page, "no marks").unwrap();
        assert!(write(folder.path(), &document).is_err());
    }
}
