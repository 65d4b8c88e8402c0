//! Damaged and foreign headers.

use std::fs;
use std::path::Path;

#[path = "../../src/embedded/checksum.rs"]
mod checksum;

/// Changes the value after a word of a store's header, and the checksum.
pub(crate) fn change(path: &Path, word: &str, to: &str) {
    let header = fs::read_to_string(path.join("store")).unwrap();
    let (said, _sum) = header.split_once("sum ").unwrap();
    let changed = said.lines().map(|old| match old.strip_prefix(word) {
        Some(_) => format!("{word}{to}\n"),
        None => format!("{old}\n"),
    });
    let changed: String = changed.collect();
    let sum = checksum::checksum(b"store", 6, changed.as_bytes());
    fs::write(path.join("store"), format!("{changed}sum {sum:08x}\n")).unwrap();
}
