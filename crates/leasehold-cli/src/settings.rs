//! Finds store, password, ttl and owner: in options, environment and config file.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::embedded::EmbeddedStore;
use leasehold::interop::Layout;
use leasehold::redis::Credentials;
use leasehold::store::{StoreUrl, escape};
use leasehold::{Client, ClientBuilder, Error, Ttl};

use crate::cli::Global;
use crate::config::{Config, read_small, refuse_if_public};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::place;
use crate::secret;
use crate::typed;

const STORE_VARIABLE: &str = "LEASEHOLD_STORE";
const PASSWORD_VARIABLE: &str = "LEASEHOLD_PASSWORD";
const PASSWORD_FILE_VARIABLE: &str = "LEASEHOLD_PASSWORD_FILE";
const CONFIG_VARIABLE: &str = "LEASEHOLD_CONFIG";
/// What is read elsewhere, or only told to commands.
const OTHER_VARIABLES: [&str; 3] = ["LEASEHOLD_LEASE", "LEASEHOLD_OUTER", "LEASEHOLD_OWNER"];

/// What a variable of this command's says. An empty variable, as from a missing secret, is not an
/// unset one.
pub(crate) fn given(variable: &str) -> Outcome<Option<OsString>> {
    match env::var_os(variable) {
        Some(value) if value.is_empty() => Err(Failure::config(format!(
            "{variable} is set and empty; give it a value, or unset it"
        ))),
        value => Ok(value),
    }
}

/// What named the store.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Source {
    Option,
    Variable,
    File(PathBuf),
    /// Nothing did.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option => f.write_str("by --store"),
            Self::Variable => write!(f, "by {STORE_VARIABLE}"),
            Self::File(path) => write!(f, "by the config file {}", path.display()),
            Self::Default if EmbeddedStore::default_is_shared() => {
                f.write_str("nowhere, so it is this machine's default store")
            }
            Self::Default => f.write_str("nowhere, so it is this user's default store"),
        }
    }
}

/// Those options that were typed and that a printed command repeats; of the store this is how it
/// reads without a password, where it is a URL.
fn repeated(global: &Global, public: Option<&String>) -> Vec<(&'static str, Option<String>)> {
    let store = global.store.is_some().then(|| ("--store", public.cloned()));
    let files = [("--password-file", &global.password_file), ("--config", &global.config)];
    let files = files
        .into_iter()
        .filter_map(|(name, path)| Some((name, typed::readable_elsewhere(path.as_ref()?))));
    store.into_iter().chain(files).collect()
}

