//! What can be typed: the one definition behind parsing, help, man pages and completions.
//!
//! Values are only as good here as clap can tell without repeating a secret in its errors: URLs
//! and names are taken as they come and judged later.

mod options;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{
    ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};

use leasehold::interop::Layout;

use crate::duration;
use crate::exit;

pub(crate) use self::options::{Global, Job, Kinds, LeaseSource, Sharing, Taking, Waiting};

/// Run jobs under a distributed lock: one at a time, on one machine or on many.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    color = clap::ColorChoice::Never,
    arg_required_else_help = true,
    max_term_width = 100,
    long_about = LONG_ABOUT,
    after_long_help = exit::HELP,
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const LONG_ABOUT: &str = "\
Run jobs under a distributed lock: one at a time, on one machine or on many.

A lock is a name. Its holder has a lease, which ends by itself when its ttl runs out, so a crash \
never keeps others out for ever. `run` renews the lease while the command runs, and stops the \
command before another holder can get the lock.

A store grants the leases. It is the first of these that is given: --store, LEASEHOLD_STORE, the \
config file ($XDG_CONFIG_HOME/leasehold/config.toml, then /etc/leasehold/config.toml; its keys are \
`store`, `password_file`, `ttl`, `owner` and `retry_store`). Without any it is the embedded store in \
/tmp/leasehold-UID (root's: /run/leasehold). All your processes on this machine share that one, those \
of cron and services included.";

impl Cli {
    /// What was typed. Before a `--`, `run` takes several names; without
    /// one it takes the first word for the name and the rest for the command, as flock does.
    pub(crate) fn read(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut definition = Self::command();
        let several = words.iter().any(|word| word == "--");
        if several {
            definition = definition.mut_subcommand("run", |run| {
                run.mut_arg("key", |key| key.num_args(1..).action(ArgAction::Append))
                    .mut_arg("cmd", |cmd| cmd.trailing_var_arg(false).last(true))
            });
        }
        let matches = definition.try_get_matches_from(words)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let Command::Run(run) = &mut cli.command {
            let typed = matches.subcommand_matches("run").and_then(|run| run.get_many("key"));
            run.keys = typed.into_iter().flatten().cloned().collect();
        }
        Ok(cli)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Elect(Box<Elect>),
    Observe(Observe),
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    Hold(Hold),
    Wait(Wait),
    Ls(Ls),
    Show(Show),
    Top(Top),
    Ui(Ui),
    Metrics(Metrics),
    Why(Why),
    Ask(Ask),
    ForceRelease(ForceRelease),
    SetLimit(SetLimit),
    Doctor(Doctor),
    Completions(Completions),
    Man(Man),
}

impl Command {
    /// The layout of another library, where its lock is meant.
    pub(crate) const fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Run(args) => args.sharing.interop.as_ref(),
            Self::Hold(args) => args.sharing.interop.as_ref(),
            Self::Show(args) => args.sharing.interop.as_ref(),
            Self::Acquire(args) => args.sharing.interop.as_ref(),
            Self::Renew(args) => args.sharing.interop.as_ref(),
            Self::Release(args) => args.sharing.interop.as_ref(),
            _ => None,
        }
    }

    /// Whether it prints documents.
    pub(crate) const fn prints_documents(&self) -> bool {
        match self {
            Self::Observe(args) => args.json,
            Self::Acquire(args) => args.json,
            Self::Hold(args) => args.json,
            Self::Ls(args) => args.json,
            Self::Show(args) => args.json,
            Self::Why(args) => args.json,
            Self::Doctor(args) => args.json,
            _ => false,
        }
    }
}

