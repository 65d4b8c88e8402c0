//! Defines the options of the benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Measures what leasehold's locks cost, and what the store could do at best.
#[derive(Clone, Debug, Parser)]
#[command(name = "leasehold-bench", version)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) what: What,
    /// Print one JSON document instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// How many turns each variant gets [default: 5; with --quick 1]
    #[arg(long)]
    rounds: Option<u32>,
    /// How long each turn takes, in seconds [default: 1; with --quick 0.1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Small numbers, to check that everything works
    #[arg(long)]
    pub(crate) quick: bool,
    /// uncontended: how many concurrent callers, separated by commas [default: 1,64,1024]
    #[arg(long, value_delimiter = ',')]
    callers: Vec<usize>,
    /// handoff: how many contenders, separated by commas [default: 2,16,64,100,1000]
    #[arg(long, value_delimiter = ',')]
    pub(crate) waiters: Vec<usize>,
    /// handoff: how long each holds the lock, in ms, separated by commas [default: 0]
    #[arg(long, value_delimiter = ',')]
    pub(crate) hold: Vec<u64>,
    /// uncontended, handoff: delay added to the connection each way, in ms [default: 0]
    #[arg(long, default_value_t = 0)]
    pub(crate) delay: u64,
    /// Only these variants, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = VARIANTS)]
    variants: Vec<String>,
    /// renew: how many locks are held [default: 10000]
    #[arg(long)]
    locks: Option<usize>,
    /// report: leave out other languages' libraries, which pip and npm install
    #[arg(long)]
    pub(crate) no_programs: bool,
    /// report: the folder of performance.md [default: docs, where this was built]
    #[arg(long)]
    docs: Option<PathBuf>,
    /// Put the server on the first core and everything else on the second
    #[arg(long)]
    pub(crate) pin: bool,
}

/// The variants of `uncontended` and `handoff`, by their names in the output.
const VARIANTS: [&str; 23] = [
    "bare",
    "bare-across",
    "bare-fence",
    "floor",
    "flock",
    "map",
    "rslock",
    "leasehold",
    "memory",
    "embedded",
    "embedded-floor",
    "leasehold-one-client",
    "leasehold-two-clients",
    "bare-fifo",
    "line-floor",
    "line-floor-apart",
    "line-floor-across",
    "message",
    "publish-to-all",
    "blocking-pop",
    "blocking-pop-in-turn",
    "poll-2ms",
    "poll-50ms",
];

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum What {
    /// Acquire and release, without other contenders
    Uncontended,
    /// From the start of a release until the next holder has the lock
    Handoff,
    /// A holder dies: how long after the expiry its lock is granted
    Expiry,
    /// Many held locks, renewed in the background
    Renew,
    /// What other clients notice while very many locks are renewed
    Others,
    /// What each operation costs the server
    Scripts,
    /// Locks in PostgreSQL, against bare statements; not part of the others
    Postgres,
    /// All of it
    All,
    /// All of it, with other libraries and on all scales, written to docs: the table and the plots
    /// to performance.md, all tables to plots/report.md
    Report,
}

impl What {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Handoff => "handoff",
            Self::Expiry => "expiry",
            Self::Renew => "renew",
            Self::Others => "others",
            Self::Scripts => "scripts",
            Self::Postgres => "postgres",
            Self::All => "all",
            Self::Report => "report",
        }
    }
}

impl Args {
    pub(crate) fn docs(&self) -> PathBuf {
        let ours = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        self.docs.clone().unwrap_or_else(ours)
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 }).max(1)
    }

    pub(crate) fn turn(&self) -> Duration {
        let seconds = self.seconds.unwrap_or(if self.quick { 0.1 } else { 1.0 });
        Duration::from_secs_f64(seconds.clamp(0.01, 600.0))
    }

    /// How many pieces a variant's turn of this length has. The pieces of all variants alternate,
    /// since a shared host changes its pace several times a second. Results from different paces
    /// can't be compared.
    pub(crate) fn pieces(&self, turn: Duration) -> u32 {
        const PIECE: Duration = Duration::from_millis(50);
        let pieces = turn.as_nanos() / PIECE.as_nanos();
        if self.quick { 1 } else { u32::try_from(pieces).unwrap_or(u32::MAX).clamp(1, 20) }
    }

    pub(crate) fn callers(&self) -> Vec<usize> {
        match &*self.callers {
            [] if self.quick => vec![1, 16],
            [] => vec![1, 64, 1024],
            callers => callers.to_vec(),
        }
    }

    pub(crate) fn locks(&self) -> usize {
        self.locks.unwrap_or(if self.quick { 500 } else { 10_000 }).max(1)
    }

    pub(crate) fn wants(&self, variant: &str) -> bool {
        self.variants.is_empty() || self.variants.iter().any(|wanted| wanted == variant)
    }
}
