//! What `-v` shows.

use std::env;
use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::output;

/// Filters as `tracing-subscriber` knows them, for what `-v` can't express.
const FILTER_VARIABLE: &str = "LEASEHOLD_LOG";

/// Starts logging to stderr if `-v` was given, or `LEASEHOLD_LOG` is set.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => None,
        1 => Some("leasehold=info,leasehold::lock=debug"),
        2 => Some("leasehold=debug"),
        _ => Some("leasehold=trace,debug"),
    };
    let Some(filter) = level.map(str::to_owned).or_else(|| env::var(FILTER_VARIABLE).ok()) else {
        return;
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_ansi(false)
        .without_time()
        .with_writer(|| Line(Vec::new()))
        .finish();
    // Nothing else in this process sets one.
    drop(tracing::subscriber::set_global_default(subscriber));
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
