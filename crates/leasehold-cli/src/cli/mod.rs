//! Defines the command line once, for parsing, help, man pages and completions.
//!
//! Values are only as good here as clap can tell without repeating a secret in its errors: URLs
//! and names are taken as they come and judged later.

pub(crate) mod hints;
mod holding;
mod looking;
mod night;
mod options;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use leasehold::interop::Layout;
use leasehold::{Cooldown, Ttl};

use crate::duration;
use crate::exit;

pub(crate) use self::holding::{Acquire, Hold, Release, Renew};
pub(crate) use self::looking::{Doctor, Feature, Log, Ls, Metrics, Show, Sort, Top, Ui, Why};
pub(crate) use self::options::{
    Global, Job, Kinds, LeaseSource, Leftovers, Sharing, Taking, Waiting,
};

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

A lock is a name. Its holder has a lease, which expires after its ttl, so a crash never blocks the \
lock for ever. `run` renews the lease while the command runs, and stops the \
command before another holder can get the lock.

A store grants the leases. It is the first that is given: --store, LEASEHOLD_STORE, or the config \
file ($XDG_CONFIG_HOME/leasehold/config.toml, then /etc/leasehold/config.toml). The keys of that file \
are `store`, `default_store`, `password_file`, `ttl`, `owner` and `retry_store`.