/// What holds for the whole command.
#[derive(Clone)]
pub(crate) struct Settings {
    store: String,
    /// The same with its default directory, and passwords removed.
    public: String,
    source: Source,
    password: Option<String>,
    /// Where the password is from, if it is from a file.
    password_file: Option<PathBuf>,
    /// The config file that was named.
    config: Option<PathBuf>,
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
        let Self { public, source, ttl, owner, retry_store, layout, leftovers, .. } = self;
        f.debug_struct("Settings")
            .field("store", public)
            .field("source", source)
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
        let named = match &global.config {
            Some(path) => Some(path.clone()),
            None => given(CONFIG_VARIABLE)?.map(PathBuf::from),
        };
        let file = Config::find(named.as_deref())?;
        for variable in OTHER_VARIABLES {
            given(variable)?;
        }
        let (store, source) = Self::choose(global, &file)?;
        let read = StoreUrl::read(&store).ok();
        let public = match &read {
            Some(read) => place::in_full(read.without_passwords()),
            // It can't be used, which connecting reports.
            None => secret::redact(&place::in_full(&store)),
        };
        if read.is_some() {
            secret::allow(&public);
        }
        let has_secret = secret::is_in(&store);
        typed::remember(repeated(global, read.is_some().then_some(&public)));
        if has_secret {
            secret::remember_those_of(&store);
            if source == Source::Option {
                output::message(
                    "warning: other users of this machine can read the password in --store; put it \
                     into LEASEHOLD_PASSWORD, a --password-file or LEASEHOLD_STORE",
                );
            }
        }
        let in_quorum = store.starts_with("quorum:") && store.contains("memory:");
        if store.trim_end_matches(':') == "memory" || in_quorum {
            return Err(Failure::config(
                "memory: is private to one process, so it excludes no other command; use embedded: \
                 or redis://",
            ));
        }
        if read.as_ref().and_then(StoreUrl::nodes) == Some(1) && !global.quiet {
            output::message(
                "warning: a quorum of one node tolerates no failure; name 3 or 5 nodes, or that \
                 node without quorum:",
            );
        }
        let has_password =
            read.map_or(has_secret, |read| read.has_password() || read.has_password_file());
        let (password, password_file) = Self::password(global, &file, has_password)?;
        if let Some(password) = &password {
            secret::remember(password);
            secret::remember_end_of(password);
        }
        tracing::info!(target: "leasehold", "the store is {public}, named {source}");
        Ok(Self {
            store,
            public,
            source,
            password,
            password_file,
            config: named,
            ttl: file.ttl,
            owner: file.owner,
            retry_store: global.retry_store.or(file.retry_store),
            layout: None,
            leftovers: None,
            log: 0,
            fence_retention: None,
        })
    }

    /// The store that is named first: typed, in the environment, in a config file; else the default
    /// one, unless that is forbidden.
    fn choose(global: &Global, file: &Config) -> Outcome<(String, Source)> {
        if let Some(typed) = &global.store {
            return Ok((judged(typed.clone(), "--store")?, Source::Option));
        }
        if let Some(url) = given(STORE_VARIABLE)? {
            return Ok((file.with_passwords(judged(url, STORE_VARIABLE)?), Source::Variable));
        }
        if let Some((store, path)) = &file.store {
            return Ok((store.clone(), Source::File(path.clone())));
        }
        let forbidden_by = match &file.no_default {
            _ if global.no_default_store => "--no-default-store".to_owned(),
            Some((true, path)) => format!("the config file {}", path.display()),
            _ => return Ok(("embedded:".to_owned(), Source::Default)),
        };
        Err(Failure::config(format!(
            "no store is named, and {forbidden_by} forbids the default store; name one in --store, \
             {STORE_VARIABLE} or a config file"
        )))
    }

    /// The password, and its file. The order is: the option, the store's URL, the variable of a
    /// file, the variable of a password, the config file.
    fn password(
        global: &Global,
        file: &Config,
        is_in_url: bool,
    ) -> Outcome<(Option<String>, Option<PathBuf>)> {
        let of_file = |path: PathBuf| Ok((Some(read_password(&path)?), Some(path)));
        let of_variable = given(PASSWORD_VARIABLE)?;
        let named_by_variable = given(PASSWORD_FILE_VARIABLE)?.map(PathBuf::from);
        let named = global.password_file.as_ref();
        match named.or(file.password_file.as_ref()) {
            Some(path) if is_in_url => {
                return Err(Failure::config(format!(
                    "the store's URL and the password file {} both give a password; keep one",
                    path.display()
                )));
            }
            _ if is_in_url => return Ok((None, None)),
            _ => {}
        }
        if let Some(path) = named.cloned().or(named_by_variable) {
            return of_file(path);
        }
        if let Some(password) = of_variable {
            return Ok((Some(text(password, PASSWORD_VARIABLE)?), None));
        }
        file.password_file.clone().map_or(Ok((None, None)), of_file)
    }

    /// The variables that lead a `leasehold` in the command to the same store. `None` removes a
    /// variable. Passwords are left out.
    pub(crate) fn told(&self) -> Vec<(&'static str, Option<String>)> {
        let file = |path: &Option<PathBuf>| typed::readable_elsewhere(path.as_ref()?);
        vec![
            (STORE_VARIABLE, Some(self.public.clone())),
            (PASSWORD_VARIABLE, None),
            (PASSWORD_FILE_VARIABLE, file(&self.password_file)),
            (CONFIG_VARIABLE, file(&self.config)),
        ]
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
                "locks of {layout} are in a Redis server; name it with --store redis://HOST"
            )));
        }
        if let (Some(Layout::Symfony), Some(_)) = (layout, leftovers) {
            return Err(Failure::usage(
                "all locks of symfony expire; leave --expire-leftovers out",
            ));
        }
        self.layout = layout.cloned();
        self.leftovers = leftovers;
        Ok(self)
    }

    /// The same with a log of about this number of events, unless the store's URL has a number.
    pub(crate) const fn logging(mut self, events: u32) -> Self {
        self.log = events;
        self
    }

    /// The same for scratch names: a server forgets them 1 to 2 s after their last use, and does
    /// not log them.
    pub(crate) fn for_scratch_names(&self) -> Self {
        let fence_retention = Some(Duration::from_secs(1));
        Self { store: place::for_scratch_names(&self.store), fence_retention, ..self.clone() }
    }

    /// The same for another store, whose URL has no password.
    pub(crate) fn at(&self, store: String) -> Self {
        Self { public: place::in_full(&store), store, ..self.clone() }
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

    /// Whether the store is a table in a database.
    pub(crate) fn is_in_postgresql(&self) -> bool {
        ["postgres:", "postgresql:"].iter().any(|scheme| self.store.starts_with(scheme))
    }

    /// The password, unless it is in the store's URL.
    pub(crate) fn password_given(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The ttl of the config file.
    pub(crate) const fn ttl(&self) -> Option<Ttl> {
        self.ttl
    }

    /// The store for people, without a password.
    pub(crate) fn place(&self) -> String {
        self.public.clone()
    }

    /// The same in an answer that no lock is there, which may be true in this store only.
    pub(crate) fn place_looked_at(&self) -> String {
        let others = match self.source {
            Source::Default if !EmbeddedStore::default_is_shared() => {
                " (this user's default store; each user has another)"
            }
            _ => "",
        };
        format!("{}{others}", escape::terminal(&self.public))
    }

    /// Variables that have another process of leasehold find the same store, whatever is
    /// configured. Secret.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let mut variables = vec![
            (CONFIG_VARIABLE.to_owned(), "/dev/null".to_owned()),
            (STORE_VARIABLE.to_owned(), self.store.clone()),
        ];
        // A file is read again when it is used, which may be after its password has changed.
        let file = self.password_file.as_deref().and_then(typed::readable_elsewhere);
        variables.extend(match (file, &self.password) {
            (Some(file), _) => Some((PASSWORD_FILE_VARIABLE.to_owned(), file)),
            (None, password) => password.clone().map(|it| (PASSWORD_VARIABLE.to_owned(), it)),
        });
        variables
    }

    /// For how long a store that is away is waited for when it is first needed.
    pub(crate) const fn retry_store(&self) -> Option<Duration> {
        self.retry_store
    }

    /// Whether the store does not exist yet.
    pub(crate) fn store_is_absent(&self) -> bool {
        place::is_absent(&self.store)
    }

    /// Connects. With `detached`, leases live on after this process. Each failed try that is
    /// followed by another goes to `tell`.
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
        builder = match (&self.password, &self.password_file) {
            // What can be read once, such as a pipe, has said all.
            (Some(password), Some(file)) if file.is_file() => {
                let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                let builder = builder.password(password);
                builder.credentials(move || Ok(Credentials::new(read_password_anew(&file)?)))
            }
            (Some(password), _) => builder.password(password),
            (None, _) => builder,
        };
        if let Some(length) = self.fence_retention {
            builder = builder.fence_retention(length);
        }
        if let Some(layout) = &self.layout {
            builder = builder.interop(layout.clone());
        }
        if let Some(expiry) = self.leftovers {
            builder = builder.leftovers(expiry.duration());
        }
        builder.create_tables(true).connect(&self.store_with_password_file()).await
    }

    /// The store's URL. For a database it names the password file, which is then read at each
    /// login.
    pub(crate) fn store_with_password_file(&self) -> String {
        match &self.password_file {
            Some(file) if self.is_in_postgresql() && file.is_file() => {
                let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                let path = file.as_os_str().as_encoded_bytes().iter();
                let path: String = path.map(|byte| format!("%{byte:02X}")).collect();
                let mark = if self.store.contains('?') { '&' } else { '?' };
                format!("{}{mark}password_file={path}", self.store)
            }
            _ => self.store.clone(),
        }
    }
}

