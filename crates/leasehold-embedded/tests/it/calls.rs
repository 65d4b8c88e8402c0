//! Kills processes at a system call, or makes the call fail, at every call in turn.
//!
//! A process opens a store, acquires, renews and releases a lock, and closes the store. Another one
//! follows it call by call (ptrace(2)) and, at the n-th, kills it or makes the call fail. The
//! result is judged from outside: the next process gets in and gets the lock, held leases survive,
//! and foreign files are untouched.
//!
//! A few calls of each life are tried; `LEASEHOLD_CALLS=all` tries all of them.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;

use leasehold_core::{
    Acquire, ClientId, Effect, Error, ErrorKind, FenceBlock, ReleaseRequest, Renew, RenewRequest,
    Store,
};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, key, request, ttl};
use crate::child::{Child, say};
use crate::header;
use crate::processes::soon;

/// How many calls of a run are tried, unless all are.
const CALLS: usize = 24;

/// If a fork shares the run's session, its lease ends with this time, not with the run.
const TTL_MS: u64 = 300;

/// Makes a call that is otherwise unused, around the followed part.
fn mark() {
    // SAFETY: only returns a number.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// The task of the process. It prints its outcome if it was neither killed nor disturbed.
pub(crate) async fn in_child(path: &Path, name: &str) {
    // SAFETY: only returns a number.
    say(&format!("{}", unsafe { libc::syscall(libc::SYS_gettid) }));
    io::stdin().read_line(&mut String::new()).unwrap();
    mark();
    let outcome = live(path, name == "with-forks").await;
    mark();
    match outcome {
        Ok(()) => say("lived"),
        Err(error) => say(&format!("refused: {error}")),
    }
}

async fn live(path: &Path, forks: bool) -> leasehold_core::Result<()> {
    let store = EmbeddedStore::open(path)?;
    // Forks twice: once with the store open, and below once with the session as well.
    if forks {
        crate::fork::one_that_reads_on();
    }
    let channel = store.listen(ClientId::generate()?, WITHIN).await?;
    let mut asked = request("cut");
    asked.ttl = ttl(TTL_MS);
    let answer = store.acquire(&asked, WITHIN).await;
    if let Err(error) = &answer
        && error.effect() == Effect::NotApplied
    {
        let holders = store.inspect(&asked.key, WITHIN).await?.map_or(0, |info| info.holders.len());
        assert_eq!(holders, 0, "said not to have been done, and was: {error}");
    }
    let fences = match answer? {
        Acquire::Granted(grant) => grant.fences,
        // The last holder is dead, but could not be checked.
        other => return Err(Error::new(ErrorKind::Unavailable, format!("{other:?}"))),
    };
    if forks {
        crate::fork::one_that_reads_on();
    }
    let again = RenewRequest::new(asked.key.clone(), asked.token, fences, ttl(TTL_MS));
    store.renew(&[again], WITHIN).await.remove(0)?;
    store.release(&ReleaseRequest::new(asked.key, asked.token, fences), WITHIN).await?;
    drop(channel);
    drop(store);
    Ok(())
}

fn ptrace(request: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests made here change only the traced process, or write to `data`, which
    // points to their target.
    let done = unsafe { libc::ptrace(request, tid, address, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The start or the end of a call.
struct Stop {
    number: i64,
    arguments: [u64; 2],
    entering: bool,
}

/// A process with a traced main thread. Dropping this detaches from it.
struct Followed {
    child: Child,
    tid: i32,
    /// Open until the judgement, since forks live as long as it is.
    input: ChildStdin,
}

impl Followed {
    fn start(path: &Path, forks: bool) -> Self {
        let task = if forks { "life with-forks" } else { "life alone" };
        let mut child = Child::start(path, task);
        let tid: i32 = child.next().unwrap().parse().unwrap();
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SEIZE, tid, 0, usize::try_from(options).unwrap()).unwrap();
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).unwrap();
        let input = child.process.child().stdin.take().unwrap();
        let followed = Self { child, tid, input };
        followed.wait().unwrap();
        followed
    }

    /// Waits until the thread stops: `None` if it has ended.
    fn wait(&self) -> Option<libc::c_int> {
        let mut status = 0;
        // SAFETY: waits for a traced thread; `status` outlives the call.
        let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
        assert_eq!(waited, self.tid, "{}", io::Error::last_os_error());
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }

    /// Continues to the start or end of the next call.
    fn next(&self) -> Option<Stop> {
        let mut signal = 0;
        loop {
            ptrace(libc::PTRACE_SYSCALL, self.tid, 0, usize::try_from(signal).unwrap()).unwrap();
            let stopped = self.wait()?;
            if stopped == libc::SIGTRAP | 0x80 {
                break;
            }
            // A stop of ptrace's own; or a signal, which is passed on.
            signal = if stopped == libc::SIGTRAP { 0 } else { stopped };
        }
        // `struct ptrace_syscall_info`: the kind of stop, then three words, then the call's number
        // and arguments.
        let mut info = [0_u64; 16];
        let bytes = size_of_val(&info);
        ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            self.tid,
            bytes,
            info.as_mut_ptr().expose_provenance(),
        )
        .unwrap();
        let [kind, _, _, number, first, second, ..] = info;
        Some(Stop {
            number: number.cast_signed(),
            arguments: [first, second],
            entering: kind & 0xff == 1,
        })
    }

    /// Makes the call that is about to begin fail with this error number.
    fn fail(&self, error: i32) {
        self.change(|registers| registers.orig_rax = u64::MAX);
        let end = self.next().unwrap();
        assert!(!end.entering);
        self.change(|registers| registers.rax = i64::from(-error).cast_unsigned());
    }

    fn change(&self, change: impl FnOnce(&mut libc::user_regs_struct)) {
        // SAFETY: the struct is plain data.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let data = (&raw mut registers).expose_provenance();
        ptrace(libc::PTRACE_GETREGS, self.tid, 0, data).unwrap();
        change(&mut registers);
        ptrace(libc::PTRACE_SETREGS, self.tid, 0, data).unwrap();
    }

    /// Lets the run begin, and passes each of its calls to `at` until that returns `true` or the
    /// run is over. Returns the number of calls.
    fn follow(&mut self, mut at: impl FnMut(&mut Self, usize, &Stop) -> bool) -> usize {
        self.input.write_all(b"\n").unwrap();
        let (mut inside, mut calls) = (false, 0);
        loop {
            let Some(stop) = self.next() else { return calls };
            if !stop.entering {
                continue;
            }
            if stop.number == libc::SYS_getppid {
                if inside {
                    return calls;
                }
                inside = true;
            } else if inside {
                calls += 1;
                if at(self, calls, &stop) {
                    return calls;
                }
            }
        }
    }

    /// Kills the stopped process.
    fn kill(&mut self) {
        let pid = i32::try_from(self.child.process.pid()).unwrap();
        if pid != self.tid {
            // SAFETY: ends the child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            while self.wait().is_some() {}
        }
        self.child.process.kill();
    }

    fn let_go(self) -> Child {
        ptrace(libc::PTRACE_DETACH, self.tid, 0, 0).unwrap();
        self.child
    }
}

/// An error that the call may return on a full disk or a failing machine; `None` for calls that
/// don't concern files, or can't fail in practice.
fn error_of(call: &Stop) -> Option<i32> {
    let unlocks = call.number == libc::SYS_flock && call.arguments[1] == 8;
    match call.number {
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_bind => Some(libc::ENOSPC),
        libc::SYS_open | libc::SYS_openat | libc::SYS_socket => Some(libc::EMFILE),
        libc::SYS_flock if !unlocks => Some(libc::ENOLCK),
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_getdents64
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_chmod
        | libc::SYS_fchmod
        | libc::SYS_fchmodat
        | libc::SYS_statx
        | libc::SYS_fstat
        | libc::SYS_newfstatat
        | libc::SYS_fstatfs
        | libc::SYS_readlink => Some(libc::EIO),
        _ => None,
    }
}

/// The state in which a run finds the directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Found {
    /// The directory does not exist.
    Nothing,
    /// An unused store with a detached lease.
    Closed,
    /// A store of another start of the machine, so its leases are void.
    Void,
    /// A store with a held lock.
    InUse,
}

