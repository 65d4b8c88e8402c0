//! `leasehold hold`: have a lock while somebody else works.

use std::io::{self, Read as _};
use std::thread;

use leasehold::{HeldLease, Release};
use serde_json::json;
use tokio::sync::oneshot;

use crate::cli::Hold;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::held::{Closing, Held, quoted};
use crate::kind::Kind;
use crate::output::{self, JSON_VERSION};
use crate::take::{self, Manner, Request};

pub(crate) async fn hold(args: &Hold, context: &Context) -> Outcome {
    let kind = Kind::of(&args.kinds, args.keys.len())?;
    kind.judge(args.taking.waiting.wait, false)?;
    let request = Request::new(&args.keys, kind, &args.taking, context)?;
    let mut signals = context.catch_signals()?;
    let client = context.settings.connect(request.owner(), false).await?;
    let manner = Manner { renew: true, grace: None };
    let held = request.take(&client, &mut signals, manner).await?;
    // Nobody listens, so nobody relies on the lock either.
    if let Err(failure) = announce(&held, args.json) {
        drop(held.release(Closing::AsTaken).await);
        return Err(failure);
    }
    let input = if args.ignore_stdin { None } else { Some(input_closed()?) };
    let input = async {
        match input {
            // A sender that is gone means that reading failed, which is as good as closed.
            Some(closed) => drop(closed.await),
            None => std::future::pending().await,
        }
    };
    let leases = held.leases();
    let asked = async {
        output::message(&leases.asked(&client, args.until_asked).await);
        if !args.until_asked {
            std::future::pending().await
        }
    };
    let lost = tokio::select! {
        biased;
        () = leases.lost() => true,
        _ = signals.next_fatal() => false,
        () = input => false,
        () = asked => false,
    };
    let mut exit = if lost {
        let names = leases.iter().filter(|lease| !lease.is_held()).map(HeldLease::key);
        output::message(&format!(
            "lost {}: it could not be renewed, or was taken away",
            quoted(names)
        ));
        Exit::Lost
    } else {
        Exit::Success
    };
    let mut unfinished = false;
    for (key, released) in held.release(Closing::AsTaken).await {
        let why = match released {
            Ok(Release::Released) => continue,
            _ if lost => continue,
            Ok(Release::NotHeld) => "somebody else may have held it meanwhile",
            Ok(Release::Late) => "it ran out, though nobody else has held it since",
            Ok(_) => {
                unfinished = true;
                output::message(&format!(
                    "warning: release \"{key}\": the store did not answer; the lock may stay held \
                     until its ttl runs out"
                ));
                continue;
            }
            Err(error) => {
                unfinished = true;
                output::message(&chain(&error));
                exit = Exit::Store;
                continue;
            }
        };
        output::message(&format!("lost \"{key}\": {why}"));
        exit = Exit::Lost;
    }
    if unfinished {
        take::tidy(&client).await;
    }
    Ok(exit)
}

/// Says what is held.
fn announce(held: &Held, as_json: bool) -> Outcome<()> {
    for lease in held.leases().iter() {
        let (key, fence) = (lease.key().as_str(), lease.fence()?.to_string());
        if as_json {
            output::json(&json!({ "version": JSON_VERSION, "key": key, "fence": fence }))?;
        } else {
            output::data(&format!("{fence} {key}\n"))?;
        }
    }
    Ok(())
}

/// Reads standard input to its end, on a thread of its own: a read can't be cut short.
fn input_closed() -> Outcome<oneshot::Receiver<()>> {
    let (sender, closed) = oneshot::channel();
    let reader = move || {
        let mut buffer = [0; 4096];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        // Nobody waits any more if the lock was lost meanwhile.
        sender.send(()).ok();
    };
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(reader)
        .map_err(|error| Failure::system("watch standard input", &error))?;
    Ok(closed)
}
