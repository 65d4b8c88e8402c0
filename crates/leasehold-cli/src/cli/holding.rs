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
/// Prints the lease, or writes it to a file that only you can read. Nothing renews it by itself: it
/// ends with its ttl unless you call `renew` or `release`. Every user that can read the lease can end
/// it.
///
///   LEASEHOLD_LEASE=$(leasehold acquire backup --ttl 10m -n) || exit
///   export LEASEHOLD_LEASE
///   ...
///   leasehold release
///
/// Several names are taken together, all or none. Each lease is then on a line of its own, in the order
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
    /// A lease that stands there is replaced if its lock is not held by it any more; else this one is given
    /// back, and the exit code is 75. What is no lease is never replaced.
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

    /// Take the lock anew where the lease has run out and nobody has held the lock since
    ///
    /// Says so: the ttl was too short. Without a lease file it prints the new lease.
    #[arg(long)]
    pub(crate) if_untaken: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// End a lease that was taken with `acquire`, what a `hold` holds, or all of an owner
///
/// With KEY and --fence it has the `hold` that printed that fence on this machine let go, and returns
/// when it has.
///
/// Exits with 76 if the lease had expired before. The message says whether another holder has had the
/// lock since. The lease file is removed once the lease has ended; it stays where the store is not the
/// one that it was taken at, which its last line tells.
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

    /// Keep the lock closed for so long, 0 to 365 days
    #[arg(long, value_name = "TIME", value_parser = duration::cooldown, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Cooldown>,

    /// For operators: take away all leases of an owner, who has to be named exactly
    ///
    /// Takes each away by its fence, as `force-release` does, touches no other owner's lease, and
    /// prints the outcome of each. Without --yes it only prints which leases these are, and exits
    /// with 0.
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

    /// Take them away, rather than print them
    #[arg(long, requires = "all", conflicts_with_all = ["lease_file", "cooldown"])]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Hold a lock while a script runs, or until standard input closes or a signal comes
///
/// Prints the fence and the name on one line once it holds the lock, and renews the lease until the
/// end. Several names are taken together, and each has a line. A signal that ends the process releases
/// the lock first, except KILL and faults (BUS, FPE, ILL, SEGV, SYS).
///
/// In a script, one line takes the lock until the script has ended, however it ends:
///
///   fence=$(leasehold hold backup --while-pid $$ --background) || exit
///   ...
///   leasehold release backup --fence "$fence" || exit    # earlier, if you like
///
/// With --background the command ends as soon as the lock is held, with 0, and prints the fence alone;
/// without the lock it ends with another exit code, as those below. A process in a session of its own
/// keeps the lock until the script ends; a signal to it does not. If the lock is lost, that process
/// tells the script on its standard error and ends it, with what it has started, before another holder
/// can get the lock. It does so too if `leasehold` itself is killed.
///
/// If standard input is /dev/null, as for jobs that a script starts in the background, and --while-pid
/// is not given, it holds the lock until a signal comes.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment, after_long_help = exit::HELP)]
pub(crate) struct Hold {
    /// The name of the lock, or several
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Release the lock as soon as `ask` asks for it
    #[arg(long)]
    pub(crate) until_asked: bool,

    /// Let go after this time at the latest, with exit code 80
    ///
    /// At least 10ms, counted from when the lock was taken. Nobody is kept out after, even if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::max_hold, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Leave standard input alone and hold until a signal comes
    #[arg(long)]
    pub(crate) ignore_stdin: bool,

    /// Leave standard input alone and hold until this process has ended, or a signal comes
    #[arg(long, value_name = "PID", conflicts_with = "ignore_stdin")]
    pub(crate) while_pid: Option<u32>,

    /// Go on holding in the background, and end as soon as the lock is held
    #[arg(long, requires = "while_pid")]
    pub(crate) background: bool,

    /// The signal by which that process and what it has started end if the lock is lost
    /// [default: TERM with --background]
    ///
    /// It comes 5% of the ttl before another holder can get the lock (20ms to 5s, a quarter of the ttl at
    /// most). After HUP, INT, QUIT and TERM, KILL follows when three quarters of that time are over; any
    /// other, such as USR1, comes alone. With --until-asked the same signal comes when `ask` asks for the
    /// lock, which is then kept until the process has ended.
    #[arg(long, value_name = "SIGNAL", value_parser = crate::signals::parse, requires = "while_pid")]
    pub(crate) on_loss: Option<i32>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Write to this file what became of the lock, as a JSON document, at each change
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
