//! A part of the async API together with the thread that drives it.

use leasehold_core::Result;

use super::io::Io;

/// What every type here is made of. In a fork's child it does not go: that would touch locks and
/// sockets of the parent's.
#[derive(Debug)]
pub(super) struct Driven<T> {
    inner: Option<(T, Io)>,
}

impl<T> Driven<T> {
    pub(super) const fn new(part: T, io: Io) -> Self {
        Self { inner: Some((part, io)) }
    }

    const fn inner(&self) -> &(T, Io) {
        self.inner.as_ref().expect("BUG: only methods that consume the value take its parts")
    }

    pub(super) const fn part(&self) -> &T {
        &self.inner().0
    }

    pub(super) const fn io(&self) -> &Io {
        &self.inner().1
    }

    /// Another part that the same thread drives.
    pub(super) fn with<U>(&self, part: U) -> Driven<U> {
        Driven::new(part, self.io().clone())
    }

    pub(super) fn into_inner(mut self) -> (T, Io) {
        self.inner.take().expect("BUG: only methods that consume the value take its parts")
    }

    pub(super) fn map(self, map: impl FnOnce(T) -> T) -> Self {
        let (part, io) = self.into_inner();
        Self::new(map(part), io)
    }

    /// Waits for what uses the part up. Where waiting is wrong the part is dropped.
    pub(super) fn end<U, F>(self, end: impl FnOnce(T) -> F) -> Result<U>
    where
        F: Future<Output = Result<U>>,
    {
        self.io().check()?;
        let (part, io) = self.into_inner();
        io.wait(end(part))
    }

    /// Waits for what changes the part.
    pub(super) fn wait_mut<'a, F: Future>(
        &'a mut self,
        call: impl FnOnce(&'a mut T) -> F,
    ) -> Result<F::Output> {
        let (part, io) =
            self.inner.as_mut().expect("BUG: only methods that consume the value take its parts");
        io.check()?;
        Ok(io.wait(call(part)))
    }

    /// Waits for what the part does.
    pub(super) fn wait<'a, F: Future>(
        &'a self,
        call: impl FnOnce(&'a T) -> F,
    ) -> Result<F::Output> {
        self.io().check()?;
        Ok(self.io().wait(call(self.part())))
    }
}

impl<T: Clone> Clone for Driven<T> {
    fn clone(&self) -> Self {
        self.with(self.part().clone())
    }
}

impl<T> Drop for Driven<T> {
    fn drop(&mut self) {
        if let Some((part, io)) = self.inner.take() {
            if io.is_ours() {
                drop(part);
            } else {
                std::mem::forget((part, io));
            }
        }
    }
}
