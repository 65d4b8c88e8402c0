//! Small programs that use the library, to their last moment: judged when their process has ended,
//! by what the store shows then and by who gets the lock.

use std::future::pending;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::panic::catch_unwind;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use leasehold::{Client, ErrorKind, Guard};
use leasehold_testkit::process::{TestProcess, describe};
use leasehold_testkit::server::RedisServer;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::support::{PATIENCE, ms, secs};

const PROGRAM: &str = "LEASEHOLD_TEST_PROGRAM";
const URL: &str = "LEASEHOLD_TEST_PROGRAM_URL";
const TTL: &str = "LEASEHOLD_TEST_PROGRAM_TTL";
/// Free when a program begins.
const FREE: &str = "free";
/// Held by the judge for as long as a program runs.
const BUSY: &str = "busy";

/// What a program leaves in the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Left {
    /// Nothing: no lease and no position in the queue, from the moment at which its process is
    /// gone.
    Nothing,
    /// What ends with its ttl, and may be gone before.
    UntilTtl,
    /// A lease that expires.
    Lease,
}

impl Left {
    /// A ttl that can't be what ended a lease, unless that is what is tried.
    const fn ttl(self) -> Duration {
        match self {
            Self::Nothing | Self::Lease => secs(3_600),
            Self::UntilTtl => secs(2),
        }
    }
}

struct Program {
    name: &'static str,
    main: fn(&World) -> u8,
    /// How its process ends: with this exit code, or by this signal.
    ends: Ends,
    on_one_machine: Left,
    on_redis: Left,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ends {
    With(u8),
    By(i32),
}

/// What ends a lease with its process on one machine, and with its ttl on Redis.
const fn unended(name: &'static str, main: fn(&World) -> u8, ends: Ends) -> Program {
    Program { name, main, ends, on_one_machine: Left::Nothing, on_redis: Left::UntilTtl }
}

const fn tidy(name: &'static str, main: fn(&World) -> u8, ends: Ends) -> Program {
    Program { name, main, ends, on_one_machine: Left::Nothing, on_redis: Left::Nothing }
}

const PROGRAMS: [Program; 18] = [
    tidy("returns when its wait ran out", times_out, Ends::With(75)),
    tidy("exits when its wait ran out", times_out_and_exits, Ends::With(75)),
    tidy("returns when it was refused", is_refused, Ends::With(75)),
    tidy("drops a wait and closes", drops_a_wait_and_closes, Ends::With(0)),
    unended("drops a wait and returns", drops_a_wait, Ends::With(0)),
    tidy("releases and returns", releases, Ends::With(0)),
    tidy("drops its guard and closes", drops_its_guard_and_closes, Ends::With(0)),
    unended("returns with its guard", returns_with_its_guard, Ends::With(0)),
    unended("returns while a guard lives", returns_while_a_guard_lives, Ends::With(0)),
    tidy("closes while a guard lives", closes_while_a_guard_lives, Ends::With(0)),
    unended("panics while it holds", panics, Ends::With(101)),
    tidy("has a task that panics, and closes", has_a_task_that_panics, Ends::With(0)),
    unended("exits while it holds", exits, Ends::With(3)),
    unended("aborts while it holds", aborts, Ends::By(libc::SIGABRT)),
    tidy("loses its runtime and closes", loses_its_runtime_and_closes, Ends::With(0)),
    tidy("has a fork that ends before it", has_a_fork_that_ends, Ends::With(0)),
    Program {
        name: "detaches and returns",
        main: detaches,
        ends: Ends::With(0),
        on_one_machine: Left::Nothing,
        on_redis: Left::Lease,
    },
    Program {
        name: "takes what is to outlive it, detaches and returns",
        main: detaches_what_is_to_outlive_it,
        ends: Ends::With(0),
        on_one_machine: Left::Lease,
        on_redis: Left::Lease,
    },
];

/// The parent of a fork that lives on: the kernel does not say that a holder has ended then.
const FORKED: Program = Program {
    name: "ends while its fork lives on",
    main: has_a_fork_that_lives_on,
    ends: Ends::With(0),
    on_one_machine: Left::UntilTtl,
    on_redis: Left::UntilTtl,
};

/// What a program is given.
struct World {
    url: String,
    ttl: Duration,
}

impl World {
    async fn client(&self) -> Client {
        Client::builder().ttl(self.ttl).connect(&self.url).await.unwrap()
    }

