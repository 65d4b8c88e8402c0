//! Defines the commands that hold a lock: for a command, for a script, by its lease.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold::{Cooldown, Ttl};

use super::options::{self, Kinds, LeaseSource, Leftovers, Sharing, Taking};
use crate::duration;
use crate::exit;

/// Take a lock and leave it held, for shell scripts
///
/// Prints the lease, or writes it to a file that only you can read. Extend it by `renew`, and end
/// it by `release`. Otherwise it expires after its ttl. Every user that can read the lease can end
/// it.
///
///   LEASEHOLD_LEASE=$(leasehold acquire backup --ttl 10m -n) || exit
///   export LEASEHOLD_LEASE
///   ...
///   leasehold release
///
/// Several names are taken together, all or none. Each lease is on a line of its own, in the order
/// of the names. `renew` and `release` read them all.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Acquire {
    /// The name of the lock, or several
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Write the lease to this file, readable by you alone, instead of stdout
    ///
    /// A lease in the file is replaced if it does not hold its lock any more. Otherwise the new
    /// lease is released, and the exit code is 75. Other content is never replaced.
    #[arg(long, value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,

    /// Print a JSON document, which contains the lease unless --lease-file is given
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) leftovers: Leftovers,

    #[command(flatten)]
    pub(crate) kinds: Kinds,
}

/// Give a lease that was taken with `acquire` a new length
#[derive(Args, Debug)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) source: LeaseSource,

    #[arg(
        long, value_name = "TIME", value_parser = duration::ttl, allow_hyphen_values = true,
        help = format!("How long the lease runs from now on, {} [default: as before]", Ttl::RANGE),
    )]
    pub(crate) ttl: Option<Ttl>,

    /// Take the lock again if the lease has expired and no other holder has come since
    ///
    /// A message says so: the ttl was too short. Without a lease file it prints the new lease.
    #[arg(long)]
    pub(crate) if_untaken: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// End a lease of `acquire`, a hold of `hold`, or all leases of an owner
///
/// With KEY and --fence it ends the `hold` on this machine that printed that fence, and returns
/// after the release.
///
/// Exits with 76 if the lease had expired before. The message says whether another holder has had
/// the lock since. The lease file is removed after the end of the lease. It stays if this store is
/// not the one in its last line.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The name of the lock of a `hold`
    #[arg(value_name = "KEY", requires = "fence")]
    pub(crate) key: Option<OsString>,

    /// The fence that the `hold` printed
    #[arg(
        long, value_name = "N", requires = "key",
        conflicts_with_all = ["lease_file", "cooldown", "all", "owner", "yes"],
        value_parser = options::fence, allow_hyphen_values = true,
    )]
    pub(crate) fence: Option<u64>,

    #[command(flatten)]
    pub(crate) source: LeaseSource,

    /// The cooldown: keep other holders out for this time, 0 to 365 days
    #[arg(long, value_name = "TIME", value_parser = duration::cooldown, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Cooldown>,

    /// For operators: force-release all leases of an owner, with exactly that name
    ///
    /// Ends each by its fence, as `force-release` does, and prints the outcome of each. Without
    /// --yes it only prints these leases, and exits with 0.
    #[arg(long, conflicts_with_all = ["lease_file", "cooldown"])]
    pub(crate) all: bool,

    /// The owner of the leases, as `ls` shows it
    // Each is named, since what conflicts with `all` would make up for it.
    #[arg(
        long,
        value_name = "NAME",
        requires = "all",
        conflicts_with_all = ["lease_file", "cooldown"],
        value_parser = options::owner
    )]
    pub(crate) owner: Option<String>,

    /// Force-release them, instead of printing them
    #[arg(long, requires = "all", conflicts_with_all = ["lease_file", "cooldown"])]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Hold a lock while a script runs, or until standard input closes or a signal comes
///
/// Prints the fence and the name on one line once it holds the lock, and renews the lease until the
/// end. Several names are taken together, and each has a line. A signal that ends the process
/// releases the lock first, except KILL and faults (BUS, FPE, ILL, SEGV, SYS).
///
/// In a script, one line takes the lock until the script has ended, however it ends:
///
///   fence=$(leasehold hold backup --while-pid $$ --background) || exit
///   ...
///   leasehold release backup --fence "$fence" || exit    # earlier, if you like
///
/// With --background the command prints the fence and exits with 0 when the lock is held. Without
/// the lock it exits with another code, as below. A process in a session of its own keeps the lock
/// until the script ends; signals to it do not release it. If the lock is lost, that process prints
/// a message on the script's standard error. It then ends the script, and all that the script has
/// started, before another holder can get the lock. It does so too if `leasehold` itself is killed.
///
/// If standard input is /dev/null, as for background jobs of a script, and --while-pid is not
/// given, it holds the lock until a signal comes.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment, after_long_help = exit::HELP)]
pub(crate) struct Hold {
    /// The name of the lock, or several
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Release the lock when `ask` requests it
    #[arg(long)]
    pub(crate) until_asked: bool,

    /// Release the lock after this time, with exit code 80
    ///
    /// At least 10ms, counted from the grant. Another holder can get the lock after that time, even
    /// if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::max_hold, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Leave standard input alone and hold until a signal comes
    #[arg(long)]
    pub(crate) ignore_stdin: bool,

    /// Leave standard input alone and hold until this process has ended, or a signal comes
    #[arg(long, value_name = "PID", conflicts_with = "ignore_stdin")]
    pub(crate) while_pid: Option<u32>,

    /// Hold the lock in the background, and exit when it is held
    #[arg(long, requires = "while_pid")]
    pub(crate) background: bool,

    /// The signal for that process and its descendants if the lock is lost
    /// [default: TERM with --background]
    ///
    /// It comes 5% of the ttl before another holder can get the lock (20ms to 5s, at most a quarter
    /// of the ttl). After HUP, INT, QUIT and TERM, KILL follows at three quarters of that time; any
    /// other signal, such as USR1, comes alone. With --until-asked the same signal comes when `ask`
    /// requests the release; the lock is kept until the process has ended.
    #[arg(long, value_name = "SIGNAL", value_parser = crate::signals::parse, requires = "while_pid")]
    pub(crate) on_loss: Option<i32>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Write the outcome of the lock to this file, as a JSON document, at each change
    ///
    /// As with `run`.
    #[arg(long, value_name = "FILE")]
    pub(crate) status: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) leftovers: Leftovers,

    #[command(flatten)]
    pub(crate) kinds: Kinds,
}