/// Run a command under a lock
///
/// Takes the lock, runs the command, releases the lock, and exits with the command's exit code.
/// leasehold renews the lease while the command runs. If the lease is lost all the same, because the
/// store went away or an operator released it, the command's process group gets TERM, and KILL before
/// another holder can get the lock. The exit code is then 76.
///
/// The command has leasehold's stdin, stdout and stderr, and a process group of its own. leasehold
/// forwards signals to that group, except those that concern leasehold alone: KILL and STOP, faults
/// (BUS, FPE, ILL, SEGV, SYS), limits (XCPU, XFSZ) and its own use of pipes and terminal (PIPE, TTIN,
/// TTOU). On a terminal the command is the foreground job, so Ctrl-C and Ctrl-Z work as usual. A job
/// that stays suspended for longer than the ttl loses its lock and is killed.
///
/// If leasehold is killed, also by a fault, the whole group dies with it. If leasehold is stopped, the
/// group is killed when the lease is over. Only processes that leave the group (daemons, setsid) or
/// change their user (sudo) are out of reach.
///
/// What the command leaves running when it ends is left alone, without the lock. A signal or a key
/// that asks the command to end asks its whole group: leasehold then keeps the lock until the rest has
/// ended too, however long that takes. Another such signal kills the rest.
///
/// Several names before the `--` are taken together, all or none, and held together: when one is
/// lost, all are. Such sets never deadlock, whatever the order of their names. Without a `--` the first
/// word is the name and the rest is the command.
///
/// The command finds in its environment:
///   LEASEHOLD_KEY          the name of the lock; several names are each on a line, as given
///   LEASEHOLD_FENCE        the fencing token, a number larger than that of every earlier holder.
///                          Show it to the resource that the lock protects. Several fences are
///                          each on a line, in the order of the names
///   LEASEHOLD_KEY_1, LEASEHOLD_FENCE_1, LEASEHOLD_KEY_2, ...
///                          each name with its fence, where there are several
///   LEASEHOLD_PERMITS      with --limit, how many permits are held
///   LEASEHOLD_OWNER        the owner that others see
///   LEASEHOLD_DEADLINE_MS  the deadline of the lease when the command started, in ms on the
///                          machine's boot clock (CLOCK_BOOTTIME, as in /proc/uptime). Renewals
///                          move it on. The command need not watch it: if renewals fail, leasehold
///                          stops the command before the deadline
///
/// The environment has no password of the store, and no LEASEHOLD_STORE that contains one.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment, override_usage = RUN_USAGE, after_long_help = exit::HELP)]
pub(crate) struct Run {
    /// The name of the lock: 1 to 512 bytes of UTF-8 without control characters
    #[arg(value_name = "KEY")]
    key: OsString,

    /// All names.
    #[arg(skip)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Keep the lock closed for so long after the command has ended
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Duration>,

    /// The command's time-out: hold the lock for no longer, and end the command before that
    ///
    /// Counted from when the lock was taken. The command gets TERM, then KILL, in the last --grace
    /// of that time, and the exit code is 80 whatever the command makes of it. No other holder gets
    /// the lock before, and none is kept out after, even if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) job: Job,

    // Last, for its heading in the help is that of everything after it.
    #[command(flatten)]
    pub(crate) kinds: Kinds,

    /// With --once-per: reopen the period if the command fails, so that another start can retry
    #[arg(long)]
    pub(crate) reopen_on_failure: bool,
}

const RUN_USAGE: &str = "\
leasehold run [OPTIONS] <KEY> [--] <CMD>...
       leasehold run [OPTIONS] <KEY> -c <COMMAND LINE>
       leasehold run [OPTIONS] <KEY>... -- <CMD>...";

/// Run a command on one host at a time: on the leader
///
/// Waits in line for the leadership, then runs the command as `run` does. When the leadership is lost,
/// leasehold ends the command before another candidate can lead, and campaigns again. When the command
/// ends by itself, leasehold exits with its exit code; with --restart it campaigns again. The
/// environment of the command is that of `run`; LEASEHOLD_FENCE grows from leader to leader.
///
/// -n and -w limit each campaign. Without them leasehold retries a store that can't be reached, at the
/// start or later, for as long as it takes.
#[derive(Args, Debug)]
#[command(override_usage = ELECT_USAGE, after_long_help = exit::HELP)]
pub(crate) struct Elect {
    /// The name of the election
    pub(crate) key: OsString,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Campaign again when the command has ended, whatever its exit code
    ///
    /// Not if a signal asked it to end. Starts the command at most once a second.
    #[arg(long)]
    pub(crate) restart: bool,