    /// Takes the free lock, and prints its fence.
    async fn hold(&self) -> (Client, Guard) {
        let client = self.client().await;
        let guard = client.mutex(FREE).lock().await.unwrap();
        tell(&guard.fence().unwrap().value().to_string());
        (client, guard)
    }
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").unwrap();
    out.flush().unwrap();
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn run(main: impl Future<Output = u8>) -> u8 {
    runtime().block_on(main)
}

fn times_out(world: &World) -> u8 {
    run(async {
        let client = world.client().await;
        let error = client.mutex(BUSY).lock_within(ms(200)).await.unwrap_err();
        if error.kind() == ErrorKind::Timeout { 75 } else { 1 }
    })
}

#[expect(clippy::exit, reason = "nothing may run after the answer, not even what ends a runtime")]
fn times_out_and_exits(world: &World) -> u8 {
    run(async {
        let client = world.client().await;
        let error = client.mutex(BUSY).lock_within(ms(200)).await.unwrap_err();
        std::process::exit(if error.kind() == ErrorKind::Timeout { 75 } else { 1 })
    })
}

fn is_refused(world: &World) -> u8 {
    run(async {
        let client = world.client().await;
        let tried = client.mutex(BUSY).try_lock().await.unwrap();
        let mutex = client.mutex(BUSY).give_up_early(true);
        let vain = mutex.lock_within(secs(5)).await.unwrap_err();
        if tried.is_none() && vain.kind() == ErrorKind::Timeout { 75 } else { 1 }
    })
}

/// Waits until it is in the queue, and drops the future.
async fn drop_a_wait(client: &Client) {
    let mutex = client.mutex(BUSY);
    let in_line = async {
        while client.inspect(BUSY).await.unwrap().is_none_or(|info| info.waiters.is_empty()) {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::select! {
        got = mutex.lock() => panic!("another process holds it: {got:?}"),
        () = in_line => {}
    }
}

fn drops_a_wait_and_closes(world: &World) -> u8 {
    run(async {
        let client = world.client().await;
        drop_a_wait(&client).await;
        client.close().await.unwrap();
        0
    })
}

fn drops_a_wait(world: &World) -> u8 {
    run(async {
        drop_a_wait(&world.client().await).await;
        0
    })
}

fn releases(world: &World) -> u8 {
    run(async {
        let (_client, guard) = world.hold().await;
        guard.release().await.unwrap();
        0
    })
}

fn drops_its_guard_and_closes(world: &World) -> u8 {
    run(async {
        let (client, guard) = world.hold().await;
        drop(guard);
        client.close().await.unwrap();
        0
    })
}

fn returns_with_its_guard(world: &World) -> u8 {
    run(async {
        let _held = world.hold().await;
        0
    })
}

fn returns_while_a_guard_lives(world: &World) -> u8 {
    static HELD: OnceLock<(Client, Guard)> = OnceLock::new();
    run(async {
        HELD.set(world.hold().await).unwrap();
        0
    })
}

fn closes_while_a_guard_lives(world: &World) -> u8 {
    static HELD: OnceLock<Guard> = OnceLock::new();
    run(async {
        let (client, guard) = world.hold().await;
        HELD.set(guard).unwrap();
        client.close().await.unwrap();
        0
    })
}

fn panics(world: &World) -> u8 {
    run(async {
        let _held = world.hold().await;
        panic!("as it was told to")
    })
}

fn has_a_task_that_panics(world: &World) -> u8 {
    run(async {
        let (client, guard) = world.hold().await;
        let task = tokio::spawn(async move {
            let _held = guard;
            panic!("as it was told to")
        });
        assert!(task.await.unwrap_err().is_panic());
        client.close().await.unwrap();
        0
    })
}

#[expect(clippy::exit, reason = "this is what is tried")]
fn exits(world: &World) -> u8 {
    run(async {
        let _held = world.hold().await;
        std::process::exit(3)
    })
}

fn aborts(world: &World) -> u8 {
    run(async {
        let _held = world.hold().await;
        std::process::abort()
    })
}

fn loses_its_runtime_and_closes(world: &World) -> u8 {
    let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, guard) = first.block_on(world.hold());
    first.spawn(async move {
        let _held = guard;
        pending::<()>().await;
    });
    drop(first);
    run(async {
        client.close().await.unwrap();
        0
    })
}

/// Makes a fork, which runs `child` and nothing else.
fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child does what is given, with what is its parent's, and leaves without running
    // anything else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fine = child();
        // SAFETY: ends the child at once, without the destructors of the parent's things.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert!(pid > 0);
    pid
}

fn has_a_fork_that_ends(world: &World) -> u8 {
    run(async {
        let (_client, guard) = world.hold().await;
        let mut guard = Some(guard);
        let child = fork(|| {
            let held = guard.take().unwrap();
            !held.is_held()
        });
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child believed in its parent's lease");
        let guard = guard.unwrap();
        assert!(guard.is_held_by_store().await.unwrap());
        guard.release().await.unwrap();
        0
    })
}

#[expect(clippy::exit, reason = "nothing may give the lease up")]
fn has_a_fork_that_lives_on(world: &World) -> u8 {
    run(async {
        let _held = world.hold().await;
        // Until the judge has judged.
        fork(|| {
            let mut byte = [0_u8; 1];
            // SAFETY: reads one byte into room for one.
            unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) == 0 }
        });
        std::process::exit(0)
    })
}

