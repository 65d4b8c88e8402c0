//! Takes the passwords out of a URL, by the rules of the URL parser.
//!
//! So only real passwords are removed, not text that looks like one.

use leasehold_core::Result;
use url::form_urlencoded;

use crate::topology::address::Address;

/// The passwords in a URL.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Passwords {
    /// A password for the servers that keep the locks.
    pub of_servers: bool,
    /// A password for the sentinels.
    pub of_sentinels: bool,
    /// A file with the servers' password.
    pub file_of_servers: bool,
}

/// Reads which passwords a URL has.
///
/// # Errors
///
/// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) for a URL that can't be used.
pub fn passwords_of(url: &str) -> Result<Passwords> {
    let address = Address::parse(url)?;
    let given = |password: Option<String>| password.is_some_and(|password| !password.is_empty());
    Ok(Passwords {
        of_servers: given(address.password),
        of_sentinels: given(address.sentinel_password),
        file_of_servers: address.password_file.is_some(),
    })
}

/// The URL without its passwords, with one or several hosts. The rest stays as it was written, so
/// with passwords from another source it leads to the same store.
#[must_use]
pub fn without_passwords(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let login = authority.rsplit_once('@').map(|(login, hosts)| {
        let user = login.split_once(':').map_or(login, |(user, _)| user);
        if user.is_empty() { hosts.to_owned() } else { format!("{user}@{hosts}") }
    });
    let authority = login.unwrap_or_else(|| authority.to_owned());
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_password(pair)).collect();
    let query = kept.join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{scheme}://{authority}{path}{mark}{query}")
}

/// Whether a setting is a password.
fn is_password(pair: &str) -> bool {
    let name = form_urlencoded::parse(pair.as_bytes()).next().map(|(name, _)| name);
    name.is_some_and(|name| name == "pass" || name == "sentinel_password")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_loses_its_passwords_and_nothing_else() {
        for (url, expected, of_servers, of_sentinels) in [
            ("redis://h", "redis://h", false, false),
            ("redis://:pw@h:7/2?prefix=x", "redis://h:7/2?prefix=x", true, false),
            ("rediss://u:p%40w@h?cafile=/c", "rediss://u@h?cafile=/c", true, false),
            ("redis://u:p@w@h", "redis://u@h", true, false),
            ("redis://u@h?log=9", "redis://u@h?log=9", false, false),
            ("redis://u:@h", "redis://u@h", false, false),
            ("redis+unix:///r.sock?pass=pw", "redis+unix:///r.sock", true, false),
            (
                "redis+unix:///r@x?db=1&p%61ss=pw&user=u",
                "redis+unix:///r@x?db=1&user=u",
                true,
                false,
            ),
            (
                "redis+sentinel://u:pw@a,b/m?sentinel_user=s&sentinel_password=pw&db=2",
                "redis+sentinel://u@a,b/m?sentinel_user=s&db=2",
                true,
                true,
            ),
            // These only look like passwords.
            ("redis://u@h?password_file=/p", "redis://u@h?password_file=/p", false, false),
            ("redis://h:6379?prefix=lock@", "redis://h:6379?prefix=lock@", false, false),
            ("redis://h?prefix=a:b@c", "redis://h?prefix=a:b@c", false, false),
        ] {
            let file_of_servers = url.contains("?password_file");
            let found = Passwords { of_servers, of_sentinels, file_of_servers };
            assert_eq!(passwords_of(url).unwrap(), found, "{url}");
            let public = without_passwords(url);
            assert_eq!(public, expected);
            let (mut whole, public) = (Address::parse(url).unwrap(), Address::parse(&public));
            (whole.password, whole.sentinel_password) = (None, None);
            assert_eq!(format!("{whole:?}"), format!("{:?}", public.unwrap()), "{url}");
        }
    }

    #[test]
    fn a_url_that_can_not_be_used_has_nothing_to_say() {
        for url in ["redis://bob:p@ss/w:rd@db", "redis://h?token=x", "redis://:pa?ss@h", "h"] {
            assert!(passwords_of(url).is_err(), "{url}");
        }
    }
}
