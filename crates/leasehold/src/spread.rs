//! A sharded store: each lock is in the one of several stores that its name chooses.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Effect, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave,
    LeaveRequest, ListRequest, Listener, Listing, LockInfo, LockLog, LogEntry, RawRequest, Release,
    ReleaseRequest, Renew, RenewRequest, Result, SetLimit, SetLimitRequest, Store, Wake,
};

use crate::together::all;

/// A sharded store: several independent stores as one. Each lock is in one of them, chosen by its
/// name, and the others know nothing of it. They share the load, and one that is away takes only
/// its own locks with it. In a [quorum](crate::quorum), each lock is in all stores instead.
///
/// A name goes to the store with the highest weight for it (rendezvous hashing). The weight depends
/// on the lock's name and on the store's name in this list, and on no order or address. So all
/// clients have to give the same stores the same names. If a store is added, only the locks that it
/// takes over move, one in *n* with *n* stores. If one is removed, only its own locks move.
///
/// **Changing the list moves locks.** A client with the old list and one with the new could then
/// hold such a lock at the same time, in two stores. Change the list while no moving lock is held.
/// Or deploy a version first that takes each lock by the old list and then by the new, as [the
/// interop page](crate::docs) describes for any move. A store may move to another server under its
/// name while its locks are free. [`examine`](crate::Client::examine) finds locks in use where no
/// client with this list would look.
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// // Or "spread:a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3".
/// let client = leasehold::Client::connect("spread:a=memory:,b=memory:,c=memory:").await?;
/// let guard = client.mutex("orders/42").lock().await?;
/// assert_eq!(client.list("").await?.locks.len(), 1);
/// # guard.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SpreadStore {
    stores: Arc<[Member]>,
    location: Arc<str>,
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    store: Arc<dyn Store>,
}

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, why)
}

impl SpreadStore {
    /// These stores, each under its name, in any order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] without a store, with an empty name, or if a name or a store appears
    /// twice.
    pub fn new(stores: impl IntoIterator<Item = (String, Arc<dyn Store>)>) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        for (name, store) in stores {
            if name.is_empty() {
                return Err(refuse("a store of several has no name"));
            }
            if by_name.insert(name.clone(), store).is_some() {
                return Err(refuse(format!("two stores have the name {name}; give each its own")));
            }
        }
        // Several stores in memory have the same location.
        let mut places: Vec<String> = by_name.values().map(|store| store.location()).collect();
        places.retain(|place| place != "memory:");
        places.sort_unstable();
        if let Some([place, ..]) = places.windows(2).find(|two| two.first() == two.last()) {
            return Err(refuse(format!("{place} has two names; name it once")));
        }
        let stores = by_name.into_iter().map(|(name, store)| Member { name, store });
        Self::of(stores.collect())
    }

    fn of(stores: Arc<[Member]>) -> Result<Self> {
        if stores.is_empty() {
            return Err(refuse("a sharded store needs stores; name at least one"));
        }
        let named = |member: &Member| format!("{}={}", member.name, member.store.location());
        let location = format!("spread:{}", stores.iter().map(named).collect::<Vec<_>>().join(","));
        Ok(Self { stores, location: location.into() })
    }

    /// The name of the store that a lock is in.
    #[must_use]
    pub fn store_of(&self, key: &Key) -> &str {
        self.member(self.place(key)).map_or("", |member| &member.name)
    }

    fn place(&self, key: &Key) -> usize {
        let weights = self.stores.iter().map(|member| weight(&member.name, key)).enumerate();
        // Of equal weights the last name wins; the stores are ordered by their names.
        weights.max_by_key(|(_, weight)| *weight).map_or(0, |(place, _)| place)
    }

    fn member(&self, place: usize) -> Option<&Member> {
        self.stores.get(place)
    }

    fn store(&self, key: &Key) -> &dyn Store {
        let member = self.member(self.place(key)).expect("BUG: each lock has a store");
        &*member.store
    }

    fn are_all(&self, can: impl Fn(Capability) -> bool) -> bool {
        self.stores.iter().all(|member| can(member.store.capability()))
    }

    /// Locks that are in use in a store to which they don't belong.
    async fn astray(&self, within: Duration) -> Vec<Finding> {
        if !self.are_all(|capability| capability.list) {
            return Vec::new();
        }
        let everything = ListRequest::new("");
        let lists = all(self.stores.iter().map(|member| member.store.list(&everything, within)));
        let mut findings = Vec::new();
        for (place, (member, listed)) in self.stores.iter().zip(lists.await).enumerate() {
            let locks = listed.map(|listing| listing.locks).unwrap_or_default();
            let astray = || locks.iter().filter(|lock| self.place(&lock.key) != place);
            let Some(lock) = astray().next() else { continue };
            let found = format!(
                "{} locks in use in {} belong to other stores, such as \"{}\"",
                astray().count(),
                member.name,
                lock.key
            );
            let means = "a client has another list of stores, so its locks and these do not \
                         exclude each other";
            findings.push(
                Finding::new(Severity::Problem, "spread", found, means)
                    .advise("give all clients the same stores under the same names")
                    .at_store(member.store.location()),
            );
        }
        findings
    }
}

