//! One simulation: processes with their own clocks, advanced in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Client, Owner, Result};
use tokio::runtime::{Builder, Runtime};

use crate::judge::{Books, Who};
use crate::net::{self, Net, Tally, inspect};
use crate::profile::{Fault, Profile, Us, What};
use crate::wire;
use crate::work::{JOB, KEYS, PERIOD, PLAIN, SEVERAL, Shared, Task};

/// The start, late enough for the nodes to count.
const START: Us = 120_000_000;
const SECOND: Us = 1_000_000;
/// How long a call of the client may take.
const CALL_TIMEOUT: Duration = Duration::from_millis(800);
/// How long after the end of all faults the last delayed request may arrive.
const LATEST: Us = 9_000_000;
/// The longest wait once all faults are over.
const WAIT_MAX: Us = 8_000_000;
/// The longest wait if a contender may have stopped polling.
const UNPOLLED_MAX: Us = 12_000_000;

struct Host {
    runtime: Option<Runtime>,
    rate_ppm: i64,
    life: u64,
    paused_until: Us,
    /// How long it has been stopped.
    owed: Us,
    /// By how many nanoseconds its timers lag, since they count milliseconds.
    behind_ns: u64,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) fault: Option<String>,
    pub(crate) simulated: Us,
    pub(crate) tally: Tally,
    pub(crate) books: Books,
}

impl Outcome {
    /// The kind of the violation.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.fault.as_deref().map(|fault| fault.split(':').next().unwrap_or_default())
    }
}

pub(crate) struct World {
    profile: Arc<Profile>,
    net: Arc<Net>,
    shared: Arc<Shared>,
    hosts: Vec<Host>,
    rng: fastrand::Rng,
    now: Us,
    /// The next fault.
    next: usize,
}

/// Runs a profile to its end, or to the first violation.
pub(crate) fn run(profile: &Profile, keeps_history: bool) -> Outcome {
    // For what the client itself draws: pauses.
    fastrand::seed(profile.seed ^ 0xc11e_0000);
    let mut world = World::new(profile.clone(), keeps_history);
    world.run();
    world.end()
}

impl World {
    fn new(profile: Profile, keeps_history: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(profile.seed);
        let net = Net::new(rng.u64(..), &profile.node_ppm, START);
        let shared = Shared::default();
        shared.books().keeps_history = keeps_history;
        let host = |rate_ppm: &i64| Host {
            runtime: None,
            rate_ppm: *rate_ppm,
            life: 0,
            paused_until: 0,
            owed: 0,
            behind_ns: 0,
        };
        let hosts = profile.host_ppm.iter().take(profile.hosts).map(host).collect();
        let mut world = Self {
            profile: Arc::new(profile),
            net: Arc::new(net),
            shared: Arc::new(shared),
            hosts,
            rng,
            now: START,
            next: 0,
        };
        for host in 0..world.hosts.len() {
            world.boot(host);
        }
        world
    }

    /// Starts a process.
    fn boot(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        host.life += 1;
        (host.paused_until, host.owed, host.behind_ns) = (0, 0, 0);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("BUG: a runtime without a thread can always be made");
        let process = Process {
            number,
            life: host.life,
            seed: self.rng.u64(..),
            net: Arc::clone(&self.net),
            shared: Arc::clone(&self.shared),
            profile: Arc::clone(&self.profile),
        };
        runtime.spawn(process.run());
        host.runtime = Some(runtime);
    }

    fn kill(&mut self, number: usize) {
        self.shared.books().died(number, self.now);
        self.shared.books().note(self.now, &format!("host {number} dies"));
        if let Some(runtime) = self.hosts[number].runtime.take() {
            runtime.shutdown_background();
        }
        self.boot(number);
    }

    fn begin_faults(&mut self) {
        let profile = Arc::clone(&self.profile);
        while let Some(Fault { at, lasts, what }) = profile.faults.get(self.next).copied()
            && START + at <= self.now
        {
            self.next += 1;
            let until = self.now + lasts;
            self.shared
                .books()
                .note(self.now, &format!("{what:?} for {:?}", Duration::from_micros(lasts)));
            let mut ends = until;
            match what {
                What::Kill { host } if host < self.hosts.len() => {
                    self.kill(host);
                    continue;
                }
                What::Pause { host } if host < self.hosts.len() => {
                    let paused = &mut self.hosts[host].paused_until;
                    *paused = until.max(*paused);
                }
                What::Restart { node, forgets } => self.net.restart(node, !forgets, lasts),
                What::Late { .. } | What::Reorder { .. } => {
                    ends += LATEST;
                    self.net.begin(what, until);
                }
                What::Kill { .. } | What::Pause { .. } => {}
                _ => self.net.begin(what, until),
            }
            let mut books = self.shared.books();
            books.last_fault = books.last_fault.max(ends);
        }
    }

