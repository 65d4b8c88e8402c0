//! What every command gets: settings, and the state that the process was started in.

use std::os::fd::RawFd;

use crate::failure::{Failure, Outcome};
use crate::inherited::Inherited;
use crate::settings::Settings;
use crate::signals::Signals;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) inherited: Inherited,
    /// The files that a command is to inherit, apart from the standard ones.
    pub(crate) files: Vec<RawFd>,
    /// Whether a busy lock goes without a message.
    pub(crate) quiet: bool,
    /// Whether somebody reads why it takes long.
    pub(crate) explain: bool,
}

impl Context {
    /// Catches the signals that ask to end, so that nothing is left behind.
    pub(crate) fn catch_signals(&self) -> Outcome<Signals> {
        Signals::catch_fatal(self.inherited)
            .map_err(|error| Failure::system("catch signals", &error))
    }
}
