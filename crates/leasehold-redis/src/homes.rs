//! Connections that are driven where their callers are.
//!
//! A task of one runtime drives a connection, so that a request and its answer wake no other thread. A runtime of one
//! thread stands still when nobody blocks on it, one of several when all are busy with what blocks them, and either
//! may end: so callers on each runtime have connections of their own.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::{fmt, iter};

use leasehold_core::{BoxFuture, Reason};
use tokio::runtime::Handle;

use crate::addresses::Heard;
use crate::classify::Verdict;
use crate::sentinel::Said;
use crate::transport::{self, Answer, Deadline, Part, Parts, Request, Transport};

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

/// Those of one store for its callers, or those that are separate from them: any of them goes over one of another
/// where it can have none of its own.
#[derive(Debug)]
pub(crate) struct Connections {
    homes: Arc<TransportHomes>,
    /// All of the store.
    family: Arc<Mutex<Vec<Weak<TransportHomes>>>>,
}

type TransportHomes = Homes<Arc<dyn Transport>>;

impl TransportHomes {
    fn all(&self) -> impl Iterator<Item = &Arc<dyn Transport>> {
        let homes = iter::successors(Some(self), |homes| homes.next.get()?.as_deref());
        homes.map(|homes| &homes.first)
    }
}

impl Connections {
    pub(crate) fn new(first: Arc<dyn Transport>) -> Self {
        Self::of(first, Arc::default())
    }

    fn of(first: Arc<dyn Transport>, family: Arc<Mutex<Vec<Weak<TransportHomes>>>>) -> Self {
        let homes = Arc::new(Homes::new(first));
        let mut all = family.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&homes));
        drop(all);
        Self { homes, family }
    }

    /// Those of the store, these first.
    fn family(&self) -> Vec<Arc<TransportHomes>> {
        let all = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        let others = all.iter().filter_map(Weak::upgrade);
        let others = others.filter(|other| !Arc::ptr_eq(other, &self.homes));
        iter::once(Arc::clone(&self.homes)).chain(others).collect()
    }

    /// Whether there is but one runtime for callers.
    fn is_one(&self) -> bool {
        self.homes.next.get().is_none_or(Option::is_none)
    }

    /// Those of others that have a connection for this request.
    fn others_with_one(
        &self,
        here: &Arc<dyn Transport>,
        request: &Request<'_>,
    ) -> Vec<Arc<dyn Transport>> {
        let family = self.family();
        let others = family.iter().flat_map(|homes| homes.all());
        others
            .filter(|other| !Arc::ptr_eq(here, other) && other.has_connection(request))
            .cloned()
            .collect()
    }

    /// The one for the caller, or where it has no connection, and can't make one now, another that has one and is
    /// driven. Where there is only what nobody drives, and no room for one more, that gives its place up.
    async fn reached(&self, request: &Request<'_>, deadline: Deadline) -> Arc<dyn Transport> {
        let here = self.homes.here();
        if here.has_connection(request) {
            return Arc::clone(here);
        }
        let others = self.others_with_one(here, request);
        if !others.is_empty() {
            let soon = deadline.at_most(deadline.left() / 2);
            if let Err(why) = here.connected(request, soon).await {
                if let Some(driven) = first_driven(&others).await {
                    return driven;
                }
                if let Some(other) =
                    others.first().filter(|_| why.reason == Some(Reason::ServerFull))
                {
                    other.give_place_up();
                }
            }
        }
        Arc::clone(here)
    }
}

/// The first of these to be found driven, if any is.
async fn first_driven(all: &[Arc<dyn Transport>]) -> Option<Arc<dyn Transport>> {
    let mut asked: Vec<_> = all.iter().map(|one| (one, one.is_driven())).collect();
    poll_fn(|cx| {
        let mut found = None;
        asked.retain_mut(|(one, driven)| match driven.as_mut().poll(cx) {
            Poll::Ready(is_driven) => {
                found = found.take().or_else(|| is_driven.then(|| Arc::clone(one)));
                false
            }
            Poll::Pending => true,
        });
        if found.is_some() || asked.is_empty() { Poll::Ready(found) } else { Poll::Pending }
    })
    .await
}

impl Transport for Connections {
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        if self.is_one()
            && transport::here().is_ok()
            && let Some(answer) = self.homes.here().at_once(request, deadline)
        {
            return answer;
        }
        Box::pin(async move {
            let here = self.reached(request, deadline).await;
            let answer = here.one(request, deadline).await;
            if !answer.as_ref().is_err_and(Verdict::is_unsent) || deadline.is_over() {
                return answer;
            }
            // A server that takes no more clients says so once it is asked.
            let other = self.reached(request, deadline).await;
            if Arc::ptr_eq(&here, &other) { answer } else { other.one(request, deadline).await }
        })
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        let here = self.homes.here();
        let has_way = |request: &&Request<'_>| self.is_one() && here.has_connection(request);
        let Some(request) = requests.first().filter(|request| !has_way(request)) else {
            return here.many(requests, deadline);
        };
        Box::pin(async move {
            let here = self.reached(request, deadline).await;
            let answers = here.many(requests, deadline).await;
            let unsent = |answer: &Result<_, _>| answer.as_ref().is_err_and(Verdict::is_unsent);
            if !answers.iter().all(unsent) || deadline.is_over() {
                return answers;
            }
            let other = self.reached(request, deadline).await;
            if Arc::ptr_eq(&here, &other) { answers } else { other.many(requests, deadline).await }
        })
    }

    fn at_once<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> Option<BoxFuture<'a, Result<Answer, Verdict>>> {
        self.homes.here().at_once(request, deadline)
    }

    fn combines(&self) -> bool {
        self.homes.first.combines()
    }

    fn separate(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self::of((*self.homes.first).separate()?, Arc::clone(&self.family))))
    }

    fn is_spread(&self) -> bool {
        self.homes.first.is_spread()
    }

    fn fails_over(&self) -> bool {
        self.homes.first.fails_over()
    }

    fn parts(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<Parts>, Verdict>> {
        self.homes.here().parts(deadline)
    }

    fn sentinels(&self) -> BoxFuture<'_, Option<Vec<Said>>> {
        self.homes.here().sentinels()
    }

    fn addresses(&self) -> BoxFuture<'_, Option<Vec<Heard>>> {
        self.homes.here().addresses()
    }

    fn neighbour(&self, host: &str, port: u16) -> Option<Part> {
        self.homes.here().neighbour(host, port)
    }
}
