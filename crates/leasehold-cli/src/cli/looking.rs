//! Defines the commands that look: at the locks in use, at one lock, at the store.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold::interop::Layout;

use super::night;
use super::options::Sharing;
use crate::duration;

/// List the locks in use
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only those whose names start with this
    pub(crate) prefix: Option<OsString>,

    /// List them again at this interval, 2s by default, until a signal comes
    ///
    /// On a terminal each list replaces the last. If the store goes away, the list is tried again.
    #[arg(
        long, value_name = "TIME", num_args = 0..=1, require_equals = true,
        default_missing_value = "2s", value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) watch: Option<Duration>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the holders of a lock and its waiters
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The name of the lock
    pub(crate) key: OsString,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the record of the lock in a Redis server, a line for each field
    ///
    /// A token is a secret, so only its fingerprint is printed, as in `token=#1c0ffee2`. A field
    /// that can't be read is printed as bytes, with the reason. A quorum prints this for each node.
    /// The words may change in any version.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Print the events of a lock
///
/// One line for each event in the store's log, the oldest first. It has the time, by the store's
/// clock in UTC, and the event (granted, handed on, changed, adopted, detached, released, lost,
/// forced). The fence and the owner follow, with the process if it has another name. The outcome of
/// a release, the end of the command, the cause of a loss and the cooldown come last.
///
/// A store keeps a log for clients with `?log=N` in their URL, of about the last N events. A Redis
/// server keeps them for each lock, until a week after the last; an embedded store for all locks
/// together. Clients write an event after it happened. It may be missing if its process was killed
/// first, or the store was away. The expiry of a lease is not an event.
///
///   LEASEHOLD_STORE=redis://HOST?log=1000 leasehold run report -- make report
///   leasehold log report
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Log {
    /// The name of the lock
    pub(crate) key: OsString,

    /// The number of events at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub(crate) last: usize,

    /// Print new events as they come, until a signal comes
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Print a JSON document for each, on a line of its own
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch the locks in use
///
/// Shows for each lock its holder, how long it has been held, the rest of the lease unless renewed,
/// and the number of waiters. Lists the whole store now and then, and between that only the locks
/// on the screen.
///
///   up, down, page up, page down, home, end    choose a lock; enter shows all about it
///   s, r                                       change the order; reverse it
///   /                                          show only names and owners with this text
///   x                                          force-release it; type the end of its fence
///   q, ctrl-c                                  end
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Top {
    /// Only those whose names start with this
    pub(crate) prefix: Option<OsString>,

    /// Print all of them as a table, and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Sort them by this
    #[arg(long, value_enum, default_value_t = Sort::Held)]
    pub(crate) sort: Sort,

    /// Refresh the locks on the screen at this interval, 100ms or more
    #[arg(
        long, value_name = "TIME", default_value = "1s",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) every: Duration,
}

/// Show the locks in use on a web page
///
/// For each lock it shows the holder, the length of its hold, the rest of the lease unless renewed,
/// and the waiters. It also shows the holds of the last 5 min that the page has seen. It prints the
/// page's address, lists the store while a page is open, and ends on a signal.
///
/// Every client that reaches the address may look, also other users of this machine. The page only
/// shows, unless --allow-release is given. The printed address then has a token, with which a user
/// can force-release a lease by typing the end of its fence.
///
///   leasehold ui
///   ssh -L 9465:127.0.0.1:9465 host leasehold ui
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ui {
    /// Only those whose names start with this
    pub(crate) prefix: Option<OsString>,

    /// The address to serve it at; port 0 takes one that is free
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9465")]
    pub(crate) listen: std::net::SocketAddr,

    /// A name by which browsers reach it, in addition to localhost and addresses
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,

    /// How often the store is listed, 100ms or more
    #[arg(
        long, value_name = "TIME", default_value = "1s",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) every: Duration,

    /// Let users with the printed address force-release leases
    #[arg(long)]
    pub(crate) allow_release: bool,
}

/// An order of locks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sort {
    /// By name
    Name,
    /// Held for longest first
    Held,
    /// With the lease that expires first
    Left,
    /// With most waiters first
    Waiting,
}

impl Sort {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Held => "time held",
            Self::Left => "time left",
            Self::Waiting => "waiters",
        }
    }

    /// The one after this, around.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Name => Self::Held,
            Self::Held => Self::Left,
            Self::Left => Self::Waiting,
            Self::Waiting => Self::Name,
        }
    }
}

