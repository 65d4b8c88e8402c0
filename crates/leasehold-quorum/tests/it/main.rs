//! What a quorum promises, over nodes of all kinds and with all their faults.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod nodes;
mod promises;
mod servers;
mod simulation;
mod support;
