//! Distinguishes a process from its forks.

/// A process, distinct from its forks.
///
/// A process number does not suffice, since numbers are used again. The first process of a new PID
/// namespace has the number 1, and so may the process that forked it, in a container. So on Linux
/// this is kept in memory that the kernel empties in a fork's child (`MADV_WIPEONFORK`, since Linux
/// 4.14), by every kind of fork. On other systems, and if the kernel refuses such memory, it is the
/// process number.
///
/// ```
/// use leasehold_clock::Process;
///
/// let made_by = Process::current();
/// assert_eq!(made_by, Process::current());
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Process(u64);

impl Process {
    /// This process. Takes no lock, so that it works right after a fork; on Linux it costs a
    /// nanosecond, elsewhere a system call.
    #[must_use]
    pub fn current() -> Self {
        Self(imp::current())
    }

    /// Whether it is the calling process.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Whether it is certainly distinct from its forks, even if they have its number in another PID
    /// namespace, or get it when it has ended.
    #[must_use]
    pub const fn is_told_from_forks(self) -> bool {
        self.0 > u32::MAX as u64
    }

    /// A small number for a table with an entry for each process. Processes of one line of descent
    /// have different ones until `places` generations have passed.
    #[must_use]
    pub fn place(self, places: usize) -> usize {
        let places = u64::try_from(places).unwrap_or(u64::MAX);
        self.0.checked_rem(places).and_then(|place| usize::try_from(place).ok()).unwrap_or_default()
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::ptr::{null_mut, with_exposed_provenance_mut};
    use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// What is mapped; the kernel makes it a page.
    const BYTES: usize = size_of::<AtomicU64>();
    /// Stands for a page that could not be mapped.
    const NONE: usize = align_of::<AtomicU64>();
    /// Process numbers are below this, generations above.
    const GENERATIONS: u64 = 1 << 32;

    /// Where this process's generation is kept: 0 until the first call, and again in a fork's
    /// child.
    static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
    /// How many generations there were on the way to this process. A child inherits it, and so
    /// takes a later one than any that its parent had.
    static LAST: AtomicU64 = AtomicU64::new(GENERATIONS);

    pub(super) fn current() -> u64 {
        let page = match PAGE.load(Ordering::Acquire) {
            page if page.is_null() => map(),
            page => page,
        };
        if page.addr() == NONE {
            return u64::from(std::process::id());
        }
        // SAFETY: a page in `PAGE` is mapped, large enough, aligned, and stays mapped. It begins as
        // zeros, which is a value of the type. Only the kernel changes it otherwise, when it
        // empties the page in a process that has yet to run.
        let generation = unsafe { &*page };
        match generation.load(Ordering::Acquire) {
            0 => begin(generation),
            known => known,
        }
    }

    #[cold]
    fn begin(generation: &AtomicU64) -> u64 {
        let next = LAST.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        match generation.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => next,
            Err(first) => first,
        }
    }

    #[cold]
    fn map() -> *mut AtomicU64 {
        let page = wiped_on_fork().unwrap_or_else(|| with_exposed_provenance_mut(NONE));
        match PAGE.compare_exchange(null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page,
            Err(first) => {
                if page.addr() != NONE {
                    // SAFETY: it was mapped here with this length, and no other code has its
                    // address. If this fails, one page stays too many.
                    _ = unsafe { munmap(page.cast(), BYTES) };
                }
                first
            }
        }
    }

    fn wiped_on_fork() -> Option<*mut AtomicU64> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, at an address that the kernel chooses.
        let page = unsafe { mmap_anonymous(null_mut(), BYTES, access, kind) }.ok()?;
        // SAFETY: the memory just mapped, with its length; it changes nothing in this process.
        if unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above, and it is not used after.
            _ = unsafe { munmap(page, BYTES) };
            return None;
        }
        Some(page.cast())
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(super) fn current() -> u64 {
        u64::from(std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_agree() {
        let here = Process::current();
        let others: Vec<_> = (0..8).map(|_| std::thread::spawn(Process::current)).collect();
        assert!(others.into_iter().all(|other| other.join().unwrap() == here));
        assert!(here.is_current());
    }

    /// The exit code of a fork's child that runs `body`, which must not panic or allocate.
    #[cfg(unix)]
    fn in_a_fork(body: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child makes system calls only and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = body();
            // SAFETY: ends the child without what belongs to the parent.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    /// By the process number, the first process of a container would take the one that it forks
    /// into a new PID namespace for itself.
    #[cfg(target_os = "linux")]
    #[test]
    fn it_does_not_depend_on_process_numbers() {
        assert!(Process::current().is_told_from_forks(), "the kernel wipes no memory on fork");
    }

    #[cfg(unix)]
    #[test]
    fn a_fork_and_a_forks_fork_are_processes_of_their_own() {
        let parent = Process::current();
        let status = in_a_fork(|| {
            let child = Process::current();
            let grandchild = in_a_fork(|| !parent.is_current() && !child.is_current());
            child != parent && child.is_current() && grandchild == 0
        });
        assert_eq!(status, 0);
        assert!(parent.is_current());
    }
}
