//! The checked settings of a lock value.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::{Exponential, RetryStrategy};
use leasehold_core::{
    Cooldown, Error, ErrorKind, Key, LeaseState, Mode, Moment, Result, Ttl, length,
};

use crate::audience::Audience;
use crate::config::Config;
use crate::options::LockOptions;

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

/// Waits between tries grow from 5 ms to 250 ms.
fn usual_retry() -> Arc<dyn RetryStrategy> {
    Arc::new(Exponential::new(Duration::from_millis(5), Duration::from_millis(250)).jitter(0.25))
}

macro_rules! settings {
    ($($option:ident: $type:ty = $default:expr;)*) => {
        /// All settings of a lock value but its name.
        #[derive(Clone, Debug)]
        pub(crate) struct Settings {
            $(pub(crate) $option: $type,)*
            pub(crate) mode: Mode,
            /// Whether a semaphore that is in use with another limit is acquired under that limit.
            pub(crate) stored_limit: bool,
            /// Whether its waiters go before all that lack this.
            pub(crate) preferred: bool,
            /// The cooldown after a grant.
            pub(crate) cooldown: Cooldown,
            /// Whether the lease may be handed off inside this process, without the store.
            pub(crate) handed_on: bool,
            pub(crate) min_ttl: Ttl,
            /// Gets the events of the leases.
            pub(crate) audience: Arc<Audience>,
        }

        impl Settings {
            /// The client's defaults.
            pub(crate) fn new(config: &Config, audience: &Arc<Audience>) -> Self {
                let mut settings = Self {
                    $($option: {
                        let of: fn(&Config) -> $type = $default;
                        of(config)
                    },)*
                    mode: Mode::Exclusive,
                    stored_limit: false,
                    preferred: false,
                    cooldown: Cooldown::NONE,
                    handed_on: true,
                    min_ttl: config.min_ttl,
                    audience: Arc::clone(audience),
                };
                settings.put(&config.options);
                settings
            }

            fn put(&mut self, options: &LockOptions) {
                $(if let Some(value) = &options.$option {
                    self.$option.clone_from(value);
                })*
            }
        }
    };
}

crate::options::all_options!(settings);

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
    pub(crate) fn set(&mut self, options: &LockOptions) -> Result<()> {
        if let Some(error) = &options.wrong {
            return Err(error.clone());
        }
        self.put(options);
        Ok(())
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
