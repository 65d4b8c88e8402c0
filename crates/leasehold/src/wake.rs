//! A client's wake channel: one for all of its waiters, opened by the first that needs it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClientId, Error, ErrorKind, Result, Store, Wake};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// What became of opening the channel; nothing as long as that is under way.
type Opening = watch::Receiver<Option<Result<()>>>;

/// The client's end of its channel.
#[derive(Debug)]
pub(crate) struct Hub {
    store: Arc<dyn Store>,
    runtime: tokio::runtime::Handle,
    client: ClientId,
    opening: Mutex<Option<Opening>>,
    lines: Arc<Lines>,
    next_ticket: AtomicU64,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Lines(Mutex<HashMap<u64, mpsc::UnboundedSender<Wake>>>);

impl Lines {
    fn get(&self) -> MutexGuard<'_, HashMap<u64, mpsc::UnboundedSender<Wake>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch(&self, wake: Wake) {
        let lines = self.get();
        match wake {
            Wake::Granted { ticket, .. } | Wake::First { ticket, .. } => {
                if let Some(line) = lines.get(&ticket) {
                    // A waiter that has just gone gives up its token by itself.
                    drop(line.send(wake));
                }
            }
            _ => lines.values().for_each(|line| drop(line.send(Wake::Resync))),
        }
    }
}

/// A waiter's own line of messages.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) ticket: u64,
    messages: mpsc::UnboundedReceiver<Wake>,
    lines: Arc<Lines>,
}

impl Line {
    /// The next message for this waiter. Cancel safe.
    pub(crate) async fn next(&mut self) -> Wake {
        match self.messages.recv().await {
            Some(wake) => wake,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.get().remove(&self.ticket);
    }
}

impl Hub {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        runtime: tokio::runtime::Handle,
        client: ClientId,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            runtime,
            client,
            opening: Mutex::default(),
            lines: Arc::default(),
            next_ticket: AtomicU64::new(1),
            stop,
        }
    }

    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    fn opening(&self) -> MutexGuard<'_, Option<Opening>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opening().as_ref().is_some_and(|opening| matches!(*opening.borrow(), Some(Ok(()))))
    }

    /// Opens the channel unless it is open; messages sent after this arrive. Cancel safe.
    ///
    /// A task of its own does it, so that a waiter that is not polled holds up no other.
    pub(crate) async fn open(&self, within: Duration) -> Result<()> {
        let mut opening = {
            let mut current = self.opening();
            let failed = |opening: &Opening| matches!(*opening.borrow(), Some(Err(_)));
            match &*current {
                Some(opening) if !failed(opening) => opening.clone(),
                _ => current.insert(self.start(within)).clone(),
            }
        };
        let outcome = opening.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| outcome.clone()).unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Closed, "the client was closed, or its runtime shut down"))
        })
    }

    fn start(&self, within: Duration) -> Opening {
        let (outcome, opening) = watch::channel(None);
        let (store, client) = (Arc::clone(&self.store), self.client);
        let (lines, stop) = (Arc::clone(&self.lines), self.stop.clone());
        self.runtime.spawn(stop.run_until_cancelled_owned(async move {
            match store.listen(client, within).await {
                Ok(mut listener) => {
                    outcome.send_replace(Some(Ok(())));
                    loop {
                        lines.dispatch(listener.next().await);
                    }
                }
                Err(error) => drop(outcome.send_replace(Some(Err(error)))),
            }
        }));
        opening
    }

    /// A line for one waiter; dropping it closes it.
    pub(crate) fn line(&self) -> Line {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = mpsc::unbounded_channel();
        self.lines.get().insert(ticket, sender);
        Line { ticket, messages, lines: Arc::clone(&self.lines) }
    }
}
