//! Replaces the [word](super::word) on systems that lack it.

use std::convert::Infallible;
use std::fs::File;
use std::io;

#[derive(Debug)]
pub(super) struct Word(Infallible);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(dead_code, reason = "without a word only the list of locks tells who is inside")]
pub(super) enum Inside {
    Process(u32),
    OfAnotherNamespace(u32),
}

impl Word {
    pub(super) const fn works(_file: &File) -> bool {
        false
    }

    pub(super) fn make(_file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn map(_file: &File, _again: &File) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) const fn try_enter(&self) -> io::Result<bool> {
        match self.0 {}
    }

    pub(super) const fn try_follow(&self, _file: &File) -> io::Result<bool> {
        match self.0 {}
    }

    pub(super) const fn leave(&self) {
        match self.0 {}
    }

    pub(super) const fn inside(&self) -> Option<Inside> {
        match self.0 {}
    }
}
