//! Finds everything that descends from a process, and signals it.
//!
//! A process whose parent ends becomes a child of the nearest ancestor that is a subreaper. So a
//! process can't leave the descent of a subreaper by another group, session or user.
//!
//! Everything here is async-signal-safe: the watchdog uses it after a fork.

#[cfg(not(target_os = "linux"))]
use rustix::process::Pid;

/// The outcome of a signal.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Sent {
    /// How many processes there are that can still do something.
    pub(crate) alive: usize,
    /// How many of them may not be sent one from here.
    pub(crate) refused: usize,
}

/// Has processes whose parents end become children of this one.
#[cfg(target_os = "linux")]
pub(crate) fn take_orphans_in() -> std::io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn take_orphans_in() -> std::io::Result<()> {
    Ok(())
}

/// A process, and none that has its number later.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    pub(crate) group: i32,
    /// Which of those that have had this number.
    pub(crate) started: u64,
    is_dead: bool,
    is_descendant: bool,
}

impl Process {
    /// Whether these are the same.
    pub(crate) const fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }
}

/// A process that is not ours, with all that descends from it. What has lost its parent belongs to
/// it no more, so all that was found once stays known.
#[derive(Debug)]
pub(crate) struct Followed {
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is known there"))]
    known: Vec<Process>,
}

/// Sends what descends from `root`, and not from these, a signal. It says `None` where the system
/// does not show who descends from whom. What is started meanwhile may be missed.
#[cfg(not(target_os = "linux"))]
pub(crate) fn send(_: Pid, _: &[Pid], _: libc::c_int) -> Option<Sent> {
    None
}

#[cfg(not(target_os = "linux"))]
impl Followed {
    pub(crate) const fn new(_: Pid) -> Self {
        Self { known: Vec::new() }
    }

    pub(crate) fn send(&mut self, _: libc::c_int) -> Option<Sent> {
        None
    }
}

/// The process of this number and its ancestors, the nearest first; empty if the system does not
/// show them. Not async-signal-safe.
#[cfg(not(target_os = "linux"))]
pub(crate) const fn line_of(_: Pid) -> Vec<Process> {
    Vec::new()
}

/// The children of a process that can still do something, or `None` as above. Not
/// async-signal-safe.
#[cfg(not(target_os = "linux"))]
pub(crate) fn children(_: Pid) -> Option<Vec<Process>> {
    None
}

#[cfg(not(target_os = "linux"))]
impl Process {
    /// Sends it a signal.
    pub(crate) fn send(&self, _: libc::c_int) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{children, line_of, send};

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::CStr;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
    use std::ptr::NonNull;

    use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
    use rustix::process::Pid;

    use crate::descent::{Followed, Process, Sent};

    /// The number of processes that fit the first allocation.
    const ROOM: usize = 1 << 12;
    /// The most numbers that Linux gives to processes.
    const ROOM_MAX: usize = 1 << 22;
    /// How many processes stay known that have lost their parents.
    const KNOWN_MAX: usize = 1 << 9;
    /// How many generations are looked at.
    const LINE_MAX: usize = 1 << 10;
    /// How often those are stopped that were started meanwhile; with each time there are fewer.
    const STOPS: u32 = 8;

    /// As in the other systems' half.
    pub(crate) fn send(root: Pid, except: &[Pid], signal: libc::c_int) -> Option<Sent> {
        let mut all = Processes::read()?;
        all.mark(|one| one.parent == number_of(root), except);
        Some(all.send(signal))
    }

    impl Followed {
        /// It allocates.
        pub(crate) fn new(root: Pid) -> Self {
            let mut known = Vec::with_capacity(KNOWN_MAX);
            let all = Processes::read();
            let root = all.as_ref().and_then(|all| all.find(number_of(root)));
            known.extend(root.filter(|root| !root.is_dead));
            Self { known }
        }

        /// Sends the process, and what descends from it, a signal, but not the calling process and
        /// what descends from that. `None` as above. What is started meanwhile may be missed by
        /// other signals than KILL.
        pub(crate) fn send(&mut self, signal: libc::c_int) -> Option<Sent> {
            // A child that loses its parent before it was found is found no more. Those that stand
            // still start nothing, and lose nothing.
            for _ in 0..STOPS {
                let known = self.known.len();
                if signal != libc::SIGKILL {
                    break;
                }
                self.send_once(libc::SIGSTOP)?;
                if self.known.len() == known {
                    break;
                }
            }
            self.send_once(signal)
        }