Without any of them it is the embedded store in /var/lib/leasehold, which the group leasehold shares. \
On a machine without that directory it is /tmp/leasehold-UID (root's: /run/leasehold). Your processes \
on this machine share it, also those of cron and services. A variable that is set and empty is an error.";

impl Cli {
    /// What was typed. Before a `--`, `run` takes several names; without
    /// one it takes the first word for the name and the rest for the command, as flock does.
    pub(crate) fn read(words: Vec<OsString>) -> Result<Self, clap::Error> {
        // A mistake in a part of the definition shows up with all of it, and so does its help.
        if let Some(part) = Self::part_for(&words)
            && let Ok(cli) = Self::read_by(part, &words)
        {
            return Ok(cli);
        }
        let read = Self::read_by(Self::command(), &words);
        read.or_else(|error| Self::with_names_behind(&words).ok_or(error))
    }

    /// The definition with one command only, since all of them take longer to make than to use.
    /// `None` if no word is the name of a command.
    fn part_for(words: &[OsString]) -> Option<clap::Command> {
        let meant =
            words.iter().find_map(|word| COMMANDS.into_iter().find(|(name, _)| word == name));
        let (name, define) = meant?;
        let command = define(clap::Command::new(name));
        Some(Global::augment_args(clap::Command::new("leasehold")).subcommand(command))
    }

    /// What was typed, if it is names behind a `--`, which begin with a dash, and a command.
    fn with_names_behind(words: &[OsString]) -> Option<Self> {
        let mut cli = Self::read_as(Self::command(), words, false).ok()?;
        let Command::Run(run) = &mut cli.command else { return None };
        if !run.keys.first()?.as_encoded_bytes().starts_with(b"-") {
            return None;
        }
        if let Some(end) = run.job.cmd.iter().position(|word| word == "--") {
            let command = run.job.cmd.split_off(end).split_off(1);
            run.keys.extend(std::mem::replace(&mut run.job.cmd, command));
        }
        Some(cli)
    }

    fn read_by(definition: clap::Command, words: &[OsString]) -> Result<Self, clap::Error> {
        Self::read_as(definition, words, words.iter().any(|word| word == "--"))
    }

    fn read_as(
        mut definition: clap::Command,
        words: &[OsString],
        several: bool,
    ) -> Result<Self, clap::Error> {
        if several && definition.find_subcommand("run").is_some() {
            definition = definition.mut_subcommand("run", |run| {
                run.mut_arg("key", |key| key.num_args(1..).action(ArgAction::Append))
                    .mut_arg("cmd", |cmd| cmd.trailing_var_arg(false).last(true))
            });
        }
        let matches = definition.try_get_matches_from_mut(words);
        // It is read once in a process; taking it apart would cost a tenth of the reading.
        std::mem::forget(definition);
        let matches = matches?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let Command::Run(run) = &mut cli.command {
            let typed = matches.subcommand_matches("run").and_then(|run| run.get_many("key"));
            run.keys = typed.into_iter().flatten().cloned().collect();
        }
        Ok(cli)
    }
}

/// Gives a command the definition of its options.
type Define = fn(clap::Command) -> clap::Command;

/// The commands that scripts start again and again, with what defines them.
const COMMANDS: [(&str, Define); 11] = [
    ("run", Run::augment_args),
    ("elect", Elect::augment_args),
    ("observe", Observe::augment_args),
    ("acquire", Acquire::augment_args),
    ("renew", Renew::augment_args),
    ("release", Release::augment_args),
    ("hold", Hold::augment_args),
    ("wait", Wait::augment_args),
    ("ls", Ls::augment_args),
    ("show", Show::augment_args),
    ("ask", Ask::augment_args),
];

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
    Log(Log),
    Top(Top),
    Ui(Ui),
    Metrics(Metrics),
    Why(Why),
    Ask(Ask),
    ForceRelease(ForceRelease),
    SetLimit(SetLimit),
    Setup(Setup),
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

    /// The expiry that a lock of another library's is given which is found without one.
    pub(crate) const fn leftovers(&self) -> Option<Ttl> {
        match self {
            Self::Run(args) => args.leftovers.expire_leftovers,
            Self::Hold(args) => args.leftovers.expire_leftovers,
            Self::Acquire(args) => args.leftovers.expire_leftovers,
            _ => None,
        }
    }

    /// How many events the store keeps by default. After a period only a log knows the holder and
    /// its end.
    pub(crate) const fn logs(&self) -> u32 {
        let once_per = match self {
            Self::Run(args) => args.kinds.once_per,
            Self::Hold(args) => args.kinds.once_per,
            Self::Acquire(args) => args.kinds.once_per,
            _ => None,
        };
        if once_per.is_some() { 100 } else { 0 }
    }

    /// The status file, with the command's name and the names of the locks.
    pub(crate) fn status(&self) -> Option<(&Path, &'static str, &[OsString])> {
        let (file, command, keys) = match self {
            Self::Run(args) => (&args.job.status, "run", args.keys.as_slice()),
            Self::Elect(args) => (&args.job.status, "elect", std::slice::from_ref(&args.key)),
            Self::Hold(args) => (&args.status, "hold", args.keys.as_slice()),
            _ => return None,
        };
        Some((file.as_deref()?, command, keys))
    }

    /// Whether it prints documents.
    pub(crate) const fn prints_documents(&self) -> bool {
        match self {
            Self::Observe(args) => args.json,
            Self::Acquire(args) => args.json,
            Self::Hold(args) => args.json,
            Self::Ls(args) => args.json,
            Self::Show(args) => args.json,
            Self::Log(args) => args.json,
            Self::Why(args) => args.json,
            Self::Doctor(args) => args.json,
            _ => false,
        }
    }
}