fn detaches(world: &World) -> u8 {
    run(async {
        let (_client, guard) = world.hold().await;
        guard.detach().await.unwrap();
        0
    })
}

fn detaches_what_is_to_outlive_it(world: &World) -> u8 {
    run(async {
        let builder = Client::builder().ttl(world.ttl).detached(true);
        let client = builder.connect(&world.url).await.unwrap();
        let guard = client.mutex(FREE).lock().await.unwrap();
        tell(&guard.fence().unwrap().value().to_string());
        guard.detach().await.unwrap();
        0
    })
}

/// Where such a program begins: this test binary, started again. In an ordinary run of the tests it
/// has nothing to do.
#[test]
#[expect(clippy::exit, reason = "a program ends as it does, and not as a test does")]
fn program() {
    let Ok(name) = std::env::var(PROGRAM) else { return };
    let url = std::env::var(URL).unwrap();
    let ttl = Duration::from_millis(std::env::var(TTL).unwrap().parse().unwrap());
    let world = World { url, ttl };
    let program = PROGRAMS.iter().chain([&FORKED]).find(|one| one.name == name).unwrap();
    // As Rust ends a program when its `main` has returned or panicked.
    let code = catch_unwind(|| (program.main)(&world)).unwrap_or(101);
    std::process::exit(code.into());
}

/// A store for each program alone.
enum Place {
    OneMachine(TempDir),
    Redis(Box<RedisServer>),
}

impl Place {
    fn url(&self) -> String {
        match self {
            Self::OneMachine(directory) => {
                format!("embedded:{}", directory.path().join("store").display())
            }
            Self::Redis(server) => server.url(),
        }
    }

    const fn left_by(&self, program: &Program) -> Left {
        match self {
            Self::OneMachine(_) => program.on_one_machine,
            Self::Redis(_) => program.on_redis,
        }
    }