struct Scene {
    path: PathBuf,
    theirs: Vec<PathBuf>,
    user: Option<(EmbeddedStore, RenewRequest)>,
    detached: Option<FenceBlock>,
    _keep: tempfile::TempDir,
}

impl Scene {
    async fn set(found: Found) -> Self {
        // Files in memory are written in place, as on most disks.
        let keep = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = keep.path().join("locks");
        let mut scene = Self { path, theirs: Vec::new(), user: None, detached: None, _keep: keep };
        if found == Found::Nothing {
            return scene;
        }
        let store = EmbeddedStore::options().detached(true).open(&scene.path).unwrap();
        scene.detached = Some(granted(store.acquire(&request("kept"), WITHIN).await.unwrap()));
        drop(store);
        for name in ["notes", "sessions/readme", "sessions/0123456789abcdeg", "wake/readme"] {
            fs::write(scene.path.join(name), "theirs").unwrap();
            scene.theirs.push(scene.path.join(name));
        }
        if found == Found::Void {
            header::change(&scene.path, "boot ", "another");
            header::change(&scene.path, "booted-at-s ", "1600000000");
            scene.detached = None;
        }
        if found == Found::InUse {
            let store = EmbeddedStore::open(&scene.path).unwrap();
            let mine = request("mine");
            let fences = granted(store.acquire(&mine, WITHIN).await.unwrap());
            let again = RenewRequest::new(mine.key, mine.token, fences, ttl(1_800_000));
            scene.user = Some((store, again));
        }
        scene
    }