/// Run a command under a lock
///
/// Takes the lock, runs the command, releases the lock, and exits with the command's exit code.
/// leasehold renews the lease while the command runs. A lease is lost if the store goes away, or an
/// operator force-releases it. Everything that the command has started then gets TERM, and KILL
/// before another holder can get the lock. The exit code is 76.
///
/// The command has the open files that leasehold was given, with /dev/null for a closed standard
/// one. It has a process group of its own. Its parent is leasehold's watchdog, a child of
/// leasehold. Signals are forwarded to that group. Those for leasehold itself are not: KILL and
/// STOP, faults (BUS, FPE, ILL, SEGV, SYS), limits (XCPU, XFSZ), pipes and terminal (PIPE, TTIN,
/// TTOU).
///
/// On a terminal the command is the foreground job, so Ctrl-C and Ctrl-Z work as usual. A job that
/// is suspended for longer than the ttl loses its lock and is killed. A command that is stopped
/// without a terminal in front, as by STOP, keeps the lock, for as long as --max-hold allows.
///
/// If leasehold is killed, also by a fault, everything that the command has started dies with it.
/// If leasehold is stopped, all of it is killed when the lease expires. This holds for processes in
/// other groups, sessions and users (timeout, set -m, setsid, su, sudo). Only root can end
/// processes of other users: for them the lock is kept until they end, or it is lost. On systems
/// other than Linux only the process group is ended.
///
/// Processes that the command leaves running when it exits live on without the lock.
/// --until-all-end keeps the lock until they end. A signal or a key that ends the command is for
/// all of it: leasehold keeps the lock until the rest has ended too. The same signal again kills
/// the rest. If another signal ends the first process, as from the out-of-memory killer, the rest
/// gets TERM, and KILL within the grace. The lock is kept until it has ended.
///
/// Several names before the `--` are taken together, all or none, and held together: if one is
/// lost, all are. Such sets never deadlock, in any order of their names. Without a `--` the first
/// word is the name and the rest is the command. A command with a `--` of its own needs one before
/// it: `leasehold run deploy -- git checkout -- file`. So does a name that begins with a dash:
/// `leasehold run -- -name -- true`.
///
/// The command finds in its environment:
///   LEASEHOLD_KEY          the name of the lock; of several, each on a line, as given
///   LEASEHOLD_FENCE        the fencing token, a number that grows from holder to holder. Show it
///   to
///                          the resource that the lock protects. Of several locks, each is on a
///                          line, in the order of the names
///   LEASEHOLD_KEY_1, LEASEHOLD_FENCE_1, LEASEHOLD_KEY_2, ...
///                          each name with its fence, where there are several
///   LEASEHOLD_PERMITS      with --limit, how many permits are held
///   LEASEHOLD_OWNER        the owner that others see; not with --interop, except for shedlock
///   LEASEHOLD_OUTER        the processes of this and of the commands around it, each on a line;
///   not
///                          with --interop. A leasehold below that would wait for one of their
///                          locks exits with 75
///   LEASEHOLD_DEADLINE_MS  the deadline of the lease when the command started, in ms on the
///                          machine's boot clock (CLOCK_BOOTTIME, as in /proc/uptime). Renewals
///                          move it on. If they fail, leasehold sends TERM then, and KILL within
///                          the grace that follows
///   LEASEHOLD_STORE        the store of the lock, without its password, for a leasehold in the
///                          command
///   LEASEHOLD_PASSWORD_FILE, LEASEHOLD_CONFIG
///                          the password file and the config file that were named, if any
///
/// The environment has no password of the store. A leasehold in the command reads it from one of
/// these files, or fails with 69.
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

    /// The cooldown: keep other holders out for this time after the command, 0 to 365 days
    ///
    /// It begins with the release. If the store does not answer the release, a warning says that
    /// the cooldown may be missing.
    #[arg(long, value_name = "TIME", value_parser = duration::cooldown, allow_hyphen_values = true)]
    pub(crate) cooldown: Option<Cooldown>,

    /// The timeout of the command: hold the lock for this time at most, and stop the command before
    ///
    /// At least 10ms, counted from the grant. The command gets TERM, then KILL, in the last --grace
    /// of that time, and the exit code is 80. Another holder can get the lock after that time, even
    /// if leasehold itself is killed.
    #[arg(long, value_name = "TIME", value_parser = duration::max_hold, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) leftovers: Leftovers,

    #[command(flatten)]
    pub(crate) job: Job,

    // Last: the help puts everything after it under its heading.
    #[command(flatten)]
    pub(crate) kinds: Kinds,

    /// With --once-per: reopen the period if the command fails, so that another start can retry
    ///
    /// The period stays closed if the lock is lost, as by `force-release`.
    #[arg(long)]
    pub(crate) reopen_on_failure: bool,
}

const RUN_USAGE: &str = "\
leasehold run [OPTIONS] <KEY> [--] <CMD>...
       leasehold run [OPTIONS] <KEY> -c <COMMAND LINE>
       leasehold run [OPTIONS] <KEY>... -- <CMD>...";

