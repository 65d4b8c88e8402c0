//! Raises the library's errors as Python's exceptions.

use std::error::Error as _;

use leasehold::{Effect, Error, ErrorKind};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::convert;

/// The word for a kind, and the name of its exception.
const fn names(kind: ErrorKind) -> (&'static str, &'static str) {
    match kind {
        ErrorKind::Closed => ("closed", "Closed"),
        ErrorKind::Config => ("config", "Config"),
        ErrorKind::Conflict => ("conflict", "Conflict"),
        ErrorKind::Corrupt => ("corrupt", "Corrupt"),
        ErrorKind::Denied => ("denied", "Denied"),
        ErrorKind::Foreign => ("foreign", "Foreign"),
        ErrorKind::Full => ("full", "Full"),
        ErrorKind::Late => ("late", "Late"),
        ErrorKind::Lost => ("lost", "Lost"),
        ErrorKind::Misuse => ("misuse", "Misuse"),
        ErrorKind::NotReplicated => ("not_replicated", "NotReplicated"),
        ErrorKind::Protocol => ("protocol", "Protocol"),
        ErrorKind::Timeout => ("timeout", "Timeout"),
        ErrorKind::Unavailable => ("unavailable", "Unavailable"),
        ErrorKind::Unsupported => ("unsupported", "Unsupported"),
        _ => ("error", "Error"),
    }
}

const fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Applied => "applied",
        Effect::NotApplied => "not_applied",
        Effect::Unknown => "unknown",
    }
}

/// The message with its causes, which Python's users see nowhere else.
pub(crate) fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        // A node's error is in the message already.
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}

/// The exception of an error.
#[cold]
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    made(py, error).map_or_else(|failed| failed, PyErr::from_value)
}

/// The module of the exceptions. An interpreter that ends can't import it any more.
pub(crate) fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = || py.import("leasehold._errors").map(Bound::unbind);
    ERRORS.get_or_try_init(py, module).map(|module| module.bind(py))
}

fn made<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let (word, name) = names(error.kind());
    let class = module(py)?.getattr(name)?;
    let raised = class.call1((text(error),))?;
    raised.setattr(intern!(py, "kind"), word)?;
    raised.setattr(intern!(py, "effect"), effect(error.effect()))?;
    raised.setattr(intern!(py, "is_retryable"), error.is_retryable())?;
    if let Some(key) = error.key() {
        raised.setattr(intern!(py, "key"), key.as_str())?;
    }
    if let Some(store) = error.store() {
        raised.setattr(intern!(py, "store"), store)?;
    }
    if let Some(reason) = error.reason() {
        raised.setattr(intern!(py, "reason"), reason.name())?;
    }
    if let Some(holder) = error.holder() {
        raised.setattr(intern!(py, "holder"), convert::holder(py, holder)?)?;
    }
    if let Some(length) = error.retry_after() {
        raised.setattr(intern!(py, "retry_after"), length.as_secs_f64())?;
    }
    Ok(raised)
}
