//! A node with its own clock, which can be restarted empty.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use leasehold_core::doctor::Finding;
use leasehold_core::table::{LockEntry, Now, Operation, StoreTime};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Error, ErrorKind, Fence, FenceBlock, ForceRelease, ForceReleaseRequest, Key,
    Leave, LeaveRequest, ListRequest, Listener, Listing, LockInfo, Release, ReleaseRequest, Renew,
    RenewRequest, Result, SetLimit, SetLimitRequest, Store,
};
use tokio::time::Instant;

/// Which safeguard the node fails to provide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lacks {
    Nothing,
    /// It always claims to remember everything.
    Age,
    /// It reports that it took fences over, but did not.
    WriteBack,
}

/// One lock of the lock table on a node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    state: Arc<Mutex<State>>,
    origin: Instant,
    /// By how much its time of day is ahead.
    ahead_us: u64,
    /// How fast its clock runs, in thousandths.
    rate: u64,
    lacks: Lacks,
}

#[derive(Debug)]
struct State {
    entry: LockEntry,
    started: Instant,
}

impl Node {
    pub(super) fn new(random: &mut Rng, lacks: Lacks) -> Self {
        let state = State { entry: LockEntry::default(), started: Instant::now() };
        Self {
            state: Arc::new(Mutex::new(state)),
            origin: Instant::now(),
            ahead_us: random.u64(..900_000),
            rate: random.u64(996..=1_004),
            lacks,
        }
    }

    pub(super) fn restart_empty(&self) {
        let mut state = self.state.lock().unwrap();
        *state = State { entry: LockEntry::default(), started: Instant::now() };
    }

    fn now(&self) -> Now {
        let us = u64::try_from(self.origin.elapsed().as_micros()).unwrap();
        let us = us * self.rate / 1_000;
        let fence_floor = Fence::new(0, us + self.ahead_us + 1).unwrap();
        Now::new(StoreTime::from_micros(us), fence_floor)
    }

    fn perform<O: Operation>(&self, operation: &O) -> O::Answer {
        self.state.lock().unwrap().entry.perform(operation, self.now(), &mut Vec::new())
    }
}

fn lacking<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T>> {
    let error = Error::new(ErrorKind::Unsupported, "not part of the simulation");
    Box::pin(std::future::ready(Err(error)))
}

impl Store for Node {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(async move { Ok(self.perform(request)) })
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        _: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let renew = |request: &RenewRequest| {
                let mut request = request.clone();
                if self.lacks == Lacks::WriteBack {
                    request.fences = FenceBlock::new(Fence::ZERO, 1);
                }
                Ok(self.perform(&request))
            };
            requests.iter().map(renew).collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move { Ok(self.perform(request)) })
    }

    fn leave<'a>(&'a self, request: &'a LeaveRequest, _: Duration) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move { Ok(self.perform(request)) })
    }

    fn inspect<'a>(&'a self, key: &'a Key, _: Duration) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move { Ok(self.state.lock().unwrap().entry.inspect(key, self.now().at)) })
    }

    fn remembers_for(&self, _: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(async move {
            let age = self.state.lock().unwrap().started.elapsed();
            Ok((self.lacks != Lacks::Age).then_some(age))
        })
    }

    fn acquire_all<'a>(
        &'a self,
        _: &'a [AcquireRequest],
        _: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        lacking()
    }

    fn convert<'a>(&'a self, _: &'a ConvertRequest, _: Duration) -> BoxFuture<'a, Result<Convert>> {
        lacking()
    }

    fn set_limit<'a>(
        &'a self,
        _: &'a SetLimitRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        lacking()
    }

    fn ask<'a>(&'a self, _: &'a AskRequest, _: Duration) -> BoxFuture<'a, Result<Ask>> {
        lacking()
    }

    fn list<'a>(&'a self, _: &'a ListRequest, _: Duration) -> BoxFuture<'a, Result<Listing>> {
        lacking()
    }

    fn force_release<'a>(
        &'a self,
        _: &'a ForceReleaseRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        lacking()
    }

    fn listen<'a>(&'a self, _: ClientId, _: Duration) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        lacking()
    }

    fn examine<'a>(&'a self, _: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        lacking()
    }

    fn capability(&self) -> Capability {
        Capability::NONE
    }

    fn location(&self) -> String {
        "simulated:".to_owned()
    }
}
