//! `acquire`, `renew`, `release`: leases that outlive the process which took them.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use leasehold::{DetachedLease, Release as Released};
use serde_json::json;

use crate::cli::{Acquire, LeaseSource, Release, Renew};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};
use crate::settings::create_private;
use crate::take::{self, Request, unless_interrupted};

const LEASE_VARIABLE: &str = "LEASEHOLD_LEASE";
/// A lease is one line, with a name of at most 512 bytes.
const LEASE_BYTES_MAX: u64 = 4096;

pub(crate) async fn acquire(args: &Acquire, context: &Context) -> Outcome {
    let request = Request::new(&args.key, &args.taking, context)?;
    let mut signals = context.catch_signals()?;
    // Before the lock is taken, so that it is not held in vain when this can't be done.
    let file = args.lease_file.as_deref().map(LeaseFile::create).transpose()?;
    let client = context.settings.connect(request.owner(), true).await?;
    let guard = request.take(&client, &mut signals, |mutex| mutex.renew(false)).await?;
    let lease = guard.detach().await?;
    let written = deliver(&lease, args, file);
    if written.is_err() {
        // Nobody has got the lease, so nobody could end it. Should this fail, it ends with its ttl.
        drop(unless_interrupted(&client, &mut signals, client.release(&lease, None)).await);
    }
    written.map(|()| Exit::Success)
}

fn deliver(lease: &DetachedLease, args: &Acquire, file: Option<LeaseFile<'_>>) -> Outcome<()> {
    let text = lease.to_secret_text();
    let in_file = file.is_some();
    if let Some(file) = file {
        file.keep(&text)?;
    }
    let printed = if args.json {
        let (key, fence) = (lease.key().as_str(), lease.fence().to_string());
        let ttl_ms = lease.ttl().as_millis();
        let mut document =
            json!({ "version": JSON_VERSION, "key": key, "fence": fence, "ttl_ms": ttl_ms });
        if !in_file && let Some(fields) = document.as_object_mut() {
            fields.insert("lease".to_owned(), text.into());
        }
        output::json(&document)
    } else if in_file {
        Ok(())
    } else {
        output::data(&format!("{text}\n"))
    };
    match printed {
        // A lease that nobody has read is no success, even where other data would do.
        Err(failure) if failure.exit == Exit::Success && !in_file => {
            Err(Failure::new(Exit::Output, "the lease could not be printed; it is given back"))
        }
        other => other,
    }
}

pub(crate) async fn renew(args: &Renew, context: &Context) -> Outcome {
    let lease = read(&args.source)?;
    let ttl = match args.ttl {
        Some(ttl) => take::ttl(ttl)?,
        None => lease.ttl(),
    };
    let client = context.settings.connect(None, true).await?;
    let renewed = client.renew(&lease, ttl.duration()).await?;
    if let Some(path) = &args.source.lease_file
        && renewed.ttl() != lease.ttl()
    {
        replace(path, &renewed.to_secret_text()).map_err(|error| {
            Failure::new(
                Exit::Output,
                format!("the lease is renewed, but {} can't be rewritten: {error}", path.display()),
            )
        })?;
    }
    Ok(Exit::Success)
}

pub(crate) async fn release(args: &Release, context: &Context) -> Outcome {
    let lease = read(&args.source)?;
    let cooldown = take::cooldown(args.cooldown)?;
    let client = context.settings.connect(None, true).await?;
    let outcome = client.release(&lease, cooldown).await?;
    let (key, location) = (lease.key(), client.location());
    let failure = |exit, why: &str| {
        Err(Failure::new(exit, format!("release \"{key}\" at {location}: {why}")))
    };
    let outcome = match outcome {
        Released::Released => Ok(Exit::Success),
        Released::Late => failure(
            Exit::Lost,
            "too late: the lease had run out before; nobody else has held it since, but the ttl \
             is too short",
        ),
        Released::NotHeld => failure(
            Exit::Lost,
            "the lease was lost: it ran out or was taken away, and somebody else may have held it \
             since",
        ),
        // The lease file stays, so that it can be tried again.
        _ => return failure(Exit::Store, "the store did not answer; try again"),
    };
    if let Some(path) = &args.source.lease_file
        && let Err(error) = fs::remove_file(path)
    {
        output::message(&format!("warning: can't remove {}: {error}", path.display()));
    }
    outcome
}

fn read(source: &LeaseSource) -> Outcome<DetachedLease> {
    let text = if let Some(path) = &source.lease_file {
        let refuse = |error| Failure::usage(format!("can't read {}: {error}", path.display()));
        read_limited(File::open(path).map_err(refuse)?).map_err(refuse)?
    } else if let Some(text) = env::var_os(LEASE_VARIABLE) {
        text.into_string().map_err(|_| Failure::usage(format!("{LEASE_VARIABLE} is no lease")))?
    } else {
        read_limited(io::stdin().lock())
            .map_err(|error| Failure::usage(format!("can't read standard input: {error}")))?
    };
    text.parse().map_err(|error| Failure::of_argument(&error))
}

fn read_limited(source: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(LEASE_BYTES_MAX).read_to_string(&mut text)?;
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
        let written = self.file.write_all(format!("{text}\n").as_bytes());
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
        .and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()))
        .and_then(|()| fs::rename(beside, path));
    if written.is_err() {
        drop(fs::remove_file(beside));
    }
    written
}
