//! Reads options from keyword arguments.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Fairness, LockOptions, Result, WaitLimit};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::raising;

/// A length of time: a number of seconds, or a `timedelta`.
#[derive(FromPyObject)]
pub(crate) enum Seconds {
    #[pyo3(annotation = "float")]
    Number(f64),
    #[pyo3(annotation = "timedelta")]
    Delta(Duration),
}

impl Seconds {
    pub(crate) fn length(self) -> Result<Duration> {
        match self {
            Self::Number(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
                let why = format!("{seconds} is no length of time; give seconds from 0 on");
                Error::new(ErrorKind::Config, why)
            }),
            Self::Delta(length) => Ok(length),
        }
    }
}

pub(crate) fn length(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    seconds(value)?.length().map_err(raising(value.py()))
}

fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Seconds> {
    if let Ok(seconds) = value.extract() {
        return Ok(seconds);
    }
    if value
        .extract::<f64>()
        .is_err_and(|error| error.is_instance_of::<PyOverflowError>(value.py()))
    {
        return Ok(Seconds::Number(f64::INFINITY));
    }
    // A negative `timedelta` is of the right type, though no `Duration` can be made of it.
    match value.getattr("total_seconds").and_then(|read| read.call0()?.extract()) {
        Ok(seconds) => Ok(Seconds::Number(seconds)),
        Err(_) => {
            let why = format!("a length of time is seconds or a timedelta, not {value:?}");
            Err(PyTypeError::new_err(why))
        }
    }
}

/// How many: what is no such number is a wrong setting, as with a length.
pub(crate) fn count<'py, T>(value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let py = value.py();
    value.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        let most = 8 * size_of::<T>();
        let why = format!("{value} is no count; give a number from 0 to 2**{most} - 1");
        raising(py)(Error::new(ErrorKind::Config, why))
    })
}

/// A length that may be `None`.
pub(crate) fn limit(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    value.map(length).transpose()
}

/// Reads a keyword that some kinds of locks have; returns whether it is one.
pub(crate) type Own<'a> = &'a mut dyn FnMut(&str, &Bound<'_, PyAny>) -> PyResult<bool>;

/// The options in keyword arguments. `own` reads those that not all kinds have.
pub(crate) fn read(
    keywords: Option<&Bound<'_, PyDict>>,
    whose: &str,
    own: Own<'_>,
) -> PyResult<LockOptions> {
    let mut options = LockOptions::new();
    for (name, value) in keywords.into_iter().flatten() {
        let name: String = name.extract()?;
        let is_none = value.is_none();
        options = match name.as_str() {
            "ttl" => options.ttl(length(&value)?),
            "owner" => options.owner(value.extract::<String>()?),
            "metadata" => options.metadata(value.extract::<String>()?),
            "renew" => options.renew(value.extract()?),
            "stop_grace" => options.stop_grace(length(&value)?),
            "max_hold" => options.max_hold(limit((!is_none).then_some(&value))?),
            "progress_within" => options.progress_within(limit((!is_none).then_some(&value))?),
            "max_waiters" => options.max_waiters((!is_none).then(|| count(&value)).transpose()?),
            "fairness" => options.fairness(fairness(&value)?),
            "give_up_early" => options.give_up_early(value.extract()?),
            "wait_limit" => match limit((!is_none).then_some(&value))? {
                Some(limit) => options.wait_limit(limit),
                None => options.wait_limit(WaitLimit::Forever),
            },
            _ if own(&name, &value)? => options,
            _ => {
                let why = format!("{whose}() got an unexpected keyword argument '{name}'");
                return Err(PyTypeError::new_err(why));
            }
        };
    }
    Ok(options)
}

/// For kinds without options of their own.
pub(crate) fn none(_: &str, _: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(false)
}

fn fairness(value: &Bound<'_, PyAny>) -> PyResult<Fairness> {
    match value.extract::<String>()?.as_str() {
        "fifo" => Ok(Fairness::Fifo),
        "barging" => Ok(Fairness::Barging),
        _ => Err(refused(value, "fairness", "'fifo' or 'barging'")),
    }
}

/// The error of a word that an option does not have.
pub(crate) fn refused(value: &Bound<'_, PyAny>, option: &str, words: &str) -> PyErr {
    let why = format!("{option} can't be {value}; give {words}");
    raising(value.py())(Error::new(ErrorKind::Config, why))
}
