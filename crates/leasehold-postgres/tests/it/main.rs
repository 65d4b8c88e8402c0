//! The store on real servers, and under their faults.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod conformance;
mod epochs;
mod hold;
mod kept_out;
mod log;
mod rows;
mod setting_up;
mod trouble;
mod wake;
