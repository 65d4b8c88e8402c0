//! Iterates over events and leaders, as they come.

use std::sync::Arc;

use leasehold::{LockEvents, Observer};
use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration};
use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::calls::Face;
use crate::client::Core;
use crate::convert;
use crate::kinds::Kind;
use crate::process::Ours;

/// Made by the first look, so that making it waits for nothing.
struct Source<S, M>(Ours<(Mutex<Option<S>>, M)>);

impl<S, M> Source<S, M> {
    fn new(made: Option<S>, maker: M) -> Arc<Self> {
        Arc::new(Self(Ours::new((Mutex::new(made), maker))))
    }
}

/// Iterates over what happens.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyWatching {
    face: Face,
    core: Arc<Core>,
    source: Watched,
}

enum Watched {
    Events(Arc<Source<LockEvents, Arc<Core>>>),
    Leaders(Arc<Source<Observer, Arc<Kind<leasehold::Election>>>>),
}

impl AnyWatching {
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.source {
            Watched::Events(events) => {
                let (events, face) = (Arc::clone(events), self.face);
                let next = async move {
                    let (events, core) = events.0.get()?;
                    let mut events = events.lock().await;
                    let events = match &mut *events {
                        Some(events) => events,
                        none => none.insert(core.client().await?.events()),
                    };
                    Ok(events.next().await)
                };
                self.face.run(py, self.core.timed(next), move |py, event| match event {
                    Some(event) => Ok(convert::event(py, &event)?.unbind()),
                    None if face == Face::Threads => Err(PyStopIteration::new_err(())),
                    None => Err(PyStopAsyncIteration::new_err(())),
                })
            }
            Watched::Leaders(leaders) => {
                let leaders = Arc::clone(leaders);
                let next = async move {
                    let (leaders, kind) = leaders.0.get()?;
                    let mut leaders = leaders.lock().await;
                    let leaders = match &mut *leaders {
                        Some(leaders) => leaders,
                        none => none.insert(kind.value().await?.observe()),
                    };
                    leaders.changed().await
                };
                self.face.run(py, self.core.timed(next), |py, leader| {
                    convert::optional(py, leader.as_ref(), convert::leader)
                })
            }
        }
    }

    fn of(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self.face {
            Face::Threads => Py::new(py, (Watching, self))?.into_any(),
            Face::Tasks => Py::new(py, (AWatching, self))?.into_any(),
        })
    }
}

/// An iterator for threads.
#[pyclass(frozen, extends = AnyWatching, module = "leasehold")]
pub(crate) struct Watching;

#[pymethods]
impl Watching {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        slf.as_super().get().next(slf.py())
    }
}

/// An iterator for tasks.
#[pyclass(frozen, extends = AnyWatching, name = "Watching", module = "leasehold.aio")]
pub(crate) struct AWatching;

#[pymethods]
impl AWatching {
    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        slf.as_super().get().next(slf.py())
    }
}

/// The events of a client's leases: from now on if it is connected, else from the first look on.
pub(crate) fn events(py: Python<'_>, face: Face, core: &Arc<Core>) -> PyResult<Py<PyAny>> {
    let events = core.connected().map(leasehold::Client::events);
    let source = Watched::Events(Source::new(events, Arc::clone(core)));
    AnyWatching { face, core: Arc::clone(core), source }.of(py)
}

/// The leaders of an election.
pub(crate) fn leaders(
    py: Python<'_>,
    face: Face,
    kind: &Arc<Kind<leasehold::Election>>,
) -> PyResult<Py<PyAny>> {
    let source = Watched::Leaders(Source::new(None, Arc::clone(kind)));
    AnyWatching { face, core: Arc::clone(&kind.core), source }.of(py)
}
