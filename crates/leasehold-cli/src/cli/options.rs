//! Options that several commands share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use leasehold::Ttl;
use leasehold::interop::Layout;

use crate::duration;
use crate::signals;

/// Options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: embedded:, embedded:/PATH, redis://HOST, rediss://HOST, redis+unix:///PATH,
    /// redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST, quorum+redis://HOST,HOST,HOST,
    /// quorum:STORE,STORE,STORE, spread:NAME=STORE,NAME=STORE, postgres://USER@HOST/DATABASE
    /// [env: LEASEHOLD_STORE]
    ///
    /// Don't put a password here: every user of the machine can read the arguments. Put it into
    /// LEASEHOLD_PASSWORD, a --password-file, or the URL in LEASEHOLD_STORE or the config file.
    // Not read by clap, which would show it in the usage as something that was typed.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<OsString>,

    /// Fail if no store is named, instead of using the default store
    ///
    /// `default_store = "no"` in a config file does this for all commands.
    #[arg(long, global = true)]
    pub(crate) no_default_store: bool,

    /// A file with the store's password on its first line [env: LEASEHOLD_PASSWORD_FILE]
    ///
    /// Without the option the password comes from the store's URL, else from the file of the
    /// variable, else from LEASEHOLD_PASSWORD.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Retry for this long if the store is away at the start [default: 0s]
    ///
    /// By default leasehold exits at once if it can't reach the store. A shorter limit on waiting
    /// ends the retries too. Once the store has answered, waits for locks ride out its absence
    /// anyway.
    #[arg(
        long, global = true, value_name = "TIME",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) retry_store: Option<Duration>,

    /// Read this config file and no other [env: LEASEHOLD_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print nothing about a busy lock or a wait
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Log events to stderr; twice for details, three times for all
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// In whose layout a lock is kept.
#[derive(Args, Debug)]
pub(crate) struct Sharing {
    /// Keep the lock in the layout of another library, to share it with programs of that library
    ///
    /// LAYOUT is redis-py, python-redis-lock, node-redlock, redis-semaphore, redislock, redsync,
    /// symfony, spring:REGISTRY, shedlock:ENVIRONMENT, redisson, redisson-fenced, or plain for any
    /// other that keeps a string at the lock's name. The store is a Redis server, and the name is
    /// the library's. These layouts have only exclusive locks, without periods, cooldowns and a
    /// queue. Notes are missing in shedlock and redisson. Only shedlock has an owner's name, and
    /// only redisson-fenced has a fence.
    #[arg(long, value_name = "LAYOUT", value_parser = layout)]
    pub(crate) interop: Option<Layout>,
}

/// Options for locks of other libraries without an expiry.
#[derive(Args, Debug)]
pub(crate) struct Leftovers {
    /// Give a lock of the other library without expiry this one, and take it afterwards
    ///
    /// Such a lock is a leftover of a program that died between two commands. Use this only if each
    /// lock without expiry is such a leftover. Both steps are in the log (-v).
    #[arg(
        long, value_name = "TIME", requires = "interop",
        value_parser = duration::ttl, allow_hyphen_values = true,
    )]
    pub(crate) expire_leftovers: Option<Ttl>,
}

pub(super) fn layout(text: &str) -> Result<Layout, String> {
    text.parse().map_err(|error: leasehold::Error| error.to_string())
}

/// How long to wait for a lock.
#[derive(Args, Debug)]
pub(crate) struct Waiting {
    /// Do not wait: fail at once if the lock is held
    #[arg(short, long, aliases = ["nonblock", "nonblocking", "nb"], conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait for at most this long: seconds (2, 0.5) or a length with units (10s, 1m30s)
    ///
    /// The time to connect to the store counts. By default the wait has no limit.
    #[arg(
        short, long, alias = "timeout", value_name = "TIME",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) wait: Option<Duration>,

    /// Wait also for a lock that a command around this one holds, which may wait for this one
    #[arg(long)]
    pub(crate) wait_for_outer: bool,

    /// The exit code for a lock that is held, or a wait that timed out
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
}

impl Waiting {
    /// The time to wait, or `None` for ever.
    pub(crate) fn limit(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }
}

/// How to take a lock.
#[derive(Args, Debug)]
pub(crate) struct Taking {
    #[command(flatten)]
    pub(crate) waiting: Waiting,

