//! Options that several commands have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use leasehold::interop::Layout;

use crate::duration;
use crate::signals;

/// Options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: embedded:, embedded:/PATH, redis://HOST, rediss://HOST, redis+unix:///PATH,
    /// redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST, quorum+redis://HOST,HOST,HOST,
    /// quorum:STORE,STORE,STORE [env: LEASEHOLD_STORE]
    ///
    /// A password does not belong here, where every user of the machine can read it: put it into
    /// LEASEHOLD_PASSWORD, a --password-file, or the URL in LEASEHOLD_STORE or the config file.
    // Not read by clap, which would show it in the usage as something that was typed.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<OsString>,

    /// A file with the store's password on its first line
    ///
    /// Without it the password is the one in the store's URL, else that of LEASEHOLD_PASSWORD.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Go on trying for this long to reach a store that is away at the start [default: 0s]
    ///
    /// Without it, a store that can't be reached ends the command at once. A limit on waiting that is
    /// shorter ends it too. Once the store was reached, waits for locks ride out its absence anyway.
    #[arg(
        long, global = true, value_name = "TIME",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) retry_store: Option<Duration>,

    /// Read this config file and no other [env: LEASEHOLD_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Say nothing when the lock is busy, nor what is waited for
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Say on stderr what happens; twice for details, three times for all
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// In whose layout a lock is kept.
#[derive(Args, Debug)]
pub(crate) struct Sharing {
    /// Keep the lock as another library does, so that its programs and this keep each other out
    ///
    /// LAYOUT is redis-py, python-redis-lock, node-redlock, redis-semaphore, redislock, redsync,
    /// symfony, spring:REGISTRY, shedlock:ENVIRONMENT, redisson, redisson-fenced, or plain for
    /// another that keeps a string at the lock's name. The store is a Redis server, and the name is
    /// the library's. There are no readers, semaphores, periods, cool-downs and no order of
    /// arrival, no notes with shedlock and redisson, and no fence but with redisson-fenced.
    #[arg(long, value_name = "LAYOUT", value_parser = layout)]
    pub(crate) interop: Option<Layout>,
}

fn layout(text: &str) -> Result<Layout, String> {
    text.parse().map_err(|error: leasehold::Error| error.to_string())
}

/// How long to wait for a lock.
#[derive(Args, Debug)]
pub(crate) struct Waiting {
    /// Do not wait: give up at once if the lock is held
    #[arg(short, long, aliases = ["nonblock", "nonblocking", "nb"], conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait for at most this long: seconds (2, 0.5) or a length with units (10s, 1m30s)
    ///
    /// Connecting to the store is a part of it. Without -n and -w the wait has no end.
    #[arg(
        short, long, alias = "timeout", value_name = "TIME",
        value_parser = duration::parse, allow_hyphen_values = true,
    )]
    pub(crate) wait: Option<Duration>,

    /// The exit code for a lock that is held, or a wait that ran out
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

    /// How long the lease runs unless renewed, 3ms to 30days [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// A note that is shown with the lock; may be given again, and each is a line of its own
    #[arg(long, value_name = "KEY=VALUE", value_parser = note)]
    pub(crate) meta: Vec<String>,

    /// Who holds the lock, for people [default: HOST_PID]
    #[arg(long, value_name = "NAME", value_parser = owner)]
    pub(crate) owner: Option<String>,
}

pub(super) fn owner(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("name somebody".to_owned()) } else { Ok(text.to_owned()) }
}

pub(super) fn fence(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a fence is a whole number, as `leasehold show` prints it".to_owned())
}

pub(super) fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "give a whole number, 1 or more".to_owned())
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
    /// Share the lock with everybody else who shares it; nobody has it alone meanwhile
    ///
    /// Whoever wants it alone and waits goes before those who come to share it after.
    #[arg(short, long)]
    pub(crate) shared: bool,

    /// Hold the lock alone, which is the default
    #[arg(short = 'x', long)]
    pub(crate) exclusive: bool,

    /// Be one of at most N holders: the name is a semaphore with N permits
    ///
    /// All who use the name have to give the same N; `set-limit` changes it.
    #[arg(long, value_name = "N", value_parser = number, allow_hyphen_values = true)]
    pub(crate) limit: Option<u32>,

    /// How many of the N permits to take, all at once [default: 1]
    #[arg(long, value_name = "M", value_parser = number, allow_hyphen_values = true)]
    pub(crate) permits: Option<u32>,

    /// Once per period on all hosts: the lock stays closed for so long from now on
    ///
    /// Never waits: a closed period is a busy lock. It stays closed whatever becomes of the holder.
    /// Where a schedule starts it, give a period that is clearly shorter than the schedule's, such
    /// as 55m for every hour: a start that is a little late would else keep out the next.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) once_per: Option<Duration>,
}

/// A command to be run under a lock.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Run this command line with $SHELL, or /bin/sh
    #[arg(short = 'c', long = "command", value_name = "COMMAND LINE", conflicts_with = "cmd")]
    pub(crate) shell: Option<OsString>,

    /// When the lock is lost: the time for ending the command, all of it before the deadline
    /// [default: 5% of the ttl, within 20ms and 5s, a quarter of the ttl at most]
    ///
    /// TERM comes at its start, KILL when three quarters of it are over. At most half of the ttl.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// When somebody asks for the lock: send the command's process group this signal, such as TERM
    ///
    /// Learns of it within a second. Without this a line on stderr says so, after a third of the
    /// ttl at most. The lock is kept until the command ends.
    #[arg(long, value_name = "SIGNAL", value_parser = signals::parse)]
    pub(crate) on_ask: Option<i32>,

    /// Let the command inherit the file descriptors above 2 that leasehold was given
    ///
    /// Shells pass <(process substitution) that way. Without this the command gets stdin, stdout
    /// and stderr only.
    #[arg(long)]
    pub(crate) keep_fds: bool,

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
