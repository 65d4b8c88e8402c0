//! Which store, with which password, ttl and owner: options, environment and config file.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::interop::Layout;
use leasehold::{Client, ClientBuilder, Error, Ttl};

use crate::cli::Global;
use crate::duration;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::place;
use crate::secret;
use crate::typed;

/// The variables that can hold a secret.
pub(crate) const STORE_VARIABLE: &str = "LEASEHOLD_STORE";
pub(crate) const PASSWORD_VARIABLE: &str = "LEASEHOLD_PASSWORD";
const CONFIG_VARIABLE: &str = "LEASEHOLD_CONFIG";

/// What a variable says; one that is empty says nothing.
fn given(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}

/// A config file or password file is a few lines; anything larger is a mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// What holds for the whole command.
#[derive(Clone)]
pub(crate) struct Settings {
    store: String,
    password: Option<String>,
    ttl: Option<Ttl>,
    owner: Option<String>,
    retry_store: Option<Duration>,
    layout: Option<Layout>,
    leftovers: Option<Ttl>,
    log: u32,
    fence_retention: Option<Duration>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, password: _, ttl, owner, retry_store, layout, leftovers, .. } = self;
        let store = secret::redact(store);
        f.debug_struct("Settings")
            .field("store", &store)
            .field("ttl", ttl)
            .field("owner", owner)
            .field("retry_store", retry_store)
            .field("layout", layout)
            .field("leftovers", leftovers)
            .field("log", &self.log)
            .field("fence_retention", &self.fence_retention)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Gathers the settings.
    pub(crate) fn gather(global: &Global) -> Outcome<Self> {
        let named = global.config.clone().or_else(|| given(CONFIG_VARIABLE).map(PathBuf::from));
        let file = Config::find(named.as_deref())?;
        let store_was_typed = global.store.is_some();
        let store = match (&global.store, given(STORE_VARIABLE)) {
            (Some(typed), _) => judged(typed.clone(), "--store")?,
            (None, Some(url)) => judged(url, STORE_VARIABLE)?,
            (None, None) => file.store.unwrap_or_else(|| "embedded:".to_owned()),
        };
        if store_was_typed {
            typed::remember_store(&store);
        }
        let in_url = secret::secrets_of(&store);
        let has_password = in_url.iter().any(|secret| secret.is_for_servers);
        if !in_url.is_empty() {
            secret::remember_those_of(&store);
            if store_was_typed {
                output::message(
                    "warning: every user of this machine can read the password in --store; put \
                     it into LEASEHOLD_PASSWORD, a --password-file, or the URL in LEASEHOLD_STORE",
                );
            }
        }
        let in_quorum = store.starts_with("quorum:") && store.contains("memory:");
        if store.trim_end_matches(':') == "memory" || in_quorum {
            return Err(Failure::config(
                "memory: is private to one process, so a command can keep nobody out with it; \
                 use embedded: or redis://",
            ));
        }
        let password_file = global.password_file.clone().or(file.password_file);
        let password = match (password_file, has_password) {
            (Some(path), true) => {
                return Err(Failure::config(format!(
                    "the store's URL and the password file {} both give a password; keep one",
                    path.display()
                )));
            }
            (Some(path), false) => Some(read_password(&path)?),
            (None, true) => None,
            (None, false) => {
                given(PASSWORD_VARIABLE).map(|it| text(it, PASSWORD_VARIABLE)).transpose()?
            }
        };
        if let Some(password) = &password {
            secret::remember(password);
        }
        let retry_store = global.retry_store.or(file.retry_store);
        let (ttl, owner) = (file.ttl, file.owner);
        Ok(Self {
            store,
            password,
            ttl,
            owner,
            retry_store,
            layout: None,
            leftovers: None,
            log: 0,
            fence_retention: None,
        })
    }

    /// The same for locks in the layout of another library.
    pub(crate) fn shared_with(
        mut self,
        layout: Option<&Layout>,
        leftovers: Option<Ttl>,
    ) -> Outcome<Self> {
        if let Some(layout) = layout
            && (!self.is_on_a_server() || self.store.starts_with("quorum"))
        {
            return Err(Failure::config(format!(
                "locks of {layout} are in a Redis server; name it, as in --store redis://HOST"
            )));
        }
        if let (Some(Layout::Symfony), Some(_)) = (layout, leftovers) {
            return Err(Failure::usage(
                "all locks of symfony have an end; leave --expire-leftovers out",
            ));
        }
        self.layout = layout.cloned();
        self.leftovers = leftovers;
        Ok(self)
    }

    /// The same where events are logged, about so many, unless the store's URL says how many.
    pub(crate) const fn logging(mut self, events: u32) -> Self {
        self.log = events;
        self
    }

    /// The same for names that nobody is to know of later: a server forgets them a second or two after
    /// their last use, and nothing is logged of them.
    pub(crate) fn for_scratch_names(&self) -> Self {
        let fence_retention = Some(Duration::from_secs(1));
        Self { store: place::for_scratch_names(&self.store), fence_retention, ..self.clone() }
    }

    /// The same for another store.
    pub(crate) fn at(&self, store: String) -> Self {
        Self { store, ..self.clone() }
    }

    /// The other library in whose layout locks are kept.
    pub(crate) const fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// The store's URL, which may contain a password.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// Whether the store is on a server, rather than in a directory.
    pub(crate) fn is_on_a_server(&self) -> bool {
        !self.store.starts_with("embedded:")
    }

    /// The ttl of the config file.
    pub(crate) const fn ttl(&self) -> Option<Ttl> {
        self.ttl
    }

    /// The owner of the config file.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The store for people, without a password.
    pub(crate) fn place(&self) -> String {
        secret::redact(&place::in_full(&self.store))
    }

    /// Variables that have another process of leasehold find the same store, whatever is configured.
    /// Secret.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let mut variables = vec![
            (CONFIG_VARIABLE.to_owned(), "/dev/null".to_owned()),
            (STORE_VARIABLE.to_owned(), self.store.clone()),
        ];
        variables.extend(self.password.clone().map(|it| (PASSWORD_VARIABLE.to_owned(), it)));
        variables
    }

    /// For how long a store that is away is waited for when it is first needed.
    pub(crate) const fn retry_store(&self) -> Option<Duration> {
        self.retry_store
    }

    /// Whether the store has not been made yet, so that no lock can be in use.
    pub(crate) fn store_is_absent(&self) -> bool {
        place::is_absent(&self.store)
    }

    /// Connects. With `detached`, leases live on after this process. Each failed try that is followed
    /// by another goes to `tell`.
    pub(crate) async fn connect(
        &self,
        owner: Option<&str>,
        detached: bool,
        tell: impl Fn(&Error) + Send + Sync + 'static,
    ) -> leasehold::Result<Client> {
        let builder: ClientBuilder = Client::builder().detached(detached).on_retry_store(tell);
        let mut builder = builder.log(self.log);
        if let Some(length) = self.retry_store {
            builder = builder.retry_store(length);
        }
        if let Some(owner) = owner.or(self.owner.as_deref()) {
            builder = builder.owner(owner);
        }
        if let Some(password) = &self.password {
            builder = builder.password(password);
        }
        if let Some(length) = self.fence_retention {
            builder = builder.fence_retention(length);
        }
        if let Some(layout) = &self.layout {
            builder = builder.interop(layout.clone());
        }
        if let Some(expiry) = self.leftovers {
            builder = builder.leftovers(expiry.duration());
        }
        builder.connect(&self.store).await
    }
}

