//! `acquire`, `renew`, `release`: leases that outlive the process which took them.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use leasehold::{DetachedLease, ErrorKind, Release as Released};
use serde_json::{Value, json};

use crate::cli::{Acquire, LeaseSource, Release, Renew};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::kind::Kind;
use crate::output::{self, JSON_VERSION};
use crate::settings::create_private;
use crate::take::{self, Manner, Request, unless_interrupted};

pub(crate) const LEASE_VARIABLE: &str = "LEASEHOLD_LEASE";
/// A lease is one line, with a name of at most 512 bytes.
const LEASES_BYTES_MAX: u64 = 256 * 1024;

pub(crate) async fn acquire(args: &Acquire, context: &Context) -> Outcome {
    let kind = Kind::of(&args.kinds, args.keys.len())?;
    kind.judge(args.taking.waiting.wait, false)?;
    let request = Request::new(&args.keys, kind, &args.taking, context)?;
    let mut signals = context.catch_signals()?;
    // Before the lock is taken, so that it is not held in vain when this can't be done.
    if args.lease_file.is_none() && output::is_closed() {
        return Err(Failure::new(
            Exit::Output,
            "standard output is closed, so nobody would get the lease; give --lease-file FILE",
        ));
    }
    let file = args.lease_file.as_deref().map(LeaseFile::create).transpose()?;
    let manner = Manner { renew: false, grace: None };
    let (client, held) = request.take(context, &mut signals, manner).await?;
    let mut leases = Vec::new();
    let mut detached = Ok(());
    for guard in held.into_guards() {
        match guard.detach().await {
            Ok(lease) => leases.push(lease),
            Err(error) => detached = Err(Failure::from(leasehold::Error::from(error))),
        }
    }
    let written = match detached {
        Ok(()) => {
            let delivered = unless_interrupted(&mut signals, deliver(&leases, args, file)).await;
            delivered.and_then(|delivered| delivered)
        }
        Err(failure) => Err(failure),
    };
    if written.is_err() {
        // Nobody has got the leases, so nobody could end them. Should this fail, they end with
        // their ttl.
        for lease in &leases {
            drop(unless_interrupted(&mut signals, client.release(lease, None)).await);
        }
    }
    written.map(|()| Exit::Success)
}

/// Leases as they are written, each on a line.
fn lines(leases: &[DetachedLease]) -> String {
    leases.iter().map(|lease| lease.to_secret_text() + "\n").collect()
}

async fn deliver(
    leases: &[DetachedLease],
    args: &Acquire,
    file: Option<LeaseFile<'_>>,
) -> Outcome<()> {
    let in_file = file.is_some();
    if let Some(file) = file {
        file.keep(&lines(leases))?;
    }
    let text = if args.json {
        leases.iter().map(|lease| output::json_line(&document(lease, in_file))).collect()
    } else if in_file {
        String::new()
    } else {
        lines(leases)
    };
    match output::data_patiently(&text).await {
        // A lease that nobody has read is no success, even where other data would do.
        Err(failure) if failure.exit == Exit::Success && !in_file => {
            Err(Failure::new(Exit::Output, "the lease could not be printed; it is given back"))
        }
        other => other,
    }
}

fn document(lease: &DetachedLease, in_file: bool) -> Value {
    let (key, fence) = (lease.key().as_str(), lease.fence().to_string());
    let ttl_ms = lease.ttl().as_millis();
    let mut document =
        json!({ "version": JSON_VERSION, "key": key, "fence": fence, "ttl_ms": ttl_ms });
    if !in_file && let Some(fields) = document.as_object_mut() {
        fields.insert("lease".to_owned(), lease.to_secret_text().into());
    }
    document
}

