//! Shows the documents of leasehold as pages beside its types.
//!
//! | page | is about |
//! | --- | --- |
//! | [`programs`] | whole small programs to copy |
//! | [`chooser`] | which lock and which store to take |
//! | [`guarantees`] | what holds, when, and the test that shows it |
//! | [`operations`] | servers, settings, what to watch and what to do |
//! | [`interop`] | keeping locks as other libraries do |
//! | [`reliability`] | what was tried to break it, and what that found |
//! | [`performance`] | what it costs, measured |
//! | [`design`] | decisions, and what was rejected |
//! | [`wire`] | what a Redis or Valkey server keeps |
//!
//! The module is in the documentation alone; no build has it.

/// One page. What it links to is another file where it is read as a file, and a module here: the
/// first definition of a link is the one that counts.
macro_rules! page {
    ($name:ident $file:literal) => {
        #[doc = "[guarantees.md]: crate::docs::guarantees"]
        #[doc = "[guarantees.md#fencing]: crate::docs::guarantees#fencing"]
        #[doc = "[guarantees.md#sentinel-and-cluster]: crate::docs::guarantees#sentinel-and-cluster"]
        #[doc = "[guarantees.md#the-command]: crate::docs::guarantees#the-command"]
        #[doc = "[guarantees.md#under-faults]: crate::docs::guarantees#under-faults"]
        #[doc = "[guarantees.md#what-holds-when]: crate::docs::guarantees#what-holds-when"]
        #[doc = "[guarantees.md#why-a-lease-handed-over-is-safe-without-a-round-trip]: crate::docs::guarantees#why-a-lease-handed-over-is-safe-without-a-round-trip"]
        #[doc = "[interop.md]: crate::docs::interop"]
        #[doc = "[interop.md#rights]: crate::docs::interop#rights"]
        #[doc = "[operations.md]: crate::docs::operations"]
        #[doc = "[operations.md#a-server-for-locks]: crate::docs::operations#a-server-for-locks"]
        #[doc = "[operations.md#choosing-a-ttl]: crate::docs::operations#choosing-a-ttl"]
        #[doc = "[operations.md#a-log-in-the-store]: crate::docs::operations#a-log-in-the-store"]
        #[doc = "[performance.md]: crate::docs::performance"]
        #[doc = "[reliability.md]: crate::docs::reliability"]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {}
    };
}

page!(programs "programs.md");
page!(chooser "chooser.md");
page!(guarantees "guarantees.md");
page!(operations "operations.md");
page!(interop "interop.md");
page!(reliability "reliability.md");
page!(performance "performance.md");
page!(design "design.md");
page!(wire "wire.md");
