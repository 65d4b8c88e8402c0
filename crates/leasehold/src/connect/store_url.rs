//! Turns a URL into a store.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Clock, Error, ErrorKind, Result, Store};

use crate::spread::SpreadStore;

/// Returns the credentials for a login.
#[cfg(feature = "redis")]
pub(crate) type Provide = Arc<dyn Fn() -> leasehold_redis::CredentialsResult + Send + Sync>;

/// Settings that a URL may leave open.
#[cfg_attr(
    not(all(feature = "embedded", feature = "redis")),
    expect(dead_code, reason = "each kind of store uses its own part")
)]
#[derive(Clone)]
pub(crate) struct Options {
    /// The clock of a store in memory.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) detached: bool,
    pub(crate) password: Option<String>,
    #[cfg(feature = "redis")]
    pub(crate) credentials: Option<Provide>,
    #[cfg(feature = "redis")]
    pub(crate) sentinel_credentials: Option<Provide>,
    pub(crate) timeout: Duration,
    /// How many events a store logs if its URL has no `log`.
    pub(crate) log: u32,
    /// For how long a server keeps the last fence of an idle lock, if its URL does not say.
    pub(crate) fence_retention: Option<Duration>,
    /// Whether a database that lacks leasehold's tables gets them.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "only databases have tables")
    )]
    pub(crate) create: bool,
    /// The layout of another library's locks, to keep locks like that.
    #[cfg(feature = "interop")]
    pub(crate) layout: Option<leasehold_redis::interop::Layout>,
    /// The expiry for such a lock that is found without one.
    #[cfg(feature = "interop")]
    pub(crate) leftovers: Option<leasehold_core::Ttl>,
}

const SCHEMES: &str = "memory:, embedded:, redis://, rediss://, redis+unix://, redis+sentinel://, \
                       redis+cluster://, postgres://, quorum:, quorum+redis:// and spread:";

pub(crate) async fn open(url: &str, options: Options) -> Result<Arc<dyn Store>> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::new(
            ErrorKind::Config,
            format!("the store's URL has no scheme; give one of {SCHEMES}"),
        ));
    };
    #[cfg(feature = "interop")]
    if let Some(layout) = &options.layout
        && (matches!(scheme, "memory" | "embedded" | "postgres" | "postgresql" | "spread")
            || scheme.starts_with("quorum"))
    {
        return Err(Error::new(
            ErrorKind::Config,
            format!("locks of {layout} are in a Redis server; give a redis:// URL"),
        ));
    }
    match scheme {
        "memory" | "embedded" => embedded(scheme, rest, &options).await,
        "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "valkey+unix" | "unix" => {
            redis(url, options, false).await
        }
        "postgres" | "postgresql" => postgres(url, &options, false).await,
        "quorum" | "quorum+redis" | "quorum+rediss" | "quorum+valkey" | "quorum+valkeys" => {
            quorum(url, options).await
        }
        "spread" => spread(rest, options).await,
        _ if scheme.ends_with("+sentinel") || scheme.ends_with("+cluster") => {
            redis(url, options, false).await
        }
        _ => Err(Error::new(
            ErrorKind::Config,
            format!(
                "unknown scheme \"{}\"; give one of {SCHEMES}",
                leasehold_core::escape::terminal(scheme)
            ),
        )),
    }
}

/// Opens all parts of a sharded store.
async fn spread(list: &str, options: Options) -> Result<Arc<dyn Store>> {
    let mut stores = Vec::new();
    for (name, url) in crate::connect::spread_url::stores(list)? {
        stores.push((name, Box::pin(open(&url, options.clone())).await?));
    }
    Ok(Arc::new(SpreadStore::new(stores)?))
}

