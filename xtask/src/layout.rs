//! Orders the functions of the static program: those that a run needs come first.
//!
//! The kernel maps a program as it is touched, sixteen pages at a time. `run KEY -- true` needs one function in
//! ten, and a linker leaves them where the compiler put them, all over the file: to touch them took a quarter of
//! the whole run. So the program is run once, instruction by instruction (ptrace(2)), and linked again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The functions that this command's program runs through, in all its threads and forks, in the order in which it
/// first does. The program is to have its symbols, at the addresses that they are for.
pub(crate) fn of(command: &mut Command) -> Result<Vec<String>, String> {
    let program = Path::new(command.get_program()).to_owned();
    let failed = |error: io::Error| format!("cannot follow {}: {error}", program.display());
    let places = follow(command).map_err(failed)?;
    let functions = functions(&program)?;
    let mut first = BTreeMap::new();
    for (place, at) in places {
        if let Some((address, names)) = functions.range(..=place).next_back() {
            let (before, _) = first.entry(address).or_insert((at, names));
            *before = at.min(*before);
        }
    }
    let mut first: Vec<_> = first.into_values().collect();
    first.sort_unstable();
    Ok(first.into_iter().flat_map(|(_, names)| names.iter().cloned()).collect())
}

/// The names of functions by their addresses.
fn functions(program: &Path) -> Result<BTreeMap<u64, Vec<String>>, String> {
    let mut nm = Command::new("nm");
    let nm = nm.args(["--defined-only", "--format=posix"]).arg(program).output();
    let nm = nm.map_err(|error| format!("cannot run nm, which compilers come with: {error}"))?;
    let mut functions = BTreeMap::<_, Vec<_>>::new();
    for line in String::from_utf8_lossy(&nm.stdout).lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some("t" | "T" | "w" | "W"), Some(address)) =
            (words.next(), words.next(), words.next())
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            functions.entry(address).or_default().push(name.to_owned());
        }
    }
    if functions.is_empty() {
        return Err(format!("{} has no symbols", program.display()));
    }
    Ok(functions)
}

fn ptrace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: the requests made here change the traced threads only.
    let done = unsafe { libc::ptrace(request, thread, address, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Every place where an instruction of the program was run, and when that was first, counted in instructions. A
/// program that takes the place of a fork is let go.
fn follow(command: &mut Command) -> io::Result<HashMap<u64, u64>> {
    // SAFETY: makes one call, which asks to be traced.
    let command = unsafe { command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0, 0).map(drop)) };
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let first = i32::try_from(child.id()).map_err(io::Error::other)?;
    let (mut places, mut steps) = (HashMap::new(), 0_u64);
    let mut threads = HashSet::new();
    loop {
        let mut status = 0;
        // Other threads of this process may wait for children of their own.
        let ours = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` outlives the call.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, ours) };
        if thread == -1 {
            let error = io::Error::last_os_error();
            // There is no one left.
            return if error.raw_os_error() == Some(libc::ECHILD) {
                Ok(places)
            } else {
                Err(error)
            };
        }
        if !libc::WIFSTOPPED(status) {
            let failed = thread == first && status != 0;
            threads.remove(&thread);
            if failed {
                return Err(io::Error::other(format!("it ended with status {status}")));
            }
            continue;
        }
        let (mut signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event == libc::PTRACE_EVENT_EXEC {
            ptrace(libc::PTRACE_DETACH, thread, 0, 0)?;
            continue;
        }
        if threads.insert(thread) {
            // New threads and forks begin with a stop, and are followed as they are.
            signal = libc::SIGTRAP;
            if thread == first {
                let options = libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_TRACEFORK
                    | libc::PTRACE_O_TRACEVFORK
                    | libc::PTRACE_O_TRACEEXEC
                    | libc::PTRACE_O_EXITKILL;
                let options = usize::try_from(options).map_err(io::Error::other)?;
                ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options)?;
            }
        }
        let own = signal == libc::SIGTRAP;
        // Where the instruction pointer is among a thread's registers.
        const INSTRUCTION: usize = 8 * libc::RIP as usize;
        // A thread may be gone by the end of its process.
        if let Ok(place) = ptrace(libc::PTRACE_PEEKUSER, thread, INSTRUCTION, 0) {
            steps += 1;
            places.entry(place.cast_unsigned()).or_insert(steps);
            let passed_on =
                if own { 0 } else { usize::try_from(signal).map_err(io::Error::other)? };
            drop(ptrace(libc::PTRACE_SINGLESTEP, thread, 0, passed_on));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_runs_in_threads_and_forks_is_found_in_its_order_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        let text = "#include <pthread.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
            void idle(void) {} void in_fork(void) {} void last(void) {}\n\
            void *in_thread(void *it) { return it; }\n\
            int main(void) { pthread_t one; pthread_create(&one, 0, in_thread, 0);\n\
            pthread_join(one, 0); if (!fork()) { in_fork(); execl(\"/bin/true\", \"true\", (char *)0); }\n\
            wait(0); last(); return 0; }\n";
        fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-no-pie", "-O0", "-pthread", "-o"]).arg(&program).arg(&source);
        assert!(cc.status().unwrap().success());
        let functions = of(&mut Command::new(&program)).unwrap();
        let own = ["main", "in_thread", "in_fork", "last", "idle"];
        let found: Vec<_> = functions.iter().filter(|name| own.contains(&name.as_str())).collect();
        assert_eq!(found, ["main", "in_thread", "in_fork", "last"]);
    }
}
