//! Whether anything of a process group is left.
//!
//! A zombie has ended; it only waits for its parent to take note of that, and some parents never
//! do. `kill` counts it all the same, so `/proc` is asked where there is one.
//!
//! Everything here is async-signal-safe: the watchdog uses it after a fork.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// Whether no process of the group can do anything any more.
pub(crate) fn is_gone(group: Pid) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH) || is_all_zombies(group)
}

#[cfg(not(target_os = "linux"))]
fn is_all_zombies(_: Pid) -> bool {
    false
}

/// Whether `/proc` shows members of the group, and none that lives. Where it can't tell, it does
/// not.
#[cfg(target_os = "linux")]
fn is_all_zombies(group: Pid) -> bool {
    use std::mem::MaybeUninit;

    use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};

    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = openat(CWD, c"/proc", flags, Mode::empty()) else { return false };
    if !numbers_are_ours(&proc) {
        return false;
    }
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&proc, &mut buffer);
    let mut dead = false;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        if !entry.file_name().to_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let mut text = [0; 512];
        match member(read_stat(&proc, entry.file_name(), &mut text), group) {
            Member::Lives => return false,
            Member::Zombie => dead = true,
            Member::Other => {}
        }
    }
    dead
}

/// Whether the numbers in this `/proc` are those that this process uses: it may have been mounted
/// for another namespace.
#[cfg(target_os = "linux")]
fn numbers_are_ours(proc: &std::os::fd::OwnedFd) -> bool {
    let mut text = [0; 512];
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let stat = read_stat(proc, c"self", &mut text);
    stat.split(|byte| *byte == b' ').next().and_then(number) == Some(own)
}

#[cfg(target_os = "linux")]
fn read_stat<'a>(
    proc: &std::os::fd::OwnedFd,
    process: &std::ffi::CStr,
    text: &'a mut [u8],
) -> &'a [u8] {
    use rustix::fs::{Mode, OFlags, openat};
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = OFlags::RDONLY | OFlags::CLOEXEC;
    // A process that has ended meanwhile has nothing to read any more.
    let stat = openat(proc, process, directory, Mode::empty())
        .and_then(|process| openat(process, c"stat", file, Mode::empty()));
    let length = stat.and_then(|stat| rustix::io::read(stat, &mut *text)).unwrap_or_default();
    text.get(..length).unwrap_or_default()
}

/// What a process is to a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg(target_os = "linux")]
enum Member {
    Other,
    Lives,
    Zombie,
}

/// Reads `PID (NAME) STATE PPID PGRP ...`, where the name may contain anything.
#[cfg(target_os = "linux")]
fn member(stat: &[u8], group: Pid) -> Member {
    /// Counted from the state on.
    const GROUP: usize = 2;
    const THREADS: usize = 17;
    let after_name = stat.iter().rposition(|byte| *byte == b')');
    let fields = after_name.and_then(|end| stat.get(end.saturating_add(2)..)).unwrap_or_default();
    let field = |n| fields.split(|byte| *byte == b' ').nth(n);
    if field(GROUP).and_then(number) != Some(group.as_raw_nonzero().get()) {
        return Member::Other;
    }
    // Of a process whose first thread has ended the others may still be at work.
    let alone = field(THREADS).and_then(number).is_none_or(|threads| threads <= 1);
    match field(0) {
        Some(b"Z" | b"X") if alone => Member::Zombie,
        _ => Member::Lives,
    }
}

#[cfg(target_os = "linux")]
fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

    use super::*;

    #[test]
    fn a_group_of_zombies_is_gone_and_one_that_lives_is_not() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        assert!(!is_gone(group));
        kill_process_group(group, Signal::KILL).unwrap();
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(group), look).unwrap();
        assert_eq!(test_kill_process_group(group), Ok(()), "kill counts the zombie");
        assert!(is_gone(group));
        child.wait().unwrap();
        assert!(is_gone(group));
    }

    #[test]
    fn names_can_not_make_a_member_and_threads_that_live_on_count() {
        let group = Pid::from_raw(70).unwrap();
        let stat = |state, group, threads| {
            let rest = "0 -1 4194304 0 0 0 0 0 0 0 0 20 0";
            format!("7 (a) Z 1 70) {state} 1 {group} 70 {rest} {threads} 0 99\n")
        };
        let of = |text: String| member(text.as_bytes(), group);
        assert_eq!(of(stat('S', 70, 1)), Member::Lives);
        assert_eq!(of(stat('D', 70, 1)), Member::Lives);
        assert_eq!(of(stat('Z', 70, 1)), Member::Zombie);
        assert_eq!(of(stat('Z', 70, 2)), Member::Lives);
        assert_eq!(of(stat('S', 71, 1)), Member::Other);
        assert_eq!(of(String::new()), Member::Other);
    }
}
