//! Which store a URL means: what can be said before anything is opened.

use std::env;
use std::path::{Component, Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::output;

const EMBEDDED: &str = "embedded:";

/// Judges a store that was typed. A directory that is not absolute is one of where the command was
/// typed, which is said, since others may mean another one by the same words.
pub(crate) fn typed(url: &str) -> Outcome<String> {
    let base = env::current_dir().unwrap_or_default();
    let (absolute, changed) = made_absolute(url, &base).map_err(Failure::config)?;
    check(&absolute).map_err(Failure::config)?;
    if changed {
        output::message(&format!("the store is {absolute}"));
    }
    Ok(absolute)
}

/// Judges a store that stands in a file or in the environment, which many places share.
pub(crate) fn check(url: &str) -> Result<(), String> {
    guess(url)?;
    for path in directories(url) {
        judge(path)?;
        if !path.is_empty() && !Path::new(path).is_absolute() {
            return Err(format!(
                "the directory {path} of the store is not absolute, so it would be another one \
                 wherever the command is started; write embedded:/PATH"
            ));
        }
    }
    Ok(())
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
    stores.into_iter().filter_map(|store| store.strip_prefix(EMBEDDED))
}

fn judge(path: &str) -> Result<(), String> {
    if path.starts_with('~') {
        let home = env::var("HOME").unwrap_or_else(|_| "/home/USER".to_owned());
        let rest = path.trim_start_matches('~').trim_start_matches('/');
        return Err(format!("~ stands for nothing here; write embedded:{home}/{rest}"));
    }
    Ok(())
}

/// The URL with absolute directories, and whether it had others.
fn made_absolute(url: &str, base: &Path) -> Result<(String, bool), String> {
    let mut changed = false;
    let mut absolute = |store: &str| -> Result<String, String> {
        let Some(path) = store.strip_prefix(EMBEDDED).filter(|path| !path.is_empty()) else {
            return Ok(store.to_owned());
        };
        judge(path)?;
        if Path::new(path).is_absolute() {
            return Ok(store.to_owned());
        }
        changed = true;
        let whole: PathBuf =
            base.join(path).components().filter(|part| *part != Component::CurDir).collect();
        match whole.to_str() {
            Some(whole) if whole.starts_with('/') => Ok(format!("{EMBEDDED}{whole}")),
            _ => Err(format!("the directory {path} of the store can't be made absolute here")),
        }
    };
    let url = match url.strip_prefix("quorum:") {
        None => absolute(url)?,
        Some(list) => {
            let (stores, settings) =
                list.split_once('?').map_or((list, None), |(a, b)| (a, Some(b)));
            let stores = stores.split(',').map(absolute).collect::<Result<Vec<_>, _>>()?.join(",");
            let settings = settings.map_or_else(String::new, |settings| format!("?{settings}"));
            format!("quorum:{stores}{settings}")
        }
    };
    Ok((url, changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_is_understood_enough_to_be_told_what_they_mean() {
        for (url, expected) in [
            ("localhost", "did you mean redis://localhost?"),
            ("localhost:6379", "did you mean redis://localhost:6379?"),
            ("/tmp/foo", "did you mean embedded:/tmp/foo?"),
            ("./foo", "did you mean embedded:./foo?"),
            ("", "give a URL such as"),
            ("embedded:locks", "not absolute"),
            ("quorum:redis://a,embedded:locks,redis://b", "not absolute"),
            ("embedded:~/locks", "write embedded:/"),
        ] {
            let error = check(url).unwrap_err();
            assert!(error.contains(expected), "{url}: {error}");
        }
        for url in
            ["embedded:", "embedded:/x", "redis://h", "quorum:embedded:/a,redis://b", "memory:"]
        {
            check(url).unwrap();
        }
    }

    #[test]
    fn a_typed_directory_is_that_of_the_place_where_it_was_typed() {
        let absolute = |url| made_absolute(url, Path::new("/w"));
        let yes = |url: &str| Ok((url.to_owned(), true));
        assert_eq!(absolute("embedded:locks"), yes("embedded:/w/locks"));
        assert_eq!(absolute("embedded:./a/b"), yes("embedded:/w/a/b"));
        let quorum = "quorum:embedded:a,redis://h,embedded:/b?max_ttl=1s";
        assert_eq!(absolute(quorum), yes("quorum:embedded:/w/a,redis://h,embedded:/b?max_ttl=1s"));
        for url in ["embedded:", "embedded:/x", "redis://embedded:x@h", "quorum+redis://h"] {
            assert_eq!(absolute(url), Ok((url.to_owned(), false)));
        }
        assert!(absolute("embedded:~/x").is_err());
    }
}
