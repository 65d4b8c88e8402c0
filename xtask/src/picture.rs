//! `cargo xtask picture`: draws `docs/picture.svg`, a recorded session in three terminals.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::torture;

const COLUMNS: usize = 88;
const LINE: usize = 18;
const WIDTH: usize = 760;
/// Keeps the blanks of columns. On each text, since Chromium's texts don't inherit it from the
/// root.
const KEPT: &str = "xml:space=\"preserve\"";

struct Pane {
    title: &'static str,
    typed: &'static str,
    printed: String,
}

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let program = torture::built("leasehold")?;
    let scratch = std::env::temp_dir().join(format!("leasehold-picture-{}", std::process::id()));
    fs::create_dir(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let panes = record(&program, &scratch);
    fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let path = root.join("docs/picture.svg");
    fs::write(&path, drawn(&panes?)).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("    {}", path.display());
    Ok(())
}

/// Two hosts run the same job, and an operator looks while the second one waits.
fn record(program: &str, scratch: &Path) -> Result<Vec<Pane>, String> {
    let job = "#!/bin/sh\necho \"fence $LEASEHOLD_FENCE\"\nread -r line\n";
    let file = scratch.join("report");
    let allowed = fs::Permissions::from_mode(0o700);
    fs::write(&file, job).map_err(|error| error.to_string())?;
    fs::set_permissions(&file, allowed).map_err(|error| error.to_string())?;
    let first = "leasehold run report -- ./report";
    let second = "leasehold run report -- echo \"my turn\"";
    let third = "leasehold show report";
    let start = |line: &str, owner: &str| start(program, scratch, line, owner);

    let mut holder = start(first, "web-1")?;
    let mut printed = line_of(holder.stdout.take())?;
    let mut waiter = start(second, "web-2")?;
    let mut waiting = BufReader::new(waiter.stderr.take().ok_or("no stderr")?);
    let mut said = String::new();
    waiting.read_line(&mut said).map_err(|error| error.to_string())?;
    let shown = start(third, "")?.wait_with_output().map_err(|error| error.to_string())?;
    drop(holder.stdin.take());
    holder.wait().map_err(|error| error.to_string())?;
    let mut rest = String::new();
    waiting.read_to_string(&mut rest).map_err(|error| error.to_string())?;
    let done = waiter.wait_with_output().map_err(|error| error.to_string())?;
    said.push_str(&rest);
    said.push_str(&String::from_utf8_lossy(&done.stdout));
    printed.push('\n');
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    Ok(vec![
        Pane { title: "web-1", typed: first, printed },
        Pane { title: "web-2", typed: second, printed: said },
        Pane { title: "an operator, meanwhile", typed: third, printed: shown },
    ])
}

fn start(program: &str, scratch: &Path, line: &str, owner: &str) -> Result<Child, String> {
    let folder = Path::new(program).parent().unwrap_or_else(|| Path::new(".")).display();
    let path = format!("{folder}:/usr/bin:/bin");
    let config = scratch.join(format!("{owner}.toml"));
    let text = if owner.is_empty() { String::new() } else { format!("owner = \"{owner}\"\n") };
    fs::write(&config, text).map_err(|error| error.to_string())?;
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line}")]).env("PATH", path);
    command.env("LEASEHOLD_STORE", format!("embedded:{}/store", scratch.display()));
    command.env("LEASEHOLD_CONFIG", config);
    command.current_dir(scratch);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("cannot run {line}: {error}"))
}

fn line_of(source: Option<impl Read>) -> Result<String, String> {
    let mut line = String::new();
    let mut source = BufReader::new(source.ok_or("no stdout")?);
    source.read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(line.trim_end().to_owned())
}

fn drawn(panes: &[Pane]) -> String {
    let mut body = String::new();
    let mut top = 0;
    for pane in panes {
        let lines: Vec<String> = pane.printed.lines().flat_map(wrapped).collect();
        let height = LINE * (lines.len() + 1) + 50;
        body.push_str(&format!(
            "<rect y=\"{top}\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#1e2430\"/>\n\
             <text {KEPT} x=\"16\" y=\"{}\" fill=\"#8b95a7\">{}</text>\n\
             <text {KEPT} x=\"16\" y=\"{}\" fill=\"#9fd49a\">$ <tspan fill=\"#e8ecf2\">{}</tspan></text>\n",
            top + 22,
            escaped(pane.title),
            top + 46,
            escaped(pane.typed),
        ));
        for (row, line) in (1..).zip(&lines) {
            let y = top + 46 + LINE * row;
            body.push_str(&format!(
                "<text {KEPT} x=\"16\" y=\"{y}\" fill=\"#c7cfdb\">{}</text>\n",
                escaped(line)
            ));
        }
        top += height + 12;
    }
    let height = top - 12;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-size=\"13\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\">\n{body}</svg>\n"
    )
}

/// A line that goes on below where the pane ends, between words where there are any.
fn wrapped(line: &str) -> Vec<String> {
    let mut lines = vec![];
    let mut rest: Vec<char> = line.chars().collect();
    while rest.len() > COLUMNS {
        let blank = rest[..=COLUMNS].iter().rposition(|letter| *letter == ' ');
        let end = blank.filter(|end| *end > 0).unwrap_or(COLUMNS);
        let after = rest.split_off(end);
        lines.push(rest.iter().collect());
        rest = after.into_iter().skip(usize::from(blank == Some(end))).collect();
    }
    lines.push(rest.iter().collect());
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_what_was_printed() {
        let pane = Pane { title: "a", typed: "b <c", printed: "d & e\n".repeat(2) };
        let svg = drawn(&[pane]);
        assert_eq!(svg.matches("d &amp; e").count(), 2);
        assert!(svg.contains("b &lt;c"));
        assert_eq!(wrapped(&"x".repeat(COLUMNS + 1)).len(), 2);
    }

    #[test]
    fn columns_stay_columns_and_words_stay_whole() {
        let pane = Pane { title: "a", typed: "b", printed: "key     report\n".to_owned() };
        let svg = drawn(&[pane]);
        assert!(svg.contains("key     report"));
        for text in svg.split("<text ").skip(1) {
            assert!(text.starts_with("xml:space=\"preserve\" "), "{text}");
        }
        let line = format!("{} renewed; 1", "x".repeat(COLUMNS - 4));
        assert_eq!(wrapped(&line), ["x".repeat(COLUMNS - 4), "renewed; 1".to_owned()]);
    }
}
