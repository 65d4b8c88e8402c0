//! Shows the documents of leasehold as pages, with its types.
//!
//! | page | is about |
//! | --- | --- |
//! | [`programs`] | whole small programs to copy |
//! | [`cookbook`] | recipes for the command |
//! | [`chooser`] | which lock and which store to take |
//! | [`command`] | what the command does |
//! | [`jobs`] | what a job under a lock gets, and when it is ended |
//! | [`guarantees`] | all promises, on which assumptions |
//! | [`faults`] | what each fault does to a lock, store by store |
//! | [`evidence`] | terms, exceptions and tests of each promise |
//! | [`night`] | what to type when a lock is stuck |
//! | [`operations`] | servers, settings, what to watch and what to do |
//! | [`interop`] | keeping locks as other libraries do: [their calls and ours](interop_calls), [trials](interop_trials) |
//! | [`reliability`] | what was tried to break it, and what that found |
//! | [`performance`] | what it costs, measured |
//! | [`design`] | decisions, and what was rejected |
//! | [`wire`] | what a Redis or Valkey server keeps |
//!
//! The module is in the documentation alone; no build has it.

/// One page. Its links lead to other files; the definitions here come first, so they count, and
/// in this documentation the same links lead to modules.
macro_rules! page {
    ($name:ident $file:literal $($inside:item)*) => {
        #[doc = "[access.md]: crate::docs::operations::access"]
        #[doc = "[access.md#rights]: crate::docs::operations::access#rights"]
        #[doc = "[command.md]: crate::docs::command"]
        #[doc = "[command.md#exit-codes]: crate::docs::command#exit-codes"]
        #[doc = "[cookbook.md]: crate::docs::cookbook"]
        #[doc = "[directory.md]: crate::docs::operations::directory"]
        #[doc = "[doctor.md]: crate::docs::operations::doctor"]
        #[doc = "[errors.md]: crate::docs::operations::errors"]
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
        #[doc = "[evidence.md#g39]: crate::docs::evidence#g39"]
        #[doc = "[evidence.md#g45]: crate::docs::evidence#g45"]
        #[doc = "[evidence.md#g46]: crate::docs::evidence#g46"]
        #[doc = "[evidence.md#g49]: crate::docs::evidence#g49"]
        #[doc = "[evidence.md#g50]: crate::docs::evidence#g50"]
        #[doc = "[evidence.md#g51]: crate::docs::evidence#g51"]
        #[doc = "[evidence.md#g6]: crate::docs::evidence#g6"]
        #[doc = "[evidence.md#g7]: crate::docs::evidence#g7"]
        #[doc = "[evidence.md#g8]: crate::docs::evidence#g8"]
        #[doc = "[evidence.md#tests-of-faults-postgresql]: crate::docs::evidence#tests-of-faults-postgresql"]
        #[doc = "[evidence.md#why-a-lease-handed-over-is-safe-without-a-round-trip]: crate::docs::evidence#why-a-lease-handed-over-is-safe-without-a-round-trip"]
        #[doc = "[evidence.md#why-a-quorum-is-safe]: crate::docs::evidence#why-a-quorum-is-safe"]
        #[doc = "[failover.md]: crate::docs::operations::failover"]
        #[doc = "[failover.md#restarts]: crate::docs::operations::failover#restarts"]
        #[doc = "[faults.md]: crate::docs::faults"]
        #[doc = "[faults.md#fault-tests]: crate::docs::faults#fault-tests"]
        #[doc = "[faults.md#one-server]: crate::docs::faults#one-server"]
        #[doc = "[faults.md#quorum]: crate::docs::faults#quorum"]
        #[doc = "[faults.md#sentinel-and-cluster]: crate::docs::faults#sentinel-and-cluster"]
        #[doc = "[guarantees.md]: crate::docs::guarantees"]
        #[doc = "[guarantees.md#fencing]: crate::docs::guarantees#fencing"]
        #[doc = "[guarantees.md#what-is-not-promised]: crate::docs::guarantees#what-is-not-promised"]
        #[doc = "[installing.md]: crate::docs::operations::installing"]
        #[doc = "[interop-calls.md]: crate::docs::interop_calls"]
        #[doc = "[interop-trials.md]: crate::docs::interop_trials"]
        #[doc = "[interop.md]: crate::docs::interop"]
        #[doc = "[interop.md#locks-without-expiry]: crate::docs::interop#locks-without-expiry"]
        #[doc = "[interop.md#rights]: crate::docs::interop#rights"]
        #[doc = "[jobs.md#a-script]: crate::docs::jobs#a-script"]
        #[doc = "[jobs.md#the-outcome-in-a-file]: crate::docs::jobs#the-outcome-in-a-file"]
        #[doc = "[log.md]: crate::docs::operations::log"]
        #[doc = "[night.md]: crate::docs::night"]
        #[doc = "[operations.md]: crate::docs::operations"]
        #[doc = "[performance.md]: crate::docs::performance"]
        #[doc = "[reliability.md]: crate::docs::reliability"]
        #[doc = "[postgres.md]: crate::docs::operations::postgres"]
        #[doc = "[postgres-dba.md]: crate::docs::operations::postgres_dba"]
        #[doc = "[server.md]: crate::docs::operations::server"]
        #[doc = "[servers.md]: crate::docs::operations::servers"]
        #[doc = "[several.md]: crate::docs::operations::several"]
        #[doc = "[stuck.md]: crate::docs::operations::stuck"]
        #[doc = "[ttl.md]: crate::docs::operations::ttl"]
        #[doc = "[ttl.md#jobs-that-hang]: crate::docs::operations::ttl#jobs-that-hang"]
        #[doc = "[watching.md]: crate::docs::operations::watching"]
        #[doc = "[wire.md#the-fields-of-a-lock]: crate::docs::wire#the-fields-of-a-lock"]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {
            $($inside)*
        }
    };
}

page!(programs "programs.md");
page!(cookbook "cookbook.md");
page!(chooser "chooser.md");
page!(command "command.md");
page!(jobs "jobs.md");
page!(guarantees "guarantees.md");
page!(faults "faults.md");
page!(evidence "evidence.md");
page!(night "night.md");
page!(operations "operations.md"
    page!(installing "operations/installing.md");
    page!(ttl "operations/ttl.md");
    page!(directory "operations/directory.md");
    page!(server "operations/server.md");
    page!(access "operations/access.md");
    page!(failover "operations/failover.md");
    page!(postgres "operations/postgres.md");
    page!(postgres_dba "operations/postgres-dba.md");
    page!(several "operations/several.md");
    page!(servers "operations/servers.md");
    page!(doctor "operations/doctor.md");
    page!(stuck "operations/stuck.md");
    page!(watching "operations/watching.md");
    page!(log "operations/log.md");
    page!(errors "operations/errors.md");
);
page!(interop "interop.md");
page!(interop_calls "interop-calls.md");
page!(interop_trials "interop-trials.md");
page!(reliability "reliability.md");
page!(performance "performance.md");
page!(design "design.md");
page!(wire "wire.md");
