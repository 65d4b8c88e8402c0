//! leasehold for Python: the extension module `leasehold._leasehold`.
//!
//! The package in `python/leasehold` makes Python's names of it. A class whose name begins with `A`
//! is the one for tasks of asyncio; the other of the same name is for threads.

/// The docstring of a class or a method, which the stubs have.
macro_rules! about {
    ($($name:expr),+) => {
        include_str!(concat!(env!("OUT_DIR"), "/docs/", $($name),+))
    };
}

mod awaiting;
mod bell;
mod calls;
mod client;
mod clock;
mod convert;
mod errors;
mod guard;
mod kinds;
mod log;
mod options;
mod process;
mod wait;
mod watching;

use pyo3::prelude::*;

// Declared for the interpreters on which it was tried: all of them have the interpreter's lock.
#[pymodule(gil_used = true)]
fn _leasehold(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    macro_rules! classes {
        ($($name:literal: $class:ty,)*) => {
            $(module.add($name, py.get_type::<$class>())?;)*
        };
    }
    classes! {
        "AnyClient": client::AnyClient,
        "Client": client::Client,
        "AClient": client::AClient,
        "Owner": kinds::Owner,
        "Mutex": kinds::Mutex,
        "AMutex": kinds::AMutex,
        "RwLock": kinds::RwLock,
        "ARwLock": kinds::ARwLock,
        "Semaphore": kinds::Semaphore,
        "ASemaphore": kinds::ASemaphore,
        "Multi": kinds::Multi,
        "AMulti": kinds::AMulti,
        "Reentrant": kinds::Reentrant,
        "AReentrant": kinds::AReentrant,
        "OncePer": kinds::OncePer,
        "AOncePer": kinds::AOncePer,
        "Election": kinds::Election,
        "AElection": kinds::AElection,
        "Lease": guard::Lease,
        "Guard": guard::Guard,
        "AGuard": guard::AGuard,
        "ReadGuard": guard::Read,
        "AReadGuard": guard::ARead,
        "WriteGuard": guard::Write,
        "AWriteGuard": guard::AWrite,
        "SemaphoreGuard": guard::Permits,
        "ASemaphoreGuard": guard::APermits,
        "OnceGuard": guard::Once,
        "AOnceGuard": guard::AOnce,
        "MultiGuard": guard::Multi,
        "AMultiGuard": guard::AMulti,
        "ReentrantGuard": guard::Reentrant,
        "AReentrantGuard": guard::AReentrant,
        "FakeClock": clock::FakeClock,
        "Acquiring": awaiting::Acquiring,
        "Waiting": awaiting::Waiting,
        "Watching": watching::Watching,
        "AWatching": watching::AWatching,
    }
    module.add_function(wrap_pyfunction!(calls::next_call, module)?)?;
    module.add_function(wrap_pyfunction!(calls::end, module)?)?;
    module.add_function(wrap_pyfunction!(guard::take_calls, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_from, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
