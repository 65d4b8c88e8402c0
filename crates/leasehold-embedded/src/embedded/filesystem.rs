//! What kind of file system a store may lie on.
//!
//! File locks and shared memory maps are between the processes of one kernel. On a network file
//! system they may seem to work and not reach the other machine, so those are refused by name.

use std::fs::File;

use leasehold_core::Result;

pub(super) struct Kind {
    pub(super) view: View,
    /// Whether room can be reserved, and a page that was reserved be written for sure.
    pub(super) has_room_ahead: bool,
}

/// Through what a directory is seen. One directory of an overlay has several views, and a lock that was
/// taken in one of them is not seen in another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct View {
    /// The type of its file system, as statfs(2) numbers them; 0 where that can't be told.
    pub(super) file_system: u32,
    /// The device of that, which is a number for this mount alone where no disk is behind it.
    pub(super) device: u64,
}

impl View {
    /// Whether locks of another view of the same files may be unseen in this one. An overlay that is mounted
    /// anew is another device; a mount that is gone has no processes any more.
    pub(super) fn hides(self, other: Self) -> bool {
        self.file_system != other.file_system
            || (self.device != other.device && are_one_overlay(self.device, other.device))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn examine(directory: &File) -> Result<Kind> {
    use std::os::unix::fs::MetadataExt as _;

    use leasehold_core::{Error, ErrorKind};

    let unusable = |error| super::directory::unusable("examine", error);
    let magic = magic(directory).map_err(unusable)?;
    let device = directory.metadata().map_err(unusable)?.dev();
    let name = match magic {
        FUSE => remote_fuse(device),
        magic => NETWORK.iter().find(|(other, _)| *other == magic).map(|(_, name)| (*name).into()),
    };
    if let Some(name) = name {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this directory is on a network file system ({name}), where locks may not reach \
                 other machines; name a directory on a local disk, or use a Redis server"
            ),
        ));
    }
    let view = View { file_system: magic, device };
    Ok(Kind { view, has_room_ahead: ROOM_AHEAD.contains(&magic) })
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

/// Locality can't be told everywhere in the same way; elsewhere it is up to the user.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn examine(_directory: &File) -> Result<Kind> {
    Ok(Kind { view: View { file_system: 0, device: 0 }, has_room_ahead: false })
}

/// The name of a file system that [`examine`] took, for people; `None` where it can't be told.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn name(directory: &File) -> Option<String> {
    magic(directory).ok().map(name_of)
}

/// The name of a file system by its number.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn name_of(magic: u32) -> String {
    let known = LOCAL.iter().find(|(other, _)| *other == magic);
    known.map_or_else(|| format!("type {magic:#x}"), |(_, name)| (*name).to_owned())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn name_of(_magic: u32) -> String {
    "another type".to_owned()
}

/// Whether two devices are overlays with the same files, both mounted where this process can see them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn are_one_overlay(one: u64, other: u64) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let upper = upper_of(&mounts, one);
    upper.is_some() && upper == upper_of(&mounts, other)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn are_one_overlay(_one: u64, _other: u64) -> bool {
    false
}

/// The folder in which an overlay keeps what is written to it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn upper_of(mounts: &str, device: u64) -> Option<&str> {
    let (kind, rest) = mount_of(mounts, device)?.split_once(' ')?;
    let mut options = rest.split([' ', ',']);
    options.find_map(|option| option.strip_prefix("upperdir=")).filter(|_| kind == "overlay")
}

/// What is mounted with this device: the type of its file system, its source and options; see
/// proc_pid_mountinfo(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mount_of(mounts: &str, device: u64) -> Option<&str> {
    use rustix::fs::{major, minor};

    let device = format!("{}:{}", major(device), minor(device));
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&*device))?;
    mount.split_once(" - ").map(|(_, mounted)| mounted)
}

/// The magic numbers of those that are met most often.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOCAL: [(u32, &str); 9] = [
    (0xef53, "ext4"),
    (0x0102_1994, "tmpfs"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x794c_7630, "overlay"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (FUSE, "fuse"),
];

/// FUSE_SUPER_MAGIC: many file systems, told apart by name.
#[cfg(any(target_os = "linux", target_os = "android"))]
const FUSE: u32 = 0x6573_5546;

/// ext2 to ext4, tmpfs, XFS: they write in place, so a reserved block is there when it is needed.
/// Btrfs, ZFS and bcachefs copy on write, overlayfs and others pass on to who knows what.
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

/// The name of a FUSE file system, unless it is known to keep its files on this machine.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn remote_fuse(device: u64) -> Option<String> {
    const LOCAL: [&str; 5] =
        ["fuseblk", "fuse.fuse-overlayfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"];

    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match mount_of(&mounts, device).and_then(|mount| mount.split(' ').next()) {
        Some(name) if LOCAL.contains(&name) => None,
        Some(name) => Some(name.to_owned()),
        None => Some("fuse".to_owned()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_directory_on_a_local_disk_is_taken() {
        let local = tempfile::tempdir().unwrap();
        let handle = File::open(local.path()).unwrap();
        assert!(examine(&handle).is_ok());
    }

    #[test]
    fn what_is_mounted_is_found_by_its_device() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      91 22 0:52 / /mnt/far rw,nosuid shared:3 - fuse.sshfs me@far: rw\n\
                      92 22 0:53 / /m rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
                      93 22 0:54 / /r rw - overlay overlay ro,lowerdir=/l:/m\n";
        let device = |minor| rustix::fs::makedev(0, minor);
        assert_eq!(mount_of(mounts, device(52)), Some("fuse.sshfs me@far: rw"));
        let uppers = [52, 53, 54, 55].map(|minor| upper_of(mounts, device(minor)));
        assert_eq!(uppers, [None, Some("/u"), None, None]);
    }

    #[test]
    fn memory_has_room_ahead() {
        let handle = File::open("/dev/shm").unwrap();
        assert!(examine(&handle).unwrap().has_room_ahead);
    }
}
