//! The checked settings of a lock value.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::{Exponential, RetryStrategy};
use leasehold_core::{
    Cooldown, Error, ErrorKind, Key, LeaseState, Metadata, Mode, Moment, OwnerName, Result, Ttl,
    length,
};

use crate::audience::Audience;
use crate::config::Config;
use crate::options::{Fairness, LockOptions, WaitLimit};

/// A lock's name and its settings, which are shared by locks with equal settings.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) key: Key,
    pub(crate) settings: Arc<Settings>,
}

impl Named {
    /// Checks settings that are only valid together.
    pub(crate) fn terms(&self) -> Result<Terms> {
        self.settings.terms().map_err(|error| error.on_key(&self.key))
    }
}

impl Deref for Named {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

/// All settings of a lock value but its name.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    /// Whether a semaphore that is in use with another limit is acquired under that limit.
    pub(crate) stored_limit: bool,
    /// Whether its waiters go before all that lack this.
    pub(crate) preferred: bool,
    /// The cooldown after a grant.
    pub(crate) cooldown: Cooldown,
    pub(crate) ttl: Ttl,
    pub(crate) stop_grace: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) owner: OwnerName,
    pub(crate) metadata: Metadata,
    pub(crate) retry: Arc<dyn RetryStrategy>,
    pub(crate) give_up_early: bool,
    pub(crate) fairness: Fairness,
    pub(crate) max_waiters: Option<u32>,
    pub(crate) wait_limit: WaitLimit,
    /// Whether the lease may be handed off inside this process, without the store.
    pub(crate) handed_on: bool,
    pub(crate) min_ttl: Ttl,
    /// Gets the events of the leases.
    pub(crate) audience: Arc<Audience>,
}

/// How a lease is held.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Terms {
    pub(crate) ttl: Ttl,
    pub(crate) grace: Duration,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
}

impl Settings {
    /// The client's defaults.
    pub(crate) fn new(config: &Config, audience: &Arc<Audience>) -> Self {
        let retry = Exponential::new(Duration::from_millis(5), Duration::from_millis(250));
        let mut settings = Self {
            mode: Mode::Exclusive,
            stored_limit: false,
            preferred: false,
            cooldown: Cooldown::NONE,
            ttl: config.ttl,
            stop_grace: None,
            renew: true,
            max_hold: None,
            progress_within: None,
            owner: config.owner.clone(),
            metadata: Metadata::default(),
            retry: Arc::new(retry.jitter(0.25)),
            give_up_early: false,
            fairness: Fairness::Fifo,
            max_waiters: None,
            wait_limit: WaitLimit::Forever,
            handed_on: true,
            min_ttl: config.min_ttl,
            audience: Arc::clone(audience),
        };
        settings.put(&config.options);
        settings
    }

    pub(crate) fn set(&mut self, options: &LockOptions) -> Result<()> {
        if let Some(error) = &options.wrong {
            return Err(error.clone());
        }
        self.put(options);
        Ok(())
    }

    fn put(&mut self, options: &LockOptions) {
        fn put<T: Clone>(option: Option<&T>, setting: &mut T) {
            if let Some(value) = option {
                setting.clone_from(value);
            }
        }
        put(options.ttl.as_ref(), &mut self.ttl);
        put(options.stop_grace.map(Some).as_ref(), &mut self.stop_grace);
        put(options.renew.as_ref(), &mut self.renew);
        put(options.max_hold.as_ref(), &mut self.max_hold);
        put(options.progress_within.as_ref(), &mut self.progress_within);
        put(options.metadata.as_ref(), &mut self.metadata);
        put(options.owner.as_ref(), &mut self.owner);
        put(options.fairness.as_ref(), &mut self.fairness);
        put(options.retry.as_ref(), &mut self.retry);
        put(options.give_up_early.as_ref(), &mut self.give_up_early);
        put(options.max_waiters.as_ref(), &mut self.max_waiters);
        put(options.wait_limit.as_ref(), &mut self.wait_limit);
    }

    /// For how long to wait: the limit of the call, or else the limit that is set.
    pub(crate) fn limit(&self, told: Option<Duration>) -> Option<Duration> {
        told.or_else(|| self.wait_limit.under(self.ttl))
    }

    /// As these settings, in this mode.
    pub(crate) fn in_mode(self: &Arc<Self>, mode: Mode) -> Arc<Self> {
        let mut settings = Arc::clone(self);
        if settings.mode != mode {
            Arc::make_mut(&mut settings).mode = mode;
        }
        settings
    }

    /// As [`Named::terms`].
    pub(crate) fn terms(&self) -> Result<Terms> {
        let Self { ttl, min_ttl, .. } = self;
        if ttl < min_ttl {
            let why = format!(
                "a ttl of {ttl} is below this client's minimum of {min_ttl}; give a \
                               longer ttl"
            );
            return Err(Error::new(ErrorKind::Config, why));
        }
        // A store must not keep the lock for longer than it may be held.
        let ttl = &match self.max_hold.map(Ttl::new) {
            Some(Ok(max_hold)) => max_hold.min(*ttl),
            Some(Err(_)) | None => *ttl,
        };
        Ok(Terms {
            ttl: *ttl,
            grace: self.grace_of(*ttl)?,
            renew: self.renew,
            max_hold: self.max_hold,
            progress_within: self.progress_within,
        })
    }

    /// The grace for stopping under a lease of this length, if that leaves time to work.
    pub(crate) fn grace_of(&self, ttl: Ttl) -> Result<Duration> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Config, why));
        let grace = self.stop_grace.unwrap_or_else(|| LeaseState::default_grace(ttl));
        let shown = length::typed(grace);
        if grace > ttl.part(2) {
            return refuse(format!(
                "a grace of {shown} is more than half of the ttl of {ttl}; give a shorter grace or \
                 a longer ttl"
            ));
        }
        let start = Moment::default();
        if LeaseState::granted(start, ttl, grace, start).is_none() {
            return refuse(format!(
                "a ttl of {ttl} leaves no time to work after its margin (1 % and 2 ms) and the \
                 grace of {shown}; give a longer ttl"
            ));
        }
        Ok(grace)
    }
}
