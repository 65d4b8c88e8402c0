//! A value in this process that rejects stale holders.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Fence;

use super::stale::StaleFence;

/// A value that can only be touched with a fencing token (fence) at least as high as every one
/// before it.
///
/// Check and work are one step: each method holds a plain in-process lock while it compares the
/// fence, raises the record and runs the closure. Keep those closures short. Don't use the same
/// cell inside one: that waits for itself.
///
/// A panic in a closure leaves the record raised and the value as the closure left it.
#[derive(Debug)]
pub struct FencedCell<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    seen: Fence,
    /// The highest fence of shared leases.
    shared: Fence,
    value: T,
}

impl<T> FencedCell<T> {
    /// A cell without a fence record.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self::with_seen(value, Fence::ZERO)
    }

    /// A cell with this fence record: for a value that was loaded together with its record.
    #[must_use]
    pub const fn with_seen(value: T, seen: Fence) -> Self {
        Self { state: Mutex::new(State { seen, shared: Fence::ZERO, value }) }
    }

    /// Refuses every lower fence from now on, without touching the value.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] when a higher fence has been seen.
    pub fn begin(&self, fence: Fence) -> Result<(), StaleFence> {
        self.touch(fence).map(drop)
    }

    /// Shows the value to `read`.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] when a higher fence has been seen; `read` is not called.
    pub fn read<R>(&self, fence: Fence, read: impl FnOnce(&T) -> R) -> Result<R, StaleFence> {
        self.touch(fence).map(|state| read(&state.value))
    }

    /// Shows the value to `read` under a [shared lease](super#shared-leases): refused only when an
    /// exclusive holder with a higher fence has touched the cell.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] when a later exclusive holder has touched the cell; `read` is not called.
    pub fn read_shared<R>(
        &self,
        fence: Fence,
        read: impl FnOnce(&T) -> R,
    ) -> Result<R, StaleFence> {
        let mut state = self.state();
        if fence < state.seen {
            return Err(StaleFence::new(state.seen, fence));
        }
        state.shared = state.shared.max(fence);
        Ok(read(&state.value))
    }

    /// Lets `update` change the value.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] when a higher fence has been seen; `update` is not called.
    pub fn update<R>(
        &self,
        fence: Fence,
        update: impl FnOnce(&mut T) -> R,
    ) -> Result<R, StaleFence> {
        self.touch(fence).map(|mut state| update(&mut state.value))
    }

    /// Puts another value in place and returns the one before.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] when a higher fence has been seen; the new value is dropped.
    pub fn replace(&self, fence: Fence, value: T) -> Result<T, StaleFence> {
        self.touch(fence).map(|mut state| std::mem::replace(&mut state.value, value))
    }

    /// The highest fence seen, to be stored with the value.
    #[must_use]
    pub fn seen(&self) -> Fence {
        let state = self.state();
        state.seen.max(state.shared)
    }

    /// The value, and the highest fence it has seen.
    #[must_use]
    pub fn into_parts(self) -> (T, Fence) {
        let State { seen, shared, value } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        (value, seen.max(shared))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self, fence: Fence) -> Result<MutexGuard<'_, State<T>>, StaleFence> {
        let mut state = self.state();
        let seen = state.seen.max(state.shared);
        if fence < seen {
            return Err(StaleFence::new(seen, fence));
        }
        state.seen = fence;
        Ok(state)
    }
}

impl<T: Default> Default for FencedCell<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
