//! Turns a URL into the names and URLs of a sharded store's parts.
//!
//! ```text
//! spread:NAME=STORE,NAME=STORE,…
//! ```

use leasehold_core::{Error, ErrorKind, Result};

/// Reads what follows `spread:`. The URLs may hold passwords.
pub(crate) fn stores(list: &str) -> Result<Vec<(String, String)>> {
    let refuse = || {
        Error::new(
            ErrorKind::Config,
            "after spread: write a list of named stores, such as spread:a=redis://h1,b=redis://h2; \
             names have letters, digits, - and _",
        )
    };
    let mut parts: Vec<(String, String)> = Vec::new();
    // A comma may belong to a store's URL, which may have several hosts itself.
    for part in list.split(',') {
        match (starts_store(part), parts.last_mut()) {
            (Some((name, url)), _) => parts.push((name.to_owned(), url.to_owned())),
            (None, Some((_, url))) => {
                url.push(',');
                url.push_str(part);
            }
            (None, None) => return Err(refuse()),
        }
    }
    if parts.iter().any(|(_, url)| url.starts_with("spread:")) {
        return Err(Error::new(
            ErrorKind::Config,
            "spread: stands once; name all stores in one list",
        ));
    }
    Ok(parts)
}

/// The name and the beginning of the URL.
fn starts_store(part: &str) -> Option<(&str, &str)> {
    let (name, url) = part.split_once('=')?;
    let (scheme, _) = url.split_once(':')?;
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let of_scheme = |c: char| c.is_ascii_lowercase() || c == '+';
    let whole = |text: &str, of: fn(char) -> bool| !text.is_empty() && text.chars().all(of);
    (whole(name, of_name) && whole(scheme, of_scheme)).then_some((name, url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_has_its_name_though_urls_have_commas_and_settings() {
        let list = "a=redis://h1?prefix=x,b=redis+sentinel://s1,s2/m,c-2=embedded:/x,y,d=memory:";
        let expected = [
            ("a", "redis://h1?prefix=x"),
            ("b", "redis+sentinel://s1,s2/m"),
            ("c-2", "embedded:/x,y"),
            ("d", "memory:"),
        ];
        let expected = expected.map(|(name, url)| (name.to_owned(), url.to_owned()));
        assert_eq!(stores(list).unwrap(), expected);
    }

    #[test]
    fn what_names_no_stores_is_refused_without_being_repeated() {
        for bad in ["", "redis://:secret@h", "=redis://:secret@h", "a=", "a=spread:b=memory:"] {
            let error = stores(bad).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
