//! The command under the lock: it looks for another holder, and updates a number.
//!
//! An overlap would break that number. The command records what it does.
//!
//! Kernel locks (`flock`) show that it is inside. They end exactly when the process does, however
//! that happens. The command forks no children, which could inherit them.

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

/// The argument that makes this program a section.
pub(crate) const COMMAND: &str = "section";
/// The variable that names the directory of the fault test.
pub(crate) const DIRECTORY: &str = "TORTURE_DIR";

/// After SIGKILL a process is gone within this time, unless the machine stalls.
const DYING_TAKES_AT_MOST: Duration = Duration::from_secs(20);

/// The padded length of a record, so that a page of the file ends with a whole one. If a process is
/// killed, the kernel may cut its write at the end of a page.
const RECORD_BYTES: usize = 512;

/// The records. Each one is a single write to the end of one file, which the kernel keeps whole and
/// in order.
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

/// The marker of a section that has begun.
pub(crate) fn begun(dir: &Path, id: u64) -> PathBuf {
    dir.join("ops").join(format!("{id}.begun"))
}

/// The number that is updated under a lock.
pub(crate) fn number(dir: &Path, key: &str) -> PathBuf {
    dir.join("numbers").join(file_name(key))
}

/// Creates the directories in which sections work.
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
    /// The processes inside that this hold excludes.
    others: Vec<i32>,
    /// Kernel locks, which last while these are open.
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

/// Shows the fence to the lock's resource, and reads its number.
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

/// Writes the number plus one. It must be unchanged since the read, whatever the store did.
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

/// A resource that checks fences. It stores the highest fence shown, and a number.
#[derive(Debug)]
struct Fenced(File);

impl Fenced {
    fn open(dir: &Path, key: &str) -> Self {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(dir.join("fenced").join(file_name(key)));
        Self(file.expect("the torture's directory is ours"))
    }

    /// Changes the number in one step, unless a higher fence was shown. Returns the new number, or
    /// else the highest fence.
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

/// The locks and fences from the environment.
fn leases() -> Vec<(String, u64)> {
    let variable = |name| env::var(name).unwrap_or_default();
    let (keys, fences) = (variable("LEASEHOLD_KEY"), variable("LEASEHOLD_FENCE"));
    let fences = fences.lines().map(|fence| fence.parse().unwrap_or_default());
    keys.lines().map(str::to_owned).zip(fences).collect()
}

/// Works for this time, and records when excluded processes have left.
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

/// Goes inside; also returns the processes inside that this hold excludes.
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
            // While this is locked, only this process claims permits. So permits that come free
            // during the look don't cause a false alarm.
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

/// Claims this many permits; returns which, and the holders in the way if there are too few.
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
        // A process that was sent SIGKILL acts no more, even while its locks remain.
        let me = std::process::id().try_into().unwrap_or_default();
        let mut acting: Vec<i32> = places.iter().flat_map(holders).collect();
        acting.retain(|pid| *pid != me && process::acts(*pid));
        // Seen acting twice: a killed process would have ended between the two looks.
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
