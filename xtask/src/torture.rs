//! `cargo xtask torture`: builds the command and its torture program, and runs it.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::check;

/// What CI runs: used without arguments.
const ALL: [&str; 2] = ["all", "30"];

pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let args = if args.is_empty() { &ALL[..] } else { args };
    let (torture, program) = (built("torture")?, built("leasehold")?);
    let status = Command::new(&torture)
        .args(["--program", &program])
        .args(args)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {torture}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("torture {}: {status}", args.join(" "))) }
}

/// Builds a program of the workspace; returns its path.
pub(crate) fn built(program: &str) -> Result<String, String> {
    let format = "--message-format=json-render-diagnostics";
    // With the features of all packages, as the tests are built. Selecting packages would also
    // select features, and build most libraries again.
    let args = ["build", "--quiet", "--workspace", "--all-features", format, "--bin", program];
    executable(&check::output(&args)?, program)
}

/// Where cargo has put a program, according to its messages.
pub(crate) fn executable(messages: &str, name: &str) -> Result<String, String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut artifacts = messages.filter(|message| message["target"]["name"] == name);
    artifacts
        .find_map(|message| Some(message["executable"].as_str()?.to_owned()))
        .ok_or_else(|| format!("cargo does not say where {name} is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_where_cargo_says() {
        let messages = "{\"target\":{\"name\":\"a\"},\"executable\":null}\nno JSON\n\
                        {\"target\":{\"name\":\"a\"},\"executable\":\"/x/a\"}\n";
        assert_eq!(executable(messages, "a").unwrap(), "/x/a");
        executable(messages, "b").unwrap_err();
    }
}