#[cfg(feature = "embedded")]
async fn embedded(scheme: &str, rest: &str, options: &Options) -> Result<Arc<dyn Store>> {
    use leasehold_embedded::{EmbeddedStore, MemoryStore};
    if scheme == "memory" {
        if !rest.is_empty() {
            return Err(Error::new(
                ErrorKind::Config,
                "memory: takes nothing after the colon; leave \
                                                      it out",
            ));
        }
        return Ok(Arc::new(MemoryStore::with_clock(Arc::clone(&options.clock))));
    }
    let (path, log) = directory(rest)?;
    let log = log.unwrap_or(options.log);
    let store = EmbeddedStore::options().detached(options.detached).log(log)?;
    // Mostly a store is opened sooner than a thread is started.
    let at_once = store.clone().at_once(true);
    let opened = path.as_ref().map_or_else(|| at_once.open_default(), |path| at_once.open(path));
    if let Ok(store) = opened {
        return Ok(Arc::new(store));
    }
    // Opening reads every page and may wait for another process.
    let opening = crate::rt::current()?.spawn_blocking(move || match path {
        Some(path) => store.open(path),
        None => store.open_default(),
    });
    match opening.await {
        Ok(store) => Ok(Arc::new(store?)),
        Err(error) => Err(Error::new(
            ErrorKind::Unavailable,
            "the store was not opened, since the runtime ended, or opening it panicked",
        )
        .caused_by(error)),
    }
}

/// The directory and the number of events to log, each if the text behind `embedded:` has it.
#[cfg(feature = "embedded")]
fn directory(rest: &str) -> Result<(Option<String>, Option<u32>)> {
    // As in other URLs: an empty host, then the path.
    let path = rest.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(rest);
    if path.starts_with("//") {
        let shown = leasehold_core::escape::terminal(rest);
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "embedded:{shown} names a host; write a directory of this machine, as in \
                 embedded:/var/lib/app/locks"
            ),
        ));
    }
    let given = |path: &str| Some(path.to_owned()).filter(|path| !path.is_empty());
    let Some((path, setting)) = path.split_once('?') else { return Ok((given(path), None)) };
    let Some(log) = setting.strip_prefix("log=") else {
        let (path, setting) = (path.trim_end(), leasehold_core::escape::terminal(setting));
        let path = leasehold_core::escape::terminal(path);
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "unknown setting \"{setting}\"; embedded: has log= only, so write embedded:{path}"
            ),
        ));
    };
    Ok((given(path), Some(leasehold_core::checked_log(log)?)))
}

#[cfg(not(feature = "embedded"))]
async fn embedded(_scheme: &str, _path: &str, _options: &Options) -> Result<Arc<dyn Store>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build has no embedded store; build with the feature \"embedded\"",
    ))
}

/// Connects, or only prepares to, if the server need not be there.
#[cfg(feature = "redis")]
async fn redis(url: &str, options: Options, lazily: bool) -> Result<Arc<dyn Store>> {
    let builder = leasehold_redis::RedisStore::builder().connect_timeout(options.timeout);
    let builder = match options.password {
        Some(password) => builder.password(password),
        None => builder,
    };
    let builder = match options.credentials {
        Some(provide) => builder.credentials(move || provide()),
        None => builder,
    };
    let builder = match options.sentinel_credentials {
        Some(provide) => builder.sentinel_credentials(move || provide()),
        None => builder,
    };
    let builder = match options.fence_retention {
        Some(length) => builder.fence_retention(length)?,
        None => builder,
    };
    #[cfg(feature = "interop")]
    let builder = if options.layout.is_some() { builder } else { builder.log(options.log)? };
    #[cfg(not(feature = "interop"))]
    let builder = builder.log(options.log)?;
    let store = if lazily { builder.connect_lazy(url)? } else { builder.connect(url).await? };
    #[cfg(feature = "interop")]
    if let Some(layout) = options.layout {
        if store.log().is_some_and(|log| log.keeps() > 0) {
            let why = format!("locks of {layout} have no log; leave log= out of the store's URL");
            return Err(Error::new(ErrorKind::Config, why));
        }
        let store = leasehold_redis::interop::InteropStore::new(store, layout);
        return Ok(Arc::new(match options.leftovers {
            Some(expiry) => store.leftovers(expiry),
            None => store,
        }));
    }
    Ok(Arc::new(store))
}

