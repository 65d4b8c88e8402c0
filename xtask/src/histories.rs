//! Compares the whole histories of some seeds with digests in the tree.
//!
//! Every machine that runs the gate has to print the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use crate::surface::Task;
use crate::{root, sim};

/// A line for each seed: its number, and the SHA-256 of the output of
/// `cargo xtask sim history NUMBER`.
const RECORDED: &str = "crates/leasehold-sim/histories.txt";

/// By seed. A new seed is a line with its number only, until its digest is recorded.
type Digests = BTreeMap<u64, String>;

pub(crate) fn run(program: &str, processes: u64, task: Task) -> Result<(), String> {
    let path = root().join(RECORDED);
    let failed = |error| format!("{}: {error}", path.display());
    let recorded = read(&fs::read_to_string(&path).map_err(failed)?)?;
    let printed = digests(program, processes, &recorded)?;
    if task == Task::Write {
        fs::write(&path, written(&printed)).map_err(failed)?;
        println!("{} written", path.display());
        return Ok(());
    }
    compare(&recorded, &printed)?;
    println!("the histories of {} seeds are as recorded", printed.len());
    Ok(())
}

fn read(text: &str) -> Result<Digests, String> {
    let mut digests = Digests::new();
    for line in text.lines() {
        let (seed, digest) = line.split_once(' ').unwrap_or((line, "nothing"));
        let seed = seed.parse().map_err(|_| format!("{RECORDED}: {line:?} begins with no seed"))?;
        if digests.insert(seed, digest.to_owned()).is_some() {
            return Err(format!("{RECORDED} has seed {seed} twice"));
        }
    }
    if digests.is_empty() {
        return Err(format!("{RECORDED} has no seed"));
    }
    Ok(digests)
}

fn written(digests: &Digests) -> String {
    digests.iter().map(|(seed, digest)| format!("{seed} {digest}\n")).collect()
}

/// Each history comes from a new process, so that an earlier one can't influence it.
fn digests(program: &str, processes: u64, seeds: &Digests) -> Result<Digests, String> {
    let parts = sim::at_once(processes, |process| {
        let own = seeds.keys().filter(|seed| *seed % processes == process);
        own.map(|seed| Ok((*seed, digest(program, *seed)?))).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}

fn digest(program: &str, seed: u64) -> Result<String, String> {
    let history = Command::new(program)
        .args(["history", &seed.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if !history.status.success() {
        return Err(format!("leasehold-sim history {seed}: {}", history.status));
    }
    let digest = Sha256::digest(&history.stdout);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn compare(recorded: &Digests, printed: &Digests) -> Result<(), String> {
    let differs = |(seed, digest): (&u64, &String)| {
        let recorded = recorded.get(seed).filter(|recorded| *recorded != digest)?;
        Some(format!(
            "  seed {seed}: recorded {recorded}, printed {digest} by `cargo xtask sim history {seed}`"
        ))
    };
    let different: Vec<_> = printed.iter().filter_map(differs).collect();
    if different.is_empty() {
        return Ok(());
    }
    Err(format!(
        "histories are not those whose SHA-256 {RECORDED} has. If a change was to alter what happens, run \
         `cargo xtask sim histories --write` and commit that file with it; else they hang on more than their seeds:\n{}",
        different.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_as_they_are_written() {
        let digests = Digests::from([(3, "ab".to_owned()), (20, "cd".to_owned())]);
        assert_eq!(read(&written(&digests)).unwrap(), digests);
        assert_eq!(read("7\n").unwrap(), Digests::from([(7, "nothing".to_owned())]));
        for wrong in ["", "seven ab\n", "7 ab\n7 cd\n"] {
            read(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_history_that_is_another_one_is_reported_with_its_seed_both_digests_and_the_command() {
        let recorded = read("3 ab\n20 cd\n").unwrap();
        let mut printed = recorded.clone();
        compare(&recorded, &printed).unwrap();
        printed.insert(20, "ef".to_owned());
        let told = compare(&recorded, &printed).unwrap_err();
        for part in ["seed 20", "cd", "ef", "sim history 20", "sim histories --write"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("seed 3"), "{told}");
        compare(&read("3\n20 ef\n").unwrap(), &printed).unwrap_err();
    }
}