/// A store's URL, if it can be one.
fn judged(value: OsString, name: &str) -> Outcome<String> {
    let url = text(value, name)?;
    // It would be another directory of that name, or another name on the server.
    if url.trim() != url || url.contains(char::is_control) {
        return Err(Failure::config(format!(
            "{name}: the URL begins or ends in a blank, or has a control character; remove it \
             (lines of Windows end in one)"
        )));
    }
    place::check(&url).map_err(|why| Failure::config(format!("{name}: {why}")))?;
    Ok(url)
}

fn text(value: OsString, name: &str) -> Outcome<String> {
    // The value itself may be secret, so the message does not repeat it.
    value.into_string().map_err(|_| Failure::config(format!("{name} is not UTF-8; correct it")))
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
        _ => Err(Failure::config(format!(
            "the first line of the password file {shown} is empty; \
                                          write the password there"
        ))),
    }
}

/// A password that may have changed.
fn read_password_anew(path: &Path) -> Result<String, String> {
    let password = read_password(path).map_err(|failure| failure.message)?;
    secret::remember(&password);
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_option_of_all_commands_is_repeated_or_decides_nothing_about_the_store() {
        use clap::{CommandFactory as _, Parser as _};
        let repeated = ["store", "password-file", "config"];
        // A named store is never the default one. The user chooses patience and output.
        let left_out = ["no-default-store", "retry-store", "quiet", "verbose"];
        let mut words = vec!["leasehold".to_owned(), "ls".to_owned()];
        for option in Cli::command().get_arguments().filter(|it| it.is_global_set()) {
            let name = option.get_long().unwrap();
            assert!(repeated.contains(&name) ^ left_out.contains(&name), "--{name}");
            words.push(format!("--{name}"));
            if option.get_action().takes_values() {
                words.push(if name == "retry-store" { "1s" } else { "Cargo.toml" }.to_owned());
            }
        }
        let global = Cli::try_parse_from(words).unwrap().global;
        let path = std::path::absolute("Cargo.toml").unwrap().to_str().unwrap().to_owned();
        let url = "redis://h".to_owned();
        let options = self::repeated(&global, Some(&url));
        assert_eq!(
            options,
            [
                ("--store", Some(url)),
                ("--password-file", Some(path.clone())),
                ("--config", Some(path)),
            ]
        );
        let names = options.iter().map(|(name, _)| name.trim_start_matches('-'));
        assert_eq!(names.collect::<Vec<_>>(), repeated);
    }
}
