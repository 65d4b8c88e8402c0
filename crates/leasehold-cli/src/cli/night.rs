//! The page for the night as text, for the help of the command that messages about locks name.

use std::iter;

/// The page without its heading and its last paragraph, whose links lead to other pages.
pub(super) fn page() -> String {
    let page = include_str!("night.txt");
    let paragraphs = page.split("\n\n").filter(|part| {
        !part.starts_with('#') && !part.starts_with("More: ") && !part.contains("]: ")
    });
    let texts = paragraphs.map(|part| match part.starts_with('|') {
        true => part.lines().skip(2).filter_map(entry).collect(),
        false => part.replace("**", "").replace('\n', " ") + "\n",
    });
    let parts = iter::once("A lock at night:\n".to_owned()).chain(texts);
    parts.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// A row of the table: the symptom, and below it the command and what it does.
fn entry(row: &str) -> Option<String> {
    let mut cells = row.trim_matches('|').split('|').map(str::trim);
    let (symptom, command, effect) = (cells.next()?, cells.next()?, cells.next()?);
    Some(format!("  {symptom}\n          {command}: {effect}\n"))
}
