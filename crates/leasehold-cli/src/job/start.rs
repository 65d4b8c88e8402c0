//! Makes the command's process, and has it become the command.
//!
//! On Linux the new process uses the memory of this one until it has become its program. The
//! calling thread waits for that, as in `posix_spawn`, which lacks some of these steps. A fork
//! would copy the page tables, and then each page that one of the two writes to, for a process that
//! does not use them.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsString, c_char};
use std::io;
#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt as _;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::exit::Exit;
use crate::inherited::{self, Inherited};
#[cfg(target_os = "linux")]
use crate::job::stops;
use crate::signals;

/// The program to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// Variables to add.
    pub(crate) variables: Vec<(String, String)>,
    /// Variables to take away.
    pub(crate) hidden: Vec<OsString>,
}

/// A plan as the system wants it: from here on it takes no more memory.
#[derive(Debug)]
pub(crate) struct Ready {
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    /// What those lists point to.
    _texts: Vec<CString>,
    #[cfg(target_os = "linux")]
    stack: Vec<MaybeUninit<u128>>,
}

/// In pieces of 16 bytes, to which a stack is aligned. Looking for a program takes about 5 kB.
#[cfg(target_os = "linux")]
const STACK: usize = (64 << 10) / size_of::<u128>();

impl Ready {
    /// # Errors
    ///
    /// Where a text has a zero in it.
    pub(crate) fn new(plan: &Plan) -> io::Result<Self> {
        let text = |text: OsString| CString::new(text.into_vec());
        let mut texts = Vec::new();
        for word in [&plan.program].into_iter().chain(&plan.arguments) {
            texts.push(text(word.clone())?);
        }
        let words = texts.len();
        let mut variables: BTreeMap<OsString, OsString> = env::vars_os().collect();
        variables.retain(|name, _| !plan.hidden.contains(name));
        variables.extend(plan.variables.iter().map(|(name, value)| (name.into(), value.into())));
        for (mut name, value) in variables {
            name.push("=");
            name.push(value);
            texts.push(text(name)?);
        }
        let (arguments, environment) = texts.split_at_checked(words).unwrap_or_default();
        let list = |of: &[CString]| -> Vec<*const c_char> {
            of.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        Ok(Self {
            arguments: list(arguments),
            environment: list(environment),
            // A script without an interpreter is started as `sh SCRIPT ARGUMENTS`, a list made on
            // this stack.
            #[cfg(target_os = "linux")]
            stack: Vec::with_capacity(STACK.saturating_add(words)),
            _texts: texts,
        })
    }

    /// Starts it. In its process `prepare` runs first, with all signals blocked, and then those are
    /// let through that were when leasehold was started. One that is to stop it there stops its
    /// program. Async-signal-safe.
    ///
    /// # Errors
    ///
    /// The errors of `fork`, of `prepare`, and of the start of the program.
    ///
    /// # Safety
    ///
    /// `prepare` makes system calls only. It leaves the heap and all locks alone.
    pub(crate) unsafe fn start(
        &mut self,
        inherited: &Inherited,
        prepare: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<Pid> {
        #[cfg(target_os = "linux")]
        let top = {
            let length = self.stack.capacity();
            // SAFETY: stacks grow downwards, so this is one of `length` pieces, which has no other
            // user.
            unsafe { self.stack.as_mut_ptr().add(length) }
        };
        let birth = Birth { prepare, inherited, ready: self, error: AtomicI32::new(0) };
        // Blocked, so that no handler of this process runs in the new one, which may have its
        // memory.
        #[cfg(target_os = "linux")]
        let pid = inherited::blocking(None, || {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the call returns when the new process has become its program or ended; until
            // then everything that `birth` refers to stays as it is, since this thread stands
            // still.
            pid_of(unsafe {
                libc::clone(become_program, top.cast(), flags, (&raw const birth).cast_mut().cast())
            })
        })?;
        #[cfg(not(target_os = "linux"))]
        let pid = inherited::blocking(None, || birth.fork())?;
        #[cfg(target_os = "linux")]
        let stop = stops::take();
        match birth.error.load(Ordering::SeqCst) {
            // It may have been killed before it came so far, which is seen when it is waited for.
            0 => {
                #[cfg(target_os = "linux")]
                if let Some(signal) = stop {
                    // It fails only if the program has become another user's, which this one can't
                    // stop.
                    signals::send_to_group(pid, signal).ok();
                }
                Ok(pid)
            }
            error => {
                waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).ok();
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }

    /// Makes this process that program. Returns only where it can't. Async-signal-safe.
    pub(crate) fn become_it(&self) -> io::Error {
        let program = self.arguments.first().copied().unwrap_or(ptr::null());
        let (arguments, environment) = (self.arguments.as_ptr(), self.environment.as_ptr());
        // SAFETY: these are texts and lists of texts as the call wants them.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::execvpe(program, arguments, environment)
        };
        #[cfg(not(target_os = "linux"))]
        // SAFETY: as above; a process with one thread has no other reader of the list of variables.
        unsafe {
            *environ() = environment;
            libc::execvp(program, arguments)
        };
        io::Error::last_os_error()
    }
}

fn pid_of(number: libc::pid_t) -> io::Result<Pid> {
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    Pid::from_raw(number).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Where this system keeps the list of variables for a new program.
#[cfg(not(target_os = "linux"))]
unsafe fn environ() -> *mut *const *const c_char {
    #[cfg(target_vendor = "apple")]
    {
        // SAFETY: the call takes nothing and answers with a place that is there for good.
        unsafe { libc::_NSGetEnviron().cast() }
    }
    #[cfg(not(target_vendor = "apple"))]
    {
        unsafe extern "C" {
            static mut environ: *const *const c_char;
        }
        &raw mut environ
    }
}

/// What a new process needs to become a program.
struct Birth<'a> {
    prepare: &'a dyn Fn() -> io::Result<()>,
    inherited: &'a Inherited,
    ready: &'a Ready,
    /// The number of the error, if it did not become one.
    error: AtomicI32,
}

#[cfg(not(target_os = "linux"))]
impl Birth<'_> {
    /// Makes the process by a fork, and waits until it has become its program.
    fn fork(&self) -> io::Result<Pid> {
        use rustix::pipe::{PipeFlags, pipe_with};

        // It closes with the start of the program, or says the number of an error.
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child makes system calls only.
        let pid = pid_of(match unsafe { libc::fork() } {
            0 => {
                let code = become_program((&raw const *self).cast_mut().cast());
                rustix::io::write(&write, &self.error.load(Ordering::SeqCst).to_ne_bytes()).ok();
                // SAFETY: `_exit` runs no destructors and no handlers, which belong to the parent.
                unsafe { libc::_exit(code) }
            }
            pid => pid,
        })?;
        drop(write);
        let mut number = [0; 4];
        if rustix::io::read(&read, &mut number) == Ok(4) {
            self.error.store(i32::from_ne_bytes(number), Ordering::SeqCst);
        }
        Ok(pid)
    }
}

/// The new process's life until it is its program.
extern "C" fn become_program(birth: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it was given a `Birth`, which lives until this process has become its program.
    let birth = unsafe { &*birth.cast::<Birth<'_>>() };
    // Rust's start-up code has ignored it, for this program alone.
    let prepared = signals::reset(libc::SIGPIPE).and_then(|()| (birth.prepare)());
    #[cfg(target_os = "linux")]
    let prepared = prepared.and_then(|()| stops::note());
    let error = prepared
        .and_then(|()| birth.inherited.restore_mask())
        .map_or_else(|error| error, |()| birth.ready.become_it());
    let number = error.raw_os_error().unwrap_or(libc::EINVAL);
    birth.error.store(number, Ordering::SeqCst);
    Exit::CannotExecute.code().into()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    fn plan(program: impl Into<OsString>, arguments: &[&str]) -> Plan {
        Plan {
            program: program.into(),
            arguments: arguments.iter().map(Into::into).collect(),
            variables: Vec::new(),
            hidden: Vec::new(),
        }
    }

    fn started(plan: &Plan) -> io::Result<Pid> {
        // SAFETY: this does nothing.
        unsafe { Ready::new(plan)?.start(&Inherited::look(), &|| Ok(())) }
    }

    fn exit_code(pid: Pid) -> Option<i32> {
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap().unwrap().exit_status()
    }

    #[test]
    fn the_program_gets_its_arguments_and_variables_and_no_hidden_ones() {
        // SAFETY: no other code of this process changes or reads a variable of this name.
        unsafe { std::env::set_var("LEASEHOLD_TEST_HIDDEN", "x") };
        let script = r#"[ "$A" = "b c" ] && [ "$1" = "an argument" ] && [ -n "$PATH" ] &&
            [ -z "${LEASEHOLD_TEST_HIDDEN+x}" ] && exit 7"#;
        let mut plan = plan("sh", &["-c", script, "sh", "an argument"]);
        plan.variables.push(("A".to_owned(), "b c".to_owned()));
        plan.hidden.push("LEASEHOLD_TEST_HIDDEN".into());
        assert_eq!(exit_code(started(&plan).unwrap()), Some(7));
    }

    #[test]
    fn an_error_is_that_of_the_program_or_of_what_was_to_be_prepared() {
        let number = |started: io::Result<Pid>| started.unwrap_err().raw_os_error();
        assert_eq!(number(started(&plan("/is/not/there", &[]))), Some(libc::ENOENT));
        assert_eq!(number(started(&plan("is-not-there-either", &[]))), Some(libc::ENOENT));
        assert_eq!(number(started(&plan("/", &[]))), Some(libc::EACCES));
        let refuse = || Err(io::Error::from_raw_os_error(libc::EDOM));
        // SAFETY: this only makes a number an error.
        let refused =
            unsafe { Ready::new(&plan("true", &[])).unwrap().start(&Inherited::look(), &refuse) };
        assert_eq!(number(refused), Some(libc::EDOM));
        let error = started(&plan("true", &["a\0b"])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// musl's search for a program takes no script for one.
    #[cfg(not(target_env = "musl"))]
    #[test]
    fn a_script_that_names_no_interpreter_gets_any_number_of_arguments() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        // Written by another process: while a fork of this one has it open for writing, it can't be
        // executed.
        let write = "printf 'exit $(($# / 1000))' >\"$0\" && chmod +x \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&path).status().unwrap().success());
        assert_eq!(exit_code(started(&plan(&path, &["x"; 50_000])).unwrap()), Some(50));
    }

    /// A shell that leads a group, and got these signals on its way to its program. It ends as
    /// `script` says once the pipe `go`, which is made here, was opened for writing.
    #[cfg(target_os = "linux")]
    fn started_under(
        signals: &'static [libc::c_int],
        ignored: Option<libc::c_int>,
        go: &std::path::Path,
        script: &str,
    ) -> Pid {
        use rustix::fs::{CWD, FileType, Mode};

        rustix::fs::mknodat(CWD, go, FileType::Fifo, Mode::RWXU, 0).unwrap();
        // It starts no process: some shells are stopped while they do, and can't be seen to be.
        let script = format!(r#"read nothing <"$0"; {script}"#);
        let plan = plan("sh", &["-c", &script, go.to_str().unwrap()]);
        let inherited = Inherited::look();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let prepare = move || {
                rustix::process::setpgid(None, None)?;
                ignored.map_or(Ok(()), crate::signals::ignore)?;
                for signal in signals {
                    // SAFETY: the call touches no memory of this process.
                    unsafe { libc::kill(libc::getpid(), *signal) };
                }
                Ok(())
            };
            // SAFETY: the hook makes system calls only.
            let started = unsafe { Ready::new(&plan).unwrap().start(&inherited, &prepare) };
            tell.send(started.unwrap()).unwrap();
        });
        let limit = std::time::Duration::from_secs(60);
        told.recv_timeout(limit).expect("it was stopped before it was its program")
    }

    /// By what it was stopped, or with what it ended.
    #[cfg(target_os = "linux")]
    fn what_comes_next(pid: Pid) -> Result<i32, Option<i32>> {
        let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED;
        let status = waitid(WaitId::Pid(pid), look).unwrap().unwrap();
        status.stopping_signal().ok_or_else(|| status.exit_status())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_stop_before_the_program_is_there_stops_the_program() {
        for signals in [&[libc::SIGTSTP] as &[_], &[libc::SIGTTIN], &[libc::SIGTTOU]] {
            let directory = tempfile::tempdir().unwrap();
            let go = directory.path().join("go");
            let pid = started_under(signals, None, &go, "exit 6");
            assert_eq!(what_comes_next(pid).ok(), signals.first().copied());
            let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap();
            assert!(line.starts_with(b"sh\0-c\0"), "it is its program by then");
            crate::signals::send_to_group(pid, libc::SIGCONT).unwrap();
            std::fs::write(&go, "").unwrap();
            assert_eq!(what_comes_next(pid), Err(Some(6)));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_stop_before_the_program_is_there_is_nothing_where_it_is_ignored_or_taken_back() {
        // TSTP is the 20th signal, and its bit the highest of the fifth digit from the end.
        let ignores = r#"case "$(grep SigIgn /proc/$$/status)" in *[89a-f]????) exit 4;; esac"#;
        let cases: [(&[_], _, _, _); 2] = [
            (&[libc::SIGTSTP], Some(libc::SIGTSTP), ignores, 4),
            (&[libc::SIGTSTP, libc::SIGCONT], None, "exit 5", 5),
        ];
        for (signals, ignored, script, code) in cases {
            let directory = tempfile::tempdir().unwrap();
            let go = directory.path().join("go");
            let pid = started_under(signals, ignored, &go, script);
            std::fs::write(&go, "").unwrap();
            assert_eq!(what_comes_next(pid), Err(Some(code)), "{signals:?}");
        }
    }

    /// A thread whose signals stayed blocked would be deaf for good.
    #[test]
    fn signals_reach_the_thread_that_has_started_a_program_as_before() {
        let mask = || {
            let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: with a null set the mask stays and is written; the zeros before are a valid
            // set.
            let mask = unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
                mask.assume_init()
            };
            // SAFETY: the set is valid.
            (1..32).filter(|it| unsafe { libc::sigismember(&raw const mask, *it) } == 1).count()
        };
        let before = mask();
        assert_eq!(exit_code(started(&plan("true", &[])).unwrap()), Some(0));
        started(&plan("/is/not/there", &[])).unwrap_err();
        assert_eq!(mask(), before);
    }
}
