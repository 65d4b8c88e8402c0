//! The `leasehold` command: run jobs under a lock.

#[cfg(not(unix))]
compile_error!("the leasehold command looks after Unix processes; elsewhere, use the library");

mod arguments;
mod cli;
mod cmd;
mod config;
mod context;
mod descent;
mod describe;
mod duration;
mod exit;
mod failure;
mod fnv;
mod gate;
mod graph;
mod http;
mod inherited;
mod job;
mod kind;
mod lease_file;
mod leases;
mod log;
mod mapped;
mod outage;
mod outer;
mod output;
mod panics;
mod pauses;
mod place;
mod printer;
mod replaced;
mod request;
mod secret;
mod settings;
mod signals;
mod status;
mod stdout;
mod typed;

use std::os::fd::RawFd;
use std::process::ExitCode;

use leasehold::Reason;

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::inherited::Inherited;
use crate::leases::Numbers;
use crate::settings::Settings;

fn main() -> ExitCode {
    let inherited = Inherited::look();
    share_memory();
    // A file that grows beyond the limit is an error like others; it must not kill a supervisor.
    drop(signals::ignore(libc::SIGXFSZ));
    panics::watch();
    let exit = match panics::caught(|| start(inherited)) {
        Ok(exit) => exit,
        Err(Failure { exit, reason, message }) => {
            let reason = reason.map(Reason::name);
            tracing::info!(target: "leasehold", exit = exit.name(), reason, "failed");
            if !message.is_empty() {
                output::message(&message);
            }
            exit
        }
    };
    output::flush();
    if let Exit::Keyboard(signal) = exit {
        signals::die_with_own_group(signal.into());
    }
    ExitCode::from(exit.code())
}

/// musl's own allocator asks the system for a few pages at a time and gives each of them back,
/// which took a sixth of the time of a short command.
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Has all threads allocate from one arena. Most do so little that making one for each, as glibc
/// does, takes longer than all that they do in it.
fn share_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: this sets a number in the allocator, while there is one thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

fn start(inherited: Inherited) -> Outcome {
    remember_secrets_in_arguments();
    let cli = match Cli::read(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => return refuse(error),
    };
    // To be known before this process opens any.
    let files = match &cli.command {
        Command::Run(_) | Command::Elect(_) => inherited::open_files()?,
        _ => Vec::new(),
    };
    match &cli.command {
        Command::Completions(args) => return cmd::completions::completions(args),
        Command::Man(args) => return cmd::man::man(args),
        _ => {}
    }
    let in_background = match &cli.command {
        Command::Hold(args) if args.background => match cmd::hold::background::divide()? {
            Some(front) => return front.wait(args.json),
            None => true,
        },
        _ => false,
    };
    if let Some((path, command, keys)) = cli.command.status() {
        status::begin(path, command, keys)?;
    }
    let outcome = panics::caught(|| carry_out(&cli, inherited, files, in_background));
    status::finish(&outcome);
    if cli.command.prints_documents() {
        print_failure(&outcome);
    }
    outcome
}

fn carry_out(cli: &Cli, inherited: Inherited, files: Vec<RawFd>, in_background: bool) -> Outcome {
    log::start(cli.global.verbose, Numbers::of(cli.command.layout()))?;
    let settings = Settings::gather(&cli.global)?
        .shared_with(cli.command.layout(), cli.command.leftovers())?
        .logging(cli.command.logs());
    if in_background {
        // A password file may have been one of them.
        cmd::hold::background::close_files()?;
    }
    let context = Context::new(settings, inherited, files, cli.global.quiet);
    // No other thread is needed: the library's own thread renews leases and informs the watchdog of
    // them, whatever delays this one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("start", &error))?;
    let outcome = panics::caught(|| runtime.block_on(cmd::carry_out(&cli.command, &context)));
    // However that ended.
    let closed = panics::caught(|| {
        runtime.block_on(context.close());
        Ok(())
    });
    // Not awaited: a thread that reads standard input may never come back.
    runtime.shutdown_background();
    outcome.and_then(|exit| closed.map(|()| exit))
}

/// Prints what went wrong as a document, for those who read documents.
fn print_failure(outcome: &Outcome) {
    let (exit, reason, message) = match outcome {
        Ok(Exit::Lost) => (Exit::Lost, None, "the lock was lost"),
        Ok(_) => return,
        Err(Failure { exit: Exit::Output, .. }) => return,
        Err(Failure { exit, reason, message }) => (*exit, *reason, message.as_str()),
    };
    // For people a signal needs no words.
    let of_signal = match exit {
        Exit::Signal(signal) => format!("ended by SIG{}", signals::name(signal.into())),
        _ => String::new(),
    };
    let message = if message.is_empty() { &of_signal } else { message };
    let error = serde_json::json!({
        "exit_code": exit.code(), "kind": exit.name(), "reason": reason.map(Reason::name),
        "message": secret::redact(message),
    });
    // Should this fail, the exit code and the message are left.
    drop(output::json(&serde_json::json!({ "version": output::JSON_VERSION, "error": error })));
}

/// A parser's error repeats what it does not understand, which may be a URL in the wrong place.
fn remember_secrets_in_arguments() {
    for argument in std::env::args_os() {
        if let Some(argument) = argument.to_str() {
            secret::remember_those_of(argument);
        }
    }
}

/// Prints help on request, and otherwise the error.
fn refuse(mut error: clap::Error) -> Outcome {
    use clap::error::ErrorKind;
    cli::hints::correct(&mut error);
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::data(&text).map(|()| Exit::Success)
        }
        _ => Err(Failure::usage(text.strip_prefix("error: ").unwrap_or(&text))),
    }
}
