//! Decides on which kinds of file system a store may lie.
//!
//! File locks and shared memory maps work between the processes of one kernel. On a network file
//! system they may seem to work without reaching other machines, so those are refused by name.

use std::fs::File;

use leasehold_core::Result;

#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The type, as statfs(2) numbers them; 0 if unknown.
    pub(super) number: u32,
    /// Whether space can be preallocated, and whether writing to it then always succeeds.
    pub(super) has_room_ahead: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn examine(directory: &File) -> Result<Kind> {
    use std::os::unix::fs::MetadataExt as _;

    use leasehold_core::{Error, ErrorKind, Reason};

    let unusable = |error| super::directory::unusable("examine", error);
    let number = magic(directory).map_err(unusable)?;
    let device = directory.metadata().map_err(unusable)?.dev();
    let name = match number {
        FUSE => remote_fuse(&mounts(), device),
        number => {
            NETWORK.iter().find(|(other, _)| *other == number).map(|(_, name)| (*name).into())
        }
    };
    if let Some(name) = name {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this directory is on a network file system ({name}), where locks may not work; \
                 name a local directory, or use a Redis server"
            ),
        )
        .with_reason(Reason::StoreSettings));
    }
    if number == OVERLAY && is_shared_overlay(&mounts(), device) {
        return Err(Error::new(
            ErrorKind::Misuse,
            "two overlays share the upper folder of this directory, and don't see each other's \
             locks; unmount one, or name another directory",
        )
        .with_reason(Reason::StoreSettings));
    }
    Ok(Kind { number, has_room_ahead: ROOM_AHEAD.contains(&number) })
}

/// Only Linux has one way to detect a local file system; elsewhere it is up to the user.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn examine(_directory: &File) -> Result<Kind> {
    Ok(Kind { number: 0, has_room_ahead: false })
}

/// The name of a file system that [`examine`] accepted, for people; `None` if unknown.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn name(directory: &File) -> Option<String> {
    magic(directory).ok().map(name_of)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn name(_directory: &File) -> Option<String> {
    None
}

/// The name of a file system by its number.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn name_of(number: u32) -> String {
    let known = LOCAL.iter().find(|(other, _)| *other == number);
    known.map_or_else(|| format!("type {number:#x}"), |(_, name)| (*name).to_owned())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn name_of(_number: u32) -> String {
    "another type".to_owned()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a magic number has 32 bits, whatever the type of its field on a machine"
)]
fn magic(directory: &File) -> std::io::Result<u32> {
    Ok(rustix::fs::fstatfs(directory)?.f_type as u32)
}

/// All mounts that this process sees; see proc_pid_mountinfo(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// The devices of all mounts, as `major:minor`, each with its file system's type, source and
/// options.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mounted(mounts: &str) -> impl Iterator<Item = (&str, &str)> {
    mounts.lines().filter_map(|line| {
        let (mount, mounted) = line.split_once(" - ")?;
        Some((mount.split(' ').nth(2)?, mounted))
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn device_name(device: u64) -> String {
    use rustix::fs::{major, minor};

    format!("{}:{}", major(device), minor(device))
}

/// Whether another overlay is mounted with the same upper folder. The kernel leaves that undefined.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_shared_overlay(mounts: &str, device: u64) -> bool {
    fn upper(mounted: &str) -> Option<&str> {
        let options = mounted.strip_prefix("overlay ")?;
        options.split([' ', ',']).find_map(|option| option.strip_prefix("upperdir="))
    }

    let device = device_name(device);
    let own = mounted(mounts).find(|(other, _)| *other == device).and_then(|(_, it)| upper(it));
    own.is_some() && mounted(mounts).any(|(other, it)| other != device && upper(it) == own)
}

/// The name of a FUSE file system, unless it is known to keep its files on this machine.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn remote_fuse(mounts: &str, device: u64) -> Option<String> {
    const LOCAL: [&str; 5] =
        ["fuseblk", "fuse.fuse-overlayfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"];

    let device = device_name(device);
    match mounted(mounts)
        .find(|(other, _)| *other == device)
        .and_then(|(_, it)| it.split(' ').next())
    {
        Some(name) if LOCAL.contains(&name) => None,
        Some(name) => Some(name.to_owned()),
        None => Some("fuse".to_owned()),
    }
}

