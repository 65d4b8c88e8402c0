//! A store that breaks one promise and keeps the others.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Converted, Cooldown, Effect, Error, ErrorKind, Fence, FenceBlock, ForceRelease,
    ForceReleaseRequest, Granted, Key, Leave, LeaveRequest, ListRequest, Listener, Listing,
    LockInfo, Metadata, Mode, OwnerName, Release, ReleaseRequest, Renew, RenewRequest, Result,
    SetLimit, SetLimitRequest, Store, Token, Wake,
};
use leasehold_embedded::MemoryStore;

/// The promise that is broken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    AcquireIsNotIdempotent,
    AcquireShortens,
    AskIsForgotten,
    AskReachesEverybody,
    BatchIsAnsweredInReverse,
    BlockIsNotReserved,
    BusyIsGranted,
    ContendersAreForgotten,
    ConversionIsForgotten,
    CooldownIsForgotten,
    ExaminationGivesNoReason,
    FenceIsConstant,
    FencesAreForgottenWhenIdle,
    ForceReleaseIgnoresTheFence,
    GrantDoesNotClose,
    HandedLeaseRunsForTheTtl,
    HeartbeatIsNotTold,
    LateIsCalledLost,
    LeaveLeavesTheLease,
    ListIgnoresThePrefix,
    ListIsUnordered,
    LostIsCalledLate,
    MetadataEndsAtNul,
    NamesAreCutShort,
    NamesLoseTheirBraces,
    NotAppliedIsALie,
    OwnerIsLost,
    PermitsAreGrantedBeyondTheLimit,
    PlaceIsForgotten,
    PreferenceIsIgnored,
    ReleaseDoesNotReopen,
    ReleaseNeedsNoToken,
    RenewalCreates,
    RenewalShortens,
    SetIsTakenInPart,
    SharedIsExclusive,
    TokenIsShown,
    WaitersMaxIsIgnored,
}

#[derive(Debug)]
pub(crate) struct BrokenStore {
    fault: Fault,
    inner: Mutex<MemoryStore>,
}

impl BrokenStore {
    pub(crate) fn new(fault: Fault) -> Self {
        Self { fault, inner: Mutex::new(MemoryStore::new()) }
    }

