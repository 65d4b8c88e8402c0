//! Cleaning up after an acquisition that nobody waits for any more.

use leasehold_core::{Key, Moment, Token};

use crate::reap::{Reaper, Remains};

/// An acquisition that may have left something in the store.
///
/// It is made before the first byte is sent. Dropped at any point, it hands its token to the
/// reaper; only an answer that says there is nothing to give up disarms it.
#[derive(Debug)]
pub(crate) struct Armed {
    reaper: Reaper,
    key: Key,
    token: Token,
    until: Moment,
    in_doubt: bool,
    armed: bool,
}

impl Armed {
    pub(crate) fn new(reaper: Reaper, key: Key, token: Token) -> Self {
        Self { reaper, key, token, until: Moment::default(), in_doubt: false, armed: false }
    }

    /// A request goes out now; whatever it takes has expired at `until` by itself.
    pub(crate) fn sending(&mut self, until: Moment) {
        self.armed = true;
        self.in_doubt = true;
        self.until = self.until.max(until);
    }

    /// The answer came: the token has something in the store, and no request is on its way.
    pub(crate) fn has_something(&mut self) {
        self.in_doubt = false;
    }

    /// The token has nothing in the store, or has been given to somebody who takes care of it.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if self.armed {
            self.reaper.send(Remains::Acquisition {
                key: self.key.clone(),
                token: self.token,
                until: self.until,
                in_doubt: self.in_doubt,
            });
        }
    }
}
