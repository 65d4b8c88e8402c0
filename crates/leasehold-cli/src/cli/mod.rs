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

A lock is a name. Who holds it has a lease: a hold that ends by itself when its ttl runs out, so a \
crash locks nobody out for ever. `run` renews the lease while the command runs, and stops the \
command before anybody else can get the lock.

The store that grants leases is the one of --store, else of LEASEHOLD_STORE, else of the config \
file ($XDG_CONFIG_HOME/leasehold/config.toml, then /etc/leasehold/config.toml; its keys are \
`store`, `password_file`, `ttl`, `owner` and `retry_store`), else the embedded store in /tmp/leasehold-UID \
(root's is in /run/leasehold), which all your processes on this machine share, those of cron and \
services included.";

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
/// The lease is renewed while the command runs. When it is lost all the same, because the store
/// went away or an operator released it, the command's process group gets TERM and, before
/// anybody else can get the lock, KILL; the exit code is then 76.
///
/// The command has leasehold's stdin, stdout and stderr and a process group of its own, to which
/// signals are forwarded. Not forwarded are those that concern leasehold alone: KILL and STOP, faults
/// (BUS, FPE, ILL, SEGV, SYS), limits (XCPU, XFSZ) and its own use of pipes and terminal (PIPE, TTIN,
/// TTOU). On a terminal it is the foreground job: Ctrl-C and Ctrl-Z work as usual, but a job that
/// stays suspended for longer than the ttl loses its lock and is killed. A leasehold that is killed,
/// also by a fault, takes the whole group with it, and one that is stopped does when its lease is
/// over. Only processes that leave the group (daemons, setsid) or change their user (sudo) are out of
/// reach. What the command leaves running when it
/// ends is left alone, without the lock. When it was asked to end, by a signal or a key, so was all
/// of its group: the lock is then kept until the rest has ended too, however long that takes, and
/// another such signal kills the rest.
///
/// Several names before the `--` are taken together, all or none, and held together: when one is
/// lost, all are. Whoever takes such sets never waits for another in a circle, whatever the order.
/// Without a `--` the first word is the name and the rest the command.
///
/// The command finds in its environment:
///   LEASEHOLD_KEY          the name of the lock; of several each on a line, as they were given
///   LEASEHOLD_FENCE        the fencing token: a number larger than that of every earlier holder,
///                          to be shown to whatever the lock protects; of several locks each on a
///                          line, in the order of the names
///   LEASEHOLD_KEY_1, LEASEHOLD_FENCE_1, LEASEHOLD_KEY_2, ...
///                          each name with its fence, where there are several
///   LEASEHOLD_PERMITS      with --limit, how many permits are held
///   LEASEHOLD_OWNER        who holds the lock, as others see it
///   LEASEHOLD_DEADLINE_MS  until when the lock was proven when the command started, in ms on the
///                          machine's boot clock (CLOCK_BOOTTIME, as in /proc/uptime). Renewals
///                          move it on; nothing needs to be done at that time, since the command
///                          is stopped before it if they fail
///
/// It does not find the password of the store, nor a LEASEHOLD_STORE that contains one.
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

    /// Keep the lock closed to everybody for so long after the command has ended
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Duration>,

    /// The command's time-out: hold the lock for no longer, and end the command before that
    ///
    /// Counted from when the lock was taken. The command gets TERM, then KILL, in the last --grace
    /// of that time, and the exit code is 80 whatever the command makes of it. Nobody else gets the
    /// lock before, and nobody is kept out after, even if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) job: Job,

    // Last, for its heading in the help is that of everything after it.
    #[command(flatten)]
    pub(crate) kinds: Kinds,

    /// With --once-per: open the period again if the command fails, so that it can be tried anew
    #[arg(long)]
    pub(crate) reopen_on_failure: bool,
}

const RUN_USAGE: &str = "\
leasehold run [OPTIONS] <KEY> [--] <CMD>...
       leasehold run [OPTIONS] <KEY> -c <COMMAND LINE>
       leasehold run [OPTIONS] <KEY>... -- <CMD>...";