    #[arg(
        long, value_name = "TIME", value_parser = duration::ttl, allow_hyphen_values = true,
        help = format!("How long the lease runs unless renewed, {} [default: 30s]", Ttl::RANGE),
    )]
    pub(crate) ttl: Option<Ttl>,

    /// A note to show with the lock; may be repeated, one note each
    #[arg(long, value_name = "KEY=VALUE", value_parser = note)]
    pub(crate) meta: Vec<String>,

    /// The name of the holder, for people [default: HOST_PID_TAG]
    #[arg(long, value_name = "NAME", value_parser = owner)]
    pub(crate) owner: Option<String>,
}

pub(super) fn owner(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("give a name".to_owned()) } else { Ok(text.to_owned()) }
}

pub(super) fn fence(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a fence is a whole number, as `leasehold show` prints it".to_owned())
}

pub(super) fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("give a whole number from 1 to {}", u32::MAX))
}

fn note(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(_) if text.contains('\n') => Err("a note is one line".to_owned()),
        Some((key, _)) if !key.is_empty() => Ok(text.to_owned()),
        _ => Err("give KEY=VALUE".to_owned()),
    }
}

/// What kind of lock it is, and how much of it to take.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Kinds of locks")]
pub(crate) struct Kinds {
    /// Share the lock with other holders that share it, while no holder has it alone
    ///
    /// A waiter that wants the lock alone goes before later waiters that share it.
    #[arg(short, long)]
    pub(crate) shared: bool,

    /// Hold the lock alone, which is the default
    #[arg(short = 'x', long)]
    pub(crate) exclusive: bool,

    /// Be one of at most N holders: the name is a semaphore with N permits
    ///
    /// All users of the name must give the same N, or --stored-limit; `set-limit` changes it.
    #[arg(long, value_name = "N", value_parser = number, allow_hyphen_values = true)]
    pub(crate) limit: Option<u32>,

    /// With --limit: use the limit that the name is in use with, if it is not N
    ///
    /// Without it another N is refused. For a deployment that changes N, give it to old and new
    /// programs.
    #[arg(long)]
    pub(crate) stored_limit: bool,

    /// The number of permits to take, all at once [default: 1]
    #[arg(long, value_name = "M", value_parser = number, allow_hyphen_values = true)]
    pub(crate) permits: Option<u32>,

    /// Start at most once per period on all hosts: the grant closes the lock for this long
    ///
    /// 1 ms to 365 days. The period begins with the grant; with replicas= the command starts when
    /// they have confirmed it. It never waits: a closed period counts as a busy lock, and stays
    /// closed even if the holder crashes. For a schedule, give a period clearly shorter than the
    /// interval, such as 55m for every hour. Otherwise a delayed start blocks the next one. A
    /// message warns if less than 5 % of the period was left.
    ///
    /// `leasehold why KEY` prints the owner, the time and the end of the last run. The store keeps
    /// a short log for that; with `log=0` in its URL it keeps none.
    #[arg(long, value_name = "TIME", value_parser = duration::period, allow_hyphen_values = true)]
    pub(crate) once_per: Option<Duration>,
}

/// A command to be run under a lock.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Run this command line with $SHELL, or /bin/sh
    #[arg(short = 'c', long = "command", value_name = "COMMAND LINE", conflicts_with = "cmd")]
    pub(crate) shell: Option<OsString>,

    /// The time before the deadline in which a command ends when the lock is lost
    /// [default: 5% of the ttl, 20ms to 5s, at most a quarter of the ttl]
    ///
    /// The command gets TERM at its start, and KILL after three quarters of it. At most half of the
    /// ttl.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// Send the command's process group this signal, such as TERM, when `ask` requests the release
    ///
    /// leasehold learns of the request within a second. Without this option it prints a line on
    /// stderr, at most a third of the ttl later. It keeps the lock until the command ends.
    #[arg(long, value_name = "SIGNAL", value_parser = signals::parse)]
    pub(crate) on_ask: Option<i32>,

    /// Keep the lock until everything that the command has started has ended, daemons too
    ///
    /// Without this the lock is released when the command's first process exits. Processes that it
    /// leaves running live on.
    #[arg(long)]
    pub(crate) until_all_end: bool,

    /// Write the outcome of the lock and the command to this file, as a JSON document
    ///
    /// It has the grant and its fence, a loss and its cause, the release and its delay, and the end
    /// of the command. It has leasehold's own exit code apart from the command's. The file is
    /// replaced in one step at each change, first before the lock is requested; `exit` is null
    /// until the end.
    #[arg(long, value_name = "FILE")]
    pub(crate) status: Option<PathBuf>,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD", required_unless_present = "shell")]
    pub(crate) cmd: Vec<OsString>,
}

/// Where a lease comes from.
#[derive(Args, Debug)]
pub(crate) struct LeaseSource {
    /// The file that `acquire` wrote; else LEASEHOLD_LEASE is used, else standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
}
