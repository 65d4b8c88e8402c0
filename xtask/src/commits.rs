//! Checks commit messages by the rules of CONTRIBUTING.md: area, length, body.

use std::path::Path;
use std::process::Command;

/// The last commit made before a check read commit messages.
const SINCE: &str = "531d65ba63773a1565aff8c55a442bc13a410623";

const SUBJECT_MAX: usize = 72;

/// What a subject begins with. Several may stand together, separated by a comma and a blank.
const AREAS: &[&str] = &[
    "core", "clock", "client", "embedded", "postgres", "redis", "quorum", "testkit", "cli",
    "bench", "xtask", "sim", "python", "docs", "ci", "deps", "all",
];

/// The faults in the messages of the commits since [`SINCE`]. `Err` if that commit is missing, as
/// in a shallow clone.
pub(crate) fn findings(root: &Path) -> Result<Vec<String>, String> {
    let range = format!("{SINCE}..HEAD");
    let output = Command::new("git")
        .args(["log", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e", &range])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git does not run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().next().unwrap_or("git log failed").to_owned());
    }
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(log.split('\u{1e}').filter_map(|record| judge(record.trim_start())).collect())
}

/// One record: hash, subject and body, separated by the unit separator.
fn judge(record: &str) -> Option<String> {
    let mut parts = record.splitn(3, '\u{1f}');
    let (hash, subject, body) = (parts.next()?, parts.next()?, parts.next()?);
    let wrong = wrong_with(subject, body)?;
    Some(format!("commit {hash} \"{subject}\": {wrong}"))
}

fn wrong_with(subject: &str, body: &str) -> Option<String> {
    let Some((areas, summary)) = subject.split_once(": ") else {
        return Some("begins with no area, such as `core: `".to_owned());
    };
    if let Some(area) = areas.split(", ").find(|area| !AREAS.contains(area)) {
        return Some(format!("`{area}` is no area; CONTRIBUTING.md names them"));
    }
    let length = subject.chars().count();
    if length > SUBJECT_MAX {
        return Some(format!("{length} characters long, and {SUBJECT_MAX} are the limit"));
    }
    if summary.ends_with('.') {
        return Some("ends with a full stop".to_owned());
    }
    body.trim().is_empty().then(|| "has no body that says why".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_area_summary_and_body_is_fine() {
        assert_eq!(wrong_with("core: let a fence order by time", "It went back.\n"), None);
        assert_eq!(wrong_with("redis, client: look at the role", "Why.\n"), None);
    }

    #[test]
    fn what_the_rules_forbid_is_said() {
        let long = format!("core: {}", "x".repeat(SUBJECT_MAX));
        for (subject, body, said) in [
            ("mend it", "Why.", "no area"),
            ("kernel: mend it", "Why.", "`kernel` is no area"),
            (long.as_str(), "Why.", "78 characters"),
            ("core: mend it.", "Why.", "full stop"),
            ("core: mend it", "  \n", "no body"),
        ] {
            let wrong = wrong_with(subject, body).unwrap_or_default();
            assert!(wrong.contains(said), "{subject}: {wrong}");
        }
    }

    #[test]
    fn a_record_of_the_log_is_taken_apart() {
        let wrong = judge("abc\u{1f}mend it\u{1f}Why.\n").unwrap_or_default();
        assert!(wrong.starts_with("commit abc \"mend it\": "), "{wrong}");
        assert_eq!(judge(""), None);
    }
}
