//! What a quorum promises, over nodes of all sorts and with all that can happen to them.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod nodes;
mod promises;
mod servers;
mod simulation;
mod support;
