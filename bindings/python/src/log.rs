//! Gives what leasehold logs to Python's `logging`, through a queue.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{self, Interest};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::calls::{self, Call};

/// From which level on events are taken, as `logging` counts.
static LEVEL: AtomicU8 = AtomicU8::new(u8::MAX);

struct Log;

/// The level of `logging` that stands for one of `tracing`.
fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may change.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("leasehold")
            && number(metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        let metadata = event.metadata();
        calls::tell(Call::Log(number(metadata.level()), metadata.target(), message + &fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` can't fail.
        if field.name() == "message" {
            write!(self.message, "{value:?}").ok();
        } else {
            write!(self.fields, " {}={value:?}", field.name()).ok();
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.record_debug(field, &value);
        }
    }
}

/// Whether there is a logger for the events.
pub(crate) fn is_on() -> bool {
    LEVEL.load(Ordering::Relaxed) != u8::MAX
}

/// From now on events of this level and above go to the thread `leasehold-calls`.
#[pyfunction]
pub(crate) fn log_from(level: u8) -> PyResult<()> {
    let before = LEVEL.swap(level, Ordering::Relaxed);
    if before == u8::MAX {
        subscriber::set_global_default(Log).map_err(|_| {
            PyRuntimeError::new_err("another log of leasehold was set in this process")
        })?;
    }
    Ok(())
}
