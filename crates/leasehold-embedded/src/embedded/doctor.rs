//! Examines a directory of locks: its file system, its users, its room.

use std::fs::File;
use std::path::Path;

use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::escape;

use super::directory::Access;
use super::environment::Environment;
use super::filesystem;
use super::machine::Machine;

/// Below the first, a burst of new locks may fill the disk; below the second, hardly any room is
/// left. A lock takes a page of 4 KiB at most, and the store allocates in steps of 2 MiB.
const ROOM_SCARCE: u64 = 64 << 20;
const ROOM_NONE: u64 = 4 << 20;

/// As for room, in files. Each process that takes locks creates one for its session.
const FILES_SCARCE: u64 = 1_000;
const FILES_NONE: u64 = 4;

/// The findings about an open store whose gate was just passed.
pub(super) fn examine(store: &Environment, detached: bool) -> Vec<Finding> {
    let kind = File::open(&store.path).ok().and_then(|directory| filesystem::name(&directory));
    let mut findings = vec![
        file_system(kind.as_deref()),
        room(free_bytes(&store.path), store.has_room_ahead()),
        rights(store.access),
        place(&store.path, &std::env::temp_dir(), has_private_tmp(), kind.as_deref()),
        machine(),
        wake(store.wakes.works()),
        death(detached),
    ];
    findings.extend(free_files(&store.path).and_then(files));
    findings
}

