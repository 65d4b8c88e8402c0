//! What is printed: data on stdout, messages on stderr.

use std::io::{self, Write as _};

use leasehold::core::escape;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::secret::redact;

/// The version of every JSON document that this program prints. A field may be added without
/// changing it; it changes when one is removed or gets another meaning.
pub(crate) const JSON_VERSION: u32 = 1;

/// Prints a message for people, without secrets and without anything that steers a terminal.
///
/// Who closed stderr does not want to read it, so nothing is done when it can't be written.
pub(crate) fn message(text: &str) {
    let redacted = redact(text);
    let mut lines = String::new();
    for (n, line) in redacted.trim_end().lines().enumerate() {
        let prefix = if n == 0 { "leasehold: " } else { "" };
        lines.push_str(&format!("{prefix}{}\n", escape::terminal(line)));
    }
    // One write, so that messages of many processes in one log don't mix.
    drop(io::stderr().lock().write_all(lines.as_bytes()));
}

/// Prints data. A reader that went away is no error: it has what it wanted.
pub(crate) fn data(text: &str) -> Outcome<()> {
    let written = {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
    };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(Exit::Success),
        _ => Failure::new(Exit::Output, format!("can't write to standard output: {error}")),
    })
}

/// Prints one JSON document on one line. Everything outside printable ASCII is written as an
/// escape, so that names and metadata of strangers can't steer a terminal.
pub(crate) fn json(document: &serde_json::Value) -> Outcome<()> {
    let mut text = String::new();
    for c in document.to_string().chars() {
        if c.is_ascii() && !c.is_ascii_control() {
            text.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text.push('\n');
    data(&text)
}

/// Rows under a heading, in columns as wide as their widest cell. Cells must be escaped already.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["KEY", "N"]), row(&["été", "12"]), row(&["k", ""])];
        assert_eq!(table(&rows), "KEY  N\nété  12\nk\n");
        assert_eq!(table(&[]), "");
    }
}