    /// The longest term: lead for no longer, and campaign again behind those who wait
    ///
    /// Counted from when the post was taken. The command gets TERM, then KILL, in the last --grace of that
    /// time. Nobody is kept out after, even if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) job: Job,
}

const ELECT_USAGE: &str = "\
leasehold elect [OPTIONS] <KEY> [--] <CMD>...
       leasehold elect [OPTIONS] <KEY> -c <COMMAND LINE>";

/// Print the leader, and again whenever it changes
///
/// Prints one line for each leader: its fence, its owner, its notes. Without a leader each of them is
/// `-`. Asks the store once a second. Ends on a signal, or when its output is closed.
#[derive(Args, Debug)]
pub(crate) struct Observe {
    /// The name of the election
    pub(crate) key: OsString,

    /// Print a JSON document for each, on a line of its own
    #[arg(long)]
    pub(crate) json: bool,
}

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

    /// Write the lease to this new file, readable by you alone, instead of stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,

    /// Print a JSON document, which contains the lease unless --lease-file is given
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) kinds: Kinds,
}

/// Give a lease that was taken with `acquire` a new length
#[derive(Args, Debug)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) source: LeaseSource,

    /// How long the lease runs from now on [default: as long as before]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// End a lease that was taken with `acquire`, or all of an owner
///
/// Exits with 76 if the lease had expired before. The message says whether another holder has had the
/// lock since. The lease file is removed once the lease has ended.
#[derive(Args, Debug)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) source: LeaseSource,

    /// Keep the lock closed for so long
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Duration>,

    /// For operators: take away all leases of an owner instead
    ///
    /// Takes each away by its fence, as `force-release` does, touches no other owner's lease, and
    /// prints the outcome of each. Without --yes it only prints which leases these are, and exits
    /// with 0.
    #[arg(long, conflicts_with_all = ["lease_file", "cooldown"])]
    pub(crate) all: bool,

    /// The owner of the leases [default: the `owner` in the config file]
    #[arg(long, value_name = "NAME", requires = "all", value_parser = options::owner)]
    pub(crate) owner: Option<String>,

    /// Take them away, rather than print them
    #[arg(long, requires = "all")]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Hold a lock until standard input closes, or a signal comes
///
/// Prints the fence and the name on one line once it holds the lock, and renews the lease until the
/// end. Several names are taken together, and each has a line. A signal that ends the process releases
/// the lock first, except KILL and faults (BUS, FPE, ILL, SEGV, SYS). In a script:
///
///   leasehold hold backup --while-pid $$ > held &
///   while [ ! -s held ] && kill -0 $!; do sleep 0.1; done
///
/// If standard input is /dev/null, as for jobs that a script starts in the background, and --while-pid
/// is not given, it holds the lock until a signal comes.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
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
    /// Counted from when the lock was taken. Nobody is kept out after, even if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Leave standard input alone and hold until a signal comes
    #[arg(long)]
    pub(crate) ignore_stdin: bool,

    /// Leave standard input alone and hold until this process has ended, or a signal comes
    #[arg(long, value_name = "PID", conflicts_with = "ignore_stdin")]
    pub(crate) while_pid: Option<u32>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) kinds: Kinds,
}

/// Wait until a lock could be taken, without taking it
#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The name of the lock, or several, which have to be free at once
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    /// Until it could be shared
    #[arg(short, long)]
    pub(crate) shared: bool,

    /// Until so many permits of a semaphore are free
    #[arg(long, value_name = "M", conflicts_with = "shared")]
    pub(crate) permits: Option<std::num::NonZeroU32>,
}

/// List the locks in use
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only those whose names start with this
    pub(crate) prefix: Option<OsString>,

    /// List them again at this interval, 2s by default, until a signal comes
    ///
    /// On a terminal each list replaces the last. If the store goes away, it is asked again.
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

    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Watch the locks in use