    async fn judge(&self, program: &Program) {
        let (left, name) = (self.left_by(program), program.name);
        let judge = Client::builder().ttl(secs(3_600)).connect(self.url()).await.unwrap();
        let busy = judge.mutex(BUSY).lock().await.unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["programs::program", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PROGRAM, name).env(URL, self.url());
        command.env(TTL, left.ttl().as_millis().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Two of them panic on purpose, which need not be shown.
        let mut said = tempfile::tempfile().unwrap();
        command.stderr(said.try_clone().unwrap()).env("RUST_BACKTRACE", "0");
        let run = move || {
            let mut process = TestProcess::spawn(command).unwrap();
            // A fork that lives on has both ends as well, so neither is waited for.
            let stdin = process.child().stdin.take();
            let stdout = process.child().stdout.take().unwrap();
            let status = process.wait();
            (stdin, stdout, status)
        };
        let (stdin, stdout, status) = tokio::task::spawn_blocking(run).await.unwrap();
        if ended(status) != program.ends {
            let mut stderr = String::new();
            said.rewind().unwrap();
            said.read_to_string(&mut stderr).unwrap();
            panic!("{name} ended with {}: {stderr}", describe(status));
        }
        match left {
            Left::Nothing => {
                let shown = judge.list("").await.unwrap().locks;
                let names: Vec<_> = shown.iter().map(|lock| lock.key.as_str()).collect();
                assert_eq!(names, [BUSY], "{name}");
                assert!(shown[0].waiters.is_empty(), "{name}: {shown:?}");
                busy.release().await.unwrap();
            }
            Left::UntilTtl => {
                for holder in judge.inspect(FREE).await.unwrap().into_iter().flat_map(|i| i.holders)
                {
                    assert!(holder.remaining <= left.ttl(), "{name}: {holder:?}");
                }
                busy.release().await.unwrap();
            }
            Left::Lease => {
                let info = judge.inspect(FREE).await.unwrap().expect(name);
                let fence = info.holders[0].fence;
                assert!(judge.mutex(FREE).try_lock().await.unwrap().is_none(), "{name}");
                judge.force_release(FREE, fence).await.unwrap();
            }
        }
        let next = judge.mutex(FREE).lock_within(PATIENCE).await.expect(name);
        if left != Left::Lease {
            judge.mutex(BUSY).lock_within(PATIENCE).await.expect(name).release().await.unwrap();
        }
        drop(stdin);
        let told = tokio::task::spawn_blocking(|| {
            let lines = BufReader::new(stdout).lines().map(|line| line.unwrap());
            lines.filter_map(|line| Some(line.strip_prefix("> ")?.parse::<u64>().unwrap())).last()
        });
        if let Some(fence) = told.await.unwrap() {
            assert!(next.fence().unwrap().value() > fence, "{name}");
        }
    }
}

fn ended(status: ExitStatus) -> Ends {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => Ends::With(u8::try_from(code).unwrap()),
        (None, Some(signal)) => Ends::By(signal),
        (None, None) => panic!("{status:?}"),
    }
}

async fn judge_all(place: impl Fn() -> Place) {
    for program in &PROGRAMS {
        place().judge(program).await;
    }
}

fn one_machine() -> Place {
    Place::OneMachine(tempfile::tempdir().unwrap())
}

fn redis() -> Place {
    Place::Redis(Box::new(RedisServer::start()))
}

#[tokio::test]
async fn programs_end_as_they_like_and_leave_what_is_promised_on_one_machine() {
    judge_all(one_machine).await;
}

#[tokio::test]
async fn programs_end_as_they_like_and_leave_what_is_promised_on_redis() {
    judge_all(redis).await;
}

#[tokio::test]
async fn a_fork_that_lives_on_keeps_its_parents_lock_no_longer_than_its_ttl_on_one_machine() {
    one_machine().judge(&FORKED).await;
}

#[tokio::test]
async fn a_fork_that_lives_on_keeps_its_parents_lock_no_longer_than_its_ttl_on_redis() {
    redis().judge(&FORKED).await;
}
