//! The command under the lock: it looks for another holder, and updates a number.
//!
//! An overlap would break that number. The command writes down what it does.
//!
//! That it is inside is told by kernel locks (`flock`), which end exactly when the process does,
//! however it ends. It starts no process, so nobody inherits them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
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

/// How long each record is, with the spaces behind it: a page of the file ends with one. The kernel
/// may cut a write that goes over the end of a page, where its process is killed.
const RECORD_BYTES: usize = 512;

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
        let record = format!("{time}\t{event}\t{id}\t{pid}\t{key}\t{fence}\t{mode}\t{detail}");
        let mut record = record.into_bytes();
        assert!(record.len() < RECORD_BYTES, "a record of {} bytes", record.len());
        record.resize(RECORD_BYTES - 1, b' ');
        record.push(b'\n');
        (&self.file).write_all(&record).expect("the log takes records");
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
    for part in ["ops", "inside", "numbers", "fenced"] {
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
    let fenced: Vec<(Fenced, Option<u64>)> = if alone {
        held.iter().map(|lock| begin_fenced(&dir, lock, &log)).collect()
    } else {
        Vec::new()
    };
    toil(work, &mut held, &log, mode);
    for (lock, (resource, seen)) in held.iter().zip(&fenced) {
        if let Some(seen) = seen {
            update_fenced(resource, lock, *seen, &log);
        }
    }
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

/// Shows the fence to the lock's resource, and reads what is there.
fn begin_fenced(dir: &Path, lock: &Held, log: &Log) -> (Fenced, Option<u64>) {
    let resource = Fenced::open(dir, &lock.key);
    let seen = resource.apply(lock.fence, |number| number);
    if let Err(highest) = seen {
        log.write(
            "late",
            &lock.key,
            lock.fence,
            Mode::Exclusive,
            &format!("begins after {highest}"),
        );
    }
    (resource, seen.ok())
}

/// Writes what was read, and one more. Nobody else may have written since, whatever the store did.
fn update_fenced(resource: &Fenced, lock: &Held, seen: u64, log: &Log) {
    let mut found = seen;
    let write = |number| {
        found = number;
        seen + 1
    };
    let (event, detail) = match resource.apply(lock.fence, write) {
        Err(highest) => ("late", format!("writes after {highest}")),
        Ok(_) if found == seen => ("fenced", (seen + 1).to_string()),
        Ok(_) => ("torn", format!("read {seen}, found {found}")),
    };
    log.write(event, &lock.key, lock.fence, Mode::Exclusive, &detail);
}

/// A resource that checks fences: it keeps the highest that it was shown, and a number.
#[derive(Debug)]
struct Fenced(File);

impl Fenced {
    fn open(dir: &Path, key: &str) -> Self {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(dir.join("fenced").join(file_name(key)));
        Self(file.expect("the torture's directory is ours"))
    }

    /// Changes the number in one step, unless a higher fence was shown; what it is then, or else the
    /// highest fence.
    fn apply(&self, fence: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, u64> {
        flock(&self.0, FlockOperation::LockExclusive).expect("a file of ours can be locked");
        let mut text = [0; 41];
        let length = self.0.read_at(&mut text, 0).expect("a resource is a file");
        let text = String::from_utf8_lossy(&text[..length]);
        let mut fields = text.split(' ').map(|field| field.parse::<u64>().unwrap_or_default());
        let (highest, number) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
        let answer = if fence < highest {
            Err(highest)
        } else {
            let number = change(number);
            let text = format!("{fence:020} {number:020}");
            self.0.write_all_at(text.as_bytes(), 0).expect("a resource takes a write");
            Ok(number)
        };
        flock(&self.0, FlockOperation::Unlock).expect("a file of ours can be unlocked");
        answer
    }
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
