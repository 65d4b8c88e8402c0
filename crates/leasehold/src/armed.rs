//! Cleaning up after an acquisition that nobody waits for any more.

use leasehold_core::{Key, Moment, Token};

use crate::reap::{Reaper, Remains};
use crate::settings::Settings;

/// An acquisition that may have left something in the store.
///
/// It is made before the first byte is sent. Dropped at any point, it hands its token to the
/// reaper; only an answer that says there is nothing to give up disarms it.
#[derive(Debug)]
pub(crate) struct Armed {
    reaper: Reaper,
    key: Key,
    token: Token,
    /// A grant closes the lock, for a use that nobody will make of it now.
    reopen: bool,
    until: Moment,
    /// A request is on its way.
    asking: bool,
    /// A request was never answered, and may still be carried out.
    in_doubt: bool,
    /// The last answer said that the token has something.
    has_something: bool,
}

impl Armed {
    pub(crate) fn new(reaper: Reaper, settings: &Settings, token: Token) -> Self {
        Self {
            reaper,
            key: settings.key.clone(),
            token,
            reopen: settings.close_for.is_some(),
            until: Moment::default(),
            asking: false,
            in_doubt: false,
            has_something: false,
        }
    }

    /// A request goes out now; whatever it takes has expired at `until` by itself.
    pub(crate) fn sending(&mut self, until: Moment) {
        self.asking = true;
        self.until = self.until.max(until);
    }

    /// The answer came: the token has something in the store.
    pub(crate) fn has_something(&mut self) {
        self.asking = false;
        self.has_something = true;
    }

    /// The answer came: the token has nothing in the store.
    pub(crate) fn has_nothing(&mut self) {
        self.asking = false;
        self.has_something = false;
    }

    /// The request did not reach the store; what earlier ones brought stands.
    pub(crate) fn not_sent(&mut self) {
        self.asking = false;
    }

    /// No answer came.
    pub(crate) fn unanswered(&mut self) {
        self.asking = false;
        self.in_doubt = true;
    }

    /// The token has been given to somebody who takes care of it.
    pub(crate) fn disarm(&mut self) {
        (self.asking, self.in_doubt, self.has_something) = (false, false, false);
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let in_doubt = self.asking || self.in_doubt;
        if in_doubt || self.has_something {
            self.reaper.send(Remains::Acquisition {
                key: self.key.clone(),
                token: self.token,
                until: self.until,
                in_doubt,
                reopen: self.reopen,
            });
        }
    }
}
