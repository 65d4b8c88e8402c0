//! How a client is made, and comes to its store.

pub(crate) mod builder;
#[cfg(feature = "quorum")]
pub(crate) mod quorum_url;
pub(crate) mod read_url;
pub(crate) mod spread_url;
pub(crate) mod store_url;
