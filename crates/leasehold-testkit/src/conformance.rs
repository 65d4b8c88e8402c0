//! What every store must do: one case per promise, run against each store as named tests.
//!
//! A store's whole test file is one line:
//!
//! ```text
//! leasehold_testkit::conformance_tests!(memory, async || Arc::new(MemoryStore::new()));
//! ```
//!
//! All cases are in one list ([`CASES`]). A case is skipped, with the reason, if the store lacks a
//! [`Capability`] that it needs. The macro must declare what a store lacks, so every skip is
//! visible.
//!
//! Cases run on the store's own time and on fresh random names. All that they leave behind expires.
//! They also pass on a slow machine: a state that must last uses leases of 30 s, and an event that
//! must come is awaited.

mod changing;
mod concurrent;
mod context;
mod cooldown;
mod fences;
mod grant;
mod limits;
mod list;
mod names;
mod operator;
mod party;
mod release;
mod renew;
mod sharing;
mod show;
mod trouble;
mod waiting;
mod waiting_faults;
mod wake;

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Capability, Store};

pub use context::Context;
pub use list::CASES;

/// Longer than any case takes, even on a busy machine.
const CASE_MAX: Duration = Duration::from_secs(180);

/// One promise, as a test.
#[derive(Debug)]
#[non_exhaustive]
pub struct Case {
    /// The promise that it checks.
    pub name: &'static str,
    /// Its module in the suite.
    pub module: &'static str,
    /// The capabilities that it needs.
    pub needs: &'static [Need],
    check: for<'a> fn(&'a Context) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// A capability that not every store has.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[expect(non_camel_case_types, reason = "written on the line of a store as the field's name")]
#[non_exhaustive]
pub enum Need {
    /// [`Capability::queue`].
    queue,
    /// [`Capability::wake`].
    wake,
    /// [`Capability::shared`].
    shared,
    /// [`Capability::list`].
    list,
    /// [`Capability::sets`].
    sets,
}

impl Need {
    const ALL: [Self; 5] = [Self::queue, Self::wake, Self::shared, Self::list, Self::sets];

    fn is_met_by(self, capability: Capability) -> bool {
        match self {
            Self::queue => capability.queue,
            Self::wake => capability.wake,
            Self::shared => capability.shared,
            Self::list => capability.list,
            Self::sets => capability.sets,
        }
    }
}

impl Case {
    /// The case with this name.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[must_use]
    pub fn named(name: &str) -> &'static Self {
        CASES.iter().find(|case| case.name == name).expect("every test is made from the list")
    }

    fn lacking(&self, capability: Capability) -> Option<Need> {
        self.needs.iter().copied().find(|need| !need.is_met_by(capability))
    }
}

/// A store under test, together with anything that must live as long.
pub trait Subject {
    /// The store to test.
    fn store(&self) -> Arc<dyn Store>;
}

impl Subject for Arc<dyn Store> {
    fn store(&self) -> Arc<dyn Store> {
        Self::clone(self)
    }
}

impl<S: Store> Subject for Arc<S> {
    fn store(&self) -> Arc<dyn Store> {
        Self::clone(self)
    }
}

impl<S: Subject, Keep> Subject for (S, Keep) {
    fn store(&self) -> Arc<dyn Store> {
        self.0.store()
    }
}

/// Runs one case against a store of its own, on a runtime with two workers.
///
/// # Panics
///
/// When the store breaks the promise, or the case takes longer than three minutes.
pub fn run<S: Subject>(case: &Case, open: impl AsyncFnOnce() -> S) {
    on_runtime(async {
        let subject = open().await;
        let store = subject.store();
        if let Some(need) = case.lacking(store.capability()) {
            say(&format!("skipped: {}: {} has no {need:?}", case.name, store.location()));
            return;
        }
        let cx = Context::new(store);
        let done = tokio::time::timeout(CASE_MAX, (case.check)(&cx)).await;
        assert!(done.is_ok(), "{} hangs: not done within {CASE_MAX:?}", case.name);
    });
}

/// Cases of one module that run at the same time.
const AT_ONCE: usize = 4;

