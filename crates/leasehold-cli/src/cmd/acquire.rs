//! `leasehold acquire`: take a lock and leave it held.

use leasehold::DetachedLease;
use leasehold::interop::Layout;
use serde_json::{Value, json};

use crate::cli::Acquire;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::kind::Kind;
use crate::lease_file::{self, LeaseFile};
use crate::output::{self, JSON_VERSION};
use crate::request::{Manner, Request};
use crate::signals::unless_interrupted;

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
    let mut file = args.lease_file.as_deref().map(LeaseFile::create).transpose()?;
    let manner = Manner { renew: false, grace: None, max_hold: None };
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
            let delivered =
                unless_interrupted(&mut signals, deliver(&leases, args, context, file.as_mut()))
                    .await;
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
    written.map(|()| {
        if let Some(file) = file {
            file.keep();
        }
        Exit::Success
    })
}

async fn deliver(
    leases: &[DetachedLease],
    args: &Acquire,
    context: &Context,
    file: Option<&mut LeaseFile<'_>>,
) -> Outcome<()> {
    let in_file = file.is_some();
    let layout = context.settings.layout();
    if let Some(file) = file {
        file.write(&lease_file::file_text(leases, layout, &context.settings.place()))?;
    }
    let text = if args.json {
        leases.iter().map(|lease| output::json_line(&document(lease, in_file, layout))).collect()
    } else if in_file {
        String::new()
    } else {
        lease_file::lines(leases, layout)
    };
    match output::data_patiently(&text).await {
        // A lease that nobody has read is no success, even where other data would do.
        Err(failure) if failure.exit == Exit::Success && !in_file => {
            Err(Failure::new(Exit::Output, "the lease could not be printed; it is given back"))
        }
        other => other,
    }
}

fn document(lease: &DetachedLease, in_file: bool, layout: Option<&Layout>) -> Value {
    let key = lease.key().as_str();
    let fence = match layout {
        None => Some(lease.fence().to_string()),
        Some(layout) => layout.has_fences().then(|| lease.fence().sequence().to_string()),
    };
    let ttl_ms = lease.ttl().as_millis();
    let mut document =
        json!({ "version": JSON_VERSION, "key": key, "fence": fence, "ttl_ms": ttl_ms });
    if !in_file && let Some(fields) = document.as_object_mut() {
        fields.insert("lease".to_owned(), lease_file::text(lease, layout).into());
    }
    document
}