/// Print the locks in use as numbers for Prometheus, or serve them
///
/// Counts the locks that are held, closed and waited for. Gives the age of the oldest hold, the
/// longest wait, and whether the store answered. Otherwise leasehold_store_up is 0, and it exits
/// with the code of the failure, except with --listen. Each scrape lists the store. With --listen
/// it prints the address that it serves, with the port that it got for port 0. Every client that
/// reaches the address may read, but no page of another site. Ends on a signal.
#[derive(Args, Debug)]
pub(crate) struct Metrics {
    /// Only locks whose names start with this
    pub(crate) prefix: Option<OsString>,

    /// Serve them at this address, such as 127.0.0.1:9464, instead of printing them once
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<std::net::SocketAddr>,

    /// A name by which scrapers reach it, in addition to localhost and addresses
    #[arg(long = "host", value_name = "NAME", requires = "listen")]
    pub(crate) hosts: Vec<String>,

    /// Give each lock numbers of its own too, the first 1000 by name
    #[arg(long)]
    pub(crate) per_lock: bool,
}

/// Explain why a lock is not free
///
/// Prints its holders, with their notes and the length of their hold, and their processes on this
/// machine. The waiters follow in order, and the locks that the holders wait for themselves, with a
/// deadlock. For a lock that is cooling down it prints the last holder, and for a free lock the
/// problems of its store, as `doctor` does. Then it prints the commands that help. Changes nothing.
///
/// It lists the store to find the locks that the holders wait for. It distinguishes holders and
/// waiters by their owner names, so all tasks of one process look like one.
#[derive(Args, Debug)]
#[command(after_long_help = night::page())]
pub(crate) struct Why {
    /// The name of the lock
    pub(crate) key: OsString,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check whether the store is set up well for locks
///
/// On a server it checks eviction, memory, persistence, replicas, role, version, clock, rights,
/// scripts and notifications. In a directory it checks the file system, free space, rights and
/// path. It changes nothing. It prints the worst finding first, with its remedy. It exits with 79
/// if any is worse than a note, else with 0.
///
/// With --probe it also finds out by experiment whether locks work on any store. It uses scratch
/// names below `doctor/probe/`. Six contenders take one lock as quickly as they can, waiters are
/// notified, a lease expires, clocks are compared, and 200 locks must stay. That takes some seconds
/// and leaves nothing behind. After a signal a server forgets the rest in some seconds, after KILL
/// in a little over a minute. Without a store in the directory yet, it tries a temporary one on the
/// same file system. You can share the report: hosts and directories are left out.
///
/// With --acl it prints the command that creates a Redis or Valkey user with the least rights, for
/// the prefix and the database in the store's URL. It does not connect.
///
///   leasehold doctor
///   leasehold doctor --probe
///   leasehold doctor --acl --user app --feature lock,wait
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Doctor {
    /// Print a JSON document
    #[arg(long, conflicts_with = "acl")]
    pub(crate) json: bool,

    /// Make experiments too
    #[arg(long, conflicts_with = "acl")]
    pub(crate) probe: bool,

    /// Print the least ACL rule instead, as a command for redis-cli
    #[arg(long)]
    pub(crate) acl: bool,

    /// The features that the user may use [default: lock,wait,share,list]
    #[arg(
        long = "feature",
        value_name = "FEATURE",
        value_delimiter = ',',
        requires = "acl",
        value_enum
    )]
    pub(crate) features: Vec<Feature>,

    /// For locks in the layout of another library; see `run --help`
    #[arg(long, value_name = "LAYOUT", value_parser = super::options::layout, requires = "acl",
        conflicts_with = "features")]
    pub(crate) interop: Option<Layout>,

    /// The user's name
    #[arg(long, value_name = "NAME", default_value = "leasehold", requires = "acl")]
    pub(crate) user: String,
}

/// What a user of a server may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Feature {
    /// Take exclusive locks that are free, renew, release, show and force-release them
    Lock,
    /// Wait in the queue and be notified
    Wait,
    /// Share locks: read-write locks and semaphores
    Share,
    /// List locks
    List,
    /// Write the log of each lock, and read it
    Log,
    /// Use the server as a node of a quorum
    Quorum,
    /// Examine the server; this may read the passwords in its configuration
    Doctor,
}