    /// Advances a process and its clock by this much true time.
    fn tick(&mut self, number: usize, from: Us, passes: Us) {
        let host = &mut self.hosts[number];
        let Some(runtime) = &host.runtime else { return };
        let by_clock = net::by_clock(passes * 1_000, host.rate_ppm) + host.behind_ns;
        let whole = by_clock / 1_000_000;
        host.behind_ns = by_clock % 1_000_000;
        let rate_ppm = host.rate_ppm;
        runtime.block_on(async {
            net::runs_from(from, rate_ppm);
            if whole > 0 {
                tokio::time::sleep(Duration::from_millis(whole)).await;
            }
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            net::runs_no_more();
        });
    }

    fn step(&mut self) {
        let passes = self.rng.u64(1..=self.profile.step_max_ms) * 1_000;
        self.begin_faults();
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        self.rng.shuffle(&mut order);
        for number in order {
            let host = &mut self.hosts[number];
            if host.paused_until > self.now {
                host.owed += passes;
                continue;
            }
            let owed = std::mem::take(&mut host.owed);
            if owed > 0
                && let Some(runtime) = &host.runtime
            {
                // Its clock went on while it was stopped, so all its timers are overdue.
                let owed = Duration::from_micros(net::by_clock(owed, host.rate_ppm));
                runtime.block_on(tokio::time::advance(owed));
                self.look();
            }
            self.tick(number, self.now, passes);
        }
        self.now += passes;
        self.net.run_until(self.now);
        for (key, at) in self.net.take_forced() {
            // Some leases have twice the usual length.
            let longest = if self.profile.rates.prolongs > 0 { 2 } else { 1 };
            let ttl = u64::try_from(self.profile.ttl.as_micros()).unwrap_or(u64::MAX);
            self.shared.books().forced(&key, at, longest * ttl);
        }
        self.look();
    }

    fn look(&self) {
        let runs = |number: usize, look: &mut dyn FnMut()| {
            let host = &self.hosts[number];
            let Some(runtime) = &host.runtime else { return false };
            if host.owed > 0 || host.paused_until > self.now {
                return false;
            }
            let _here = runtime.enter();
            look();
            true
        };
        self.shared.books().look(self.now, runs);
    }

    fn is_over(&self) -> bool {
        self.shared.books().fault.is_some()
    }

    fn run_for(&mut self, length: Us, mut look: impl FnMut(&mut Self)) {
        let until = self.now + length;
        while self.now < until && !self.is_over() {
            self.step();
            look(self);
        }
    }

