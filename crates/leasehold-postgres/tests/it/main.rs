//! The store on real servers, and under their faults.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod conformance;
mod cuts;
mod epochs;
mod hold;
mod hot;
mod kept_out;
mod log;
mod plans;
mod rows;
mod setting_up;
mod synchronous;
mod together;
mod trouble;
mod wake;
