//! Cleaning up after an abandoned acquisition.

use std::sync::Arc;

use leasehold_core::{Key, Moment, Token};

use crate::lease::orphans::{Counted, GivenUp, Orphan};
use crate::settings::Named;
use crate::shared::Inner;

/// An acquisition that may have left something in the store.
///
/// It is made before the first byte is sent. Dropped at any point, it hands its token to the
/// reaper; only an answer that says there is nothing to give up disarms it.
#[derive(Debug)]
pub(crate) struct Armed {
    client: Arc<Inner>,
    /// While there may be something to give up, closing the client waits for it.
    counted: Option<Counted>,
    key: Key,
    token: Token,
    /// A grant has started a cool-down, for work that will not be done now.
    reopen: bool,
    until: Moment,
    /// When the last request was sent.
    sent_at: Moment,
    /// A request is on its way.
    asking: bool,
    /// A request was never answered, and may still be carried out.
    in_doubt: bool,
    /// The last answer said that the token has something.
    has_something: bool,
}

impl Armed {
    pub(crate) fn new(client: &Arc<Inner>, settings: &Named, token: Token) -> Self {
        Self {
            client: Arc::clone(client),
            counted: None,
            key: settings.key.clone(),
            token,
            reopen: settings.cooldown.is_some(),
            until: Moment::default(),
            sent_at: Moment::default(),
            asking: false,
            in_doubt: false,
            has_something: false,
        }
    }

    /// A request goes out now; whatever it takes has expired at `until` by itself.
    pub(crate) fn sending(&mut self, now: Moment, until: Moment) {
        self.asking = true;
        self.sent_at = now;
        self.until = self.until.max(until);
        self.counted.get_or_insert_with(|| self.client.reaper.arm());
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
        self.count_no_more();
    }

    /// The request did not reach the store; what earlier ones brought stands.
    pub(crate) fn not_sent(&mut self) {
        self.asking = false;
        self.count_no_more();
    }

    /// No answer came.
    pub(crate) fn unanswered(&mut self) {
        self.asking = false;
        self.in_doubt = true;
    }

    /// The token has been given to its next owner.
    pub(crate) fn disarm(&mut self) {
        (self.asking, self.in_doubt, self.has_something) = (false, false, false);
        self.count_no_more();
    }

    /// Whether the token may have something in the store.
    pub(crate) fn may_have_something(&self) -> bool {
        self.asking || self.in_doubt || self.has_something
    }

    fn count_no_more(&mut self) {
        if !self.may_have_something() {
            self.counted = None;
        }
    }

    /// Hands over what the token may have, in the background; `None` when that is nothing.
    pub(crate) fn give_up(&mut self) -> Option<GivenUp> {
        let given_up = self.may_have_something().then(|| {
            self.client.reaper.send(Orphan::Acquisition {
                key: self.key.clone(),
                token: self.token,
                until: self.until,
                in_doubt: self.asking || self.in_doubt,
                reopen: self.reopen,
            })
        });
        self.disarm();
        given_up
    }

    /// From when on it is of use to wait for the store: from now on where it has answered, and
    /// otherwise from when it was asked, so that a store that is silent is waited for once.
    pub(crate) fn in_touch_since(&self, now: Moment) -> Moment {
        if self.has_something { now } else { self.sent_at }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        drop(self.give_up());
    }
}
