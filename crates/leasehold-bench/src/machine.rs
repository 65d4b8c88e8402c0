//! What the numbers were measured on.

use serde::Serialize;

/// Facts about this machine, and how busy it was.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cores: usize,
    cpu: Option<String>,
    kernel: String,
    /// Runnable tasks over the last minute, before and after.
    load_before: Option<f64>,
    load_after: Option<f64>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let uname = rustix::system::uname();
        let kernel =
            [uname.sysname(), uname.release()].map(|part| part.to_string_lossy().into_owned());
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu(),
            kernel: kernel.join(" "),
            load_before: load(),
            load_after: None,
        }
    }

    pub(crate) fn look_again(&mut self) {
        self.load_after = load();
    }

    pub(crate) fn line(&self) -> String {
        let load = |load: Option<f64>| load.map_or_else(|| "?".to_owned(), |load| load.to_string());
        format!(
            "{} cores ({}), {}, load {} before and {} after",
            self.cores,
            self.cpu.as_deref().unwrap_or("unknown"),
            self.kernel,
            load(self.load_before),
            load(self.load_after),
        )
    }
}

fn cpu() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(name.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// How much memory this process has in use, in bytes. Linux only.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes.saturating_mul(1024))
}
