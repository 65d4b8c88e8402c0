//! Wakes an event loop through a file descriptor, without a call of Python.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// The bell of one event loop. Any thread rings it with the number of what is awake; the loop
/// watches the descriptor. However often it is rung, it is written to once until the loop looks.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptors: imp::Descriptors,
    is_rung: AtomicBool,
    awake: Mutex<Vec<u64>>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptors = imp::Descriptors::new()?;
        Ok(Self { descriptors, is_rung: AtomicBool::new(false), awake: Mutex::default() })
    }

    /// What the loop watches for reading.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptors.reader().as_raw_fd()
    }

    /// The numbers that were rung since the last call.
    pub(crate) fn answer(&self) -> Vec<u64> {
        self.descriptors.drain();
        // Before the numbers are taken: a later one rings again.
        self.is_rung.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.awake.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes what has this number.
    pub(crate) fn waker(self: &Arc<Self>, number: u64) -> Waker {
        Waker::from(Arc::new(Ring { bell: Arc::clone(self), number }))
    }

    fn ring(&self, number: u64) {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            self.descriptors.write();
        }
    }
}

struct Ring {
    bell: Arc<Bell>,
    number: u64,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.bell.ring(self.number);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.ring(self.number);
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::io;

    use rustix::event::{EventfdFlags, eventfd};

    use super::OwnedFd;

    #[derive(Debug)]
    pub(super) struct Descriptors(OwnedFd);

    impl Descriptors {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(super) const fn reader(&self) -> &OwnedFd {
            &self.0
        }

        pub(super) fn drain(&self) {
            // An empty one is no fault: it was drained before.
            rustix::io::read(&self.0, &mut [0; 8]).ok();
        }

        pub(super) fn write(&self) {
            // A full counter has a reader coming already.
            rustix::io::write(&self.0, &1_u64.to_ne_bytes()).ok();
        }
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod imp {
    use std::io;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::OwnedFd;

    #[derive(Debug)]
    pub(super) struct Descriptors {
        reader: OwnedFd,
        writer: OwnedFd,
    }

    impl Descriptors {
        pub(super) fn new() -> io::Result<Self> {
            let (reader, writer) = io::pipe()?;
            let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
            for end in [&reader, &writer] {
                fcntl_setfl(end, OFlags::NONBLOCK)?;
            }
            Ok(Self { reader, writer })
        }

        pub(super) const fn reader(&self) -> &OwnedFd {
            &self.reader
        }

        pub(super) fn drain(&self) {
            while rustix::io::read(&self.reader, &mut [0; 64]).is_ok_and(|length| length == 64) {}
        }

        pub(super) fn write(&self) {
            // A full pipe has a reader coming already.
            rustix::io::write(&self.writer, &[1]).ok();
        }
    }
}