    fn run(&mut self) {
        let ttl = u64::try_from(self.profile.ttl.as_micros()).unwrap_or(u64::MAX);
        let judges_rest = self.profile.nodes == 1
            && self.profile.rates.unpolled == 0
            && self.profile.rates.detaches == 0
            && self.profile.rates.closes == 0;
        self.run_for(self.profile.lasts, |world| {
            if judges_rest {
                for key in PLAIN {
                    world.shared.books().look_past_the_dead(world.now, key, ttl.min(30 * SECOND));
                }
            }
        });
        self.heal();
        let (healed_at, mut looked_at) = (self.now, self.now);
        let mut look_behind = |world: &mut Self| {
            let settled = world.shared.books().last_death.max(healed_at) + 2 * ttl + SECOND;
            let may = judges_rest && world.now > healed_at + 6 * SECOND;
            if may && world.now > looked_at + SECOND {
                looked_at = world.now;
                if world.shared.books().last_death == 0 || world.now > settled {
                    world.look_behind(4 * SECOND);
                }
            }
        };
        self.run_for(2 * ttl + LATEST, &mut look_behind);
        self.shared.books().begin_calm();
        let calm_since = self.now;
        let unpolled = if self.profile.rates.unpolled > 0 { UNPOLLED_MAX } else { 0 };
        let longest = WAIT_MAX + unpolled;
        let waits_end = self.profile.nodes == 1;
        self.run_for(longest + 2 * SECOND, |world| {
            if waits_end {
                world.shared.books().look_for_progress(world.now, calm_since, longest);
            }
            look_behind(world);
        });
        if self.is_over() {
            return;
        }
        let stands_still = self.shared.books().standstill();
        if let Some(why) = stands_still {
            self.shared.books().accuse(self.now, "PROGRESS", "all locks", &why);
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        let (until, hosts) = (self.now + 40 * SECOND, self.hosts.len());
        while self.shared.books().closed < hosts && !self.is_over() {
            if self.now > until {
                self.shared.books().accuse(self.now, "STUCK", "a process", "it does not end");
            }
            self.step();
        }
        self.run_for(3 * SECOND, |_| {});
        if judges_rest && !self.is_over() {
            self.look_behind(0);
        }
    }

    fn heal(&mut self) {
        self.net.heal();
        self.next = usize::MAX;
        for host in &mut self.hosts {
            host.paused_until = 0;
        }
        self.shared.healed.store(true, Ordering::Relaxed);
        let mut books = self.shared.books();
        books.last_fault = books.last_fault.min(self.now + LATEST);
        books.note(self.now, "all is well from here on");
    }

    /// Looks for leases and waiters in the only store whose owners are gone.
    fn look_behind(&mut self, least: Us) {
        let store = self.net.store(0);
        for name in KEYS {
            let Some(info) = inspect(&store, name) else { continue };
            for holder in &info.holders {
                let held_for = u64::try_from(holder.held_for.as_micros()).unwrap_or(u64::MAX);
                let waits_for_others =
                    name == SEVERAL[0] && self.shared.books().is_waiting(name, &holder.owner);
                if held_for >= least && !waits_for_others && !self.net.is_double(holder.mark) {
                    let fence = Some(holder.fence.value());
                    self.shared.books().left_behind(name, fence, self.now);
                }
            }
            if least == 0 && !info.waiters.is_empty() {
                self.shared.books().left_behind(name, None, self.now);
            }
        }
        let closed_for = inspect(&store, JOB).and_then(|info| info.closed_for);
        if let Some(passed) = closed_for.and_then(|left| PERIOD.checked_sub(left)) {
            let since = self.now - u64::try_from(passed.as_micros()).unwrap_or_default();
            self.shared.books().closed_since(JOB, since, self.now);
        }
    }

    fn end(mut self) -> Outcome {
        for host in &mut self.hosts {
            if let Some(runtime) = host.runtime.take() {
                runtime.shutdown_background();
            }
        }
        let books = std::mem::take(&mut *self.shared.books());
        Outcome {
            fault: books.fault.clone(),
            simulated: self.now - START,
            tally: self.net.tally(),
            books,
        }
    }
}

/// A simulated process, from its first client to its last.
struct Process {
    number: usize,
    life: u64,
    seed: u64,
    net: Arc<Net>,
    shared: Arc<Shared>,
    profile: Arc<Profile>,
}

impl Process {
    async fn run(self) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        loop {
            let client = match self.client(rng.u64(..)) {
                Ok(client) => client,
                Err(error) => {
                    let now = self.net.now();
                    self.shared.books().accuse(now, "NO CLIENT", "a process", &error.to_string());
                    return;
                }
            };
            self.note("has a client");
            let (owner, closed) = (Owner::new(), Arc::<AtomicBool>::default());
            let tasks: Vec<_> = (0..self.profile.tasks)
                .map(|task| {
                    let task = Task {
                        client: client.clone(),
                        net: Arc::clone(&self.net),
                        shared: Arc::clone(&self.shared),
                        profile: Arc::clone(&self.profile),
                        who: Who { host: self.number, life: self.life, task },
                        owner: owner.clone(),
                        closed: Arc::clone(&closed),
                        rng: fastrand::Rng::with_seed(rng.u64(..)),
                    };
                    tokio::spawn(task.run())
                })
                .collect();
            let healed = || self.shared.healed.load(Ordering::Relaxed);
            if self.profile.rates.closes > 0 && !healed() {
                tokio::time::sleep(Duration::from_millis(rng.u64(2_000..30_000))).await;
                if !healed() {
                    self.note("closes its client");
                    closed.store(true, Ordering::Relaxed);
                    drop(client.close().await);
                }
            }
            for task in tasks {
                if let Err(error) = task.await {
                    let now = self.net.now();
                    self.shared.books().accuse(now, "PANIC", "a task", &error.to_string());
                }
            }
            if self.shared.stop.load(Ordering::Relaxed) {
                drop(client.close().await);
                self.shared.books().closed += 1;
                return std::future::pending().await;
            }
        }
    }

    fn note(&self, what: &str) {
        let (Self { number, life, .. }, now) = (self, self.net.now());
        self.shared.books().note(now, &format!("host {number}.{life} {what}"));
    }

    fn client(&self, seed: u64) -> Result<Client> {
        let store = wire::store(&self.net, self.number, &self.profile, seed)?;
        let builder = Client::builder()
            .tokio_time()
            .owner(format!("host {}", self.number))
            .ttl(self.profile.ttl)
            .call_timeout(CALL_TIMEOUT);
        let builder = if self.profile.in_order { builder.local_handoffs(0) } else { builder };
        builder.store(store)
    }
}
