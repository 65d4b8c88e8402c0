//! Shows the documents of leasehold as pages beside its types.
//!
//! | page | is about |
//! | --- | --- |
//! | [`programs`] | whole small programs to copy |
//! | [`chooser`] | which lock and which store to take |
//! | [`guarantees`] | all promises, on which assumptions |
//! | [`faults`] | what each fault does to a lock, store by store |
//! | [`evidence`] | terms, exceptions and tests of each promise |
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
        #[doc = "[evidence.md]: crate::docs::evidence"]
        #[doc = "[evidence.md#g11]: crate::docs::evidence#g11"]
        #[doc = "[evidence.md#g12]: crate::docs::evidence#g12"]
        #[doc = "[evidence.md#g14]: crate::docs::evidence#g14"]
        #[doc = "[evidence.md#g16]: crate::docs::evidence#g16"]
        #[doc = "[evidence.md#g17]: crate::docs::evidence#g17"]
        #[doc = "[evidence.md#g18]: crate::docs::evidence#g18"]
        #[doc = "[evidence.md#g21]: crate::docs::evidence#g21"]
        #[doc = "[evidence.md#g24]: crate::docs::evidence#g24"]
        #[doc = "[evidence.md#g25]: crate::docs::evidence#g25"]
        #[doc = "[evidence.md#g28]: crate::docs::evidence#g28"]
        #[doc = "[evidence.md#g30]: crate::docs::evidence#g30"]
        #[doc = "[evidence.md#g32]: crate::docs::evidence#g32"]
        #[doc = "[evidence.md#g33]: crate::docs::evidence#g33"]
        #[doc = "[evidence.md#g4]: crate::docs::evidence#g4"]
        #[doc = "[evidence.md#g45]: crate::docs::evidence#g45"]
        #[doc = "[evidence.md#g46]: crate::docs::evidence#g46"]
        #[doc = "[evidence.md#g49]: crate::docs::evidence#g49"]
        #[doc = "[evidence.md#g50]: crate::docs::evidence#g50"]
        #[doc = "[evidence.md#g51]: crate::docs::evidence#g51"]
        #[doc = "[evidence.md#g6]: crate::docs::evidence#g6"]
        #[doc = "[evidence.md#g7]: crate::docs::evidence#g7"]
        #[doc = "[evidence.md#g8]: crate::docs::evidence#g8"]
        #[doc = "[evidence.md#why-a-lease-handed-over-is-safe-without-a-round-trip]: crate::docs::evidence#why-a-lease-handed-over-is-safe-without-a-round-trip"]
        #[doc = "[evidence.md#why-a-quorum-is-safe]: crate::docs::evidence#why-a-quorum-is-safe"]
        #[doc = "[faults.md]: crate::docs::faults"]
        #[doc = "[faults.md#fault-tests]: crate::docs::faults#fault-tests"]
        #[doc = "[faults.md#one-server]: crate::docs::faults#one-server"]
        #[doc = "[faults.md#quorum]: crate::docs::faults#quorum"]
        #[doc = "[faults.md#sentinel-and-cluster]: crate::docs::faults#sentinel-and-cluster"]
        #[doc = "[guarantees.md]: crate::docs::guarantees"]
        #[doc = "[guarantees.md#fencing]: crate::docs::guarantees#fencing"]
        #[doc = "[guarantees.md#what-is-not-promised]: crate::docs::guarantees#what-is-not-promised"]
        #[doc = "[interop.md]: crate::docs::interop"]
        #[doc = "[interop.md#rights]: crate::docs::interop#rights"]
        #[doc = "[operations.md]: crate::docs::operations"]
        #[doc = "[operations.md#a-directory-for-locks]: crate::docs::operations#a-directory-for-locks"]
        #[doc = "[operations.md#a-log-in-the-store]: crate::docs::operations#a-log-in-the-store"]
        #[doc = "[operations.md#a-server-for-locks]: crate::docs::operations#a-server-for-locks"]
        #[doc = "[operations.md#choosing-a-ttl]: crate::docs::operations#choosing-a-ttl"]
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
page!(faults "faults.md");
page!(evidence "evidence.md");
page!(operations "operations.md");
page!(interop "interop.md");
page!(reliability "reliability.md");
page!(performance "performance.md");
page!(design "design.md");
page!(wire "wire.md");
