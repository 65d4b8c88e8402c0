//! A client's wake channel: one for all of its waiters, opened by the first that needs it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClientId, Result, Store, Wake};
use tokio::sync::{OnceCell, mpsc};
use tokio_util::sync::CancellationToken;

/// The client's end of its channel.
#[derive(Debug)]
pub(crate) struct Hub {
    store: Arc<dyn Store>,
    runtime: tokio::runtime::Handle,
    client: ClientId,
    open: OnceCell<()>,
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
            open: OnceCell::new(),
            lines: Arc::default(),
            next_ticket: AtomicU64::new(1),
            stop,
        }
    }

    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.initialized()
    }

    /// Opens the channel unless it is open; messages sent after this arrive.
    pub(crate) async fn open(&self, within: Duration) -> Result<()> {
        let open = async || {
            let mut listener = self.store.listen(self.client, within).await?;
            let (lines, stop) = (Arc::clone(&self.lines), self.stop.clone());
            self.runtime.spawn(async move {
                loop {
                    tokio::select! {
                        wake = listener.next() => lines.dispatch(wake),
                        () = stop.cancelled() => return,
                    }
                }
            });
            Ok(())
        };
        self.open.get_or_try_init(open).await.copied()
    }

    /// A line for one waiter; dropping it closes it.
    pub(crate) fn line(&self) -> Line {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = mpsc::unbounded_channel();
        self.lines.get().insert(ticket, sender);
        Line { ticket, messages, lines: Arc::clone(&self.lines) }
    }
}
