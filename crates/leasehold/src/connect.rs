//! From a URL to a store.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result, Store};

/// What a URL does not say.
#[cfg_attr(
    not(all(feature = "embedded", feature = "redis")),
    expect(dead_code, reason = "each kind of store uses its own part")
)]
pub(crate) struct Options {
    pub(crate) detached: bool,
    pub(crate) password: Option<String>,
    pub(crate) timeout: Duration,
}

const SCHEMES: &str = "memory:, embedded:, redis://, rediss:// and redis+unix://";

pub(crate) async fn open(url: &str, options: Options) -> Result<Arc<dyn Store>> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::new(
            ErrorKind::Config,
            format!("the store's URL has no scheme; give one of {SCHEMES}"),
        ));
    };
    match scheme {
        "memory" | "embedded" => embedded(scheme, rest, &options),
        "redis" | "rediss" | "redis+unix" | "unix" | "valkey" | "valkeys" => {
            redis(url, options).await
        }
        _ => Err(Error::new(
            ErrorKind::Config,
            format!(
                "no store is known by the scheme \"{}\"; give one of {SCHEMES}",
                leasehold_core::escape::terminal(scheme)
            ),
        )),
    }
}

#[cfg(feature = "embedded")]
fn embedded(scheme: &str, path: &str, options: &Options) -> Result<Arc<dyn Store>> {
    use leasehold_embedded::{EmbeddedStore, MemoryStore};
    if scheme == "memory" {
        if !path.is_empty() {
            return Err(Error::new(ErrorKind::Config, "memory: takes nothing after the colon"));
        }
        return Ok(Arc::new(MemoryStore::new()));
    }
    let store = EmbeddedStore::options().detached(options.detached);
    Ok(Arc::new(if path.is_empty() { store.open_default()? } else { store.open(path)? }))
}

#[cfg(not(feature = "embedded"))]
fn embedded(_scheme: &str, _path: &str, _options: &Options) -> Result<Arc<dyn Store>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build has no embedded store; build with the feature \"embedded\"",
    ))
}

#[cfg(feature = "redis")]
async fn redis(url: &str, options: Options) -> Result<Arc<dyn Store>> {
    let builder = leasehold_redis::RedisStore::builder().connect_timeout(options.timeout);
    let builder = match options.password {
        Some(password) => builder.password(password),
        None => builder,
    };
    Ok(Arc::new(builder.connect(url).await?))
}

#[cfg(not(feature = "redis"))]
async fn redis(_url: &str, _options: Options) -> Result<Arc<dyn Store>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build has no Redis store; build with the feature \"redis\"",
    ))
}
