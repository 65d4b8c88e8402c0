//! Finds the server of a lock: one address, sentinels, or a cluster.

pub(crate) mod address;
pub(crate) mod addresses;
pub(crate) mod cluster;
pub(crate) mod replication;
pub(crate) mod role;
pub(crate) mod sentinel;
pub(crate) mod server_clock;
pub(crate) mod slot;