///
/// Shows for each lock its holder, how long it has been held, how long the lease still runs unless
/// renewed, and the number of waiters. Lists the whole store now and then; in between it asks only for
/// the locks on the screen.
///
///   up, down, page up, page down, home, end    choose a lock; enter shows all about it
///   s, r                                       sort by something else; the other way round
///   /                                          show only names and owners with this text
///   x                                          take it away, when you type the end of its fence
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
/// For each lock it shows the holder, how long it has held the lock, how long the lease runs on
/// unless renewed, the waiters, and the holds of the last five minutes that the page has seen. It
/// prints the page's address, lists the store while a page is open, and ends with a signal.
///
/// All who reach the address may look, other users of this machine too. The page only shows,
/// unless --allow-release is given. Then those with the printed address, which has a token in it,
/// can take a lease away by typing the end of its fence.
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

    /// A name by which browsers reach it, besides localhost and addresses
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,

    /// How often the store is listed, 100ms or more
    #[arg(
        long, value_name = "TIME", default_value = "1s",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) every: Duration,

    /// Let those with the printed address take leases away
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
    /// Whose lease ends first
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
/// Counts the locks that are held, closed and waited for, and tells the age of the oldest hold, the
/// longest wait, and whether the store answered. Each scrape lists the store. With --listen it prints
/// the address that it serves, with the port that it got if you gave port 0. Every client that reaches
/// the address may read. Ends on a signal.
#[derive(Args, Debug)]
pub(crate) struct Metrics {
    /// Only locks whose names start with this
    pub(crate) prefix: Option<OsString>,

    /// Serve them at this address, such as 127.0.0.1:9464, instead of printing them once
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<std::net::SocketAddr>,

    /// Give each lock numbers of its own too, the first 1000 by name
    #[arg(long)]
    pub(crate) per_lock: bool,
}

/// Explain why a lock is not free
///
/// Prints its holders, with their notes and since when they hold it, and what a holder's process does
/// if it runs on this machine; the waiters, in order; what the holders themselves wait for, and whether
/// that is a deadlock; when a closed lock was last taken; and what you can do. Changes nothing.
///
/// It lists the store to find what the holders wait for. It tells holders and waiters apart by their
/// owner names, so all tasks of one process look like one.
#[derive(Args, Debug)]
pub(crate) struct Why {
    /// The name of the lock
    pub(crate) key: OsString,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a lock away from its holder
///
/// The holder learns of it at its next renewal, at most a third of its ttl later. Until then it goes on
/// working, so end the holder first if you can.
#[derive(Args, Debug)]
pub(crate) struct ForceRelease {
    /// The name of the lock
    pub(crate) key: OsString,

    /// The fence of the lease, as `show` prints it; other holders are left alone
    #[arg(long, value_name = "N", value_parser = options::fence, allow_hyphen_values = true)]
    pub(crate) fence: u64,
}

/// Ask the holders of a lock to let go
///
/// The holder decides. It learns of the request within a second if it waits for one, as `run --on-ask`
/// and `hold --until-asked` do, else at its next renewal. `show` names the owner that asked.
#[derive(Args, Debug)]
pub(crate) struct Ask {
    /// The name of the lock
    pub(crate) key: OsString,

    /// Ask only the holder with this fence, as `show` prints it
    #[arg(long, value_name = "N", value_parser = options::fence, allow_hyphen_values = true)]
    pub(crate) fence: Option<u64>,

    /// The name of the owner that asks, for people [default: HOST_PID]
    #[arg(long, value_name = "NAME", value_parser = options::owner)]
    pub(crate) owner: Option<String>,
}

/// Change the limit of a semaphore in use
///
/// Permits that are held stay held, even above a lower limit. Waiters that want more permits than the
/// new limit are refused. From then on all users of the name have to give the new limit.
#[derive(Args, Debug)]
pub(crate) struct SetLimit {
    /// The name of the lock
    pub(crate) key: OsString,

    /// The new number of permits
    #[arg(value_name = "N", value_parser = options::number, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Check whether the store is set up well for locks
///
/// On a server it checks eviction, memory, persistence, replicas, role, version, clock, rights, scripts
/// and messages, by asking and by trying. In a directory it checks the file system, free space, rights
/// and place. It changes nothing. It prints the worst finding first, with what to set, and exits with 79
/// if any is worse than a note, else with 0.
///
/// With --probe it also finds out by experiment whether locks work, whatever the store calls
/// itself. On scratch names below `doctor/probe/` six contenders take one lock as quickly as they
/// can, waiters are woken, a lease ends by itself, clocks are compared, and 200 locks have to
/// stay. That takes some seconds and leaves nothing behind. The report names no host and no
/// directory, so it can be shared.
///
/// With --acl it prints the command that creates a Redis or Valkey user with the least rights, for the
/// prefix and the database in the store's URL. It does not connect.
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

