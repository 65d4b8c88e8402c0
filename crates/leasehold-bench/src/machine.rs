//! Describes the machine that the numbers were measured on.

use serde::Serialize;

/// Facts about this machine, and how busy it was.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cores: usize,
    cpu: Option<String>,
    kernel: String,
    /// The measured source: a commit and its date.
    commit: Option<String>,
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
            commit: commit(),
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
            "Commit {}; {} cores ({}), {}, load {} before and {} after",
            self.commit.as_deref().unwrap_or("unknown"),
            self.cores,
            self.cpu.as_deref().unwrap_or("unknown"),
            self.kernel,
            load(self.load_before),
            load(self.load_after),
        )
    }
}

fn commit() -> Option<String> {
    let mut git = std::process::Command::new("git");
    git.args(["log", "-1", "--format=%h of %cs"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let said = git.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(said.stdout).ok().map(|commit| commit.trim().to_owned())
}

fn cpu() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(name.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// How many bytes the allocator has handed out, with its overhead. With glibc only.
pub(crate) fn allocated_bytes() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it reads the allocator's numbers under its own lock.
        let numbers = unsafe { libc::mallinfo2() };
        u64::try_from(numbers.uordblks.saturating_add(numbers.hblkhd)).ok()
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}