pub(crate) async fn renew(args: &Renew, context: &Context) -> Outcome {
    let leases = read(&args.source)?;
    let ttl = args.ttl.map(take::ttl).transpose()?;
    let client = context.connect(true).await?;
    let mut renewed = Vec::with_capacity(leases.len());
    let mut failed = None;
    for lease in &leases {
        match client.renew(lease, ttl.unwrap_or_else(|| lease.ttl()).duration()).await {
            Ok(lease) => renewed.push(lease),
            // The others go on: one that is lost does not make them lost.
            Err(error) => {
                renewed.push(lease.clone());
                let why = match error.kind() {
                    ErrorKind::Late => Some(
                        "too late: the lease had run out, or was released before; nobody else has \
                         held the lock since",
                    ),
                    ErrorKind::Lost => Some(
                        "the lease is lost: it had run out, was released before or was taken away; \
                         stop what was done under it",
                    ),
                    _ => None,
                };
                let failure = match why {
                    Some(why) => {
                        let (key, location) = (lease.key(), client.location());
                        Failure::new(Exit::Lost, format!("renew \"{key}\" at {location}: {why}"))
                    }
                    None => Failure::from(error),
                };
                if let Some(Failure { message, .. }) = failed.replace(failure) {
                    output::message(&message);
                }
            }
        }
    }
    if let Some(path) = &args.source.lease_file
        && renewed != leases
    {
        replace(path, &lines(&renewed)).map_err(|error| {
            Failure::new(
                Exit::Output,
                format!("the lease is renewed, but {} can't be rewritten: {error}", path.display()),
            )
        })?;
    }
    failed.map_or(Ok(Exit::Success), Err)
}

pub(crate) async fn release(args: &Release, context: &Context) -> Outcome {
    let leases = read(&args.source)?;
    let cooldown = take::cooldown(args.cooldown)?;
    let client = context.connect(true).await?;
    let location = client.location();
    let mut failed: Option<Failure> = None;
    let mut unanswered = false;
    for lease in &leases {
        let fail = |exit, why: &str| {
            Failure::new(exit, format!("release \"{}\" at {location}: {why}", lease.key()))
        };
        let failure = match client.release_outcome(lease, cooldown).await {
            Ok(Released::Released) => continue,
            Ok(Released::Late) => fail(
                Exit::Lost,
                "too late: the lease had run out before; nobody else has held it since, but the \
                 ttl is too short",
            ),
            Ok(Released::NotHeld) => fail(
                Exit::Lost,
                "the lease was lost: it ran out or was taken away, and somebody else may have \
                 held it since",
            ),
            Ok(_) => {
                unanswered = true;
                fail(Exit::Store, "the store did not answer; try again")
            }
            Err(error) => {
                unanswered = true;
                error.into()
            }
        };
        if let Some(Failure { message, .. }) = failed.replace(failure) {
            output::message(&message);
        }
    }
    // With a lease that may still be held the file stays, so that it can be tried again.
    if let Some(path) = args.source.lease_file.as_ref().filter(|_| !unanswered)
        && let Err(error) = fs::remove_file(path)
    {
        output::message(&format!("warning: can't remove {}: {error}", path.display()));
    }
    failed.map_or(Ok(Exit::Success), Err)
}

/// The leases that somebody took together, each on a line.
fn read(source: &LeaseSource) -> Outcome<Vec<DetachedLease>> {
    let text = if let Some(path) = &source.lease_file {
        let refuse = |error| Failure::usage(format!("can't read {}: {error}", path.display()));
        read_limited(File::open(path).map_err(refuse)?).map_err(refuse)?
    } else if let Some(text) = env::var_os(LEASE_VARIABLE) {
        text.into_string().map_err(|_| Failure::usage(format!("{LEASE_VARIABLE} is no lease")))?
    } else {
        read_limited(io::stdin().lock())
            .map_err(|error| Failure::usage(format!("can't read standard input: {error}")))?
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let leases =
        text.split('\n').map(|line| line.parse().map_err(|error| Failure::of_argument(&error)));
    leases.collect()
}

fn read_limited(source: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(LEASES_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A file that was made for a lease, and is removed again unless it gets one.
#[derive(Debug)]
struct LeaseFile<'a> {
    path: &'a Path,
    file: File,
    kept: bool,
}

impl<'a> LeaseFile<'a> {
    fn create(path: &'a Path) -> Outcome<Self> {
        let shown = path.display();
        let file = create_private(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::usage(format!(
                "{shown} is there already and may hold a lease; release it, or name another file"
            )),
            _ => Failure::new(Exit::Output, format!("can't create {shown}: {error}")),
        })?;
        Ok(Self { path, file, kept: false })
    }

    fn keep(mut self, text: &str) -> Outcome<()> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| {
            let shown = self.path.display();
            Failure::new(Exit::Output, format!("can't write {shown}: {error}"))
        })?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for LeaseFile<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // It is empty, and private: no harm if it stays.
            drop(fs::remove_file(self.path));
        }
    }
}

/// Replaces a lease file in one step: whoever reads it finds the old lease or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = Path::new(&name);
    let written = create_private(beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(beside, path));
    if written.is_err() {
        drop(fs::remove_file(beside));
    }
    written
}