/// Run a command on one host at a time: on the leader
///
/// Campaigns for the lock, in line, and runs the command once it leads, as `run` does. When the
/// leadership is lost, the command is ended before anybody else can lead, and the next campaign
/// begins. When the command ends by itself, so does this, with its exit code; --restart campaigns
/// again instead. The command finds in its environment what that of `run` does; LEASEHOLD_FENCE
/// grows from leader to leader.
///
/// -n and -w are for each campaign. Without them a store that can't be reached, at the start or
/// later, is asked again for as long as it takes.
#[derive(Args, Debug)]
#[command(override_usage = ELECT_USAGE, after_long_help = exit::HELP)]
pub(crate) struct Elect {
    /// The name of the post
    pub(crate) key: OsString,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Campaign again when the command has ended, however it did
    ///
    /// Not if a signal asked it to end. Starts it at most once in a second.
    #[arg(long)]
    pub(crate) restart: bool,

    #[command(flatten)]
    pub(crate) job: Job,
}

const ELECT_USAGE: &str = "\
leasehold elect [OPTIONS] <KEY> [--] <CMD>...
       leasehold elect [OPTIONS] <KEY> -c <COMMAND LINE>";

/// Print who leads, and again whenever that changes
///
/// One line for each leader: its fence, its owner, its notes; `-` for each when nobody leads. Looks
/// once a second. Ends with a signal, or when nobody reads its output any more.
#[derive(Args, Debug)]
pub(crate) struct Observe {
    /// The name of the post
    pub(crate) key: OsString,

    /// Print a JSON document on a line of its own for each
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a lock and leave it held, for shell scripts
///
/// Prints the lease, or writes it to a file that only you can read. It is not renewed: it ends
/// with its ttl unless `renew` or `release` is called with it. Whoever can read the lease can end
/// it.
///
///   LEASEHOLD_LEASE=$(leasehold acquire backup --ttl 10m -n) || exit
///   export LEASEHOLD_LEASE
///   ...
///   leasehold release
///
/// Several names are taken together, all or none. There is a line for each then, in the order in
/// which they were given, and `renew` and `release` take them all.
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
}

/// End a lease that was taken with `acquire`, or all of an owner
///
/// Exits with 76 when the lease had run out before: the message then says whether somebody else
/// has held the lock since. The lease file is removed once the lease has ended.
#[derive(Args, Debug)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) source: LeaseSource,

    /// Keep the lock closed to everybody for so long
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Duration>,

    /// Take all leases of an owner away instead, for operators
    ///
    /// Each is taken away by its fence, as with `force-release`; nobody else's is touched. Says of
    /// each how it went. Without --yes it only says which leases these are,
    /// and exits with 0.
    #[arg(long, conflicts_with_all = ["lease_file", "cooldown"])]
    pub(crate) all: bool,

    /// Whose leases [default: those of the `owner` in the config file]
    #[arg(long, value_name = "NAME", requires = "all", value_parser = options::owner)]
    pub(crate) owner: Option<String>,

    /// Do take them away
    #[arg(long, requires = "all")]
    pub(crate) yes: bool,
}

