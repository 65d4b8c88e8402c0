//! The command as its users meet it: the real binary, real children, real stores.
//!
//! One binary for all tests. Each has a directory, a store and a home of its own.

#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test, as the test itself would"
)]

mod background;
mod bad_days;
mod bad_input;
mod browser;
mod child;
mod contention;
mod delayed;
mod descent;
mod doctor;
mod documents;
mod election;
mod examples;
mod exit_codes;
mod harness;
mod help;
mod hold;
mod interop;
mod kinds;
mod last_moments;
mod leases;
mod log;
mod messages;
mod metrics;
mod nested;
mod oneself;
mod operators;
mod outages;
mod package;
mod pages;
mod places;
mod postgres;
mod raw;
mod readme;
mod recipes;
mod rotation;
mod scarcity;
mod schema;
mod secrets;
mod sentences;
mod supervisor;
mod terminal;
mod time_limit;
mod top;
mod ui;
mod watchdog;
mod why;
