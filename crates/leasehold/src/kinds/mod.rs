//! The kinds of locks that people use.

pub(crate) mod election;
pub(crate) mod lock_value;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod once;
pub(crate) mod reentrant;
pub(crate) mod reentrant_lease;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod typed_guard;