        fn send_once(&mut self, signal: libc::c_int) -> Option<Sent> {
            let mut all = Processes::read().filter(|_| !self.known.is_empty())?;
            let is_known = |one: &Process| self.known.iter().any(|known| known.is(one));
            all.mark(is_known, &[rustix::process::getpid()]);
            for one in all.list().iter().filter(|one| one.is_descendant) {
                // Memory is nothing to ask for here.
                if self.known.len() < self.known.capacity()
                    && !self.known.iter().any(|known| known.is(one))
                {
                    self.known.push(*one);
                }
            }
            Some(all.send(signal))
        }
    }

    /// As in the other systems' half.
    pub(crate) fn line_of(pid: Pid) -> Vec<Process> {
        let Some(proc) = open_proc().filter(numbers_are_ours) else { return Vec::new() };
        let read = |pid| Process::read(&proc, Name::of(pid).text());
        // It ends where a number is given again meanwhile, too, and so could a circle come about.
        let line = std::iter::successors(read(number_of(pid)), |one| read(one.parent));
        line.take(LINE_MAX).collect()
    }

    /// As in the other systems' half.
    pub(crate) fn children(of: Pid) -> Option<Vec<Process>> {
        let is_child = |one: &&Process| one.parent == number_of(of) && !one.is_dead;
        Some(Processes::read()?.list().iter().filter(is_child).copied().collect())
    }