/// Hold a lock until standard input closes, or a signal comes
///
/// Prints the fence and the name on one line once the lock is held, and renews it until then. Of
/// several names, which are taken together, each has a line. Any signal that ends a process gives the
/// lock back first, but for KILL and faults (BUS, FPE, ILL, SEGV, SYS). In a script:
///
///   leasehold hold backup --while-pid $$ > held &
///   while [ ! -s held ] && kill -0 $!; do sleep 0.1; done
///
/// Without --while-pid a standard input that is /dev/null, as it is for what a script runs in the
/// background, means: until a signal comes.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Hold {
    /// The name of the lock, or several
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Let go as soon as somebody asks for the lock
    #[arg(long)]
    pub(crate) until_asked: bool,

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

    /// List them again every so often, 2s by default, until a signal comes
    ///
    /// On a terminal each list takes the place of the last. A store that goes away is asked again.
    #[arg(
        long, value_name = "TIME", num_args = 0..=1, require_equals = true,
        default_missing_value = "2s", value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) watch: Option<Duration>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show who holds a lock and who waits for it
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
/// For each its holder, how long that has held it, how long the lease runs on unless renewed, and how
/// many wait. Lists the store now and then; in between asks only for the locks on the screen.
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

    /// Print all as a table, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// What they are sorted by
    #[arg(long, value_enum, default_value_t = Sort::Held)]
    pub(crate) sort: Sort,

    /// How often the locks on the screen are asked for, 100ms or more
    #[arg(
        long, value_name = "TIME", default_value = "1s",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) every: Duration,
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
/// How many are held, closed and waited for, how long the oldest hold and the longest wait are, and
/// whether the store could be asked. Each scrape lists the store. It prints the address at which it
/// serves, with the port that was free if none was given; anybody who reaches it may read. Ends with a
/// signal.
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

/// Explain what keeps a lock from those who want it
///
/// Says who holds it, since when, what that says about itself, and on the holder's own machine what its
/// process does; who waits, in order; what the holders wait for themselves, and whether that leads back
/// to them in a circle; of a closed lock when it was taken last; and what can be done. Changes nothing.
///
/// To find what the holders wait for it lists the store. Holders and waiters are told apart by
/// their names, so tasks of one process look like one.
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
/// The holder learns of it when it next renews, a third of its ttl later at most; until then it
/// works on. So end the holder first if you can.
#[derive(Args, Debug)]
pub(crate) struct ForceRelease {
    /// The name of the lock
    pub(crate) key: OsString,

    /// The fence of the hold, as `show` prints it; another holder is left alone
    #[arg(long, value_name = "N", value_parser = options::fence, allow_hyphen_values = true)]
    pub(crate) fence: u64,
}

/// Ask the holders of a lock to let go
///
/// Nobody is forced. A holder learns of it within a second if it waits to be asked, as `run
/// --on-ask` and `hold --until-asked` do, else when it next renews. `show` says who asked.
#[derive(Args, Debug)]
pub(crate) struct Ask {
    /// The name of the lock
    pub(crate) key: OsString,

    /// Ask only the holder with this fence, as `show` prints it
    #[arg(long, value_name = "N", value_parser = options::fence, allow_hyphen_values = true)]
    pub(crate) fence: Option<u64>,

    /// Who asks, for people [default: HOST_PID]
    #[arg(long, value_name = "NAME", value_parser = options::owner)]
    pub(crate) owner: Option<String>,
}

/// Change the limit of a semaphore in use
///
/// Permits that are held stay held, also above a lower limit, and waiters that want more than it
/// are refused. From then on the name has to be used with the new limit.
#[derive(Args, Debug)]
pub(crate) struct SetLimit {
    /// The name of the lock
    pub(crate) key: OsString,

    /// All permits that there are to be
    #[arg(value_name = "N", value_parser = options::number, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Look at where locks are kept, and say what that means for them
///
/// Of a server it looks at eviction, memory, persistence, replicas, role, version, clock, rights,
/// scripts and messages, by asking and by trying; of a directory at its file system, room, rights
/// and place. Nothing is changed. Says the worst first, and what to set. Exits with 0 if nothing
/// is worse than a note, else with 79.
///
/// With --acl it prints the command that makes a user of a Redis or Valkey server with the least
/// rights, for the prefix and the database in the store's URL. It connects to nothing.
///
///   leasehold doctor
///   leasehold doctor --acl --user app --feature lock,wait
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Doctor {
    /// Print a JSON document
    #[arg(long, conflicts_with = "acl")]
    pub(crate) json: bool,

    /// Print the least ACL rule instead, as a command for redis-cli
    #[arg(long)]
    pub(crate) acl: bool,

    /// What the user is to do [default: lock,wait,share,list]
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

/// What a user of a server is to do.
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
