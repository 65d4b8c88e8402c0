//! Turns a panic into one line and a clean-up of what was begun.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::thread;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

/// What libraries say when the system has no thread, process or descriptor left; they panic then.
const SCARCE: [&str; 8] = [
    "(os error 11)",
    "(os error 12)",
    "(os error 23)",
    "(os error 24)",
    "code: 11,",
    "code: 12,",
    "code: 23,",
    "code: 24,",
];

/// Prints panics on other threads as messages. [`caught`] turns its panics into failures.
pub(crate) fn watch() {
    let main = thread::current().id();
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() == main {
            return;
        }
        // Once: if threads can't be made, each attempt says so.
        static ONCE: Once = Once::new();
        let text = info.to_string();
        ONCE.call_once(|| output::message(&failure(&text).message));
    }));
}

/// Makes a panic a failure.
pub(crate) fn caught<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(failure(&text(&*payload))))
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn failure(text: &str) -> Failure {
    if SCARCE.iter().any(|scarce| text.contains(scarce)) {
        return Failure::new(
            Exit::System,
            format!(
                "no thread, file descriptor or memory is left ({text}); raise the limits (`ulimit \
                 -u`, `ulimit -n`, `ulimit -v`)"
            ),
        );
    }
    Failure::new(Exit::Internal, format!("a fault in leasehold itself: {text}; please report it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scarcity_is_the_systems_fault_and_anything_else_is_ours() {
        let spawn = std::io::Error::from_raw_os_error(libc::EAGAIN);
        let failed = failure(&format!("OS can't spawn worker thread: {spawn}"));
        assert_eq!(failed.exit, Exit::System);
        let pair = std::io::Error::from_raw_os_error(libc::EMFILE);
        let failed = failure(&format!("failed to create UnixStream: {pair:?}"));
        assert_eq!(failed.exit, Exit::System, "{}", failed.message);
        assert_eq!(failure("index out of bounds").exit, Exit::Internal);
    }

    #[test]
    fn a_panic_is_a_failure_with_its_words() {
        let failed = caught::<()>(|| panic!("so {}", "it is")).unwrap_err();
        assert!(failed.message.contains("so it is"), "{}", failed.message);
    }
}
