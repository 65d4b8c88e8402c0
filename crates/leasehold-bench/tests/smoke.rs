//! Each command in small: the document's shape, and the numbers that no machine can change.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;

use serde_json::Value;

fn document(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold-bench"))
        .args(arguments)
        .args(["--quick", "--json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["version"], 1);
    assert_eq!(document["command"], arguments[0]);
    assert!(document["machine"]["cores"].as_u64().unwrap() > 0);
    document
}

fn rows<'a>(part: &'a Value, rows: &str) -> &'a Vec<Value> {
    let rows = part[rows].as_array().unwrap();
    assert!(!rows.is_empty());
    rows
}

fn median(row: &Value, field: &str) -> f64 {
    row[field]["median"].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"))
}

#[test]
fn every_uncontended_acquisition_is_released_and_takes_no_more_requests_than_the_bare_pair() {
    let document = document(&["uncontended"]);
    let rows = rows(&document["uncontended"], "rows");
    let mut variants: Vec<_> = rows.iter().map(|row| row["variant"].as_str().unwrap()).collect();
    variants.sort_unstable();
    variants.dedup();
    assert_eq!(
        variants,
        [
            "bare",
            "bare-across",
            "bare-fence",
            "embedded",
            "embedded-floor",
            "flock",
            "floor",
            "leasehold",
            "map",
            "memory",
            "rslock"
        ]
    );
    for row in rows {
        assert!(row["cycles"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["not_released"], 0, "{row}");
        assert!(median(row, "ratio_to_bare") > 0.0);
        let commands = || median(row, "commands_per_cycle");
        match (row["variant"].as_str().unwrap(), row["callers"].as_u64().unwrap()) {
            ("bare", _) | ("leasehold", 1) => assert!((commands() - 2.0).abs() < 0.05, "{row}"),
            // Concurrent requests share a call.
            ("leasehold", _) => assert!(commands() < 1.0, "{row}"),
            _ => {}
        }
    }
}

#[test]
fn no_handoff_overlaps_another_and_no_waiter_starves_in_the_queue() {
    let document = document(&["handoff"]);
    let part = &document["handoff"];
    assert!(!rows(part, "ratios").is_empty());
    let rows = rows(part, "rows");
    assert_eq!(rows.len(), 13);
    for row in rows {
        assert!(row["handoffs"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["overlaps"], 0, "{row}");
        assert_eq!(row["not_released"], 0, "{row}");
        assert!(median(row, "p50_us") <= median(row, "p99_us"), "{row}");
        let jain = median(row, "jain");
        assert!((1.0 / 3.0 - 1e-9..=1.0 + 1e-9).contains(&jain), "{row}");
        if row["variant"] == "leasehold" {
            assert!(jain > 0.9, "{row}");
            // A release, a queue request, and a possible renewal on a slow machine.
            assert!((1.9..=3.0).contains(&median(row, "commands_per_handoff")), "{row}");
        }
    }
}

#[test]
fn a_server_behind_a_delay_is_measured_in_round_trips_through_it() {
    let document = document(&["handoff", "--delay", "1", "--variants", "leasehold"]);
    let part = &document["handoff"];
    assert_eq!(part["delay_each_way_ms"], 1.0);
    assert!(median(part, "rtt_us") >= 2000.0, "{part}");
    for row in rows(part, "rows") {
        assert_eq!(row["overlaps"], 0, "{row}");
        // Half a round trip each for the release and for the message.
        assert!(median(row, "p50_us") >= 2000.0, "{row}");
    }
}

#[test]
fn a_dead_holder_is_followed_by_one_waiter_never_early_at_the_cost_of_one_request() {
    let document = document(&["expiry"]);
    let part = &document["expiry"];
    let rows = rows(part, "takeovers");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["takeovers"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["early"], 0, "{row}");
        assert_eq!(row["not_released"], 0, "{row}");
        // One each, but simultaneous ones share a call.
        assert!(median(row, "commands_per_takeover") > 0.0, "{row}");
    }
    assert!(part["herd"]["waiters"].as_u64().unwrap() > 1);
    // The new holder's request; a heartbeat or a renewal may fall into the same moment.
    let commands = median(&part["herd"], "commands");
    assert!((1.0..=5.0).contains(&commands), "{part}");
}

#[test]
fn renewed_locks_are_not_lost() {
    let document = document(&["renew"]);
    let part = &document["renew"];
    let locks = part["locks"].as_u64().unwrap();
    assert_eq!(part["lost"], 0);
    assert!(part["renewals"].as_u64().unwrap() >= locks, "{part}");
    assert!(median(part, "bytes_per_lock") >= 0.0);
    // They are batched; one request each would be 1.
    assert!(median(part, "commands_per_renewal") < 0.5, "{part}");
}

#[test]
fn others_are_asked_while_locks_are_renewed() {
    let document = document(&["others"]);
    let part = &document["others"];
    assert_eq!(part["lost"], 0);
    assert!(median(part, "renewals_per_second") > 0.0, "{part}");
    for field in ["idle_p50_us", "idle_p99_us", "renewing_p50_us", "renewing_p99_us", "ratio"] {
        assert!(median(part, field) > 0.0, "{part}");
    }
}

#[test]
fn every_operation_that_scripts_carry_out_is_measured() {
    let document = document(&["scripts"]);
    let rows = rows(&document["scripts"], "rows");
    let mut operations = std::collections::BTreeSet::new();
    for row in rows {
        operations.insert(row["operation"].as_str().unwrap());
        assert!(median(row, "server_us") >= 0.0, "{row}");
    }
    assert_eq!(operations.len(), 17, "{operations:?}");
}

#[test]
fn a_report_is_written_between_its_marks_with_its_plots() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("performance.md");
    std::fs::write(&page, "before\n<!-- measured: begin -->\n<!-- measured: end -->\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold-bench"))
        .args(["report", "--quick", "--no-programs", "--docs"])
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("[##########]"), "{errors}");
    let written = std::fs::read_to_string(&page).unwrap();
    assert!(written.contains("| take and release at a server, 1 caller |"), "{written}");
    let tables = std::fs::read_to_string(folder.path().join("plots/report.md")).unwrap();
    for part in ["## Other libraries", "| rslock |", "## Take and release", "## Hand-off"] {
        assert!(tables.contains(part), "{part}: {tables}");
    }
    for plot in ["callers", "handoff", "peers", "scale"] {
        assert!(written.contains(&format!("(plots/{plot}.svg)")), "{plot}");
        let chart =
            std::fs::read_to_string(folder.path().join(format!("plots/{plot}.svg"))).unwrap();
        assert!(chart.starts_with("<svg") && !chart.contains("NaN"), "{plot}");
    }
}
