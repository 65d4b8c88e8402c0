//! Makes the command's process, and has it become the command.
//!
//! On Linux the new process has no memory of its own until it has become its program: it uses this
//! one's, and the thread that has made it stands still for so long, as in `posix_spawn`, which can't
//! do all that is to be done there. A fork would copy the tables of this process's memory, and then
//! page after page that either of the two writes to, for a process that has no use for any of it.

use std::ffi::OsString;
use std::io;

use rustix::process::Pid;

use crate::inherited::Inherited;

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// Variables to add.
    pub(crate) variables: Vec<(String, String)>,
    /// Variables to take away.
    pub(crate) hidden: Vec<OsString>,
}

/// Starts the command. In its process `prepare` runs first, with all signals blocked, and then those
/// are let through that were when this process was started. One that is to stop it there stops its
/// program.
///
/// # Errors
///
/// Those of making a process, of `prepare`, and of the program.
///
/// # Safety
///
/// `prepare` makes system calls only, allocates nothing and takes no lock.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn start(
    plan: &Plan,
    inherited: Inherited,
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Pid> {
    use std::collections::BTreeMap;
    use std::env;
    use std::ffi::{CString, c_char};
    use std::mem::MaybeUninit;
    use std::os::unix::ffi::OsStringExt as _;
    use std::ptr;
    use std::sync::atomic::{AtomicI32, Ordering};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use crate::inherited;
    use crate::job::stops;
    use crate::signals;

    /// In pieces of 16 bytes, to which a stack is aligned. Looking for a program takes about 5 kB.
    const STACK: usize = (64 << 10) / size_of::<u128>();

    let text = |text: OsString| CString::new(text.into_vec());
    let program = text(plan.program.clone())?;
    let mut arguments = vec![program.clone()];
    for argument in &plan.arguments {
        arguments.push(text(argument.clone())?);
    }
    let mut variables: BTreeMap<OsString, OsString> = env::vars_os().collect();
    variables.retain(|name, _| !plan.hidden.contains(name));
    variables.extend(plan.variables.iter().map(|(name, value)| (name.into(), value.into())));
    let mut environment = Vec::with_capacity(variables.len());
    for (mut name, value) in variables {
        name.push("=");
        name.push(value);
        environment.push(text(name)?);
    }
    let list = |of: &[CString]| -> Vec<*const c_char> {
        of.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments_list, environment_list) = (list(&arguments), list(&environment));
    // A script without an interpreter is started as `sh SCRIPT ARGUMENTS`, a list made on this stack.
    let length = STACK.saturating_add(arguments_list.len());
    let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(length);
    let birth = Birth {
        prepare: &prepare,
        inherited,
        program: program.as_ptr(),
        arguments: arguments_list.as_ptr(),
        environment: environment_list.as_ptr(),
        error: AtomicI32::new(0),
    };
    // Blocked, so that no handler of this process runs in the new one, which has its memory.
    let pid = inherited::blocking(None, || {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: stacks grow downwards, so this is one of `length` pieces, which nobody else uses.
        // The call returns when the new process has become its program or ended; until then
        // everything that `birth` refers to stays as it is, since this thread stands still.
        match unsafe {
            let top = stack.as_mut_ptr().add(length);
            libc::clone(become_program, top.cast(), flags, (&raw const birth).cast_mut().cast())
        } {
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(Pid::from_raw(pid)),
        }
    })?;
    let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
    let stop = stops::take();
    match birth.error.load(Ordering::SeqCst) {
        // It may have been killed before it came so far, which is seen when it is waited for.
        0 => {
            if let Some(signal) = stop {
                // It fails only if the program has become another user's, which this one can't stop.
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

/// What a new process needs to become a program.
#[cfg(target_os = "linux")]
struct Birth<'a> {
    prepare: &'a dyn Fn() -> io::Result<()>,
    inherited: Inherited,
    program: *const std::ffi::c_char,
    arguments: *const *const std::ffi::c_char,
    environment: *const *const std::ffi::c_char,
    /// The number of the error, if it did not become one.
    error: std::sync::atomic::AtomicI32,
}

/// The new process's life until it is its program.
#[cfg(target_os = "linux")]
extern "C" fn become_program(birth: *mut libc::c_void) -> libc::c_int {
    use crate::exit::Exit;
    use crate::job::stops;
    use crate::signals;

    // SAFETY: it was given a `Birth`, which lives until this process has become its program.
    let birth = unsafe { &*birth.cast::<Birth<'_>>() };
    // Rust's start-up code has ignored it, for this program alone.
    let prepared = signals::reset(libc::SIGPIPE)
        .and_then(|()| (birth.prepare)())
        .and_then(|()| stops::note())
        .and_then(|()| birth.inherited.restore_mask());
    let error = prepared.map_or_else(
        |error| error,
        |()| {
            // SAFETY: these are texts and lists of texts as the call wants them.
            unsafe { libc::execvpe(birth.program, birth.arguments, birth.environment) };
            io::Error::last_os_error()
        },
    );
    let number = error.raw_os_error().unwrap_or(libc::EINVAL);
    birth.error.store(number, std::sync::atomic::Ordering::SeqCst);
    // SAFETY: `_exit` runs no destructors and no handlers, which belong to the parent.
    unsafe { libc::_exit(Exit::CannotExecute.code().into()) }
}

/// As on Linux, by a fork, and with no signal blocked.
///
/// # Errors
///
/// As on Linux.
///
/// # Safety
///
/// As on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn start(
    plan: &Plan,
    inherited: Inherited,
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Pid> {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    let mut command = Command::new(&plan.program);
    command.args(&plan.arguments);
    for name in &plan.hidden {
        command.env_remove(name);
    }
    command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
    // SAFETY: the hook runs between fork and exec, and is what the caller says.
    unsafe { command.pre_exec(move || prepare().and_then(|()| inherited.restore_mask())) };
    command.spawn().map(|child| Pid::from_child(&child))
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
        unsafe { start(plan, Inherited::look(), || Ok(())) }
    }

    fn exit_code(pid: Pid) -> Option<i32> {
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap().unwrap().exit_status()
    }

    #[test]
    fn the_program_gets_its_arguments_and_variables_and_no_hidden_ones() {
        // SAFETY: nothing else in this process changes or reads a variable of this name.
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
        let refused = unsafe { start(&plan("true", &[]), Inherited::look(), refuse) };
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
        // Written by another process: while one that this process forks has it open for that, nobody
        // can execute it.
        let write = "printf 'exit $(($# / 1000))' >\"$0\" && chmod +x \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&path).status().unwrap().success());
        assert_eq!(exit_code(started(&plan(&path, &["x"; 50_000])).unwrap()), Some(50));
    }

    /// A shell that leads a group, and got these signals on its way to its program. It ends as `script`
    /// says once the pipe `go`, which is made here, was opened for writing.
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
            tell.send(unsafe { start(&plan, inherited, prepare) }.unwrap()).unwrap();
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
            // SAFETY: with a null set nothing is changed and the present mask is written; the
            // zeros before are a valid set.
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