/// The magic numbers of the most common ones.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOCAL: [(u32, &str); 9] = [
    (0xef53, "ext4"),
    (0x0102_1994, "tmpfs"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (OVERLAY, "overlay"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (FUSE, "fuse"),
];

/// FUSE_SUPER_MAGIC: many file systems, distinguished by name.
#[cfg(any(target_os = "linux", target_os = "android"))]
const FUSE: u32 = 0x6573_5546;

#[cfg(any(target_os = "linux", target_os = "android"))]
const OVERLAY: u32 = 0x794c_7630;

/// ext2 to ext4, tmpfs and XFS write in place, so a reserved block is there when it is needed.
/// Btrfs, ZFS and bcachefs copy on write. Overlayfs and others pass writes on to an unknown file
/// system.
#[cfg(any(target_os = "linux", target_os = "android"))]
const ROOM_AHEAD: [u32; 3] = [0xef53, 0x0102_1994, 0x5846_5342];

/// The magic numbers of statfs(2).
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORK: [(u32, &str); 20] = [
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x517b, "smb"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x0bd0_0bd0, "lustre"),
    (0x0116_1970, "gfs2"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "afs"),
    (0x7374_4f43, "coda"),
    (0x7375_7245, "coda"),
    (0x564c, "ncp"),
    (0x7461_636f, "ocfs2"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x2003_0528, "orangefs"),
    (0xaad7_aaea, "panfs"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
];

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_directory_on_a_local_disk_is_taken() {
        let local = tempfile::tempdir().unwrap();
        let handle = File::open(local.path()).unwrap();
        assert!(examine(&handle).is_ok());
    }

    const MOUNTS: &str = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                          91 22 0:52 / /mnt/far rw,nosuid shared:3 - fuse.sshfs me@far: rw\n\
                          92 22 0:53 / /mnt/near rw - fuse.bindfs /srv rw\n\
                          93 22 0:54 / /m rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
                          94 22 0:54 / /bound rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
                          95 22 0:55 / /n rw - overlay none rw,lowerdir=/l,upperdir=/v,workdir=/x\n\
                          96 22 0:56 / /o rw - overlay none rw,lowerdir=/k,upperdir=/v,workdir=/y,xino=off\n\
                          97 22 0:57 / /r ro - overlay overlay ro,lowerdir=/l:/m\n\
                          98 22 0:58 / /s ro - overlay overlay ro,lowerdir=/l:/m\n";

    fn device(minor: u32) -> u64 {
        rustix::fs::makedev(0, minor)
    }

    #[test]
    fn the_name_behind_a_fuse_mount_is_found_by_its_device() {
        let remote = |minor| remote_fuse(MOUNTS, device(minor));
        assert_eq!(remote(52).as_deref(), Some("fuse.sshfs"));
        assert_eq!(remote(53), None);
        assert_eq!(remote(99).as_deref(), Some("fuse"));
    }

    #[test]
    fn two_overlays_on_one_upper_folder_are_reported_and_two_mounts_of_one_are_not_two() {
        let shared = [52, 53, 54, 55, 56, 57, 58, 99];
        let shared = shared.map(|minor| is_shared_overlay(MOUNTS, device(minor)));
        assert_eq!(shared, [false, false, false, true, true, false, false, false]);
    }

    #[test]
    fn memory_has_room_ahead() {
        let handle = File::open("/dev/shm").unwrap();
        assert!(examine(&handle).unwrap().has_room_ahead);
    }
}
