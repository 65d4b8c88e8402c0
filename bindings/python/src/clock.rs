//! A clock for tests, which stands still until it is moved, and the thread whose timers follow it.

use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use leasehold::{ClientBuilder, Error, ErrorKind, Result};
use leasehold_clock::ManualClock;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::calls::wait;
use crate::convert::raising;
use crate::options::length;
use crate::process::Ours;

/// How often the tasks of the clock's thread get a turn after a step. A renewal takes a few.
const TURNS: usize = 256;

const ROUNDING: Duration = Duration::from_millis(2);

/// A time of its own: a clock, and a runtime with paused timers.
pub(crate) struct Time {
    clock: ManualClock,
    runtime: Handle,
    steps: mpsc::Sender<(Duration, oneshot::Sender<()>)>,
}

impl Time {
    fn start() -> Result<Arc<Self>> {
        let failed = |error| {
            let why = Error::new(ErrorKind::Unavailable, "the thread of a clock can't be started");
            why.caused_by(error)
        };
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.map_err(failed)?;
        let (steps, taken) = mpsc::channel::<(Duration, oneshot::Sender<()>)>();
        let clock = ManualClock::new();
        let this = Self { clock: clock.clone(), runtime: runtime.handle().clone(), steps };
        let (ask, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let go = move || {
            // While such a task runs, the runtime does not move its time by itself.
            runtime.spawn_blocking(move || taken.iter().try_for_each(|step| ask.send(step)));
            runtime.block_on(async {
                while let Some((by, done)) = asked.recv().await {
                    clock.advance(by);
                    // The runtime rounds the ends of its timers up.
                    tokio::time::advance(by.saturating_add(ROUNDING)).await;
                    for _ in 0..TURNS {
                        tokio::task::yield_now().await;
                    }
                    // A caller that was interrupted waits no longer.
                    done.send(()).ok();
                }
            });
        };
        thread::Builder::new().name("leasehold-clock".to_owned()).spawn(go).map_err(failed)?;
        Ok(Arc::new(this))
    }

    /// A client with this setting counts on it.
    pub(crate) fn set(&self, builder: ClientBuilder) -> ClientBuilder {
        builder.clock(Arc::new(self.clock.clone())).tokio_time()
    }

    /// For tasks whose timers follow it.
    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

/// A future whose timers follow a clock, if there is one. It lies in a box, since it goes through
/// many hands and is large.
pub(crate) struct Timed<F> {
    future: Pin<Box<F>>,
    time: Option<Arc<Time>>,
}

impl<F> Timed<F> {
    pub(crate) fn new(future: F, time: Option<Arc<Time>>) -> Self {
        Self { future: Box::pin(future), time }
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, time } = self.get_mut();
        let _entered = time.as_ref().map(|time| time.runtime.enter());
        future.as_mut().poll(context)
    }
}

#[doc = about!("FakeClock")]
#[pyclass(frozen, module = "leasehold.testing")]
pub(crate) struct FakeClock(Ours<Arc<Time>>);

impl FakeClock {
    pub(crate) fn time(&self) -> Result<Arc<Time>> {
        self.0.get().map(Arc::clone)
    }
}

#[pymethods]
impl FakeClock {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Time::start().map(|time| Self(Ours::new(time))).map_err(raising(py))
    }

    #[doc = about!("FakeClock.advance")]
    fn advance(&self, py: Python<'_>, by: &Bound<'_, PyAny>) -> PyResult<()> {
        let (by, time) = (length(by)?, self.time().map_err(raising(py))?);
        let (done, is_done) = oneshot::channel();
        let gone = || Error::new(ErrorKind::Closed, "the thread of this clock has ended");
        time.steps.send((by, done)).map_err(|_| raising(py)(gone()))?;
        wait(py, async { is_done.await.map_err(|_| gone()) })?.map_err(raising(py))
    }
}