/// Runs all cases of a module, a few at a time, each against its own store.
///
/// # Panics
///
/// When the store breaks a promise. Each thread is named after its case.
pub fn run_module<S: Subject>(module: &str, open: impl AsyncFn() -> S + Sync) {
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.module == module).collect();
    assert!(!cases.is_empty(), "no case stands in {module}");
    let open = &open;
    let mut broken = Vec::new();
    for some in cases.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let start = |case: &'static Case| {
                let thread = std::thread::Builder::new().name(case.name.to_owned());
                let running = thread.spawn_scoped(scope, move || run(case, async || open().await));
                (case.name, running.expect("a test process can start a few more threads"))
            };
            let running: Vec<_> = some.iter().map(|case| start(case)).collect();
            let failed =
                running.into_iter().filter_map(|(name, case)| case.join().err().map(|_| name));
            broken.extend(failed);
        });
    }
    assert!(broken.is_empty(), "broken: {}", broken.join(", "));
}

/// Checks that a store lacks exactly what its macro declares, and prints the skipped cases.
///
/// # Panics
///
/// When it lacks more or less.
pub fn check_skipped<S: Subject>(lacks: &[Need], open: impl AsyncFnOnce() -> S) {
    on_runtime(async {
        let subject = open().await;
        let store = subject.store();
        let capability = store.capability();
        let mut lacking = Need::ALL.to_vec();
        lacking.retain(|need| !need.is_met_by(capability));
        let mut lacks = lacks.to_vec();
        lacks.sort_unstable();
        assert_eq!(lacking, lacks, "{} lacks other things than its line says", store.location());
        let skipped: Vec<&Case> =
            CASES.iter().filter(|case| case.lacking(capability).is_some()).collect();
        let mut report = format!("{} of {} cases skipped", skipped.len(), CASES.len());
        for case in skipped {
            write!(report, "\nskipped: {}: needs {:?}", case.name, case.needs)
                .expect("a string takes all text");
        }
        say(&report);
    });
}

fn on_runtime(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a test process can start two more threads")
        .block_on(work);
}

#[expect(clippy::print_stdout, reason = "a test reports what it skips")]
fn say(text: &str) {
    println!("{text}");
}

/// Makes one named test per case for a store, from the one list of cases.
///
/// The first argument names the module of the tests. The second opens the store, once per test. It
/// is an async closure or function that returns an `Arc` of the store. It may also return a pair of
/// that and a value that must live as long, such as a server. A store without some capabilities
/// declares them:
///
/// ```text
/// conformance_tests!(quorum, three_nodes, lacks: [queue, wake]);
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($module:ident, $open:expr $(,)?) => {
        $crate::conformance_tests!($module, $open, lacks: []);
    };
    ($module:ident, $open:expr, lacks: [$($lacks:ident),* $(,)?] $(,)?) => {
        mod $module {
            #[allow(unused_imports, reason = "the expression that opens the store may need them")]
            use super::*;

            $crate::conformance_list!(tests [$open]);

            #[test]
            fn skips_only_what_its_line_says() {
                $crate::conformance::check_skipped(
                    &[$($crate::conformance::Need::$lacks),*],
                    $open,
                );
            }
        }
    };
}

/// Makes one test per module of the suite, for a store that takes seconds to start: the cases of a
/// module share it. All else is as in [`conformance_tests!`](crate::conformance_tests).
#[macro_export]
macro_rules! conformance_tests_by_module {
    ($name:ident, $open:expr $(,)?) => {
        $crate::conformance_tests_by_module!($name, $open, lacks: []);
    };
    ($name:ident, $open:expr, lacks: $lacks:tt $(,)?) => {
        $crate::conformance_tests_by_module!($name, $open, $lacks, [
            changing concurrent cooldown fences grant limits names operator release renew sharing show trouble waiting
            waiting_faults wake
        ]);
    };
    ($name:ident, $open:expr, [$($lacks:ident),* $(,)?], [$($module:ident)+]) => {
        mod $name {
            #[allow(unused_imports, reason = "the expression that opens the store may need them")]
            use super::*;

            $(
                #[test]
                fn $module() {
                    $crate::conformance::run_module(stringify!($module), $open);
                }
            )+

            #[test]
            fn skips_only_what_its_line_says() {
                $crate::conformance::check_skipped(
                    &[$($crate::conformance::Need::$lacks),*],
                    $open,
                );
            }
        }
    };
}

/// The modules that [`conformance_tests_by_module!`](crate::conformance_tests_by_module) names.
#[cfg(test)]
pub(crate) const MODULES: &[&str] = &[
    "changing",
    "concurrent",
    "cooldown",
    "fences",
    "grant",
    "limits",
    "names",
    "operator",
    "release",
    "renew",
    "sharing",
    "show",
    "trouble",
    "waiting",
    "waiting_faults",
    "wake",
];