/// Run a command on one host at a time: on the leader
///
/// Waits for the leadership, then runs the command as `run` does. If the leadership is lost,
/// leasehold stops the command before another candidate can lead, and campaigns again. When the
/// command ends by itself, leasehold exits with its exit code; with --restart it campaigns again.
/// The environment of the command is as for `run`; LEASEHOLD_FENCE grows from leader to leader.
///
/// -n and -w limit each campaign. Otherwise leasehold retries for ever if the store is away, at the
/// start or later.
#[derive(Args, Debug)]
#[command(override_usage = ELECT_USAGE, after_long_help = exit::HELP)]
pub(crate) struct Elect {
    /// The name of the election
    pub(crate) key: OsString,

    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Campaign again when the command has ended, whatever its exit code
    ///
    /// Not if a signal ended it. Starts the command at most once a second.
    #[arg(long)]
    pub(crate) restart: bool,

    /// The longest term: lead for this time at most, and campaign again behind the waiters
    ///
    /// At least 10ms, counted from the grant. The command gets TERM, then KILL, in the last --grace
    /// of that time. Another candidate can lead after that time, even if leasehold itself is
    /// killed.
    #[arg(long, value_name = "TIME", value_parser = duration::max_hold, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) job: Job,
}

const ELECT_USAGE: &str = "\
leasehold elect [OPTIONS] <KEY> [--] <CMD>...
       leasehold elect [OPTIONS] <KEY> -c <COMMAND LINE>";

/// Print the leader, and again whenever it changes
///
/// Prints one line for each leader: its fence, its owner, its notes. Without a leader each of them
/// is `-`. Polls the store once a second. Ends on a signal, or when its output is closed.
#[derive(Args, Debug)]
pub(crate) struct Observe {
    /// The name of the election
    pub(crate) key: OsString,

    /// Print a JSON document for each, on a line of its own
    #[arg(long)]
    pub(crate) json: bool,
}

/// Wait until a lock could be taken, without taking it
#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The name of the lock, or several, which must be free at one time
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    /// Until it could be shared
    #[arg(short, long)]
    pub(crate) shared: bool,

    /// Until this number of permits of a semaphore is free
    #[arg(long, value_name = "M", conflicts_with = "shared")]
    pub(crate) permits: Option<std::num::NonZeroU32>,
}

/// End the lease of another holder
///
/// The holder learns of it at its next renewal, at most a third of its ttl later. Until then it
/// works on, so end its process first if you can.
#[derive(Args, Debug)]
pub(crate) struct ForceRelease {
    /// The name of the lock
    pub(crate) key: OsString,

    /// The fence of the lease, as `show` prints it; other holders are left alone
    #[arg(long, value_name = "N", value_parser = options::fence, allow_hyphen_values = true)]
    pub(crate) fence: u64,
}

/// Request the release of a lock from its holders
///
/// The holder decides. `run --on-ask` and `hold --until-asked` learn of the request within a
/// second, other holders at their next renewal. `show` names the owner of the request.
#[derive(Args, Debug)]
pub(crate) struct Ask {
    /// The name of the lock
    pub(crate) key: OsString,

    /// Only from the holder with this fence, as `show` prints it
    #[arg(long, value_name = "N", value_parser = options::fence, allow_hyphen_values = true)]
    pub(crate) fence: Option<u64>,

    /// The owner of the request, for people [default: HOST_PID_TAG]
    #[arg(long, value_name = "NAME", value_parser = options::owner)]
    pub(crate) owner: Option<String>,
}

/// Change the limit of a semaphore in use
///
/// Held permits stay held, even above a lower limit. Waiters that want more permits than the new
/// limit are refused. From then on all users of the name must give the new limit.
#[derive(Args, Debug)]
pub(crate) struct SetLimit {
    /// The name of the lock
    pub(crate) key: OsString,

