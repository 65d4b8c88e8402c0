//! Tells which store a URL means, before anything is opened.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use leasehold::embedded::EmbeddedStore;

const EMBEDDED: &str = "embedded:";

/// Judges a store from any source.
pub(crate) fn check(url: &str) -> Result<(), String> {
    guess(url)?;
    for path in directories(url) {
        judge(path)?;
        if !path.is_empty() && !Path::new(path).is_absolute() {
            let advice = std::path::absolute(path).map_or_else(
                |_| "write embedded:/PATH".to_owned(),
                |whole| {
                    let whole = whole.display();
                    format!("for the one below this directory, write embedded:{whole}")
                },
            );
            return Err(format!(
                "the directory {path} of the store is relative, so each working directory has \
                 another store; {advice}"
            ));
        }
    }
    Ok(())
}

/// Whether the store does not exist yet. A read-only command does not make one. Other faults are
/// found when the store is opened.
pub(crate) fn is_absent(url: &str) -> bool {
    let stores: Vec<&str> = match url.strip_prefix("quorum:") {
        None => vec![url],
        // Settings of the quorum stand among its stores.
        Some(list) => list.split(',').filter(|part| part.contains(':')).collect(),
    };
    stores.into_iter().all(|store| {
        let Some(rest) = store.strip_prefix(EMBEDDED) else { return false };
        has_sound_settings(rest)
            && match without_settings(rest) {
                "" => is_empty(&EmbeddedStore::default_path()),
                path => is_empty(Path::new(path)),
            }
    })
}

/// Whether what stands behind `embedded:` has no settings but such as a store is opened with.
fn has_sound_settings(rest: &str) -> bool {
    let log = |settings: &str| settings.strip_prefix("log=").map(str::parse::<u32>);
    rest.split_once('?').is_none_or(|(_, settings)| log(settings).is_some_and(|log| log.is_ok()))
}

/// The directory of a store that is one, and no more.
pub(crate) fn directory(url: &str) -> Option<PathBuf> {
    match without_settings(url.strip_prefix(EMBEDDED)?) {
        "" => Some(EmbeddedStore::default_path()),
        path => Some(PathBuf::from(path)),
    }
}

/// The URL of such a store, with another directory.
pub(crate) fn with_directory(url: &str, directory: &Path) -> String {
    let settings =
        url.split_once('?').map_or(String::new(), |(_, settings)| format!("?{settings}"));
    format!("{EMBEDDED}{}{settings}", directory.display())
}

/// The URL without what it says of how long idle names are kept, and of a log of them. A directory
/// keeps none, and has one log for all.
pub(crate) fn for_scratch_names(url: &str) -> String {
    if url.starts_with(EMBEDDED) {
        return url.to_owned();
    }
    let mut rest = url;
    let mut changed = String::with_capacity(url.len());
    while let Some(at) = rest.find(['?', '&']) {
        let (before, setting) = rest.split_at(at.saturating_add(1));
        let end = setting.find(['&', ',']).unwrap_or(setting.len());
        let (setting, after) = setting.split_at(end);
        changed.push_str(before);
        changed.push_str(match setting.split_once('=') {
            Some(("fence_retention", _)) => "fence_retention=1s",
            Some(("log", _)) => "log=0",
            _ => setting,
        });
        rest = after;
    }
    changed + rest
}

/// The URL, with the directory that stands for none.
pub(crate) fn in_full(url: &str) -> String {
    match url.strip_prefix(EMBEDDED) {
        Some(rest) if without_settings(rest).is_empty() => {
            format!("{EMBEDDED}{}{rest}", EmbeddedStore::default_path().display())
        }
        _ => url.to_owned(),
    }
}

/// The directory of what stands behind `embedded:`.
fn without_settings(rest: &str) -> &str {
    rest.split_once('?').map_or(rest, |(path, _)| path)
}

/// Whether the path is free, or an empty directory.
fn is_empty(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(_) => fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
    }
}

/// What people type who mean a store.
fn guess(url: &str) -> Result<(), String> {
    if url.contains(':') && !url.contains(['/', '@']) && !url.starts_with(EMBEDDED) {
        // `localhost:6379`: the scheme of nothing.
        let (host, port) = url.split_once(':').unwrap_or((url, ""));
        if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("the store has no scheme; did you mean redis://{host}:{port}?"));
        }
    }
    if url.contains(':') {
        return Ok(());
    }
    Err(if url.starts_with(['/', '.', '~']) {
        format!("the store has no scheme; did you mean embedded:{url}?")
    } else if url.contains(['@', ' ']) || url.is_empty() {
        "the store has no scheme; give a URL such as redis://HOST or embedded:/PATH".to_owned()
    } else {
        format!("the store has no scheme; did you mean redis://{url}?")
    })
}

/// The directories that a URL names, of one store or of several.
fn directories(url: &str) -> impl Iterator<Item = &str> {
    let list = url.strip_prefix("quorum:");
    let stores = list.map_or_else(|| vec![url], |list| list.split([',', '?', '&']).collect());
    stores.into_iter().filter_map(|store| store.strip_prefix(EMBEDDED)).map(without_settings)
}

fn judge(path: &str) -> Result<(), String> {
    if path.starts_with('~') {
        let home = env::var("HOME").unwrap_or_else(|_| "/home/USER".to_owned());
        let rest = path.trim_start_matches('~').trim_start_matches('/');
        return Err(format!("~ is not replaced here; write embedded:{home}/{rest}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_store_that_could_be_opened_is_reported_absent() {
        let none = "embedded:/leasehold/of/nobody";
        for settings in ["", "?log=9"] {
            assert!(is_absent(&format!("{none}{settings}")), "{settings}");
        }
        for settings in ["?", "?foo=1", "?log=", "?log=many", "?log=9&foo=1"] {
            assert!(!is_absent(&format!("{none}{settings}")), "{settings}");
        }
    }

    #[test]
    fn scratch_names_are_neither_kept_nor_logged_whatever_the_url_says() {
        for (url, expected) in [
            (
                "redis://u:p%3F@h?log=9&prefix=x&fence_retention=2h",
                "redis://u:p%3F@h?log=0&prefix=x&fence_retention=1s",
            ),
            (
                "quorum:redis://a?fence_retention=1m,max_ttl=9s,redis://b/2?catalog=9,redis://c?log=1",
                "quorum:redis://a?fence_retention=1s,max_ttl=9s,redis://b/2?catalog=9,redis://c?log=0",
            ),
            ("embedded:/a?log=9", "embedded:/a?log=9"),
            ("redis://h", "redis://h"),
        ] {
            assert_eq!(for_scratch_names(url), expected);
        }
    }

    #[test]
    fn a_mistyped_store_is_answered_with_the_url_that_was_meant() {
        for (url, expected) in [
            ("localhost", "did you mean redis://localhost?"),
            ("localhost:6379", "did you mean redis://localhost:6379?"),
            ("/tmp/foo", "did you mean embedded:/tmp/foo?"),
            ("./foo", "did you mean embedded:./foo?"),
            ("", "give a URL such as"),
            ("embedded:locks", "is relative"),
            ("quorum:redis://a,embedded:locks,redis://b", "is relative"),
            ("embedded:~/locks", "write embedded:/"),
        ] {
            let error = check(url).unwrap_err();
            assert!(error.contains(expected), "{url}: {error}");
        }
        for url in [
            "embedded:",
            "embedded:/x?log=9",
            "redis://h",
            "quorum:embedded:/a,redis://b",
            "memory:",
        ] {
            check(url).unwrap();
        }
    }
}
