//! Reads the config file.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::Ttl;
use leasehold::store::StoreUrl;

use crate::duration;
use crate::failure::{Failure, Outcome};
use crate::place;
use crate::secret;

/// A config file or password file is a few lines; anything larger is a mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Config {
    /// With the file that it is from.
    pub(crate) store: Option<(String, PathBuf)>,
    /// Whether the default store is forbidden, and the file that says so.
    pub(crate) no_default: Option<(bool, PathBuf)>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) ttl: Option<Ttl>,
    pub(crate) owner: Option<String>,
    pub(crate) retry_store: Option<Duration>,
}

const KEYS: &str = "`store`, `default_store`, `password_file`, `ttl`, `owner` and `retry_store`";

impl Config {
    /// The given file, or the user's over the machine's.
    pub(crate) fn find(named: Option<&Path>) -> Outcome<Self> {
        if let Some(path) = named {
            return match Self::read(path)? {
                Some(config) => Ok(config),
                None => Err(Failure::config(format!(
                    "no config file {}; check the path",
                    path.display()
                ))),
            };
        }
        // A directory that depends on where the command is started would be one of many.
        let absolute = |of| env::var_os(of).map(PathBuf::from).filter(|it| it.is_absolute());
        let user = absolute("XDG_CONFIG_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".config")))
            .filter(|directory| !is_strangers(directory));
        let mut config = Self::default();
        for directory in user.into_iter().chain([PathBuf::from("/etc")]) {
            if let Some(lower) = Self::read(&directory.join("leasehold/config.toml"))? {
                config = config.over(lower);
            }
        }
        Ok(config)
    }

    fn over(self, lower: Self) -> Self {
        Self {
            store: self.store.or(lower.store),
            no_default: self.no_default.or(lower.no_default),
            password_file: self.password_file.or(lower.password_file),
            ttl: self.ttl.or(lower.ttl),
            owner: self.owner.or(lower.owner),
            retry_store: self.retry_store.or(lower.retry_store),
        }
    }

    /// The URL, with the passwords that the file has for this store.
    pub(crate) fn with_passwords(&self, url: String) -> String {
        let public =
            |own: &str| StoreUrl::read(own).map(|it| place::in_full(it.without_passwords()));
        match &self.store {
            Some((own, _)) if public(own).is_ok_and(|public| public == url) => own.clone(),
            _ => url,
        }
    }

    /// Reads a file; `None` when there is none.
    fn read(path: &Path) -> Outcome<Option<Self>> {
        let shown = path.display();
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(error) => {
                return Err(Failure::config(format!(
                    "can't read the config file {shown}, which may name the store: {error}; \
                     correct HOME or XDG_CONFIG_HOME, or give --config"
                )));
            }
        };
        let text = read_small(&file, path)?;
        let config = Self::parse(&text, path)
            .map_err(|why| Failure::config(format!("the config file {shown}: {why}")))?;
        if let Some((store, _)) = &config.store
            && secret::is_in(store)
        {
            secret::remember_those_of(store);
            refuse_if_public(&file, path, "config file with a password")?;
        }
        Ok(Some(config))
    }

    fn parse(text: &str, path: &Path) -> Result<Self, String> {
        // toml's own rendering shows the offending line, which may hold the password.
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.get(..at).unwrap_or(text).matches('\n').count().saturating_add(1);
            format!("line {line} is not valid TOML; write key = \"value\"")
        })?;
        let mut config = Self::default();
        for (key, value) in table {
            let value = match value {
                toml::Value::String(value) => value,
                _ if !KEYS.contains(&format!("`{key}`")) => String::new(),
                _ => return Err(format!("`{key}` must be a string in quotes")),
            };
            match key.as_str() {
                "store" => {
                    place::check(&value).map_err(|why| format!("`store`: {why}"))?;
                    config.store = Some((value, path.to_owned()));
                }
                "default_store" => {
                    let forbidden = match value.as_str() {
                        "yes" => false,
                        "no" => true,
                        _ => return Err(format!("`{key}` must be \"yes\" or \"no\"")),
                    };
                    config.no_default = Some((forbidden, path.to_owned()));
                }
                "password_file" => config.password_file = Some(value.into()),
                "ttl" => {
                    let ttl = duration::ttl(&value);
                    config.ttl = Some(ttl.map_err(|why| format!("`ttl`: {why}"))?);
                }
                "retry_store" => {
                    let length = duration::parse(&value);
                    config.retry_store = Some(length.map_err(|why| format!("`{key}`: {why}"))?);
                }
                "owner" if value.is_empty() => {
                    return Err("`owner` is empty; give a name".to_owned());
                }
                "owner" => config.owner = Some(value),
                _ => return Err(format!("unknown key `{key}`; known are {KEYS}")),
            }
        }
        Ok(config)
    }
}

