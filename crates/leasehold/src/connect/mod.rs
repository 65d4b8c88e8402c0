//! Makes clients and connects them to their stores.

pub(crate) mod builder;
#[cfg(feature = "quorum")]
pub(crate) mod quorum_url;
pub(crate) mod read_url;
pub(crate) mod spread_url;
pub(crate) mod store_url;
