//! A part of the async API together with the thread that drives it.

use leasehold_core::Result;

use super::face::Face;
use super::io::Io;
use crate::lease::not_changed::NotChanged;

/// What every type here is made of. A fork's child does not drop it, since that would touch locks
/// and sockets of the parent.
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

    /// Waits for what uses the part up. If waiting is wrong here, the part is dropped.
    pub(super) fn end<U, F>(self, end: impl FnOnce(T) -> F) -> Result<U>
    where
        F: Future<Output = Result<U>>,
    {
        self.io().check()?;
        let (part, io) = self.into_inner();
        io.wait(end(part))
    }

    /// Waits for what makes another part of this one. With an error of the change the part comes
    /// back as the change left it. If waiting is wrong here, it comes back as `unchanged` makes it.
    pub(super) fn change<U, N, V: Face<U>, M: Face<N>, F>(
        self,
        unchanged: impl FnOnce(T) -> N,
        change: impl FnOnce(T) -> F,
    ) -> Result<V, NotChanged<M>>
    where
        F: Future<Output = Result<U, NotChanged<N>>>,
    {
        let may_wait = self.io().check();
        let (part, io) = self.into_inner();
        if let Err(error) = may_wait {
            return Err(NotChanged::new(M::of(unchanged(part), &io), error));
        }
        let changed = io.wait(change(part));
        changed.map(|part| V::of(part, &io)).map_err(|not| not.map(|part| M::of(part, &io)))
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