    fn inner(&self) -> MemoryStore {
        self.inner.lock().unwrap().clone()
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn key(&self, key: &Key) -> Key {
        let name = key.as_str();
        let name = match self.fault {
            Fault::NamesAreCutShort => name.char_indices().take(500).map(|(_, c)| c).collect(),
            Fault::NamesLoseTheirBraces => name.replace(['{', '}'], "_"),
            _ => return key.clone(),
        };
        Key::new(name).unwrap()
    }

    fn mangle(&self, asked: &AcquireRequest) -> AcquireRequest {
        let mut asked = asked.clone();
        asked.key = self.key(&asked.key);
        match self.fault {
            Fault::AcquireIsNotIdempotent => asked.token = Token::generate().unwrap(),
            Fault::BlockIsNotReserved => asked.fence_block = NonZeroU32::MIN,
            Fault::MetadataEndsAtNul => {
                let text = asked.metadata.as_str().split('\0').next().unwrap();
                asked.metadata = Metadata::new(text).unwrap();
            }
            Fault::PreferenceIsIgnored => asked.preferred = false,
            Fault::GrantDoesNotClose => asked.cooldown = Cooldown::NONE,
            Fault::OwnerIsLost => asked.owner = OwnerName::default(),
            Fault::SharedIsExclusive if asked.mode == Mode::Shared => asked.mode = Mode::Exclusive,
            Fault::TokenIsShown => asked.metadata = Metadata::new(asked.token.to_hex()).unwrap(),
            _ => {}
        }
        if let Mode::Permits { limit, .. } = &mut asked.mode
            && self.is(Fault::PermitsAreGrantedBeyondTheLimit)
        {
            *limit = limit.saturating_add(1);
        }
        if let Some(queue) = &mut asked.queue {
            match self.fault {
                Fault::ContendersAreForgotten => queue.behind = 0,
                Fault::HandedLeaseRunsForTheTtl => queue.window = asked.ttl,
                Fault::PlaceIsForgotten => queue.place = None,
                Fault::WaitersMaxIsIgnored => queue.max_waiters = None,
                _ => {}
            }
        }
        asked
    }

    async fn acquire_wrongly(&self, asked: &AcquireRequest, within: Duration) -> Result<Acquire> {
        let asked = self.mangle(asked);
        let inner = self.inner();
        let count = asked.fence_block.get();
        let mut answer = inner.acquire(&asked, within).await?;
        match (self.fault, &mut answer) {
            (Fault::BusyIsGranted, Acquire::Busy(_)) => {
                answer = Acquire::Granted(Granted::new(FenceBlock::new(Fence::ZERO, 1)));
            }
            (Fault::FenceIsConstant, Acquire::Granted(granted)) => {
                granted.fences = FenceBlock::new(Fence::from_value(7).unwrap(), count);
            }
            (Fault::AcquireShortens, Acquire::Already(already)) => {
                let fences = already.fences;
                let mut shorter = RenewRequest::new(asked.key, asked.token, fences, asked.ttl);
                shorter.shorten = true;
                drop(inner.renew(&[shorter], within).await);
            }
            (Fault::NotAppliedIsALie, _) if within.is_zero() => {
                return Err(Error::new(ErrorKind::Unavailable, "not applied")
                    .with_effect(Effect::NotApplied));
            }
            _ => {}
        }
        Ok(answer)
    }

    async fn renew_wrongly(&self, asked: &[RenewRequest], within: Duration) -> Vec<Result<Renew>> {
        let inner = self.inner();
        let mut requests = asked.to_vec();
        for request in &mut requests {
            request.key = self.key(&request.key);
            request.shorten |= self.is(Fault::RenewalShortens);
        }
        let mut answers = inner.renew(&requests, within).await;
        if self.is(Fault::BatchIsAnsweredInReverse) {
            answers.reverse();
        }
        for (request, answer) in requests.iter().zip(&mut answers) {
            match (self.fault, answer) {
                (Fault::RenewalCreates, Ok(Renew::Late | Renew::NotHeld)) => {
                    let (key, token, ttl) = (request.key.clone(), request.token, request.ttl);
                    drop(inner.acquire(&AcquireRequest::new(key, token, ttl), within).await);
                }
                (Fault::LateIsCalledLost, Ok(answer)) if *answer == Renew::Late => {
                    *answer = Renew::NotHeld;
                }
                (Fault::LostIsCalledLate, Ok(answer)) if *answer == Renew::NotHeld => {
                    *answer = Renew::Late;
                }
                _ => {}
            }
        }
        answers
    }

    async fn release_wrongly(&self, asked: &ReleaseRequest, within: Duration) -> Result<Release> {
        let inner = self.inner();
        let mut request = asked.clone();
        request.key = self.key(&request.key);
        match self.fault {
            Fault::CooldownIsForgotten => request.cooldown = Cooldown::NONE,
            Fault::ReleaseDoesNotReopen => request.reopen = false,
            _ => {}
        }
        let answer = inner.release(&request, within).await?;
        if self.is(Fault::FencesAreForgottenWhenIdle)
            && inner.inspect(&request.key, within).await?.is_none()
        {
            *self.inner.lock().unwrap() = MemoryStore::new();
        }
        Ok(match (self.fault, answer) {
            (Fault::LateIsCalledLost, Release::Late) => Release::NotHeld,
            (Fault::LostIsCalledLate, Release::NotHeld) => Release::Late,
            (Fault::ReleaseNeedsNoToken, Release::NotHeld) => {
                self.evict(&request.key, within).await?;
                Release::Released
            }
            (_, answer) => answer,
        })
    }

    async fn evict(&self, key: &Key, within: Duration) -> Result<()> {
        let inner = self.inner();
        if let Some(holder) =
            inner.inspect(key, within).await?.and_then(|info| info.holders.first().cloned())
        {
            let request = ForceReleaseRequest::new(key.clone(), holder.fence);
            inner.force_release(&request, within).await?;
        }
        Ok(())
    }
}

impl Store for BrokenStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(self.acquire_wrongly(request, within))
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(self.renew_wrongly(requests, within))
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(self.release_wrongly(request, within))
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            if self.is(Fault::LeaveLeavesTheLease) {
                return Ok(Leave::Released);
            }
            let key = self.key(&request.key);
            self.inner().leave(&LeaveRequest::new(key, request.token), within).await
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(async move {
            let asked: Vec<_> = requests.iter().map(|asked| self.mangle(asked)).collect();
            if self.is(Fault::SetIsTakenInPart) {
                for one in &asked {
                    self.inner().acquire(one, within).await?;
                }
            }
            self.inner().acquire_all(&asked, within).await
        })
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        Box::pin(async move {
            let mut request = request.clone();
            request.key = self.key(&request.key);
            if self.is(Fault::ConversionIsForgotten) {
                return Ok(Convert::Converted(Converted::new(request.fences)));
            }
            self.inner().convert(&request, within).await
        })
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        Box::pin(async move {
            let mut request = request.clone();
            request.key = self.key(&request.key);
            self.inner().set_limit(&request, within).await
        })
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        Box::pin(async move {
            let mut request = request.clone();
            request.key = self.key(&request.key);
            match self.fault {
                Fault::AskIsForgotten => return Ok(Ask::Asked { holders: 1 }),
                Fault::AskReachesEverybody => request.fence = None,
                _ => {}
            }
            self.inner().ask(&request, within).await
        })
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move { self.inner().inspect(&self.key(key), within).await })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(async move {
            let mut request = request.clone();
            if self.is(Fault::ListIgnoresThePrefix) {
                request.prefix = request.prefix.split('/').take(2).collect::<Vec<_>>().join("/");
            }
            let mut listed = self.inner().list(&request, within).await?;
            if self.is(Fault::ListIsUnordered) {
                listed.locks.reverse();
            }
            Ok(listed)
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        Box::pin(async move {
            let key = self.key(&request.key);
            if self.is(Fault::ForceReleaseIgnoresTheFence) {
                self.evict(&key, within).await?;
                return Ok(ForceRelease::Released);
            }
            let request = ForceReleaseRequest::new(key, request.fence);
            self.inner().force_release(&request, within).await
        })
    }

    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let inner = self.inner().listen(client, within).await?;
            let forgets = self.is(Fault::HeartbeatIsNotTold);
            Ok(Box::new(BrokenListener { inner, forgets }) as Box<dyn Listener>)
        })
    }

    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(async move { self.inner().remembers_for(within).await })
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async move {
            let mut findings = self.inner().examine(within).await?;
            if self.is(Fault::ExaminationGivesNoReason) {
                findings.iter_mut().for_each(|finding| finding.means = "".into());
            }
            Ok(findings)
        })
    }

    fn capability(&self) -> Capability {
        Capability::ALL
    }

    fn location(&self) -> String {
        format!("broken:{:?}", self.fault)
    }
}

#[derive(Debug)]
struct BrokenListener {
    inner: Box<dyn Listener>,
    forgets: bool,
}

impl Listener for BrokenListener {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async {
            let mut wake = self.inner.next().await;
            if let Wake::Granted { heartbeat, .. } = &mut wake
                && self.forgets
            {
                *heartbeat = 0;
            }
            wake
        })
    }
}
