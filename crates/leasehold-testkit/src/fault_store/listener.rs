//! A notification channel that loses or doubles its notifications.

use std::fmt;
use std::sync::Arc;

use leasehold_core::{BoxFuture, Listener, Wake};
use tokio::sync::watch;

use super::{Messages, Shared};

pub(super) fn wrap(inner: Box<dyn Listener>, shared: &Arc<Shared>) -> Box<dyn Listener> {
    let lit = shared.lit.subscribe();
    Box::new(FaultListener { inner, shared: Arc::clone(shared), lit, again: None })
}

struct FaultListener {
    inner: Box<dyn Listener>,
    shared: Arc<Shared>,
    lit: watch::Receiver<u64>,
    /// A notification that will arrive a second time.
    again: Option<Wake>,
}

impl fmt::Debug for FaultListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultListener").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Listener for FaultListener {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async {
            if let Some(wake) = self.again.take() {
                return wake;
            }
            loop {
                let wake = tokio::select! {
                    biased;
                    changed = self.lit.changed() => {
                        changed.expect("the store that counts outlives its listeners");
                        return Wake::Resync;
                    }
                    wake = self.inner.next() => wake,
                };
                let (dark, messages) = {
                    let state = self.shared.state();
                    (state.dark, state.messages)
                };
                match messages {
                    _ if dark => {}
                    Messages::Arrive => return wake,
                    Messages::Vanish => {}
                    Messages::ArriveTwice => {
                        self.again = Some(wake.clone());
                        return wake;
                    }
                }
            }
        })
    }

    fn doubt(&mut self) {
        self.inner.doubt();
    }
}
