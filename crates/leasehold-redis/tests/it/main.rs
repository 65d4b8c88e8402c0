//! The store on real servers, and under their faults.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod combined;
mod common;
mod conformance;
mod damaged;
mod delayed;
mod doctor;
mod doctor_beyond;
mod foreign;
mod forgotten;
mod half_way;
mod homes;
mod least_rights;
mod log;
mod many;
mod outages;
mod proofs;
mod refusals;
mod replicated;
mod rotation;
mod scripts;
mod secrets;
mod tls;
mod topology;
mod wake;
mod wire;
