//! The command under the lock: it looks for others inside, updates a number in a way that an
//! overlap would break, and writes down what it does.
//!
//! That it is inside is told by kernel locks (`flock`), which end exactly when the process does,
//! however it ends. It starts no process, so nobody inherits them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, thread};

use rustix::fs::{FlockOperation, flock};

use crate::plan::{LIMIT, Mode, ms};
use crate::{clock, process};

/// The word by which this program is told to be a section.
pub(crate) const COMMAND: &str = "section";
/// The variable that names the directory of the torture.
pub(crate) const DIRECTORY: &str = "TORTURE_DIR";

/// A process that was sent SIGKILL is gone by then, unless the machine stands still.
const DYING_TAKES_AT_MOST: Duration = Duration::from_secs(20);

/// What is written down. Each record is one write to the end of one file, which the kernel keeps in
/// one piece and in order.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    id: u64,
}

impl Log {
    pub(crate) fn path(dir: &Path) -> PathBuf {
        dir.join("log")
    }

    pub(crate) fn open(dir: &Path, id: u64) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(Self::path(dir));
        Self { file: file.expect("the torture's directory is ours"), id }
    }

    pub(crate) fn write(&self, event: &str, key: &str, fence: u64, mode: Mode, detail: &str) {
        let (time, pid) = (clock::now().as_nanos(), std::process::id());
        let (id, mode) = (self.id, mode.word());
        let record = format!("{time}\t{event}\t{id}\t{pid}\t{key}\t{fence}\t{mode}\t{detail}\n");
        (&self.file).write_all(record.as_bytes()).expect("the log takes records");
    }
}

/// The file of a lock's name.
fn file_name(key: &str) -> String {
    key.replace('/', "_")
}

/// The marker that says that a section has begun.
pub(crate) fn begun(dir: &Path, id: u64) -> PathBuf {
    dir.join("ops").join(format!("{id}.begun"))
}

/// The number that is updated under a lock.
pub(crate) fn number(dir: &Path, key: &str) -> PathBuf {
    dir.join("numbers").join(file_name(key))
}

/// Makes the directories in which sections work.
pub(crate) fn prepare(dir: &Path) {
    for part in ["ops", "inside", "numbers"] {
        fs::create_dir_all(dir.join(part)).expect("the torture's directory is ours");
    }
}

/// A lock under which the section runs.
#[derive(Debug)]
struct Held {
    key: String,
    fence: u64,
    /// Those found inside who must not be.
    others: Vec<i32>,
    /// Kernel locks, which last as long as these are open.
    _inside: Vec<File>,
}

