//! Tells on which kinds of file system a store may lie.
//!
//! File locks and shared memory maps are between the processes of one kernel. On a network file
//! system they may seem to work and not reach the other machine, so those are refused by name.

use std::fs::File;

use leasehold_core::Result;

pub(super) struct Kind {
    /// Whether room can be reserved, and a page that was reserved be written for sure.
    pub(super) has_room_ahead: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn examine(directory: &File) -> Result<Kind> {
    use leasehold_core::{Error, ErrorKind};

    let stat = rustix::fs::fstatfs(directory)
        .map_err(|error| super::directory::unusable("examine", error.into()))?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a magic number has 32 bits, whatever the type of its field on a machine"
    )]
    let magic = stat.f_type as u32;
    let name = match magic {
        FUSE => fuse::remote_name(directory),
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
    Ok(Kind { has_room_ahead: ROOM_AHEAD.contains(&magic) })
}

/// Locality can't be told everywhere in the same way; elsewhere it is up to the user.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn examine(_directory: &File) -> Result<Kind> {
    Ok(Kind { has_room_ahead: false })
}

/// The name of a file system that [`examine`] took, for people; `None` where it can't be told.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn name(directory: &File) -> Option<String> {
    let stat = rustix::fs::fstatfs(directory).ok()?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a magic number has 32 bits, whatever the type of its field on a machine"
    )]
    let magic = stat.f_type as u32;
    let known = LOCAL.iter().find(|(other, _)| *other == magic);
    Some(known.map_or_else(|| format!("type {magic:#x}"), |(_, name)| (*name).to_owned()))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn name(_directory: &File) -> Option<String> {
    None
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

#[cfg(any(target_os = "linux", target_os = "android"))]
mod fuse {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{major, minor};

    /// Those that are known to keep their files on this machine.
    const LOCAL: [&str; 5] =
        ["fuseblk", "fuse.fuse-overlayfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"];

    /// The name of the file system unless it is a local one.
    pub(super) fn remote_name(directory: &File) -> Option<String> {
        let device = directory.metadata().ok().map(|meta| meta.dev());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let name = device
            .and_then(|device| name_of(&mounts, &format!("{}:{}", major(device), minor(device))));
        match name {
            Some(name) if LOCAL.contains(&name.as_str()) => None,
            Some(name) => Some(name),
            None => Some("fuse".to_owned()),
        }
    }

    /// The type of the file system with this device number; see proc_pid_mountinfo(5).
    fn name_of(mounts: &str, device: &str) -> Option<String> {
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
        let (_, rest) = mount.split_once(" - ")?;
        rest.split(' ').next().map(str::to_owned)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_name_behind_a_fuse_mount_is_found_by_its_device() {
            let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                          91 22 0:52 / /mnt/far rw,nosuid shared:3 - fuse.sshfs me@far: rw\n\
                          92 22 0:53 / /mnt/near rw - fuse.bindfs /srv rw\n";
            assert_eq!(name_of(mounts, "0:52").as_deref(), Some("fuse.sshfs"));
            assert_eq!(name_of(mounts, "0:53").as_deref(), Some("fuse.bindfs"));
            assert_eq!(name_of(mounts, "0:54"), None);
        }
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
    fn memory_has_room_ahead() {
        let handle = File::open("/dev/shm").unwrap();
        assert!(examine(&handle).unwrap().has_room_ahead);
    }
}
