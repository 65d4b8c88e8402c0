//! The examples run, and what they assert holds.

#[cfg(feature = "blocking")]
#[path = "../../examples/blocking.rs"]
mod blocking;
#[path = "../../examples/fencing.rs"]
mod fencing;
#[path = "../../examples/mutex.rs"]
mod mutex;

#[cfg(feature = "blocking")]
#[test]
fn the_blocking_example_runs() {
    blocking::main().unwrap();
}

#[test]
fn the_fencing_example_runs() {
    fencing::main().unwrap();
}

#[test]
fn the_mutex_example_runs() {
    mutex::main().unwrap();
}
