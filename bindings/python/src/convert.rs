//! Makes Python's values of what a store tells.

use std::time::Duration;

use leasehold::store::{Kind, LogEntry, Mode, doctor::Finding};
use leasehold::{
    Error, ForceRelease, HolderInfo, Leader, Listing, LockEvent, LockEventKind, LockInfo, Release,
    WaiterInfo,
};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};

use crate::errors;

/// An instance of one of the named tuples that `leasehold._types` has.
fn tuple<'py>(
    py: Python<'py>,
    name: &str,
    fields: impl PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    static TYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = || py.import("leasehold._types").map(Bound::unbind);
    TYPES.get_or_try_init(py, module)?.bind(py).getattr(name)?.call1(fields)
}

fn seconds(length: Option<Duration>) -> Option<f64> {
    length.map(|length| length.as_secs_f64())
}

/// How many permits a mode has; 1 for all but semaphores.
const fn permits(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { count, .. } => count.get(),
        _ => 1,
    }
}

pub(crate) fn holder<'py>(py: Python<'py>, it: &HolderInfo) -> PyResult<Bound<'py, PyAny>> {
    let fields = (
        it.owner.as_str(),
        it.metadata.as_str(),
        it.fence.as_i64(),
        it.held_for.as_secs_f64(),
        it.remaining.as_secs_f64(),
        permits(it.mode),
        it.asked_by.is_some(),
        matches!(it.mode, Mode::Shared),
    );
    tuple(py, "Holder", fields)
}

fn waiter<'py>(py: Python<'py>, place: usize, it: &WaiterInfo) -> PyResult<Bound<'py, PyAny>> {
    let fields = (
        it.owner.as_str(),
        it.metadata.as_str(),
        it.waited.as_secs_f64(),
        place,
        permits(it.mode),
        it.behind,
    );
    tuple(py, "Waiter", fields)
}

pub(crate) fn lock<'py>(py: Python<'py>, it: &LockInfo) -> PyResult<Bound<'py, PyAny>> {
    let (kind, limit) = match it.kind {
        Kind::Semaphore { limit } => ("semaphore", Some(limit.get())),
        _ => ("lock", None),
    };
    let holders = PyList::empty(py);
    for one in &it.holders {
        holders.append(holder(py, one)?)?;
    }
    let waiters = PyList::empty(py);
    for (place, one) in it.waiters.iter().enumerate() {
        waiters.append(waiter(py, place, one)?)?;
    }
    let closed_for = seconds(it.closed_for);
    let fields =
        (it.key.as_str(), kind, holders, waiters, closed_for, it.last_fence.as_i64(), limit);
    tuple(py, "LockInfo", fields)
}

/// A list, with the errors of what could not be read in its `unreadable`.
pub(crate) fn listing(py: Python<'_>, it: &Listing) -> PyResult<Py<PyAny>> {
    let locks = PyList::empty(py);
    for one in &it.locks {
        locks.append(lock(py, one)?)?;
    }
    let unreadable = PyList::empty(py);
    for error in &it.unreadable {
        unreadable.append(errors::raise(py, error).into_value(py))?;
    }
    Ok(tuple(py, "Listing", (locks, unreadable))?.unbind())
}

pub(crate) fn leader<'py>(py: Python<'py>, it: &Leader) -> PyResult<Bound<'py, PyAny>> {
    tuple(py, "Leader", (it.owner.as_str(), it.metadata.as_str(), it.fence.as_i64()))
}

pub(crate) fn finding<'py>(py: Python<'py>, it: &Finding) -> PyResult<Bound<'py, PyAny>> {
    let text = if it.means.is_empty() {
        it.found.to_string()
    } else {
        format!("{}: {}", it.found, it.means)
    };
    let fields =
        (it.severity.to_string(), &*it.topic, text, it.advice.as_deref(), it.store.as_deref());
    tuple(py, "Finding", fields)
}

pub(crate) fn event<'py>(py: Python<'py>, it: &LockEvent) -> PyResult<Bound<'py, PyAny>> {
    let details = PyDict::new(py);
    match it.what {
        LockEventKind::HandedOn { from } | LockEventKind::Changed { from } => {
            details.set_item("from", from.as_i64())?;
        }
        LockEventKind::Released { outcome, cooldown } => {
            details.set_item("outcome", release(outcome))?;
            details.set_item("cooldown", seconds(cooldown))?;
        }
        LockEventKind::Lost { reason, cause } => {
            details.set_item("reason", reason.name())?;
            details.set_item("cause", cause.map(leasehold::Reason::name))?;
        }
        _ => {}
    }
    tuple(py, "LockEvent", (it.key.as_str(), it.fence.as_i64(), it.what.name(), details))
}

const fn release(outcome: Release) -> &'static str {
    match outcome {
        Release::Released => "released",
        Release::Late { .. } => "late",
        Release::StillHeld { .. } => "still_held",
        Release::NotHeld => "not_held",
        _ => "unknown",
    }
}

pub(crate) fn log_entry<'py>(py: Python<'py>, it: &LogEntry) -> PyResult<Bound<'py, PyAny>> {
    let entry = PyDict::new(py);
    entry.set_item("key", it.key.as_str())?;
    entry.set_item("at", it.at.as_secs_f64())?;
    entry.set_item("event", &*it.event)?;
    entry.set_item("how", it.how.as_deref())?;
    entry.set_item("result", it.result.as_deref())?;
    entry.set_item("fence", it.fence.as_i64())?;
    entry.set_item("from", it.from.map(leasehold::Fence::as_i64))?;
    entry.set_item("closed_for", seconds(it.closed_for))?;
    entry.set_item("owner", it.owner.as_str())?;
    entry.set_item("process", it.process.as_str())?;
    Ok(entry.into_any())
}

pub(crate) const fn force_release(answer: &ForceRelease) -> &'static str {
    match answer {
        ForceRelease::Released => "released",
        ForceRelease::OtherFence { .. } => "other_fence",
        _ => "not_held",
    }
}

/// A list of values.
pub(crate) fn list<'py, T>(
    py: Python<'py>,
    values: &[T],
    convert: impl Fn(Python<'py>, &T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for value in values {
        list.append(convert(py, value)?)?;
    }
    Ok(list.into_any().unbind())
}

/// A value or `None`.
pub(crate) fn optional<'py, T>(
    py: Python<'py>,
    value: Option<&T>,
    convert: impl Fn(Python<'py>, &T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    value.map_or_else(|| Ok(py.None()), |value| Ok(convert(py, value)?.unbind()))
}

/// The error's exception, as a shorter name for what is mapped.
pub(crate) fn raising(py: Python<'_>) -> impl Fn(Error) -> PyErr + '_ {
    move |error| errors::raise(py, &error)
}