/// The weight of a store for a lock. It has to be the same in every version.
fn weight(store: &str, key: &Key) -> u64 {
    let bytes = store.bytes().chain([0]).chain(key.as_str().bytes());
    // FNV-1a over both, and splitmix64's last step, which makes each bit depend on all.
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

impl Store for SpreadStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        self.store(&request.key).acquire(request, within)
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        let mut shares: BTreeMap<usize, (Vec<usize>, Vec<RenewRequest>)> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            let share = shares.entry(self.place(&request.key)).or_default();
            share.0.push(at);
            share.1.push(request.clone());
        }
        Box::pin(async move {
            let renewals = shares.iter().filter_map(|(place, (_, share))| {
                Some(self.member(*place)?.store.renew(share, within))
            });
            let renewed = all(renewals).await;
            let places = shares.values().flat_map(|(places, _)| places).copied();
            let mut answers: Vec<_> = places.zip(renewed.into_iter().flatten()).collect();
            answers.sort_unstable_by_key(|(at, _)| *at);
            answers.into_iter().map(|(_, answer)| answer).collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        self.store(&request.key).release(request, within)
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        self.store(&request.key).leave(request, within)
    }

    /// In one step if one store has all of them; otherwise the caller takes them one after the
    /// other.
    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        let mut places = requests.iter().map(|request| self.place(&request.key));
        let first = places.next().unwrap_or_default();
        if places.all(|place| place == first)
            && let Some(member) = self.member(first)
        {
            return member.store.acquire_all(requests, within);
        }
        let why = "the locks are in several stores, which grant them one by one";
        let error = Error::new(ErrorKind::Unsupported, why).with_effect(Effect::NotApplied);
        let error = error.during("acquire").at_store(self.location());
        Box::pin(std::future::ready(Err(error)))
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        self.store(&request.key).convert(request, within)
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        self.store(&request.key).set_limit(request, within)
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        self.store(&request.key).ask(request, within)
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        self.store(key).inspect(key, within)
    }

    fn raw<'a>(
        &'a self,
        request: &'a RawRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>>> {
        self.store(&request.key).raw(request, within)
    }

    /// A store that can't be reached counts as unreadable; if all are, that is the error.
    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(async move {
            let lists = all(self.stores.iter().map(|member| member.store.list(request, within)));
            let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
            let mut answered = false;
            for (member, listed) in self.stores.iter().zip(lists.await) {
                match listed {
                    Ok(listing) => {
                        answered = true;
                        locks.extend(listing.locks);
                        unreadable.extend(listing.unreadable);
                    }
                    Err(error) => unreadable.push(error.at_store(member.store.location())),
                }
            }
            match unreadable.pop() {
                Some(error) if !answered => Err(error),
                last => {
                    unreadable.extend(last);
                    Ok(Listing::new(locks, unreadable))
                }
            }
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        self.store(&request.key).force_release(request, within)
    }

    /// All channels as one. If one of them fails to open, this fails, and waiters poll.
    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let opened = all(self.stores.iter().map(|member| member.store.listen(client, within)));
            let listeners = opened.await.into_iter().collect::<Result<Vec<_>>>()?;
            let merged: Box<dyn Listener> = Box::new(Merged { listeners, turn: 0 });
            Ok(merged)
        })
    }

    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(async move {
            let asked = all(self.stores.iter().map(|member| member.store.remembers_for(within)));
            let known = asked.await.into_iter().collect::<Result<Vec<_>>>()?;
            Ok(known.into_iter().flatten().min())
        })
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async move {
            let examined = all(self.stores.iter().map(|member| member.store.examine(within)));
            let (mut findings, mut errors) = (Vec::new(), Vec::new());
            let mut answered = false;
            for (member, found) in self.stores.iter().zip(examined.await) {
                let location = member.store.location();
                match found {
                    Ok(found) => {
                        answered = true;
                        findings
                            .extend(found.into_iter().map(|one| one.at_store(location.clone())));
                    }
                    Err(error) => {
                        let found = format!("it was not examined: {error}");
                        let means = "its locks can't be taken; locks in the other stores can";
                        findings.push(
                            Finding::new(Severity::Problem, "store", found, means)
                                .at_store(location),
                        );
                        errors.push(error);
                    }
                }
            }
            if !answered && let Some(error) = errors.pop() {
                return Err(error);
            }
            findings.extend(self.astray(within).await);
            Ok(findings)
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        Some(Arc::new(SpreadLog(self.clone())))
    }

    fn capability(&self) -> Capability {
        let each = || self.stores.iter().map(|member| member.store.capability());
        let mut capability = Capability::NONE;
        capability.queue = self.are_all(|it| it.queue);
        capability.wake = self.are_all(|it| it.wake);
        capability.shared = self.are_all(|it| it.shared);
        capability.list = self.are_all(|it| it.list);
        capability.sets = self.stores.len() == 1 && self.are_all(|it| it.sets);
        capability.notices_death = each().filter_map(|it| it.notices_death).min();
        capability.longest = each().filter_map(|it| it.longest).min();
        capability.undoes = each().any(|it| it.undoes);
        capability.tells_loss = each().any(|it| it.tells_loss);
        capability
    }

    fn location(&self) -> String {
        self.location.to_string()
    }
}