/// Whether a user's directory belongs to another user, who closed it to this one. `su` and services
/// may leave the home of root in the environment. It has no settings for this user.
fn is_strangers(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let closed =
        fs::metadata(directory).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let user = rustix::process::geteuid().as_raw();
    closed
        && directory
            .ancestors()
            .find_map(|above| fs::metadata(above).ok())
            .is_some_and(|above| above.uid() != user)
}

pub(crate) fn read_small(file: &File, path: &Path) -> Outcome<String> {
    let mut text = String::new();
    let mut limited = file.take(FILE_BYTES_MAX.saturating_add(1));
    match limited.read_to_string(&mut text) {
        Ok(_) if limited.limit() > 0 => Ok(text),
        Ok(_) => Err(Failure::config(format!(
            "{} is larger than {FILE_BYTES_MAX} bytes; name another file",
            path.display()
        ))),
        Err(error) => Err(Failure::config(format!("can't read {}: {error}", path.display()))),
    }
}

/// Pipes, such as a shell's `<(…)`, have no permissions worth looking at.
pub(crate) fn refuse_if_public(file: &File, path: &Path, what: &str) -> Outcome<()> {
    let metadata = file
        .metadata()
        .map_err(|error| Failure::config(format!("can't look at {}: {error}", path.display())))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o007 != 0 {
        return Err(Failure::config(format!(
            "all users can read the {what} {}; run `chmod o-rwx` on it",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc/x"))
    }

    #[test]
    fn every_key_is_read() {
        let text = "store = \"redis://db\"\nttl = \"1m\"\nowner = 'me'\npassword_file = '/p'\n\
                    retry_store = '30s'\ndefault_store = 'no'\n";
        let config = parse(text).unwrap();
        assert_eq!(config.retry_store, Some(Duration::from_secs(30)));
        let of = PathBuf::from("/etc/x");
        assert_eq!(config.store, Some(("redis://db".to_owned(), of.clone())));
        assert_eq!(config.no_default, Some((true, of)));
        assert_eq!(config.ttl.unwrap().duration(), Duration::from_secs(60));
        assert_eq!(config.owner.as_deref(), Some("me"));
        assert_eq!(config.password_file.as_deref(), Some(Path::new("/p")));
    }

    #[test]
    fn what_is_wrong_is_named_and_never_quoted() {
        for (text, expected) in [
            ("sotre = 'redis://:sentinel@db'", "unknown key `sotre`"),
            ("sotre = 1", "unknown key `sotre`"),
            ("store = ['redis://:sentinel@db']", "`store` must be a string"),
            ("\nstore = redis://:sentinel@db", "line 2 is not valid TOML"),
            ("store = 'redis://:sentinel@db", "line 1 is not valid TOML"),
            ("ttl = 'sentinel'", "`ttl`: give seconds"),
            ("ttl = '0s'", "`ttl`: a ttl of 0s is out of range"),
            ("retry_store = 'sentinel'", "`retry_store`: give seconds"),
            ("ttl = 30", "`ttl` must be a string"),
            ("default_store = 'sentinel'", "`default_store` must be \"yes\" or \"no\""),
            ("default_store = false", "`default_store` must be a string"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("sentinel"), "{error}");
        }
    }

    #[test]
    fn the_users_file_wins_key_by_key() {
        let user = parse("ttl = '5s'").unwrap();
        let machine = parse("ttl = '9s'\nstore = 'redis://db'").unwrap();
        let config = user.over(machine);
        assert_eq!(config.ttl.unwrap().duration(), Duration::from_secs(5));
        assert_eq!(config.store, Some(("redis://db".to_owned(), PathBuf::from("/etc/x"))));
    }
}
