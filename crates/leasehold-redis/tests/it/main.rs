//! The store against real servers, and against what happens to them.

mod basics;
mod conformance;