/// A store's URL, if it can be one.
fn judged(value: OsString, name: &str) -> Outcome<String> {
    let url = text(value, name)?;
    place::check(&url).map_err(|why| Failure::config(format!("{name}: {why}")))?;
    Ok(url)
}

fn text(value: OsString, name: &str) -> Outcome<String> {
    // The value itself may be secret, so the message does not repeat it.
    value.into_string().map_err(|_| Failure::config(format!("{name} is not UTF-8")))
}

#[derive(Debug, Default)]
struct Config {
    store: Option<String>,
    password_file: Option<PathBuf>,
    ttl: Option<Ttl>,
    owner: Option<String>,
    retry_store: Option<Duration>,
}

const KEYS: &str = "`store`, `password_file`, `ttl`, `owner` and `retry_store`";

impl Config {
    /// The given file, or the user's over the machine's.
    fn find(named: Option<&Path>) -> Outcome<Self> {
        if let Some(path) = named {
            return match Self::read(path)? {
                Some(config) => Ok(config),
                None => Err(Failure::config(format!("there is no config file {}", path.display()))),
            };
        }
        // A directory that depends on where the command is started would be one of many.
        let absolute = |variable| given(variable).map(PathBuf::from).filter(|it| it.is_absolute());
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
            password_file: self.password_file.or(lower.password_file),
            ttl: self.ttl.or(lower.ttl),
            owner: self.owner.or(lower.owner),
            retry_store: self.retry_store.or(lower.retry_store),
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
                    "can't read the config file {shown}: {error}; without it the store may be \
                     another one; set HOME or XDG_CONFIG_HOME right, or give --config"
                )));
            }
        };
        let text = read_small(&file, path)?;
        let config = Self::parse(&text)
            .map_err(|why| Failure::config(format!("the config file {shown}: {why}")))?;
        let store = config.store.as_deref().unwrap_or_default();
        if !secret::secrets_of(store).is_empty() {
            secret::remember_those_of(store);
            refuse_if_public(&file, path, "config file with a password")?;
        }
        Ok(Some(config))
    }

    fn parse(text: &str) -> Result<Self, String> {
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
                    config.store = Some(value);
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
                "owner" if value.is_empty() => return Err("`owner` is empty; name one".to_owned()),
                "owner" => config.owner = Some(value),
                _ => return Err(format!("the key `{key}` is not known; there are {KEYS}")),
            }
        }
        Ok(config)
    }
}

