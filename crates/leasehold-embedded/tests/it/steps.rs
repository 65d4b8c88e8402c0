//! Kills a process at the n-th write to the data file's map, for n all over one operation.
//!
//! The process takes the right to write to the map from itself. Each write then raises a signal,
//! whose handler counts it, lets that one instruction through, and takes the right away again.

use std::io;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_core::{FenceBlock, ForceReleaseRequest, Store};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, key, request};
use crate::child::{Child, say};
use crate::processes::soon;

/// How many points of an operation are tried; of its last writes, this many are all tried.
const CUTS: usize = 24;

static MAP_START: AtomicUsize = AtomicUsize::new(0);
static MAP_BYTES: AtomicUsize = AtomicUsize::new(0);
static WRITES: AtomicUsize = AtomicUsize::new(0);
/// How far into the map writes count.
static COUNTED: AtomicUsize = AtomicUsize::new(usize::MAX);
static CUT_AT: AtomicUsize = AtomicUsize::new(usize::MAX);

const PAGE: usize = 4096;
/// The whole map.
const ALL: usize = usize::MAX;
/// The flag that makes a processor stop after one instruction.
const TRAP: i64 = 0x100;

fn protect(start: usize, bytes: usize, rights: libc::c_int) {
    // SAFETY: the range is the data file's map or a page of it, which stays mapped. A forbidden
    // write ends up in `on_write`.
    let changed = unsafe { libc::mprotect(start as *mut libc::c_void, bytes, rights) };
    assert_eq!(changed, 0);
}

fn protect_map() {
    let (start, bytes) = (MAP_START.load(Ordering::SeqCst), MAP_BYTES.load(Ordering::SeqCst));
    protect(start, bytes, libc::PROT_READ);
}