/// The channels of several stores.
struct Merged {
    listeners: Vec<Box<dyn Listener>>,
    /// Which of them is looked at first, so that a busy one silences no other.
    turn: usize,
}

impl fmt::Debug for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.listeners).finish()
    }
}

impl Listener for Merged {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn.checked_rem(self.listeners.len()).unwrap_or_default();
        let (before, from) = self.listeners.split_at_mut(first);
        let mut next: Vec<_> = from.iter_mut().chain(before).map(|one| one.next()).collect();
        Box::pin(poll_fn(move |cx| {
            for one in &mut next {
                if let Poll::Ready(wake) = one.as_mut().poll(cx) {
                    return Poll::Ready(wake);
                }
            }
            Poll::Pending
        }))
    }

    fn doubt(&mut self) {
        self.listeners.iter_mut().for_each(|one| one.doubt());
    }
}

/// The log of each lock, in its store.
#[derive(Debug)]
struct SpreadLog(SpreadStore);

impl LockLog for SpreadLog {
    fn keeps(&self) -> u32 {
        let logs = self.0.stores.iter().filter_map(|member| member.store.log());
        logs.map(|log| log.keeps()).max().unwrap_or_default()
    }

    fn append<'a>(
        &'a self,
        entries: &'a [LogEntry],
        within: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        let mut shares: BTreeMap<usize, Vec<LogEntry>> = BTreeMap::new();
        for entry in entries {
            shares.entry(self.0.place(&entry.key)).or_default().push(entry.clone());
        }
        Box::pin(async move {
            let appending = shares.into_iter().filter_map(|(place, share)| {
                let log = self.0.member(place)?.store.log().filter(|log| log.keeps() > 0)?;
                let appending = async move { log.append(&share, within).await };
                Some(Box::pin(appending) as BoxFuture<'_, _>)
            });
            all(appending).await.into_iter().collect()
        })
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        last: usize,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LogEntry>>> {
        Box::pin(async move { crate::log::of(self.0.store(key))?.read(key, last, within).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(stores: &[&str]) -> Vec<String> {
        let key = |at: usize| Key::new(format!("lock/{at}")).unwrap();
        let best = |at: usize| stores.iter().max_by_key(|name| weight(name, &key(at)));
        (0..3_000).map(|at| (*best(at).unwrap()).to_owned()).collect()
    }

    #[test]
    fn locks_are_sharded_evenly_and_a_new_store_takes_only_its_share() {
        let three = places(&["a", "b", "c"]);
        for name in ["a", "b", "c"] {
            let share = three.iter().filter(|place| *place == name).count();
            assert!((850..1_150).contains(&share), "{name}: {share} of 3000");
        }
        let four = places(&["d", "c", "a", "b"]);
        let moved: Vec<_> = three.iter().zip(&four).filter(|(a, b)| a != b).collect();
        assert!((600..900).contains(&moved.len()), "{} of 3000", moved.len());
        assert!(moved.iter().all(|(_, to)| *to == "d"), "none moves between the old ones");
    }

    /// Clients of different versions have to agree.
    #[test]
    fn a_weight_is_the_same_in_every_version() {
        let key = Key::new("orders/42").unwrap();
        assert_eq!(weight("a", &key), 0xb296_abe6_a75c_61e2);
    }
}
