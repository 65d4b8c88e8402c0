//! What the command says about itself. `LEASEHOLD_UPDATE=1` writes the text anew.

use std::fs;
use std::path::Path;

use crate::harness::Site;

pub(crate) const COMMANDS: [&str; 22] = [
    "run",
    "elect",
    "observe",
    "acquire",
    "renew",
    "release",
    "hold",
    "wait",
    "ls",
    "show",
    "log",
    "top",
    "ui",
    "metrics",
    "why",
    "ask",
    "force-release",
    "set-limit",
    "setup",
    "doctor",
    "completions",
    "man",
];

#[test]
fn the_help_is_the_one_that_was_looked_at() {
    let site = Site::embedded();
    let mut text = site.run(["--help"]).expect(0).stdout;
    for command in COMMANDS {
        text.push_str(&format!("\n==== {command} ====\n\n"));
        text.push_str(&site.run([command, "--help"]).expect(0).stdout);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/help.txt");
    if std::env::var_os("LEASEHOLD_UPDATE").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap();
    assert_eq!(text, expected, "run with LEASEHOLD_UPDATE=1 and look at the difference");
}

/// What an error gives as the range of a length stands in the help of its option.
#[test]
fn a_length_has_one_range_in_the_help_and_in_errors() {
    let site = Site::embedded();
    let of = |command: &str, option: &str, wrong: &str| {
        let line = match command {
            "renew" => format!("renew {option} {wrong}"),
            "run" | "elect" => format!("{command} k {option} {wrong} -- true"),
            _ => format!("{command} k {option} {wrong}"),
        };
        let said = site.line(&line).expect(64).stderr;
        let (_, range) = said.trim().rsplit_once("give ").unwrap();
        let range = range.lines().next().unwrap().to_owned();
        let help = site.run([command, "--help"]).expect(0).stdout;
        let at = help.find(&format!("      {option} <")).unwrap();
        let entry = &help[at..];
        let end = entry[1..].find("\n      --").map_or(entry.len(), |end| end + 1);
        let entry = entry[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(entry.to_lowercase().contains(&range), "{command} {option}: {range}: {entry}");
    };
    for command in ["run", "hold", "elect", "acquire", "renew"] {
        of(command, "--ttl", "31days");
    }
    for command in ["run", "hold", "elect"] {
        of(command, "--max-hold", "9ms");
    }
    for command in ["run", "release"] {
        of(command, "--cooldown", "366days");
    }
    for command in ["run", "hold", "acquire"] {
        of(command, "--once-per", "366days");
    }
}

#[test]
fn every_command_is_in_the_help_and_has_a_page() {
    let site = Site::embedded();
    let help = site.run(["--help"]).expect(0).stdout;
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{command}");
        let page = site.run(["man", command]).expect(0).stdout;
        assert!(page.contains(&format!(".TH leasehold-{command} 1 ")), "{page}");
    }
    site.line("man --dir new/man").expect(0);
    assert_eq!(fs::read_dir(site.path("new/man")).unwrap().count(), COMMANDS.len() + 1);
    assert!(site.read("new/man/leasehold.1").contains("Exit codes"));
    site.line("man frobnicate").complains(64, "frobnicate");
    site.line("man --dir new/man/leasehold.1/x").complains(74, "new/man/leasehold.1/x");
    assert_eq!(site.line("help run").expect(0).stdout, site.line("run --help").expect(0).stdout);
}

/// Messages about stuck and lost locks name `leasehold why`.
#[test]
fn the_help_of_why_is_the_page_for_the_night() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/night.md");
    let page = fs::read_to_string(page).unwrap();
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() > 10, "{page}");
    let site = Site::embedded();
    for help in [site.line("why --help"), site.line("man why")] {
        let help = help.expect(0).stdout.replace("\\-", "-").replace("\\*(Aq", "'");
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for row in &rows {
            for cell in row.trim_matches('|').split('|').map(str::trim) {
                assert!(help.contains(cell), "{cell}: {help}");
            }
        }
        assert!(help.contains("two jobs can work at once"), "{help}");
        assert!(!help.contains(".md") && !help.contains("**"), "{help}");
    }
}

#[test]
fn shells_get_completions() {
    let site = Site::embedded();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = site.run(["completions", shell]).expect(0).stdout;
        assert!(script.contains("force-release"), "{shell}");
    }
}

#[test]
fn neither_help_nor_errors_show_what_the_environment_holds() {
    let site = Site::at("redis://:sesame@127.0.0.1:1");
    for args in [&["--help"][..], &["run", "--help"], &["run", "-h"], &["run"], &["-h"]] {
        let done = site.run(args);
        assert!(!format!("{done:?}").contains("sesame"), "{done:?}");
        assert!(!done.stderr.contains("<URL>"), "nothing is missing: {done:?}");
    }
}