fn file_system(kind: Option<&str>) -> Finding {
    match kind {
        Some(name @ "overlay") => Finding::new(
            Severity::Note,
            "file system",
            format!("the directory is on a layered file system ({name}), as those of containers"),
            "other containers and the host have a store of their own there",
        )
        .advise("for one store, mount a directory of the host into each container"),
        Some(name) => Finding::new(
            Severity::Fine,
            "file system",
            format!("the directory is on a local file system ({name})"),
            "file locks reach every process of this machine",
        ),
        None => Finding::new(
            Severity::Note,
            "file system",
            "the kind of the file system is unknown",
            "on a network file system another machine could take a lock that is held here",
        )
        .advise("make sure that the directory is on a local disk"),
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn room(free: Option<u64>, ahead: bool) -> Finding {
    let when_full = if ahead {
        "on a full disk no lock can be taken; held locks can still be released"
    } else {
        "on a full disk no lock can be taken, and held locks may not be renewed or released, since \
         this file system reserves no room"
    };
    let Some(free) = free else {
        let found = "the free room on the disk is unknown";
        return Finding::new(Severity::Note, "room", found, when_full);
    };
    let found = format!("{} MiB are free on the disk", free >> 20);
    if free >= ROOM_SCARCE {
        return Finding::new(Severity::Fine, "room", found, "there is room for new locks");
    }
    let severity = if free < ROOM_NONE { Severity::Problem } else { Severity::Warning };
    Finding::new(severity, "room", found, when_full)
        .advise("make room, or name a directory on another disk")
}

/// How many files can still be created, if the file system has a limit.
fn free_files(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    (stat.f_files > 0).then_some(stat.f_favail)
}

fn files(free: u64) -> Option<Finding> {
    if free >= FILES_SCARCE {
        return None;
    }
    let severity = if free < FILES_NONE { Severity::Problem } else { Severity::Warning };
    let found = format!("the disk has room for {free} more files (inodes), however large");
    let means = "a process needs a file for its first lock; held locks can still be released";
    let advice = "remove files that are not needed (`df -i` counts them), or name a directory on another disk";
    Some(Finding::new(severity, "room", found, means).advise(advice))
}

fn rights(access: Access) -> Finding {
    match access {
        Access::Private => Finding::new(
            Severity::Fine,
            "rights",
            "only the directory's owner may use it",
            "processes of other users have other locks",
        ),
        Access::Group => Finding::new(
            Severity::Fine,
            "rights",
            "the directory's group may use it",
            "every member of the group can take locks here, and end those of others",
        ),
    }
}

/// Whether this process has a private `/tmp`, such as systemd's `PrivateTmp=` makes.
fn has_private_tmp() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    private_tmp(&mounts)
}

/// See proc_pid_mountinfo(5): the fourth word is the mounted part of its file system, the fifth the
/// mount point.
fn private_tmp(mounts: &str) -> bool {
    mounts.lines().any(|mount| {
        let mut words = mount.split(' ').skip(3);
        let (root, at) = (words.next(), words.next());
        at == Some("/tmp") && root.is_some_and(|root| root.contains("/systemd-private-"))
    })
}

fn place(path: &Path, temporary: &Path, private: bool, kind: Option<&str>) -> Finding {
    let shown = path.to_string_lossy();
    let shown = escape::terminal(&shown);
    let found = format!("the directory is {shown}");
    let temporary = std::fs::canonicalize(temporary).unwrap_or_else(|_| temporary.to_owned());
    if path.starts_with("/run/user") {
        return Finding::new(
            Severity::Note,
            "place",
            found,
            "it exists while this user is logged in; jobs of other logins have another store",
        )
        .advise(
            "give cron jobs and services a path of their own, as in embedded:/var/lib/app/locks",
        );
    }
    if private && path.starts_with("/tmp") {
        return Finding::new(
            Severity::Warning,
            "place",
            found,
            "this service has its own /tmp (PrivateTmp), so other processes have another store",
        )
        .advise("name a directory outside /tmp, as in embedded:/var/lib/app/locks");
    }
    if path.starts_with(temporary) {
        return Finding::new(
            Severity::Note,
            "place",
            found,
            "a restart or a cleaner of temporary files may remove it, with its locks, periods and \
             cooldowns",
        )
        .advise("name a lasting directory, as in embedded:/var/lib/app/locks");
    }
    if kind == Some("tmpfs") || ["/run", "/var/run"].iter().any(|run| path.starts_with(run)) {
        return Finding::new(
            Severity::Note,
            "place",
            found,
            "a restart of the machine removes it, with its periods and cooldowns (--once-per, \
             --cooldown)",
        )
        .advise("to keep them, name a directory on a disk, as in embedded:/var/lib/app/locks");
    }
    Finding::new(Severity::Fine, "place", found, "all processes that name it share its locks")
}

fn machine() -> Finding {
    match Machine::this() {
        Ok(machine) => Finding::new(
            Severity::Fine,
            "boot",
            format!("this is {}", escape::terminal(&machine.to_string())),
            "leases count on the time since the start and end with a restart; periods and \
             cooldowns outlast it",
        ),
        Err(_) => Finding::new(
            Severity::Warning,
            "boot",
            "the machine does not distinguish its starts",
            "locks that were held when the machine went down may stay held until their ttl ends",
        ),
    }
}

fn wake(works: bool) -> Finding {
    if works {
        return Finding::new(
            Severity::Fine,
            "wake",
            "the directory takes sockets",
            "a waiter is notified when the lock is free",
        );
    }
    Finding::new(
        Severity::Note,
        "wake",
        "the directory's path is too long for sockets in it",
        "waiters poll, so they get a free lock later",
    )
    .advise("name a directory with a shorter path")
}

fn death(detached: bool) -> Finding {
    if detached {
        return Finding::new(
            Severity::Note,
            "death",
            "leases are taken detached from their process",
            "the lock of a dead process is free only after its ttl",
        );
    }
    Finding::new(
        Severity::Fine,
        "death",
        "leases belong to their process",
        "the locks of a dead process are free at once",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_in_a_containers_own_files_is_noted() {
        assert_eq!(file_system(Some("ext4")).severity, Severity::Fine);
        assert_eq!(file_system(Some("overlay")).severity, Severity::Note);
        assert_eq!(file_system(None).severity, Severity::Note);
    }

    #[test]
    fn room_is_a_matter_of_degree() {
        let judged = |free| room(free, true).severity;
        assert_eq!(judged(Some(1 << 30)), Severity::Fine);
        assert_eq!(judged(Some(ROOM_SCARCE - 1)), Severity::Warning);
        assert_eq!(judged(Some(ROOM_NONE - 1)), Severity::Problem);
        assert_eq!(judged(None), Severity::Note);
        assert!(room(None, true).means.contains("can still be released"));
        assert!(room(Some(0), false).means.contains("may not be renewed or released"));
    }

    #[test]
    fn directories_that_come_and_go_are_noted() {
        let on = |path: &str, kind| {
            place(Path::new(path), Path::new("/nonexistent/tmp"), false, Some(kind))
        };
        let judged = |path: &str| on(path, "ext4").severity;
        assert_eq!(judged("/var/lib/app/locks"), Severity::Fine);
        assert_eq!(judged("/run/user/1000/leasehold"), Severity::Note);
        assert_eq!(judged("/nonexistent/tmp/leasehold-0"), Severity::Note);
        for (path, kind) in [("/run/leasehold", "tmpfs"), ("/var/run/l", "ext4"), ("/srv", "tmpfs")]
        {
            let finding = on(path, kind);
            assert_eq!(finding.severity, Severity::Note, "{path}");
            assert!(finding.means.contains("restart of the machine removes it"), "{finding:?}");
        }
        assert!(on("/nonexistent/tmp/l", "ext4").means.contains(
            "with its locks, periods and \
                                                                 cooldowns"
        ));
    }

    #[test]
    fn a_tmp_of_ones_own_is_warned_of() {
        let shared = "30 23 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                      31 30 0:32 / /tmp rw shared:9 - tmpfs tmpfs rw\n";
        let own =
            "90 30 254:0 /tmp/systemd-private-5e-app.service-xQ/tmp /tmp rw - ext4 /dev/vda rw\n";
        assert!(!private_tmp(shared));
        assert!(private_tmp(&format!("{shared}{own}")));
        let judged = |path: &str| place(Path::new(path), Path::new("/tmp"), true, None).severity;
        assert_eq!(judged("/tmp/leasehold-1000"), Severity::Warning);
        assert_eq!(judged("/var/lib/app/locks"), Severity::Fine);
    }

    #[test]
    fn paths_of_strangers_can_not_steer_a_terminal() {
        let finding = place(Path::new("/srv/a\u{1b}[2J"), Path::new("/tmp"), false, None);
        assert!(finding.found.contains("\\u{1b}[2J"), "{finding:?}");
    }
}