    /// Find out by experiment too
    #[arg(long, conflicts_with = "acl")]
    pub(crate) probe: bool,

    /// Print the least ACL rule instead, as a command for redis-cli
    #[arg(long)]
    pub(crate) acl: bool,

    /// What the user may do [default: lock,wait,share,list]
    #[arg(
        long = "feature",
        value_name = "FEATURE",
        value_delimiter = ',',
        requires = "acl",
        value_enum
    )]
    pub(crate) features: Vec<Feature>,

    /// The user's name
    #[arg(long, value_name = "NAME", default_value = "leasehold", requires = "acl")]
    pub(crate) user: String,
}

/// What a user of a server may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Feature {
    /// Take exclusive locks that are free, renew, release, show and force-release them
    Lock,
    /// Wait in line and be woken
    Wait,
    /// Share locks: read-write locks and semaphores
    Share,
    /// List locks
    List,
    /// Use the server as a node of a quorum
    Quorum,
    /// Examine the server; this may read the passwords in its configuration
    Doctor,
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print a man page, or write all of them
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The command that the page is about; leasehold itself by default
    pub(crate) command: Option<String>,

    /// Write all pages into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        let words = ["leasehold"].into_iter().chain(line.split(' ')).map(OsString::from);
        Cli::read(words.collect())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
        parse("run a b -- job").unwrap();
    }

    fn run(line: &str) -> Run {
        match parse(&format!("run {line}")).map(|cli| cli.command) {
            Ok(Command::Run(run)) => *run,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_may_stand_before_or_after_the_name_as_flocks_users_type_them() {
        for line in ["-n k -- job -v", "k -n -- job -v", "-n k job -v", "-xn k job -v"] {
            let run = run(line);
            assert!(run.taking.waiting.no_wait, "{line}");
            assert_eq!(run.keys, ["k"], "{line}");
            assert_eq!(run.job.cmd, ["job", "-v"], "{line}");
        }
        let of_the_command = run("k job -n");
        assert!(!of_the_command.taking.waiting.no_wait);
        assert_eq!(run("k -w 0.5 -E 9 -c job").job.shell.unwrap(), "job");
        assert_eq!(run("k -w.5 -c job").taking.waiting.wait, Some(Duration::from_millis(500)));
        assert_eq!(run("k -- job -- x").job.cmd, ["job", "--", "x"]);
    }

    #[test]
    fn what_stands_before_two_dashes_are_names_and_options() {
        for line in ["a b -n -- job -v", "-n a b -- job -v", "a -w 5 b -- job -v"] {
            let run = run(line);
            assert_eq!(run.keys, ["a", "b"], "{line}");
            assert_eq!(run.job.cmd, ["job", "-v"], "{line}");
        }
        assert_eq!(run("a b -c job --").keys, ["a", "b"]);
        assert_eq!(run("a b c").job.cmd, ["b", "c"]);
    }

    #[test]
    fn contradictions_and_gaps_are_refused() {
        for line in [
            "run k",
            "run",
            "run k -n -w 1 -- job",
            "run k -c job -- job",
            "run k -w -5 -- job",
            "run k -E 256 -- job",
            "run k --ttl -1s -- job",
            "run k --meta novalue -- job",
            "force-release k",
            "run k --on-ask FLY -- job",
            "run k --on-ask 0 -- job",
            "elect k",
            "elect",
            "observe",
            "ask",
            "set-limit k",
            "set-limit k few",
            "release --yes",
            "release --owner o",
            "release --all --lease-file f",
            "wait k -s --permits 2",
            "wait k --permits 0",
            "doctor --feature lock",
            "doctor --user u",
            "doctor --acl --json",
            "doctor --acl --feature fly",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
