//! Carrying a request to the inner store, through its fault.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, ClientId, Convert,
    ConvertRequest, Effect, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave,
    LeaveRequest, ListRequest, Listener, Listing, LockInfo, Release, ReleaseRequest, Renew,
    RenewRequest, Result, SetLimit, SetLimitRequest, Store, Token,
};
use tokio::time::{sleep, timeout};

use super::{Fault, FaultStore, Op, Target};

/// A request of any operation.
pub(super) trait Carried: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;
    const OP: Op;

    fn targets(&self) -> Vec<Target>;
    fn send<'a>(&'a self, to: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer>;
    fn fail(&self, error: Error) -> Self::Answer;
}

impl FaultStore {
    pub(super) fn carry<C: Carried>(
        &self,
        request: C,
        within: Duration,
    ) -> BoxFuture<'_, C::Answer> {
        Box::pin(async move {
            let targets = request.targets();
            let fault = self.shared.meet(C::OP, targets, within);
            let inner = Arc::clone(&self.shared.inner);
            match fault {
                Fault::None => request.send(&*inner, within).await,
                Fault::DropRequest => {
                    sleep(within).await;
                    request.fail(self.no_answer(&request, within))
                }
                Fault::DropReply => {
                    let until = tokio::time::Instant::now() + within;
                    drop(request.send(&*inner, within).await);
                    tokio::time::sleep_until(until).await;
                    request.fail(self.no_answer(&request, within))
                }
                Fault::Delay { before, after } => {
                    let travels = request.clone();
                    let task = tokio::spawn(async move {
                        sleep(before).await;
                        let answer = travels.send(&*inner, within).await;
                        sleep(after).await;
                        answer
                    });
                    match timeout(within, task).await {
                        Ok(answer) => answer.expect("a store does not panic"),
                        Err(_) => request.fail(self.no_answer(&request, within)),
                    }
                }
                Fault::Refuse => {
                    let error = Error::new(ErrorKind::Unavailable, "refused on purpose");
                    request.fail(self.named(&request, error))
                }
                Fault::Fail(error) => request.fail(self.named(&request, error)),
                Fault::Hang { applied } => {
                    if applied {
                        drop(request.send(&*inner, within).await);
                    }
                    std::future::pending().await
                }
                Fault::Duplicate => {
                    drop(request.send(&*inner, within).await);
                    request.send(&*inner, within).await
                }
                Fault::Echo { after } => {
                    let answer = request.send(&*inner, within).await;
                    tokio::spawn(async move {
                        sleep(after).await;
                        drop(request.send(&*inner, within).await);
                    });
                    answer
                }
            }
        })
    }

    fn no_answer<C: Carried>(&self, request: &C, within: Duration) -> Error {
        let error = Error::new(ErrorKind::Unavailable, format!("no answer within {within:?}"))
            .with_effect(Effect::Unknown);
        self.named(request, error)
    }

    fn named<C: Carried>(&self, request: &C, error: Error) -> Error {
        let error = error.during(C::OP.name()).at_store(self.shared.inner.location());
        match request.targets().as_slice() {
            [target] => error.on_key(&target.key),
            _ => error,
        }
    }
}

fn target(key: &Key, token: Option<&Token>) -> Target {
    Target { key: key.clone(), token: token.map(Token::fingerprint) }
}

macro_rules! carried {
    ($request:ty, $op:ident, $send:ident -> $answer:ty, $self:ident => $targets:expr) => {
        impl Carried for $request {
            type Answer = Result<$answer>;
            const OP: Op = Op::$op;

            fn targets(&$self) -> Vec<Target> {
                $targets
            }

            fn send<'a>(
                &'a self,
                to: &'a dyn Store,
                within: Duration,
            ) -> BoxFuture<'a, Self::Answer> {
                to.$send(self, within)
            }

            fn fail(&self, error: Error) -> Self::Answer {
                Err(error)
            }
        }
    };
}

carried!(AcquireRequest, Acquire, acquire -> Acquire, self => vec![target(&self.key, Some(&self.token))]);
carried!(ReleaseRequest, Release, release -> Release, self => vec![target(&self.key, Some(&self.token))]);
carried!(LeaveRequest, Leave, leave -> Leave, self => vec![target(&self.key, Some(&self.token))]);
carried!(Key, Inspect, inspect -> Option<LockInfo>, self => vec![target(self, None)]);
carried!(ListRequest, List, list -> Listing, self => Vec::new());
carried!(
    ForceReleaseRequest,
    ForceRelease,
    force_release -> ForceRelease,
    self => vec![target(&self.key, None)]
);

carried!(ConvertRequest, Convert, convert -> Convert, self => vec![target(&self.key, Some(&self.token))]);
carried!(SetLimitRequest, SetLimit, set_limit -> SetLimit, self => vec![target(&self.key, None)]);
carried!(AskRequest, Ask, ask -> Ask, self => vec![target(&self.key, None)]);

/// Several locks at once, which travel as one.
#[derive(Clone)]
pub(super) struct Several(pub(super) Vec<AcquireRequest>);

impl Carried for Several {
    type Answer = Result<AcquireAll>;
    const OP: Op = Op::AcquireAll;

    fn targets(&self) -> Vec<Target> {
        self.0.iter().map(|request| target(&request.key, Some(&request.token))).collect()
    }

    fn send<'a>(&'a self, to: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer> {
        to.acquire_all(&self.0, within)
    }

    fn fail(&self, error: Error) -> Self::Answer {
        Err(error)
    }
}

/// A batch of renewals, which travels as one.
#[derive(Clone)]
pub(super) struct Batch(pub(super) Vec<RenewRequest>);

impl Carried for Batch {
    type Answer = Vec<Result<Renew>>;
    const OP: Op = Op::Renew;

    fn targets(&self) -> Vec<Target> {
        self.0.iter().map(|request| target(&request.key, Some(&request.token))).collect()
    }

    fn send<'a>(&'a self, to: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer> {
        to.renew(&self.0, within)
    }

    fn fail(&self, error: Error) -> Self::Answer {
        self.0.iter().map(|request| Err(error.clone().on_key(&request.key))).collect()
    }
}

/// The question how far back the store remembers.
#[derive(Clone)]
pub(super) struct Memory;

impl Carried for Memory {
    type Answer = Result<Option<Duration>>;
    const OP: Op = Op::RemembersFor;

    fn targets(&self) -> Vec<Target> {
        Vec::new()
    }

    fn send<'a>(&'a self, to: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer> {
        to.remembers_for(within)
    }

    fn fail(&self, error: Error) -> Self::Answer {
        Err(error)
    }
}

/// An examination, which is about no lock.
#[derive(Clone)]
pub(super) struct Examination;

impl Carried for Examination {
    type Answer = Result<Vec<Finding>>;
    const OP: Op = Op::Examine;

    fn targets(&self) -> Vec<Target> {
        Vec::new()
    }

    fn send<'a>(&'a self, to: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer> {
        to.examine(within)
    }

    fn fail(&self, error: Error) -> Self::Answer {
        Err(error)
    }
}

impl Carried for ClientId {
    type Answer = Result<Box<dyn Listener>>;
    const OP: Op = Op::Listen;

    fn targets(&self) -> Vec<Target> {
        Vec::new()
    }

    fn send<'a>(&'a self, to: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer> {
        to.listen(*self, within)
    }

    fn fail(&self, error: Error) -> Self::Answer {
        Err(error)
    }
}
