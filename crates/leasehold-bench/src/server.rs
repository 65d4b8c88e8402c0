//! Starts the private server, and reads what it counts about itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use leasehold_testkit::server::RedisServer;

use crate::cli::Args;

#[derive(Clone, Debug)]
pub(crate) struct Server(Arc<RedisServer>);

impl Server {
    pub(crate) fn start(args: &Args) -> anyhow::Result<Self> {
        let server = RedisServer::builder().config("maxclients 9000").start();
        if args.pin {
            let pid = i32::try_from(server.pid()).ok().and_then(rustix::process::Pid::from_raw);
            pin(pid, 0).context("cannot pin the server")?;
            pin(None, 1).context("cannot pin this process")?;
        }
        Ok(Self(Arc::new(server)))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    pub(crate) fn addr(&self) -> std::net::SocketAddr {
        self.0.addr()
    }

    /// Program and version.
    pub(crate) fn describe(&self) -> String {
        let info = self.0.info("server");
        match (info.get("valkey_version"), info.get("redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, Some(version)) => format!("Redis {version}"),
            (None, None) => "unknown".to_owned(),
        }
    }

    /// Processor time used so far, in µs.
    pub(crate) fn cpu_us(&self) -> f64 {
        let info = self.0.info("cpu");
        let seconds = ["used_cpu_user", "used_cpu_sys"]
            .map(|field| info.get(field).and_then(|text| text.parse().ok()).unwrap_or(0.0));
        seconds.iter().sum::<f64>() * 1e6
    }

    /// The server's memory in use, in bytes; NaN if it is unknown.
    pub(crate) fn memory(&self) -> f64 {
        let used = self.0.info("memory").get("used_memory").and_then(|used| used.parse().ok());
        used.unwrap_or(f64::NAN)
    }

    /// Calls of each command so far, with those inside scripts.
    pub(crate) fn calls(&self) -> Calls {
        let stats = self.0.info("commandstats");
        let calls = stats.iter().filter_map(|(command, fields)| {
            let calls = fields.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((command.strip_prefix("cmdstat_")?.to_owned(), calls))
        });
        Calls(calls.collect())
    }

    /// The total time of scripts so far, in µs.
    pub(crate) fn script_us(&self) -> f64 {
        let stats = self.0.info("commandstats");
        let spent = |command: &str| -> Option<f64> {
            let (_, spent) = stats.get(command)?.split_once("usec=")?;
            spent.split(',').next()?.parse().ok()
        };
        ["cmdstat_evalsha", "cmdstat_eval"].into_iter().filter_map(spent).sum()
    }

    pub(crate) fn command(&self, args: &[&str]) -> String {
        self.0.cli(args)
    }
}

/// Calls by command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(BTreeMap<String, u64>);

impl Calls {
    /// How often any of these was called between `before` and now.
    pub(crate) fn since(&self, before: &Self, commands: &[&str]) -> u64 {
        let count = |calls: &Self| -> u64 {
            commands.iter().filter_map(|command| calls.0.get(*command)).sum()
        };
        count(self).saturating_sub(count(before))
    }
}

fn pin(pid: Option<rustix::process::Pid>, core: usize) -> rustix::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(core);
        rustix::thread::sched_setaffinity(pid, &cores)
    }
    #[cfg(not(target_os = "linux"))]
    {
        drop((pid, core));
        Err(rustix::io::Errno::NOSYS)
    }
}