#[cfg(not(feature = "redis"))]
async fn redis(_url: &str, _options: Options, _lazily: bool) -> Result<Arc<dyn Store>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build has no Redis store; build with the feature \"redis\"",
    ))
}

/// Connects, or only prepares to, if the server need not be there.
#[cfg(feature = "postgres")]
async fn postgres(url: &str, options: &Options, lazily: bool) -> Result<Arc<dyn Store>> {
    let builder = leasehold_postgres::PostgresStore::builder().connect_timeout(options.timeout);
    let builder = match &options.password {
        Some(password) => builder.password(password),
        None => builder,
    };
    let builder = match options.fence_retention {
        Some(length) => builder.fence_retention(length)?,
        None => builder,
    };
    let builder = builder.log(options.log)?.create(options.create);
    Ok(Arc::new(if lazily { builder.connect_lazy(url)? } else { builder.connect(url).await? }))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_url: &str, _options: &Options, _lazily: bool) -> Result<Arc<dyn Store>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build has no PostgreSQL store; build with the feature \"postgres\"",
    ))
}

/// Opens all nodes, and makes sure that a majority of them answers.
#[cfg(feature = "quorum")]
async fn quorum(url: &str, options: Options) -> Result<Arc<dyn Store>> {
    use leasehold_quorum::QuorumStore;

    use crate::connect::quorum_url::QuorumUrl;

    let parsed = match (url.strip_prefix("quorum:"), url.strip_prefix("quorum+")) {
        (Some(list), _) => QuorumUrl::of_stores(list)?,
        (None, hosts) => QuorumUrl::of_hosts(hosts.unwrap_or(url))?,
    };
    let fails_over = |node: &String| {
        let scheme = node.split_once(':').map_or("", |(scheme, _)| scheme);
        scheme.ends_with("+sentinel") || scheme.ends_with("+cluster")
    };
    if parsed.settings.keep_leases != Some(true) && parsed.nodes.iter().any(fails_over) {
        return Err(Error::new(
            ErrorKind::Config,
            "a node of the quorum fails over, and may lose leases; use single servers, or \
             keep_leases=yes if replicas confirm every grant",
        ));
    }
    let mut nodes: Vec<Arc<dyn Store>> = Vec::with_capacity(parsed.nodes.len());
    for node in &parsed.nodes {
        nodes.push(match node.split_once(':') {
            Some((scheme @ ("memory" | "embedded"), rest)) => {
                embedded(scheme, rest, &options).await?
            }
            Some(("postgres" | "postgresql", _)) => postgres(node, &options, true).await?,
            _ => redis(node, options.clone(), true).await?,
        });
    }
    // Several stores in memory have the same location.
    let mut places: Vec<String> = nodes.iter().map(|node| node.location()).collect();
    places.retain(|place| place != "memory:");
    places.sort_unstable();
    if let Some([place, ..]) = places.windows(2).find(|two| two.first() == two.last()) {
        return Err(Error::new(
            ErrorKind::Config,
            format!("a quorum names {place} twice, which would give it two votes; name it once"),
        ));
    }
    let mut builder = QuorumStore::builder(nodes);
    if let Some(max_ttl) = parsed.settings.max_ttl {
        builder = builder.max_ttl(max_ttl);
    }
    if let Some(timeout) = parsed.settings.node_timeout {
        builder = builder.node_timeout(timeout);
    }
    if let Some(keep) = parsed.settings.keep_leases {
        builder = builder.nodes_keep_leases(keep);
    }
    let store = builder.build()?;
    store.reach(options.timeout).await?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "quorum"))]
async fn quorum(_url: &str, _options: Options) -> Result<Arc<dyn Store>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build knows no quorums; build with the feature \"quorum\"",
    ))
}
