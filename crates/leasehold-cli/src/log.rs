//! Prints what `-v` shows.

use std::fmt;
use std::io::{self, Write};

use leasehold::Fence;
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormattedFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, FormatFields, Writer};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::failure::{Failure, Outcome};
use crate::leases::Numbers;
use crate::output;
use crate::settings::given;

/// Targets and their levels (`leasehold=debug,warn`), for what `-v` can't express.
const FILTER_VARIABLE: &str = "LEASEHOLD_LOG";

/// Starts logging to stderr if `-v` was given, or `LEASEHOLD_LOG` is set. Fences of the library are
/// printed as these numbers.
pub(crate) fn start(verbose: u8, numbers: Numbers) -> Outcome<()> {
    let level = match verbose {
        0 => None,
        1 => Some("leasehold=info,leasehold::lock=debug"),
        2 => Some("leasehold=debug"),
        _ => Some("leasehold=trace,debug"),
    };
    let filter = match level {
        Some(level) => level.to_owned(),
        None => match given(FILTER_VARIABLE)? {
            Some(filter) => filter.to_string_lossy().into_owned(),
            None => return Ok(()),
        },
    };
    let filter: Targets = filter.parse().map_err(|_| {
        Failure::config(format!(
            "{FILTER_VARIABLE} has no filter that can be read; write TARGET=LEVEL,… or a level, as in \
             leasehold=debug"
        ))
    })?;
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .fmt_fields(Fields { numbers })
        .without_time()
        .with_writer(|| Line(Vec::new()));
    let subscriber = tracing_subscriber::registry().with(filter).with(layer);
    // This is the only place that sets one.
    drop(tracing::subscriber::set_global_default(subscriber));
    Ok(())
}

/// The usual way to write fields, but for fences.
#[derive(Clone, Copy, Debug)]
struct Fields {
    numbers: Numbers,
}

impl Fields {
    fn write(self, writer: Writer<'_>, fields: impl RecordFields) -> fmt::Result {
        let visitor = DefaultVisitor::new(writer, true);
        let mut picked = Picked { numbers: self.numbers, visitor };
        fields.record(&mut picked);
        picked.visitor.finish()
    }
}

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        self.write(writer, fields)
    }

    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &Record<'_>,
    ) -> fmt::Result {
        let mut added = FormattedFields::<Self>::new(String::new());
        self.write(added.as_writer(), fields)?;
        if !current.fields.is_empty() && !added.fields.is_empty() {
            current.fields.push(' ');
        }
        current.fields.push_str(&added.fields);
        Ok(())
    }
}

/// Writes all fields, and the fence in the form of other messages.
#[derive(Debug)]
struct Picked<'a> {
    numbers: Numbers,
    visitor: DefaultVisitor<'a>,
}

impl Visit for Picked<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.numbers == Numbers::Fences || field.name() != "fence" {
            return self.visitor.record_debug(field, value);
        }
        let fence =
            format!("{value:?}").parse().ok().and_then(|value| Fence::from_value(value).ok());
        if let Some(number) = fence.and_then(|fence| self.numbers.text(fence)) {
            self.visitor.record_debug(field, &format_args!("{number}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.visitor.record_str(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.visitor.record_error(field, value);
    }
}

/// One event, printed as a message, without secrets, when it is complete.
#[derive(Debug)]
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            output::message(&String::from_utf8_lossy(&self.0));
        }
    }
}