    fn open_proc() -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, c"/proc", flags, Mode::empty()).ok()
    }

    const fn number_of(pid: Pid) -> i32 {
        pid.as_raw_nonzero().get()
    }

    impl Process {
        /// Reads `PID (NAME) STATE PPID PGRP ...`, where the name may contain anything.
        fn parse(stat: &[u8]) -> Option<Self> {
            /// Counted from the state on.
            const PARENT: usize = 1;
            const GROUP: usize = 2;
            const THREADS: usize = 17;
            const STARTED: usize = 19;
            let pid = number(stat.split(|byte| *byte == b' ').next()?)?;
            let after_name = stat.iter().rposition(|byte| *byte == b')')?;
            let fields = stat.get(after_name.saturating_add(2)..)?;
            let field = |n| fields.split(|byte| *byte == b' ').nth(n);
            // Of a process whose first thread has ended the others may still be at work.
            let alone = field(THREADS).and_then(number).is_none_or(|threads| threads <= 1);
            Some(Self {
                pid,
                parent: field(PARENT).and_then(number)?,
                group: field(GROUP).and_then(number)?,
                started: std::str::from_utf8(field(STARTED)?).ok()?.parse().ok()?,
                is_dead: alone && matches!(field(0), Some(b"Z" | b"X")),
                is_descendant: false,
            })
        }

        /// Sends it a signal, unless another process has its number by now. That it has ended is no
        /// error.
        pub(crate) fn send(&self, signal: libc::c_int) -> io::Result<()> {
            let sent = match self.handle() {
                Some(handle) if self.is_the_one_of_its_number() => {
                    let info = std::ptr::null::<libc::siginfo_t>();
                    let handle = handle.as_raw_fd();
                    // SAFETY: the call reads no memory where no information comes along.
                    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle, signal, info, 0) }
                }
                // There are no handles before Linux 5.3.
                // SAFETY: the call touches no memory of this process.
                None if self.is_the_one_of_its_number() => unsafe {
                    libc::kill(self.pid, signal).into()
                },
                _ => 0,
            };
            let error = if sent == 0 { return Ok(()) } else { io::Error::last_os_error() };
            if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
        }

        /// A handle of the process that has its number, which is no other's as long as it is there.
        fn handle(&self) -> Option<OwnedFd> {
            // SAFETY: the call touches no memory of this process.
            let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
            let handle = RawFd::try_from(handle).ok().filter(|handle| *handle >= 0)?;
            // SAFETY: it was opened just now, and has no other owner.
            Some(unsafe { OwnedFd::from_raw_fd(handle) })
        }

        fn is_the_one_of_its_number(&self) -> bool {
            let now = open_proc().and_then(|proc| Self::read(&proc, Name::of(self.pid).text()));
            now.is_some_and(|now| now.started == self.started)
        }

        fn read(proc: &OwnedFd, name: &CStr) -> Option<Self> {
            let mut text = [0; 512];
            Self::parse(read_stat(proc, name, &mut text))
        }
    }

    /// A number as the name of a directory, made without memory.
    struct Name([u8; 12], usize);

    impl Name {
        fn of(pid: i32) -> Self {
            let (mut bytes, mut at, mut rest) = ([0; 12], 11_usize, pid.unsigned_abs());
            while at > 0 {
                at = at.saturating_sub(1);
                if let (Some(byte), Ok(digit)) = (bytes.get_mut(at), u8::try_from(rest % 10)) {
                    *byte = b'0'.saturating_add(digit);
                }
                rest /= 10;
                if rest == 0 {
                    break;
                }
            }
            Self(bytes, at)
        }

        fn text(&self) -> &CStr {
            let bytes = self.0.get(self.1..).unwrap_or_default();
            CStr::from_bytes_until_nul(bytes).unwrap_or_default()
        }
    }

    /// Processes in the order of their numbers, in memory of its own: no allocator can be used
    /// here.
    struct Processes {
        place: NonNull<Process>,
        room: usize,
        length: usize,
    }

    impl Processes {
        fn with_room(room: usize) -> io::Result<Self> {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let bytes = room.saturating_mul(size_of::<Process>());
            // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
            let place =
                unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
            if place == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let place = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { place, room, length: 0 })
        }

        fn list(&self) -> &[Process] {
            // SAFETY: the mapping has room for more, and its zeros are valid processes.
            unsafe { std::slice::from_raw_parts(self.place.as_ptr(), self.length) }
        }

        fn list_mut(&mut self) -> &mut [Process] {
            // SAFETY: as above, and the mapping has no other owner.
            unsafe { std::slice::from_raw_parts_mut(self.place.as_ptr(), self.length) }
        }

        /// All that there are; `None` where they can't be read.
        fn read() -> Option<Self> {
            let mut room = ROOM;
            while room <= ROOM_MAX {
                let proc = open_proc()?;
                if !numbers_are_ours(&proc) {
                    return None;
                }
                let mut all = Self::with_room(room).ok()?;
                if all.fill(&proc)? {
                    return Some(all);
                }
                room = room.saturating_mul(4);
            }
            None
        }

        /// Reads what there is. Whether there was room for it; `None` where it can't be read.
        fn fill(&mut self, proc: &OwnedFd) -> Option<bool> {
            let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
            let mut entries = RawDir::new(proc, &mut buffer);
            while let Some(entry) = entries.next() {
                let entry = entry.ok()?;
                let name = entry.file_name();
                if !name.to_bytes().first().is_some_and(u8::is_ascii_digit) {
                    continue;
                }
                // One that has ended meanwhile has nothing to read any more.
                let Some(process) = Process::read(proc, name) else { continue };
                if self.length == self.room {
                    return Some(false);
                }
                let at = self.length;
                self.length = at.saturating_add(1);
                if let Some(place) = self.list_mut().get_mut(at) {
                    *place = process;
                }
            }
            self.list_mut().sort_unstable_by_key(|process| process.pid);
            Some(true)
        }

        fn find(&self, pid: i32) -> Option<&Process> {
            let at = self.list().binary_search_by_key(&pid, |it| it.pid).ok();
            at.and_then(|at| self.list().get(at))
        }

        /// Sends what is marked a signal.
        fn send(&self, signal: libc::c_int) -> Sent {
            let mut sent = Sent::default();
            for one in self.list().iter().filter(|one| one.is_descendant && !one.is_dead) {
                sent.alive = sent.alive.saturating_add(1);
                if one.send(signal).is_err() {
                    sent.refused = sent.refused.saturating_add(1);
                }
            }
            sent
        }

        /// Marks these first ones and what descends from them, but for these and what descends from
        /// those.
        fn mark(&mut self, is_first: impl Fn(&Process) -> bool, except: &[Pid]) {
            let list = self.list_mut();
            let is_excepted =
                |process: &Process| except.iter().any(|one| number_of(*one) == process.pid);
            loop {
                let mut is_new = false;
                for at in 0..list.len() {
                    let Some(one) = list.get(at).copied() else { break };
                    let of_one = |list: &[Process]| {
                        let parent = list.binary_search_by_key(&one.parent, |it| it.pid).ok();
                        parent.and_then(|at| list.get(at)).is_some_and(|it| it.is_descendant)
                    };
                    if !one.is_descendant
                        && !is_excepted(&one)
                        && (is_first(&one) || of_one(list))
                        && let Some(place) = list.get_mut(at)
                    {
                        place.is_descendant = true;
                        is_new = true;
                    }
                }
                // It ends with the last generation.
                if !is_new {
                    break;
                }
            }
        }
    }

    impl Drop for Processes {
        fn drop(&mut self) {
            let bytes = self.room.saturating_mul(size_of::<Process>());
            // SAFETY: it was mapped with this length, and no reference outlives `self`.
            unsafe { libc::munmap(self.place.as_ptr().cast(), bytes) };
        }
    }

    /// Whether the numbers in this `/proc` are those that this process uses: it may have been
    /// mounted for another namespace.
    fn numbers_are_ours(proc: &OwnedFd) -> bool {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        Process::read(proc, c"self").is_some_and(|process| process.pid == own)
    }

    fn read_stat<'a>(proc: &OwnedFd, process: &CStr, text: &'a mut [u8]) -> &'a [u8] {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = OFlags::RDONLY | OFlags::CLOEXEC;
        let stat = openat(proc, process, directory, Mode::empty())
            .and_then(|process| openat(process, c"stat", file, Mode::empty()));
        let length = stat.and_then(|stat| rustix::io::read(stat, &mut *text)).unwrap_or_default();
        text.get(..length).unwrap_or_default()
    }

    fn number(text: &[u8]) -> Option<i32> {
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    #[cfg(test)]
    mod tests {
        use std::process::Command;

        use super::*;

        #[test]
        fn names_can_not_make_a_descendant_and_threads_that_live_on_count() {
            let stat = |state, threads| {
                let rest = "0 -1 4194304 0 0 0 0 0 0 0 0 20 0";
                format!("7 (a) Z 1 70) {state} 5 70 70 {rest} {threads} 0 99 4 5\n")
            };
            let of = |text: String| Process::parse(text.as_bytes());
            let read = of(stat('S', 1)).unwrap();
            assert_eq!((read.pid, read.parent, read.group, read.started), (7, 5, 70, 99));
            assert!(!read.is_dead);
            assert!(!of(stat('D', 1)).unwrap().is_dead);
            assert!(of(stat('Z', 1)).unwrap().is_dead);
            assert!(!of(stat('Z', 2)).unwrap().is_dead);
            assert_eq!(of(String::new()), None);
        }

        #[test]
        fn numbers_are_written_as_directories_are_named() {
            for pid in [1, 10, 4_194_304, i32::MAX] {
                assert_eq!(Name::of(pid).text().to_str().unwrap(), pid.to_string());
            }
        }

        #[test]
        fn what_has_left_the_group_and_the_session_is_found_and_what_is_excepted_is_not() {
            let script = "setsid sh -c 'sleep 1000 & wait' & wait";
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let root = Pid::from_child(&child);
            let alive = |except: &[Pid]| send(root, except, 0).unwrap().alive;
            while alive(&[]) < 2 {
                std::thread::yield_now();
            }
            let session = children(root).unwrap().first().unwrap().pid;
            assert_ne!(children(root).unwrap().first().unwrap().group, number_of(root));
            assert_eq!(alive(&[Pid::from_raw(session).unwrap()]), 0);
            let sent = send(root, &[], libc::SIGKILL).unwrap();
            assert_eq!((sent.alive >= 2, sent.refused), (true, 0), "{sent:?}");
            assert_eq!(child.wait().unwrap().code(), Some(0));
            assert_eq!(alive(&[]), 0);
        }

        #[test]
        fn what_was_found_once_stays_known_when_its_parent_has_ended() {
            let mut child = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
            let mut followed = Followed::new(Pid::from_child(&child));
            let mut alive = |signal| followed.send(signal).unwrap().alive;
            while alive(0) < 2 {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(alive(libc::SIGKILL), 1);
            while alive(0) > 0 {
                std::thread::yield_now();
            }
        }

        #[test]
        fn nothing_that_is_started_meanwhile_escapes_a_kill() {
            use std::os::unix::process::CommandExt as _;
            for _ in 0..20 {
                let script = "while :; do sleep 1000 & sleep 0.002; done";
                let mut child =
                    Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap();
                let root = number_of(Pid::from_child(&child));
                let mut followed = Followed::new(Pid::from_child(&child));
                while followed.send(0).unwrap().alive < 3 {
                    std::thread::yield_now();
                }
                followed.send(libc::SIGKILL).unwrap();
                child.wait().unwrap();
                let left = || {
                    let all = Processes::read().unwrap();
                    all.list().iter().filter(|one| one.group == root && !one.is_dead).count()
                };
                // What has had the signal takes its time to end, and what has not does not end.
                for _ in 0..1000 {
                    if left() == 0 {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                assert_eq!(left(), 0);
            }
        }

        #[test]
        fn a_number_that_another_process_has_by_now_is_sent_nothing() {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let own = rustix::process::getpid();
            let number = number_of(Pid::from_child(&child));
            let mut found = *children(own).unwrap().iter().find(|one| one.pid == number).unwrap();
            found.started += 1;
            found.send(libc::SIGKILL).unwrap();
            assert_eq!(child.try_wait().unwrap(), None);
            found.started -= 1;
            found.send(libc::SIGKILL).unwrap();
            child.wait().unwrap();
        }
    }
}
