//! Connections that are driven where their callers are.
//!
//! A task of one runtime drives a connection, so that a request and its answer wake no other thread. A runtime of one
//! thread stands still when nobody blocks on it, one of several when all are busy with what blocks them, and either
//! may end: so callers on each runtime have connections of their own.

use std::fmt;
use std::sync::{Arc, OnceLock};

use leasehold_core::BoxFuture;
use tokio::runtime::Handle;

use crate::classify::Verdict;
use crate::sentinel::Said;
use crate::transport::{Answer, Deadline, Part, Parts, Request, Transport};

/// What makes connections, which live on one runtime.
pub(crate) trait Homed: Sized {
    /// Whether they are driven while callers on this runtime are.
    fn serves(&self, runtime: &Handle) -> bool;

    /// The same, and has them live there if they live nowhere yet, or where they lived is no more.
    fn takes_in(&self, runtime: &Handle) -> bool;

    /// The same way to the same servers, with connections of its own; nothing where they are somebody else's.
    fn separate(&self) -> Option<Self>;
}

/// One of these for each runtime that needs one of its own.
pub(crate) struct Homes<T> {
    first: T,
    /// What is there stays, and is used again once the runtime that it was for has ended.
    next: OnceLock<Option<Box<Self>>>,
}

impl<T: Homed> Homes<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { first, next: OnceLock::new() }
    }

    /// The one for the caller.
    pub(crate) fn here(&self) -> &T {
        let Ok(runtime) = Handle::try_current() else { return &self.first };
        self.already(&runtime).unwrap_or_else(|| self.taken_in(&runtime))
    }

    fn already(&self, runtime: &Handle) -> Option<&T> {
        let mut homes = self;
        while !homes.first.serves(runtime) {
            homes = homes.next.get()?.as_deref()?;
        }
        Some(&homes.first)
    }

    fn taken_in(&self, runtime: &Handle) -> &T {
        let mut homes = self;
        while !homes.first.takes_in(runtime) {
            let one_more = || homes.first.separate().map(|next| Box::new(Self::new(next)));
            let Some(next) = homes.next.get_or_init(one_more) else { break };
            homes = next;
        }
        &homes.first
    }
}

impl<T: fmt::Debug> fmt::Debug for Homes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)
    }
}

impl Homed for Arc<dyn Transport> {
    fn serves(&self, runtime: &Handle) -> bool {
        (**self).serves(runtime)
    }

    fn takes_in(&self, runtime: &Handle) -> bool {
        (**self).takes_in(runtime)
    }

    fn separate(&self) -> Option<Self> {
        (**self).separate()
    }
}

impl Homes<Arc<dyn Transport>> {
    /// The one for the caller, or the first where no connection is to be had for the caller's: one that is there
    /// may do.
    async fn reached(&self, request: &Request<'_>, deadline: Deadline) -> &Arc<dyn Transport> {
        let here = self.here();
        match here.connected(request, deadline.at_most(deadline.left() / 2)).await {
            Ok(()) => here,
            Err(_) => &self.first,
        }
    }
}

impl Transport for Homes<Arc<dyn Transport>> {
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        let (here, first) = (self.here(), &self.first);
        if Arc::ptr_eq(here, first) {
            return first.one(request, deadline);
        }
        Box::pin(async move { self.reached(request, deadline).await.one(request, deadline).await })
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        let (here, first) = (self.here(), &self.first);
        let Some(request) = requests.first().filter(|_| !Arc::ptr_eq(here, first)) else {
            return first.many(requests, deadline);
        };
        Box::pin(
            async move { self.reached(request, deadline).await.many(requests, deadline).await },
        )
    }

    fn at_once<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> Option<BoxFuture<'a, Result<Answer, Verdict>>> {
        self.here().at_once(request, deadline)
    }

    fn combines(&self) -> bool {
        self.first.combines()
    }

    fn separate(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self::new((*self.first).separate()?)))
    }

    fn is_spread(&self) -> bool {
        self.first.is_spread()
    }

    fn fails_over(&self) -> bool {
        self.first.fails_over()
    }

    fn parts(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<Parts>, Verdict>> {
        self.here().parts(deadline)
    }

    fn sentinels(&self) -> BoxFuture<'_, Option<Vec<Said>>> {
        self.here().sentinels()
    }

    fn neighbour(&self, host: &str, port: u16) -> Option<Part> {
        self.here().neighbour(host, port)
    }
}