unsafe extern "C" fn on_write(
    _: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes both to a handler registered with SA_SIGINFO.
    let (address, context) =
        unsafe { ((*info).si_addr() as usize, &mut *context.cast::<libc::ucontext_t>()) };
    let start = MAP_START.load(Ordering::SeqCst);
    let inside = start..start + MAP_BYTES.load(Ordering::SeqCst);
    if !inside.contains(&address) {
        // SAFETY: a different fault is a bug, after which the process can't continue.
        unsafe { libc::abort() };
    }
    let counts = address - start < COUNTED.load(Ordering::SeqCst);
    if counts && WRITES.fetch_add(1, Ordering::SeqCst) == CUT_AT.load(Ordering::SeqCst) {
        // SAFETY: ends this process, which is the task.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    protect(address & !(PAGE - 1), PAGE, libc::PROT_READ | libc::PROT_WRITE);
    context.uc_mcontext.gregs[libc::REG_EFL as usize] |= TRAP;
}

unsafe extern "C" fn after_write(
    _: libc::c_int,
    _: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    protect_map();
    // SAFETY: the kernel passes it to a handler registered with SA_SIGINFO.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP;
}

fn handle(
    signal: libc::c_int,
    handler: unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
) {
    // SAFETY: the struct is plain data, and the handlers above are async-signal-safe.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(signal, &raw const action, null_mut())
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// LMDB's map of the data file, whose first page this store maps separately as well; see
/// proc_pid_maps(5).
fn find_map() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|line| line.ends_with("data.mdb"));
    let ranges = maps.map(|line| {
        assert!(line.contains(" rw-s "), "it is not written in place: {line}");
        let (start, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        (end - start, start)
    });
    let (bytes, start) = ranges.max().unwrap();
    MAP_START.store(start, Ordering::SeqCst);
    MAP_BYTES.store(bytes, Ordering::SeqCst);
}

/// The task of the process to kill: one acquisition and one release.
pub(crate) async fn in_child(store: &EmbeddedStore, name: &str, cut_at: &str, counted: &str) {
    // The session begins before, so that the operation is nearly the same every time.
    granted(store.acquire(&request("before"), WITHIN).await.unwrap());
    find_map();
    CUT_AT.store(cut_at.parse().unwrap(), Ordering::SeqCst);
    COUNTED.store(counted.parse().unwrap(), Ordering::SeqCst);
    handle(libc::SIGSEGV, on_write);
    handle(libc::SIGTRAP, after_write);
    protect_map();
    let asked = request(name);
    store.acquire(&asked, WITHIN).await.unwrap();
    let leaving = leasehold_core::LeaveRequest::new(asked.key, asked.token);
    store.leave(&leaving, WITHIN).await.unwrap();
    protect(
        MAP_START.load(Ordering::SeqCst),
        MAP_BYTES.load(Ordering::SeqCst),
        libc::PROT_READ | libc::PROT_WRITE,
    );
    say(&WRITES.load(Ordering::SeqCst).to_string());
}

fn cut(path: &Path, name: &str, at: usize, counted: usize) -> Child {
    Child::start(path, &format!("cut {name} {at} {counted}"))
}

/// A store on a file that is written in place, with enough names for a tree with branches.
async fn place() -> (EmbeddedStore, PathBuf, tempfile::TempDir) {
    // Files in memory always are.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("locks");
    let store = EmbeddedStore::open(&path).unwrap();
    let others = EmbeddedStore::options().detached(true).open(&path).unwrap();
    for n in 0..100 {
        granted(others.acquire(&request(&format!("name-{n}")), WITHIN).await.unwrap());
    }
    (store, path, directory)
}

/// How many writes an undisturbed child makes.
fn writes(path: &Path, name: &str, counted: usize) -> usize {
    let mut whole = cut(path, name, usize::MAX, counted);
    let writes = whole.next().unwrap().parse().unwrap();
    whole.end();
    writes
}

/// Kills a child at one of `of` writes, and checks the result.
async fn cut_at(
    store: &EmbeddedStore,
    path: &Path,
    name: &str,
    at: usize,
    of: usize,
    counted: usize,
) -> FenceBlock {
    let mut child = cut(path, name, at, counted);
    // The operation may make a few writes less than the first time.
    let survived = child.next().is_some();
    assert!(!survived || at > of / 2, "not cut at {at} of {of}");
    child.kill();
    // Another process checks every page when it opens the store.
    Child::that_says(path, "open", "open").end();
    soon(store, name).await
}

#[tokio::test]
async fn a_kill_at_any_write_leaves_the_store_sound_and_its_locks_free() {
    let (store, path, _keep) = place().await;
    let writes = writes(&path, "new-00", ALL);
    assert!(writes > CUTS, "{writes} writes");
    let spread = (0..CUTS).map(|cut| writes * cut / CUTS);
    for (n, at) in spread.chain(writes - CUTS..writes - 1).enumerate() {
        cut_at(&store, &path, &format!("new-{:02}", n + 1), at, writes, ALL).await;
        // The names of the store, of the children before, and the new ones.
        let names = store.entries(WITHIN).await.unwrap().0;
        assert_eq!(names, 100 + 1 + 1 + n + 1, "cut at {at} of {writes}");
    }
}

/// The pages that make a transaction count; LMDB writes them last.
#[tokio::test]
async fn a_kill_at_any_write_of_a_commit_leaves_the_store_sound_and_its_locks_free() {
    let (store, path, _keep) = place().await;
    let metas = 2 * PAGE;
    let writes = writes(&path, "new-00", metas);
    assert!((4..100).contains(&writes), "{writes} writes");
    for at in 0..writes {
        cut_at(&store, &path, &format!("new-{:02}", at + 1), at, writes, metas).await;
        let names = store.entries(WITHIN).await.unwrap().0;
        assert_eq!(names, 100 + 1 + 1 + at + 1, "cut at {at} of {writes}");
    }
}

#[tokio::test]
async fn a_kill_at_any_write_to_a_known_lock_leaves_one_whole_record() {
    let (store, path, _keep) = place().await;
    let mut last = soon(&store, "k").await;
    let give_back = async |last: FenceBlock| {
        let taken = ForceReleaseRequest::new(key("k"), last.first());
        store.force_release(&taken, WITHIN).await.unwrap();
    };
    give_back(last).await;
    let writes = writes(&path, "k", ALL);
    last = soon(&store, "k").await;
    let spread = (0..CUTS).map(|cut| writes * cut / CUTS);
    for at in spread.chain(writes - CUTS..writes - 1) {
        give_back(last).await;
        let fences = cut_at(&store, &path, "k", at, writes, ALL).await;
        assert!(fences.first() > last.last(), "cut at {at} of {writes}");
        last = fences;
        assert_eq!(store.entries(WITHIN).await.unwrap().0, 102, "cut at {at} of {writes}");
    }
}
