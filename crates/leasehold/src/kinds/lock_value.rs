//! What every kind of lock is made of: a client, and the options of the lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Key, Mode, Result};

use crate::lease::guard::Guard;
use crate::settings::{Named, Settings};
use crate::shared::Inner;
use crate::waiting;
use crate::waiting::acquisition::Acquisition;
use crate::waiting::gate::Gates;

/// Cheap to clone; making one can't fail.
#[derive(Clone)]
pub(crate) struct LockValue {
    gates: Arc<Gates>,
    pub(crate) settings: Result<Named>,
}

impl LockValue {
    pub(crate) fn new(gates: &Arc<Gates>, key: Result<Key>, mode: Mode) -> Self {
        let settings = key.map(|key| {
            let settings = gates.client().settings.in_mode(mode);
            Named { key, settings }
        });
        Self { gates: Arc::clone(gates), settings }
    }

    pub(crate) fn client(&self) -> &Arc<Inner> {
        self.gates.client()
    }

    /// Changes a setting. The first wrong one is kept, and reported by the method that locks.
    pub(crate) fn set(&mut self, set: impl FnOnce(&mut Settings) -> Result<()>) {
        if let Ok(Named { key, settings }) = &mut self.settings
            && let Err(error) = set(Arc::make_mut(settings))
        {
            let error = error.on_key(key);
            self.settings = Err(error);
        }
    }

    /// This value with a setting changed.
    pub(crate) fn with(&self, set: impl FnOnce(&mut Settings) -> Result<()>) -> Self {
        let mut value = self.clone();
        value.set(set);
        value
    }

    /// This value for another lock.
    pub(crate) fn of(&self, key: &Key) -> Self {
        let mut value = self.clone();
        if let Ok(settings) = &mut value.settings {
            settings.key = key.clone();
        }
        value
    }

    pub(crate) fn key(&self) -> Result<&Key> {
        match &self.settings {
            Ok(settings) => Ok(&settings.key),
            Err(error) => Err(error.clone()),
        }
    }

    pub(crate) async fn try_take(&self) -> Result<Option<Guard>> {
        let mut acquisition = self.acquisition(Some(Duration::ZERO))?;
        let begun_now = acquisition.limits.started;
        acquisition.try_once(begun_now).await
    }

    /// Waits for at most `limit`, or for the limit of the settings.
    pub(crate) async fn take(&self, limit: Option<Duration>) -> Result<Guard> {
        self.wait(Box::new(self.acquisition(limit)?)).await
    }

    /// Continues an acquisition until the lock is held.
    pub(crate) async fn wait(&self, acquisition: Box<Acquisition>) -> Result<Guard> {
        waiting::wait(acquisition, &self.gates).await
    }

    pub(crate) fn acquisition(&self, limit: Option<Duration>) -> Result<Acquisition> {
        Acquisition::new(self.client(), &self.settings, limit)
    }

    /// The lock on one line, under the name of its kind.
    pub(crate) fn describe(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        match &self.settings {
            Ok(settings) => {
                shown.field("key", &settings.key.as_str());
                shown.field("ttl", &settings.ttl.duration());
            }
            Err(error) => {
                shown.field("wrong", &error.to_string());
            }
        }
        shown.field("store", &self.client().location()).finish()
    }
}

/// What the kinds of locks share.
macro_rules! lock {
    ($type:ident) => {
        impl $type {
            /// Takes over what these options set; the rest stays as it is.
            pub fn options(mut self, options: &crate::LockOptions) -> Self {
                self.value.set(|settings| settings.set(options));
                self
            }
        }

        $crate::kinds::lock_value::shown!($type);
    };
}
pub(crate) use lock;

macro_rules! shown {
    ($type:ident) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.value.describe(stringify!($type), f)
            }
        }
    };
}
pub(crate) use shown;
