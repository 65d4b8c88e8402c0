//! `leasehold acquire`: take a lock and leave it held.

use leasehold::interop::Layout;
use leasehold::{Client, DetachedLease, Key};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cli::Acquire;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::kind::Kind;
use crate::lease_file::{self, LeaseFile, Taken};
use crate::output::{self, JSON_VERSION};
use crate::request::{Manner, Request};
use crate::signals::unless_interrupted;
use crate::typed;

pub(crate) async fn acquire(args: &Acquire, context: &Context) -> Outcome {
    let kind = Kind::of(&args.kinds, args.keys.len())?;
    kind.judge(args.taking.waiting.wait, false)?;
    let request = Request::new(&args.keys, kind, &args.taking, context)?;
    let layout = context.settings.layout();
    let mut signals = context.catch_signals()?;
    // Before the lock is taken, so that it is not held in vain when this can't be done.
    if args.lease_file.is_none() && output::is_closed() {
        return Err(Failure::new(
            Exit::Output,
            "standard output is closed, so the lease would be lost; give --lease-file FILE",
        ));
    }
    let file = args.lease_file.as_deref().map(|path| LeaseFile::at(path, layout)).transpose()?;
    let begun = Instant::now();
    let connecting = request.connect(context, true, begun);
    let client = unless_interrupted(&mut signals, connecting).await??;
    let keeper = Keeper { file, request: &request, client: &client, context };
    if let Some(old) = file.as_ref().map(LeaseFile::old).transpose()?.flatten() {
        // Of the locks that it is to take, the taking will tell.
        let judging = keeper.judge(&old, request.keys());
        unless_interrupted(&mut signals, judging).await??;
    }
    let manner = Manner { renew: false, grace: None, max_hold: None };
    let taken = request.attempt(context, &client, &mut signals, manner, begun).await?;
    let held = request.judge(taken, &client).await?;
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
            let delivered = keeper.deliver(&leases, args.json);
            unless_interrupted(&mut signals, delivered).await.and_then(|delivered| delivered)
        }
        Err(failure) => Err(failure),
    };
    if written.is_err() {
        // The leases reached no reader, so only this process can end them. Should this fail, they
        // end with their ttl.
        for lease in &leases {
            drop(unless_interrupted(&mut signals, client.release(lease, None)).await);
        }
        if let Some(file) = file {
            // It is private, and its leases are released: no harm if it stays.
            drop(file.remove(&leases));
        }
    }
    written.map(|()| Exit::Success)
}

/// Gives the leases away.
struct Keeper<'a> {
    file: Option<LeaseFile<'a>>,
    request: &'a Request,
    client: &'a Client,
    context: &'a Context,
}

impl Keeper<'_> {
    /// Refuses to write over leases that may be held, except leases of some locks.
    async fn judge(&self, old: &Taken, but: &[Key]) -> Outcome<()> {
        let Some(file) = self.file else { return Ok(()) };
        let shown = file.path.display();
        if let Some(place) = old.place_but(&self.context.settings.place()) {
            return Err(self.request.in_vain(&format!(
                "{shown} has a lease that may be held at {place}; release it there, or name \
                 another file"
            )));
        }
        for lease in old.leases.iter().filter(|lease| !but.contains(lease.key())) {
            let info = self.client.inspect(lease.key()).await?;
            let mut holders = info.iter().flat_map(|info| &info.holders);
            if holders.any(|holder| holder.is_foreign() || holder.fence == lease.fence()) {
                let path = typed::quoted(&file.path.to_string_lossy());
                let release = typed::command(&format!("release --lease-file {path}"));
                return Err(self.request.in_vain(&format!(
                    "{shown} has a lease of \"{}\" that is still held; release it by `{release}`, \
                     or name another file",
                    lease.key()
                )));
            }
        }
        Ok(())
    }

    async fn deliver(&self, leases: &[DetachedLease], as_json: bool) -> Outcome<()> {
        let layout = self.context.settings.layout();
        let in_file = self.file.is_some();
        if let Some(file) = self.file {
            let text = lease_file::file_text(leases, layout, &self.context.settings.place());
            // What another library keeps does not tell one hold from another; it is held by this
            // one.
            let but = if layout.is_some() { self.request.keys() } else { &[] };
            file.write(&text, async |old| self.judge(old, but).await).await?;
        }
        let text = if as_json {
            leases
                .iter()
                .map(|lease| output::json_line(&document(lease, in_file, layout)))
                .collect()
        } else if in_file {
            String::new()
        } else {
            lease_file::lines(leases, layout)
        };
        match output::data_patiently(&text).await {
            // A lease without a reader is a failure, even if other data would do.
            Err(failure) if failure.exit == Exit::Success && !in_file => {
                Err(Failure::new(Exit::Output, "the lease could not be printed, so it is released"))
            }
            other => other,
        }
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