pub(crate) fn main(args: &[String]) -> ExitCode {
    let [id, mode, work_ms, code, stubborn] = args else {
        panic!("a section is given its number, mode, work, exit code and whether TERM is ignored");
    };
    let dir = PathBuf::from(env::var_os(DIRECTORY).expect("a section is told its directory"));
    let mode = Mode::parse(mode).expect("a mode that was written by the plan");
    let id: u64 = id.parse().expect("a number");
    let work = ms(work_ms.parse().expect("a number"));
    if stubborn == "true" {
        // SAFETY: ignoring a signal is one system call; this process has one thread so far.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    }
    let log = Log::open(&dir, id);
    let mut held: Vec<Held> = leases()
        .into_iter()
        .map(|(key, fence)| {
            let (inside, others) = enter(&dir, &key, mode);
            Held { key, fence, others, _inside: inside }
        })
        .collect();
    let permits = env::var("LEASEHOLD_PERMITS").unwrap_or_default();
    for lock in &held {
        log.write("begin", &lock.key, lock.fence, mode, &permits);
        if !lock.others.is_empty() {
            let others: Vec<String> = lock.others.iter().map(ToString::to_string).collect();
            log.write("overlap", &lock.key, lock.fence, mode, &others.join(" "));
        }
    }
    fs::write(begun(&dir, id), "").expect("the torture's directory is ours");
    let alone = mode == Mode::Exclusive;
    let mut numbers = if alone { read_numbers(&dir, &held) } else { Vec::new() };
    toil(work, &mut held, &log, mode);
    for (lock, (file, seen)) in held.iter().zip(&mut numbers) {
        let now = read(file);
        if now != *seen {
            let detail = format!("read {seen}, found {now}");
            log.write("lost", &lock.key, lock.fence, mode, &detail);
        }
        file.seek(SeekFrom::Start(0)).expect("a number is a file");
        write!(file, "{:020}", *seen + 1).expect("a number takes a write");
        log.write("update", &lock.key, lock.fence, mode, &(*seen + 1).to_string());
    }
    for lock in &held {
        log.write("end", &lock.key, lock.fence, mode, "");
    }
    ExitCode::from(code.parse::<u8>().expect("an exit code"))
}

/// The locks and fences that the environment tells.
fn leases() -> Vec<(String, u64)> {
    let variable = |name| env::var(name).unwrap_or_default();
    let (keys, fences) = (variable("LEASEHOLD_KEY"), variable("LEASEHOLD_FENCE"));
    let fences = fences.lines().map(|fence| fence.parse().unwrap_or_default());
    keys.lines().map(str::to_owned).zip(fences).collect()
}

/// Works for so long, and writes down when those who must not be inside have left.
fn toil(work: Duration, held: &mut [Held], log: &Log, mode: Mode) {
    let begin = clock::now();
    loop {
        let mut watching = false;
        for lock in held.iter_mut().filter(|lock| !lock.others.is_empty()) {
            lock.others.retain(|pid| process::acts(*pid));
            watching = true;
            if lock.others.is_empty() {
                let time = (clock::now() - begin).as_micros();
                log.write("parted", &lock.key, lock.fence, mode, &format!("{time} µs"));
            }
        }
        let left = work.saturating_sub(clock::now() - begin);
        if left.is_zero() {
            return;
        }
        thread::sleep(if watching { left.min(ms(1)) } else { left });
    }
}

/// Goes inside. Also tells who is there and must not be.
fn enter(dir: &Path, key: &str, mode: Mode) -> (Vec<File>, Vec<i32>) {
    let place = |part: &str| {
        let path = dir.join("inside").join(format!("{}{part}", file_name(key)));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).expect("the torture's directory is ours")
    };
    match mode {
        Mode::Exclusive | Mode::Shared => {
            let file = place("");
            let others = claim(std::slice::from_ref(&file), 1, mode).1;
            (vec![file], others)
        }
        Mode::Permits(count) => {
            // Nobody else takes places meanwhile, so that places which come free behind the look
            // are no reason to find too few.
            let scan = place(".scan");
            flock(&scan, FlockOperation::LockExclusive).expect("a file of ours can be locked");
            let places: Vec<File> = (0..LIMIT).map(|n| place(&format!(".{n}"))).collect();
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let (claimed, others) = claim(&places, count, mode);
            let mut places = places;
            let mut index = 0;
            places.retain(|_| {
                index += 1;
                claimed.contains(&(index - 1))
            });
            (places, others)
        }
    }
}

/// Claims so many of these places; which, and who is in the way if that can't be had.
fn claim(places: &[File], count: usize, mode: Mode) -> (Vec<usize>, Vec<i32>) {
    let operation = match mode {
        Mode::Shared => FlockOperation::NonBlockingLockShared,
        _ => FlockOperation::NonBlockingLockExclusive,
    };
    let mut claimed: Vec<usize> = Vec::new();
    let mut suspects: Vec<i32> = Vec::new();
    let begin = clock::now();
    loop {
        for (index, place) in places.iter().enumerate() {
            if claimed.len() < count && !claimed.contains(&index) && flock(place, operation).is_ok()
            {
                claimed.push(index);
            }
        }
        if claimed.len() >= count {
            return (claimed, Vec::new());
        }
        // Whoever was sent SIGKILL does nothing any more, though its locks are still to go.
        let me = std::process::id().try_into().unwrap_or_default();
        let mut acting: Vec<i32> = places.iter().flat_map(holders).collect();
        acting.retain(|pid| *pid != me && process::acts(*pid));
        // Seen acting twice: between the two looks a killed one would have come to its end.
        if !acting.is_empty() && acting.iter().all(|pid| suspects.contains(pid)) {
            return (claimed, acting);
        }
        suspects = acting;
        assert!(clock::now() - begin < DYING_TAKES_AT_MOST, "a killed process does not go away");
        thread::sleep(Duration::from_micros(300));
    }
}

/// The processes that hold a kernel lock on a file.
fn holders(file: &File) -> Vec<i32> {
    let inode = format!(":{}", file.metadata().expect("an open file").ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let lines = locks.lines().filter(|line| !line.contains("->"));
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let of_file = fields.get(5)?.ends_with(&inode);
            if of_file { fields.get(4)?.parse().ok() } else { None }
        })
        .collect()
}

fn read_numbers(dir: &Path, held: &[Held]) -> Vec<(File, u64)> {
    let open = |lock: &Held| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(number(dir, &lock.key))
            .expect("the torture's directory is ours");
        let seen = read(&mut file);
        (file, seen)
    };
    held.iter().map(open).collect()
}

fn read(file: &mut File) -> u64 {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).expect("a number is a file");
    file.read_to_string(&mut text).expect("a number is a file");
    text.trim().parse().unwrap_or_default()
}
