//! The reasons of an error, where its kind leaves that open.

use std::io;

/// Why an operation failed, for branching where [`ErrorKind`](crate::ErrorKind) leaves it open.
///
/// It is set where the error is made. Texts of errors may change in any version; these values and
/// their [names](Reason::name) do not.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The server is loading its data, or runs a script of another client.
    Busy,
    /// The certificate of one side is missing, or the other side does not accept it.
    Certificate,
    /// What is stored for the lock can't be read.
    Damaged,
    /// The directory of the store, or a file in it, was removed or replaced while it was in use.
    DirectoryGone,
    /// The connection ended before the answer came.
    Disconnected,
    /// The disk, or this user's share of it, is full.
    DiskFull,
    /// The operating system does not let this user use a file, a directory or a socket.
    FilePermission,
    /// The server has reached its limit of memory.
    MemoryFull,
    /// The user lacks a right that locks need on the server.
    MissingRight,
    /// No answer came in time.
    NoAnswer,
    /// The server wants a password, and none was set.
    NoPassword,
    /// The server is not the primary.
    NotPrimary,
    /// This process, or the machine, can open no more files.
    OpenFiles,
    /// The semaphore has another limit than the requested one.
    OtherLimit,
    /// The lock is stored in a version of the format that this program does not read.
    OtherVersion,
    /// This process can get no more memory.
    ProcessMemory,
    /// Fewer replicas than demanded confirmed the grant in time.
    ReplicasMissing,
    /// A sentinel wants a password, or refuses the one that was set.
    SentinelPassword,
    /// The server takes no more clients.
    ServerFull,
    /// The store has reached a limit of its own size.
    StoreFull,
    /// The store's URL does not fit the server, or names an unusable file or directory.
    StoreSettings,
    /// This process can start no more threads.
    Threads,
    /// The store is warming up after its start, and may have forgotten leases. It grants none yet.
    TooYoung,
    /// No connection could be made.
    Unreachable,
    /// The wait timed out while the store did not answer.
    WaitOver,
    /// The server refuses the user name or the password.
    WrongPassword,
}

impl Reason {
    /// One word that means the same in every version, such as `wrong_password`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Certificate => "certificate",
            Self::Damaged => "damaged",
            Self::DirectoryGone => "directory_gone",
            Self::Disconnected => "disconnected",
            Self::DiskFull => "disk_full",
            Self::FilePermission => "file_permission",
            Self::MemoryFull => "memory_full",
            Self::MissingRight => "missing_right",
            Self::NoAnswer => "no_answer",
            Self::NoPassword => "no_password",
            Self::NotPrimary => "not_primary",
            Self::OpenFiles => "open_files",
            Self::OtherLimit => "other_limit",
            Self::OtherVersion => "other_version",
            Self::ProcessMemory => "process_memory",
            Self::ReplicasMissing => "replicas_missing",
            Self::SentinelPassword => "sentinel_password",
            Self::ServerFull => "server_full",
            Self::StoreFull => "store_full",
            Self::StoreSettings => "store_settings",
            Self::Threads => "threads",
            Self::TooYoung => "too_young",
            Self::Unreachable => "unreachable",
            Self::WaitOver => "wait_over",
            Self::WrongPassword => "wrong_password",
        }
    }

    /// What an error of the operating system means, if it means the same everywhere.
    #[must_use]
    pub fn of_system(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::OutOfMemory => Some(Self::ProcessMemory),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Some(Self::FilePermission)
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Self::DiskFull),
            io::ErrorKind::FileTooLarge => Some(Self::StoreFull),
            _ if cfg!(unix) && matches!(error.raw_os_error(), Some(ENFILE | EMFILE)) => {
                Some(Self::OpenFiles)
            }
            _ => None,
        }
    }
}

/// The machine's table of open files is full, on every Unix.
const ENFILE: i32 = 23;
/// The process's table of open files is full.
const EMFILE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind};

    #[test]
    fn a_reason_is_found_however_deep_the_error_that_has_it() {
        let inner = Error::new(ErrorKind::Denied, "no").with_reason(Reason::WrongPassword);
        let outer = Error::new(ErrorKind::Lost, "lost").caused_by(inner.clone());
        assert_eq!(outer.reason(), Some(Reason::WrongPassword));
        assert_eq!(Error::new(ErrorKind::Lost, "lost").reason(), None);
        let outer = Error::new(ErrorKind::Lost, "lost").with_reason(Reason::NoAnswer);
        assert_eq!(outer.caused_by(inner).reason(), Some(Reason::NoAnswer));
    }

    #[test]
    fn what_the_system_refuses_is_known_by_its_number_and_not_by_its_words() {
        for (number, reason) in
            [(12, Reason::ProcessMemory), (13, Reason::FilePermission), (23, Reason::OpenFiles)]
        {
            let cause = io::Error::from_raw_os_error(number);
            let error = Error::new(ErrorKind::Unavailable, "no").caused_by(cause);
            assert_eq!(error.reason(), Some(reason));
        }
        let words = Error::new(ErrorKind::Unavailable, "\"(os error 24)\" is held");
        assert_eq!(words.reason(), None);
    }

    #[test]
    fn nodes_have_a_reason_together_only_if_all_that_failed_have_it() {
        let node = |reason| Error::new(ErrorKind::Unavailable, "no").with_reason(reason);
        let of = |nodes| Error::new(ErrorKind::Unavailable, "too few").at_nodes(nodes).reason();
        let (silent, gone) = (node(Reason::NoAnswer), node(Reason::DirectoryGone));
        assert_eq!(of(vec![silent.clone(), silent.clone()]), Some(Reason::NoAnswer));
        assert_eq!(of(vec![silent.clone(), gone]), None);
        assert_eq!(of(vec![silent, Error::new(ErrorKind::Unavailable, "no")]), None);
        assert_eq!(of(Vec::new()), None);
    }

    #[test]
    fn a_kind_that_leaves_nothing_open_is_a_reason() {
        assert_eq!(Error::new(ErrorKind::Corrupt, "no").reason(), Some(Reason::Damaged));
        let few = Error::new(ErrorKind::NotReplicated, "no");
        assert_eq!(few.reason(), Some(Reason::ReplicasMissing));
        let gone = Error::new(ErrorKind::Corrupt, "no").with_reason(Reason::DirectoryGone);
        assert_eq!(gone.reason(), Some(Reason::DirectoryGone));
    }
}