    /// Judges what a run has left, and restores the state.
    async fn judge(&self, what: &str, last: &mut Option<FenceBlock>) {
        for path in &self.theirs {
            assert_eq!(fs::read(path).unwrap(), b"theirs", "{what}: {}", path.display());
        }
        if let Some((store, mine)) = &self.user {
            let renewed = store.renew(std::slice::from_ref(mine), WITHIN).await.remove(0).unwrap();
            assert_eq!(renewed, Renew::Renewed, "{what}");
        }
        let store =
            EmbeddedStore::open(&self.path).unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some(kept) = self.detached {
            let info = store.inspect(&key("kept"), WITHIN).await.unwrap().unwrap();
            assert_eq!(info.holders[0].fence, kept.first(), "{what}");
            let answer = store.acquire(&request("kept"), WITHIN).await.unwrap();
            assert!(matches!(answer, Acquire::Busy(_)), "{what}: {answer:?}");
        }
        let fences = soon(&store, "cut").await;
        assert!(last.is_none_or(|last| fences.first() > last.last()), "{what}");
        *last = Some(fences);
        store.entries(WITHIN).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(store);
        assert!(!self.path.join("store.new").exists(), "{what}: a header is left over");
    }
}

/// Which of the calls are tried.
fn chosen(calls: usize) -> Vec<usize> {
    if std::env::var_os("LEASEHOLD_CALLS").is_some_and(|which| which == "all") {
        return (1..=calls).collect();
    }
    (0..CALLS).map(|n| 1 + n * calls / CALLS).collect()
}

/// How many calls a run makes that finds the directory in this state.
async fn whole(found: Found, forks: bool) -> usize {
    let scene = Scene::set(found).await;
    let mut life = Followed::start(&scene.path, forks);
    let calls = life.follow(|_, _, _| false);
    let mut child = life.let_go();
    child.wait_for("lived");
    child.end();
    calls
}

async fn kill_at_each_call(found: Found, forks: bool) {
    let calls = whole(found, forks).await;
    let chosen = chosen(calls);
    let mut scene = Scene::set(found).await;
    let mut last = None;
    let mut killed = 0;
    for at in &chosen {
        let mut life = Followed::start(&scene.path, forks);
        let mut was_killed = false;
        life.follow(|life, call, _| {
            was_killed = call == *at;
            if was_killed {
                life.kill();
            }
            was_killed
        });
        killed += usize::from(was_killed);
        if was_killed {
            scene.judge(&format!("{found:?}, killed at call {at} of {calls}"), &mut last).await;
            // Forks read from the input, and so live until here.
            drop(life);
        } else {
            // It made a few calls less than the first run.
            life.let_go().end();
        }
        if matches!(found, Found::Nothing | Found::Void) {
            scene = Scene::set(found).await;
            last = None;
        }
    }
    eprintln!("{found:?}, forks: {forks}: {calls} calls, killed at {killed} of {}", chosen.len());
    assert!(killed * 2 > chosen.len(), "{killed}");
}

async fn fail_each_call(found: Found) {
    let calls = whole(found, false).await;
    let chosen = chosen(calls);
    let mut scene = Scene::set(found).await;
    let mut last = None;
    let (mut failed, mut refused) = (0, 0);
    for at in &chosen {
        let mut life = Followed::start(&scene.path, false);
        let mut error = None;
        // The first call from this one on that may fail.
        life.follow(|life, call, stop| {
            if call < *at || error.is_some() {
                return false;
            }
            error = error_of(stop);
            if let Some(error) = error {
                life.fail(error);
            }
            error.is_some()
        });
        failed += usize::from(error.is_some());
        let mut child = life.let_go();
        let said = child.next().unwrap_or_else(|| panic!("it died when call {at} failed"));
        refused += usize::from(said.starts_with("refused: "));
        child.end();
        let what = format!("{found:?}, call {at} of {calls} failed with {error:?}: {said}");
        scene.judge(&what, &mut last).await;
        if matches!(found, Found::Nothing | Found::Void) {
            scene = Scene::set(found).await;
            last = None;
        }
    }
    eprintln!("{found:?}: {calls} calls, {failed} failed, of which {refused} were told");
    assert!(refused > 0);
}

/// Runs on this thread alone, as ptrace requires.
fn run(body: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body);
}

#[test]
fn a_kill_at_any_call_leaves_a_store_that_is_being_made_sound() {
    run(kill_at_each_call(Found::Nothing, false));
}

#[test]
fn a_kill_at_any_call_leaves_a_closed_store_as_it_was() {
    run(kill_at_each_call(Found::Closed, false));
}

#[test]
fn a_kill_at_any_call_leaves_a_store_that_is_made_again_sound() {
    run(kill_at_each_call(Found::Void, false));
}

#[test]
fn a_kill_at_any_call_disturbs_no_user_of_the_store() {
    run(kill_at_each_call(Found::InUse, false));
}

#[test]
fn a_kill_at_any_call_disturbs_no_process_while_forks_live() {
    run(kill_at_each_call(Found::InUse, true));
    run(kill_at_each_call(Found::Closed, true));
}

#[test]
fn any_call_may_fail_while_a_store_is_made() {
    run(fail_each_call(Found::Nothing));
}

#[test]
fn any_call_may_fail_beside_others() {
    run(fail_each_call(Found::InUse));
}