    /// The new number of permits
    #[arg(value_name = "N", value_parser = options::number, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Make the tables of locks in a PostgreSQL database, or print the SQL for it
///
/// It prints the SQL that makes the schema, its tables and functions. It also prints the GRANTs
/// that a role needs for locks, and limits that are worth setting. Only --run connects.
///
/// Applying it again changes nothing. After an update of leasehold, apply it before the first use.
/// Tables of a later version are left alone.
///
///   leasehold setup --store postgres://app@db/shop | psql -h db -U postgres shop
///   leasehold setup --store postgres://owner@db/shop --user app --run
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Setup {
    /// Apply it in one transaction, as the user in the store's URL
    #[arg(long)]
    pub(crate) run: bool,

    /// Let the functions work with the rights of the schema's owner, and take the role's rights to
    /// the tables away
    #[arg(long)]
    pub(crate) least: bool,

    /// The role that takes locks [default: the user in the store's URL]
    #[arg(long, value_name = "ROLE")]
    pub(crate) user: Option<String>,
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

    #[test]
    fn no_help_has_a_line_that_is_broken_again_where_it_is_shown() {
        use clap::CommandFactory as _;
        for command in Cli::command().get_subcommands() {
            // Without a break of its own it is broken where there is room.
            let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            for paragraph in about.split("\n\n").filter(|paragraph| paragraph.contains('\n')) {
                let wide = paragraph.lines().find(|line| line.chars().count() > 100);
                assert_eq!(wide, None, "{}", command.get_name());
            }
        }
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        let words = ["leasehold"].into_iter().chain(line.split(' ')).map(OsString::from);
        Cli::read(words.collect())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
        parse("run a b -- job").unwrap();
    }

    /// What is read by a part of the definition and what is read by all of it.
    fn by_part_and_whole(line: &str) -> [Option<String>; 2] {
        let words = ["leasehold"].into_iter().chain(line.split(' ')).map(OsString::from);
        let words: Vec<_> = words.collect();
        let definitions = [Cli::part_for(&words), Some(Cli::command())];
        definitions.map(|of| Some(format!("{:?}", Cli::read_by(of?, &words).ok()?)))
    }

    #[test]
    fn a_part_of_the_definition_reads_what_all_of_it_does() {
        for line in [
            "run k -- job -v",
            "--store embedded: -q run a b -w 5 -- job --store x",
            "run -vv --store redis://h k job -n --help",
            "run run -- run",
            "run k --owner acquire --limit 3 --read -c job",
            "elect k --store embedded: -- job",
            "observe k",
            "acquire a b --ttl 5s --json",
            "renew --lease-file f",
            "release --all --owner o --yes",
            "hold k --max-hold 1m",
            "wait k --permits 2",
            "ls --json",
            "show k -q",
            "ask k",
        ] {
            let [part, whole] = by_part_and_whole(line);
            assert!(part.is_some() || whole.is_none(), "{line}: {whole:?}");
            assert_eq!(part, whole, "{line}");
        }
        // A name before the command's own is found first, and then all of the definition decides.
        for line in ["--config run show k", "--config=x --store show run k -- job"] {
            let [part, whole] = by_part_and_whole(line);
            assert!(part.is_none() && whole.is_some(), "{line}: {part:?}");
            assert_eq!(parse(line).ok().map(|cli| format!("{cli:?}")), whole);
        }
        for line in
            ["run --help", "--version run k", "help run", "run k --fly", "acquire", "fly run"]
        {
            assert_eq!(by_part_and_whole(line), [None, None], "{line}");
        }
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
        for line in ["-n -- -k job -v", "-n -- -k -- job -v"] {
            let run = run(line);
            assert_eq!(
                (&run.keys[..], &run.job.cmd[..]),
                (&["-k".into()][..], &["job".into(), "-v".into()][..])
            );
            assert!(run.taking.waiting.no_wait);
        }
        let run = run("-- -a b -- job --");
        assert_eq!(run.keys, ["-a", "b"]);
        assert_eq!(run.job.cmd, ["job", "--"]);
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
            "release --owner o --lease-file f",
            "release --yes --cooldown 1s",
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