/// Whether a user's directory is in one that is closed to this user and belongs to another, as the
/// home of root does that `su` and services may leave in the environment: no settings of ours.
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

fn read_password(path: &Path) -> Outcome<String> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| {
        Failure::config(format!("can't read the password file {shown}: {error}"))
    })?;
    refuse_if_public(&file, path, "password file")?;
    let text = read_small(&file, path)?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Failure::config(format!("the first line of the password file {shown} is empty"))),
    }
}

fn read_small(file: &File, path: &Path) -> Outcome<String> {
    let mut text = String::new();
    let mut limited = file.take(FILE_BYTES_MAX.saturating_add(1));
    match limited.read_to_string(&mut text) {
        Ok(_) if limited.limit() > 0 => Ok(text),
        Ok(_) => Err(Failure::config(format!(
            "{} is larger than {FILE_BYTES_MAX} bytes; it can't be what it should be",
            path.display()
        ))),
        Err(error) => Err(Failure::config(format!("can't read {}: {error}", path.display()))),
    }
}

/// Pipes, such as a shell's `<(…)`, have no permissions worth looking at.
fn refuse_if_public(file: &File, path: &Path, what: &str) -> Outcome<()> {
    let metadata = file
        .metadata()
        .map_err(|error| Failure::config(format!("can't look at {}: {error}", path.display())))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o007 != 0 {
        return Err(Failure::config(format!(
            "everybody can get at the {what} {}; run `chmod o-rwx` on it",
            path.display()
        )));
    }
    Ok(())
}

/// Creates a file that only its owner can read, and refuses to touch one that is there.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = "store = \"redis://db\"\nttl = \"1m\"\nowner = 'me'\npassword_file = '/p'\n\
                    retry_store = '30s'\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.retry_store, Some(Duration::from_secs(30)));
        assert_eq!(config.store.as_deref(), Some("redis://db"));
        assert_eq!(config.ttl.unwrap().duration(), Duration::from_secs(60));
        assert_eq!(config.owner.as_deref(), Some("me"));
        assert_eq!(config.password_file.as_deref(), Some(Path::new("/p")));
    }

    #[test]
    fn what_is_wrong_is_named_and_never_quoted() {
        for (text, expected) in [
            ("sotre = 'redis://:sentinel@db'", "the key `sotre` is not known"),
            ("sotre = 1", "the key `sotre` is not known"),
            ("store = ['redis://:sentinel@db']", "`store` must be a string"),
            ("\nstore = redis://:sentinel@db", "line 2 is not valid TOML"),
            ("store = 'redis://:sentinel@db", "line 1 is not valid TOML"),
            ("ttl = 'sentinel'", "`ttl`: give seconds"),
            ("ttl = '0s'", "`ttl`: a ttl of 0ns is out of range"),
            ("retry_store = 'sentinel'", "`retry_store`: give seconds"),
            ("ttl = 30", "`ttl` must be a string"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("sentinel"), "{error}");
        }
    }

    #[test]
    fn the_users_file_wins_key_by_key() {
        let user = Config::parse("ttl = '5s'").unwrap();
        let machine = Config::parse("ttl = '9s'\nstore = 'redis://db'").unwrap();
        let config = user.over(machine);
        assert_eq!(config.ttl.unwrap().duration(), Duration::from_secs(5));
        assert_eq!(config.store.as_deref(), Some("redis://db"));
    }
}
