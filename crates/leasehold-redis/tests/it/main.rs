//! The store against real servers, and against what happens to them.

mod access;
mod common;
mod conformance;
mod foreign;
mod outages;
mod scripts;
mod secrets;
mod tls;
mod wake;
