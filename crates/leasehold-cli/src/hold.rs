//! `leasehold hold`: have a lock while somebody else works.

use std::io::{self, Read as _};
use std::thread;

use leasehold::Release;
use serde_json::json;
use tokio::sync::oneshot;

use crate::cli::Hold;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};
use crate::take::{self, Request};

pub(crate) async fn hold(args: &Hold, context: &Context) -> Outcome {
    let request = Request::new(&args.key, &args.taking, context)?;
    let mut signals = context.catch_signals()?;
    let client = context.settings.connect(request.owner(), false).await?;
    let guard = request.take(&client, &mut signals, |mutex| mutex).await?;
    let (key, fence) = (guard.key().clone(), guard.fence()?);
    let announced = if args.json {
        let (key, fence) = (key.as_str(), fence.to_string());
        output::json(&json!({ "version": JSON_VERSION, "key": key, "fence": fence }))
    } else {
        output::data(&format!("{fence} {key}\n"))
    };
    // Nobody listens, so nobody relies on the lock either.
    if let Err(failure) = announced {
        guard.release().await.ok();
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
    let lost = tokio::select! {
        biased;
        () = guard.lost() => true,
        _ = signals.next() => false,
        () = input => false,
    };
    let released = guard.release().await;
    let lost_because = |why| Err(Failure::new(Exit::Lost, format!("lost \"{key}\": {why}")));
    match released {
        _ if lost => lost_because("it could not be renewed, or was taken away"),
        Ok(Release::NotHeld) => lost_because("somebody else may have held it meanwhile"),
        Ok(Release::Late) => lost_because("it ran out, though nobody else has held it since"),
        Ok(Release::Released) => Ok(Exit::Success),
        Ok(_) => {
            take::tidy(&client).await;
            output::message(&format!(
                "warning: release \"{key}\": the store did not answer; the lock may stay held \
                 until its ttl runs out"
            ));
            Ok(Exit::Success)
        }
        Err(error) => {
            take::tidy(&client).await;
            Err(error.into())
        }
    }
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
