//! Faults of a minority of nodes, which do no harm, and of a majority, which do.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leasehold_clock::TokioClock;
use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::retry::{Exponential, RetryStrategy as _};
use leasehold_core::{
    Acquire, BoxFuture, Call, Capability, Effect, Error, ErrorKind, Key, Leave, LeaveRequest,
    ListRequest, LockInfo, LockLog, OwnerName, Release, ReleaseRequest, Renew, RenewRequest, Store,
    StoreLayer, Token,
};
use leasehold_embedded::{EmbeddedStore, MemoryStore};
use leasehold_quorum::QuorumStore;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use tokio::task::JoinSet;

use crate::support::{CALL, granted, key, memories, ms, secs, wish};

/// A quorum of stores in memory, each behind its own faults.
struct Faulty {
    quorum: Arc<QuorumStore>,
    nodes: Vec<FaultStore>,
    memories: Vec<MemoryStore>,
}

fn faulty(count: usize) -> Faulty {
    let memories: Vec<MemoryStore> = (0..count).map(|_| MemoryStore::new()).collect();
    let nodes: Vec<FaultStore> =
        memories.iter().map(|memory| FaultStore::new(Arc::new(memory.clone()))).collect();
    let stores = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Store>).collect();
    Faulty { quorum: Arc::new(QuorumStore::new(stores).unwrap()), nodes, memories }
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_is_gone_delays_nothing() {
    for (count, gone) in [(3, 1), (5, 2)] {
        let Faulty { quorum, nodes, .. } = faulty(count);
        nodes.iter().take(gone).for_each(|node| node.black_out(true));
        let (key, started) = (key(), tokio::time::Instant::now());
        let asked = wish(&key, secs(30));
        let fences = granted(&*quorum, &asked).await;
        let renewal = RenewRequest::new(key.clone(), asked.token, fences, asked.ttl);
        let busy = quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
        assert!(matches!(busy, Acquire::Busy(_)), "{busy:?}");
        let answers = quorum.renew(std::slice::from_ref(&renewal), CALL).await;
        assert_eq!(*answers[0].as_ref().unwrap(), Renew::Renewed);
        let request = ReleaseRequest::new(key.clone(), asked.token, fences);
        assert_eq!(quorum.release(&request, CALL).await.unwrap(), Release::Released);
        assert!(started.elapsed() < ms(500), "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_an_error_comes_in_time_and_says_what_each_node_did() {
    for (count, gone) in [(3, 2), (5, 3)] {
        let Faulty { quorum, nodes, memories } = faulty(count);
        nodes.iter().take(gone).for_each(|node| node.black_out(true));
        let (key, started) = (key(), tokio::time::Instant::now());
        let error = quorum.acquire(&wish(&key, secs(30)), secs(2)).await.unwrap_err();
        assert!(started.elapsed() <= secs(2), "{:?}", started.elapsed());
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        assert_eq!(error.nodes().len(), gone);
        assert!(error.to_string().contains("no answer within"), "{error}");
        assert!(memories.iter().all(|memory| memory.in_use() == 0), "something was left behind");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_a_majority_has_spent_is_no_lease() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&*quorum, &asked).await;
    let [first, second] = [(); 2].map(|()| Token::generate().unwrap());
    let hand_to = |successor: Token| {
        let mut request = RenewRequest::new(key.clone(), asked.token, fences, asked.ttl);
        request.successor = Some(successor);
        [request]
    };
    // One node never learns of it, and keeps the spent token.
    nodes[0].black_out(true);
    for _ in 0..2 {
        let answer = quorum.renew(&hand_to(first), CALL).await.remove(0).unwrap();
        assert_eq!(answer, Renew::Renewed);
    }
    nodes[0].black_out(false);
    let spent = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    assert_eq!(quorum.renew(&spent, CALL).await.remove(0).unwrap(), Renew::NotHeld);
    assert_eq!(quorum.renew(&hand_to(second), CALL).await.remove(0).unwrap(), Renew::NotHeld);
    let release = |token| ReleaseRequest::new(key.clone(), token, fences);
    assert_eq!(quorum.release(&release(second), CALL).await.unwrap(), Release::NotHeld);
    assert_eq!(quorum.release(&release(first), CALL).await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_missed_the_grant_has_the_token_to_which_it_was_transferred() {
    let Faulty { quorum, nodes, memories } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    nodes[0].black_out(true);
    let fences = granted(&*quorum, &asked).await;
    nodes[0].black_out(false);
    let mut request = RenewRequest::new(key.clone(), asked.token, fences, asked.ttl);
    let successor = Token::generate().unwrap();
    request.successor = Some(successor);
    assert_eq!(quorum.renew(&[request], CALL).await.remove(0).unwrap(), Renew::Renewed);
    assert_eq!(memories[0].in_use(), 1, "not healed");
    let request = ReleaseRequest::new(key, successor, fences);
    assert_eq!(quorum.release(&request, CALL).await.unwrap(), Release::Released);
    assert!(memories.iter().all(|memory| memory.in_use() == 0), "something was left behind");
}

#[tokio::test(start_paused = true)]
async fn a_majority_out_of_reach_is_reported_at_once_without_waiting_for_the_rest() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    nodes[0].always(Fault::Refuse);
    nodes[1].always(Fault::Refuse);
    nodes[2].black_out(true);
    let started = tokio::time::Instant::now();
    let error = quorum.acquire(&wish(&key(), secs(30)), CALL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(started.elapsed() < ms(100), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_grant_in_vain_is_released_also_at_nodes_that_did_not_answer() {
    let Faulty { quorum, nodes, memories } = faulty(3);
    nodes[0].next(Op::Acquire, Fault::DropReply);
    nodes[1].next(Op::Acquire, Fault::DropReply);
    quorum.acquire(&wish(&key(), secs(30)), CALL).await.unwrap_err();
    tokio::time::sleep(secs(1)).await;
    assert!(memories.iter().all(|memory| memory.in_use() == 0), "a node still holds the lock");
    for node in &nodes {
        assert_eq!(node.count(Op::Leave), 1);
    }
}

/// Otherwise the caller abandons it again, and waits until no request can be left in a buffer.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_every_node_refused_or_released_was_not_applied() {
    let full = || Error::new(ErrorKind::Full, "no room").with_effect(Effect::NotApplied);
    let refused = || (Op::Acquire, Fault::Fail(full()));
    for (of_second, of_third, effect) in [
        (refused(), None, Effect::NotApplied),
        (refused(), Some((Op::Leave, Fault::DropReply)), Effect::Unknown),
        ((Op::Acquire, Fault::DropReply), None, Effect::Unknown),
    ] {
        let Faulty { quorum, nodes, .. } = faulty(3);
        for (node, fault) in nodes.iter().zip([Some(refused()), Some(of_second), of_third]) {
            if let Some((op, fault)) = fault {
                node.next(op, fault);
            }
        }
        let error = quorum.acquire(&wish(&key(), secs(30)), CALL).await.unwrap_err();
        assert_eq!(error.effect(), effect, "{error}");
    }
}

/// The undoing of a try may arrive twice, and late. It would then end a later grant of the same
/// token at that node.
#[tokio::test(start_paused = true)]
async fn after_a_split_the_token_is_requested_no_more() {
    let Faulty { quorum, nodes, memories } = faulty(3);
    let key = key();
    let mut others = Vec::new();
    for (memory, owner) in memories[1..].iter().zip(["one", "other"]) {
        others.push(in_the_hands_of(owner, memory, &key).await);
    }
    nodes[0].next(Op::Leave, Fault::Echo { after: secs(1) });
    let busy = quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
    assert!(matches!(&busy, Acquire::Busy(busy) if busy.is_contended()), "{busy:?}");
    assert_eq!(nodes[0].count(Op::Acquire), 1, "one try is asked for once");
    for (memory, other) in memories[1..].iter().zip(&others) {
        memory.leave(other, CALL).await.unwrap();
    }
    granted(&*quorum, &wish(&key, secs(30))).await;
    tokio::time::sleep(secs(5)).await;
    assert!(memories.iter().all(|memory| memory.in_use() == 1), "a late undoing hit the grant");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_being_abandoned_is_refused() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    nodes[0].next(Op::Acquire, Fault::DropReply);
    // Under way for longer than the caller waits for it.
    nodes[0].next(Op::Leave, Fault::Delay { before: secs(5), after: secs(0) });
    nodes[1].next(Op::Acquire, Fault::Refuse);
    nodes[2].black_out(true);
    quorum.acquire(&asked, CALL).await.unwrap_err();
    nodes[2].black_out(false);
    // The first node holds the lease for this token, and is about to lose it.
    let error = quorum.acquire(&asked, CALL).await.expect_err("it was granted on sand");
    assert!(error.to_string().contains("use a new one"), "{error}");
    assert_eq!(error.effect(), Effect::NotApplied);
    tokio::time::sleep(secs(10)).await;
    granted(&*quorum, &wish(&key, secs(30))).await;
    let busy = quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
    assert!(matches!(busy, Acquire::Busy(_)), "{busy:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_holds_only_if_a_majority_renewed() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&*quorum, &asked).await;
    let renewal = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    nodes[0].black_out(true);
    assert_eq!(*quorum.renew(&renewal, secs(5)).await[0].as_ref().unwrap(), Renew::Renewed);
    nodes[1].black_out(true);
    let started = tokio::time::Instant::now();
    let error = quorum.renew(&renewal, secs(5)).await.remove(0).unwrap_err();
    assert!(started.elapsed() <= secs(5));
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert_eq!(error.nodes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_missed_the_grant_has_it_after_the_next_renewal() {
    let Faulty { quorum, nodes, memories } = faulty(3);
    let key = key();
    let mut asked = wish(&key, secs(30));
    asked.owner = leasehold_core::OwnerName::new("web-7").unwrap();
    nodes[0].black_out(true);
    let fences = granted(&*quorum, &asked).await;
    nodes[0].black_out(false);
    assert_eq!(memories[0].in_use(), 0);
    let renewal = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    assert_eq!(*quorum.renew(&renewal, secs(5)).await[0].as_ref().unwrap(), Renew::Renewed);
    let healed = memories[0].inspect(&key, CALL).await.unwrap().unwrap();
    assert_eq!(healed.holders[0].owner.as_str(), "web-7");
    // From now on it stands in for another node.
    nodes[1].black_out(true);
    assert_eq!(*quorum.renew(&renewal, secs(5)).await[0].as_ref().unwrap(), Renew::Renewed);
    let shown = quorum.inspect(&key, CALL).await.unwrap().unwrap();
    assert_eq!((shown.holders.len(), shown.holders[0].owner.as_str()), (1, "web-7"));
}

/// Acquires the lock at a node for an unsuccessful contender.
async fn in_the_hands_of(owner: &str, node: &MemoryStore, key: &Key) -> LeaveRequest {
    let mut asked = wish(key, secs(30));
    asked.owner = OwnerName::new(owner).unwrap();
    granted(node, &asked).await;
    LeaveRequest::new(key.clone(), asked.token)
}

async fn owner_at(node: &MemoryStore, key: &Key) -> Option<OwnerName> {
    let info = node.inspect(key, CALL).await.unwrap()?;
    info.holders.into_iter().next().map(|holder| holder.owner)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_in_anothers_hands_has_the_lease_long_before_a_renewal() {
    let Faulty { quorum, memories, .. } = faulty(3);
    let key = key();
    let leave = in_the_hands_of("another", &memories[0], &key).await;
    let mut asked = wish(&key, secs(30));
    asked.owner = OwnerName::new("web-7").unwrap();
    granted(&*quorum, &asked).await;
    tokio::time::sleep(ms(5)).await;
    memories[0].leave(&leave, CALL).await.unwrap();
    let free_at = tokio::time::Instant::now();
    while owner_at(&memories[0], &key).await.as_ref() != Some(&asked.owner) {
        assert!(free_at.elapsed() < secs(1), "the lease stays at a bare majority");
        tokio::time::sleep(ms(1)).await;
    }
    // Even if the next node forgot it, the holder would block all others.
    let leave = LeaveRequest::new(key.clone(), asked.token);
    memories[1].leave(&leave, CALL).await.unwrap();
    let other = quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
    assert!(matches!(other, Acquire::Busy(_)), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn bringing_a_lease_to_all_nodes_is_bounded_and_costs_nothing_where_all_have_granted_it() {
    let Faulty { quorum, nodes, memories } = faulty(3);
    let asked_of = |node: usize| nodes[node].count(Op::Acquire);
    granted(&*quorum, &wish(&key(), secs(30))).await;
    tokio::time::sleep(secs(30)).await;
    assert_eq!([0, 1, 2].map(asked_of), [1, 1, 1]);

    nodes[0].always(Fault::Refuse);
    granted(&*quorum, &wish(&key(), secs(30))).await;
    tokio::time::sleep(secs(30)).await;
    assert!((5..20).contains(&asked_of(0)), "asked {} times", asked_of(0));
    assert_eq!([1, 2].map(asked_of), [2, 2]);

    // An abandoned lease is not brought to further nodes.
    let before = asked_of(0);
    let asked = wish(&key(), secs(30));
    let fences = granted(&*quorum, &asked).await;
    let release = ReleaseRequest::new(asked.key.clone(), asked.token, fences);
    quorum.release(&release, CALL).await.unwrap();
    nodes[0].always(Fault::None);
    tokio::time::sleep(secs(30)).await;
    assert!(asked_of(0) <= before + 2, "asked {} times", asked_of(0) - before);
    assert_eq!(memories[0].in_use(), 1, "but for the first");
}

#[tokio::test(start_paused = true)]
async fn a_node_ends_a_lease_that_was_released_while_it_was_away_once_it_is_back() {
    for used in [false, true] {
        let Faulty { quorum, nodes, memories } = faulty(3);
        let key = key();
        let asked = wish(&key, secs(30));
        let fences = granted(&*quorum, &asked).await;
        nodes[0].black_out(true);
        let release = ReleaseRequest::new(key.clone(), asked.token, fences);
        assert_eq!(quorum.release(&release, CALL).await.unwrap(), Release::Released);
        tokio::time::sleep(secs(5)).await;
        assert_eq!(memories[0].in_use(), 1);
        nodes[0].black_out(false);
        let back = tokio::time::Instant::now();
        if used {
            // Any other request to that node shows that it is back.
            quorum.inspect(&key, CALL).await.unwrap();
        }
        while memories[0].in_use() > 0 {
            assert!(back.elapsed() < secs(3), "it keeps the lease to its end");
            tokio::time::sleep(ms(10)).await;
        }
        // With another node gone, the lock is available.
        nodes[1].black_out(true);
        granted(&*quorum, &wish(&key, secs(30))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_node_owes_is_bounded_by_the_leases_end_and_in_number() {
    let nodes: Vec<FaultStore> = memories(3).into_iter().map(FaultStore::new).collect();
    let stores = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Store>).collect();
    let quorum = QuorumStore::builder(stores).clock(Arc::new(TokioClock::new())).build().unwrap();
    nodes[0].always(Fault::Refuse);
    for _ in 0..1_100 {
        let asked = wish(&key(), secs(30));
        let fences = granted(&quorum, &asked).await;
        let release = ReleaseRequest::new(asked.key.clone(), asked.token, fences);
        quorum.release(&release, CALL).await.unwrap();
    }
    let sent = nodes[0].count(Op::Release);
    tokio::time::sleep(secs(40)).await;
    let tries = nodes[0].count(Op::Release) - sent;
    assert!((20..60).contains(&tries), "one at a time while it is away: {tries}");
    let sent = nodes[0].count(Op::Release);
    nodes[0].always(Fault::None);
    tokio::time::sleep(secs(40)).await;
    assert_eq!(nodes[0].count(Op::Release), sent, "there is nothing left to undo");
}

#[tokio::test(start_paused = true)]
async fn no_caller_is_its_own_blocker() {
    let Faulty { quorum, nodes, memories } = faulty(3);
    for node in &nodes[1..] {
        node.always(Fault::Delay { before: ms(100), after: ms(100) });
    }
    let key = key();
    let asked = wish(&key, secs(30));
    let asking = {
        let (quorum, asked) = (Arc::clone(&quorum), asked.clone());
        tokio::spawn(async move { quorum.acquire(&asked, CALL).await })
    };
    tokio::time::sleep(ms(50)).await;
    assert_eq!(memories[0].in_use(), 1, "the quick node has granted it");
    let shown = quorum.inspect(&key, CALL).await.unwrap();
    assert!(shown.is_none_or(|lock| lock.holders.is_empty()), "its own try is shown");
    assert!(matches!(asking.await.unwrap(), Ok(Acquire::Granted(_))));
    let shown = quorum.inspect(&key, CALL).await.unwrap().unwrap();
    assert_eq!(shown.holders.len(), 1, "a lease is shown");

    // What is not undone yet belongs to no client.
    for node in &nodes {
        node.always(Fault::None);
    }
    let key = Key::new("other").unwrap();
    nodes[0].next(Op::Leave, Fault::DropRequest);
    nodes[1].next(Op::Acquire, Fault::Refuse);
    nodes[2].next(Op::Acquire, Fault::Refuse);
    quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap_err();
    assert_eq!(memories[0].inspect(&key, CALL).await.unwrap().unwrap().holders.len(), 1);
    nodes[1].next(Op::Inspect, Fault::Refuse);
    let shown = quorum.inspect(&key, CALL).await.unwrap();
    assert!(shown.is_none_or(|lock| lock.holders.is_empty()), "its own try is shown");
}

/// The other nodes hold what the first one has granted, and answer before it.
#[tokio::test(start_paused = true)]
async fn a_store_under_three_names_has_one_vote_though_its_first_answer_is_the_last() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let names: Vec<FaultStore> = (0..3).map(|_| FaultStore::new(Arc::clone(&memory))).collect();
    names[0].always(Fault::Delay { before: ms(0), after: ms(50) });
    for late in &names[1..] {
        late.always(Fault::Delay { before: ms(5), after: ms(0) });
    }
    let stores = names.into_iter().map(|name| Arc::new(name) as Arc<dyn Store>).collect();
    let quorum = QuorumStore::new(stores).unwrap();
    let error = quorum.acquire(&wish(&key(), secs(30)), CALL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_holder_is_named_without_a_majority() {
    let Faulty { quorum, memories, .. } = faulty(3);
    let key = key();
    for (memory, owner) in memories.iter().zip(["one", "two", "three"]) {
        in_the_hands_of(owner, memory, &key).await;
    }
    match quorum.acquire(&wish(&key, secs(30)), secs(2)).await.unwrap() {
        Acquire::Busy(busy) => assert!(busy.is_contended(), "{busy:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_quorum_is_full_when_a_majority_of_its_nodes_is() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let full = || Fault::Fail(Error::new(ErrorKind::Full, "no room"));
    nodes[0].always(full());
    granted(&*quorum, &wish(&key(), secs(30))).await;
    nodes[1].always(full());
    let error = quorum.acquire(&wish(&key(), secs(30)), CALL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(!error.passes());
}

/// Like a holder that only checks for release requests.
#[tokio::test]
async fn a_renewal_that_changes_nothing_makes_no_node_forget_the_fences_of_a_lease() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    nodes[0].black_out(true);
    let fences = granted(&*quorum, &asked).await;
    nodes[0].black_out(false);
    let mut renewal = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    assert_eq!(*quorum.renew(&renewal, secs(5)).await[0].as_ref().unwrap(), Renew::Renewed);
    renewal[0].ttl = leasehold_core::Ttl::MIN;
    assert_eq!(*quorum.renew(&renewal, secs(5)).await[0].as_ref().unwrap(), Renew::Renewed);
    tokio::time::sleep(ms(20)).await;
    // The healed node has its own, higher fences.
    nodes[1].black_out(true);
    match quorum.acquire(&asked, secs(5)).await.unwrap() {
        Acquire::Already(already) => assert_eq!(already.fences, fences),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_majority_lost_is_not_healed() {
    let Faulty { quorum, memories, .. } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&*quorum, &asked).await;
    for memory in &memories[..2] {
        let leave = LeaveRequest::new(key.clone(), asked.token);
        assert_eq!(memory.leave(&leave, CALL).await.unwrap(), Leave::Released);
    }
    let renewal = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    let answer = *quorum.renew(&renewal, secs(5)).await[0].as_ref().unwrap();
    assert_eq!(answer, Renew::NotHeld);
    assert!(memories[..2].iter().all(|memory| memory.in_use() == 0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_answers_is_left_alone_after_a_while() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    nodes[0].always(Fault::Hang { applied: false });
    nodes[1].always(Fault::Hang { applied: true });
    let started = tokio::time::Instant::now();
    quorum.acquire(&wish(&key(), secs(30)), secs(4)).await.unwrap_err();
    assert!(started.elapsed() < secs(4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn what_majorities_cannot_keep_is_refused_in_clear_words() {
    let Faulty { quorum, .. } = faulty(3);
    let mut asked = wish(&key(), secs(30));
    asked.mode = leasehold_core::Mode::Shared;
    let error = quorum.acquire(&asked, CALL).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
    let error = quorum.acquire(&wish(&key(), secs(61)), CALL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert_eq!(QuorumStore::new(Vec::new()).unwrap_err().kind(), ErrorKind::Config);
    let one: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let twice = vec![Arc::clone(&one), one];
    assert_eq!(QuorumStore::new(twice).unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn an_examination_names_the_nodes_that_are_missing_and_whom_each_finding_is_about() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    nodes[1].black_out(true);
    let findings = quorum.examine(secs(5)).await.unwrap();
    let about = findings.iter().find(|finding| finding.topic == "quorum").unwrap();
    assert_eq!(about.found, "2 of 3 nodes answer, not memory:");
    assert!(about.advice.is_some() && about.store.is_none());
    assert!(findings.iter().filter(|one| one.topic != "quorum").all(|one| one.store.is_some()));
}

#[tokio::test(start_paused = true)]
async fn an_examination_reports_nodes_that_answer_and_have_no_vote() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    for (count, severity) in [(1, Severity::Warning), (2, Severity::Problem)] {
        for node in &nodes[..count] {
            node.next(Op::RemembersFor, Fault::Fail(Error::new(ErrorKind::Denied, "no")));
        }
        let findings = quorum.examine(secs(5)).await.unwrap();
        let about = |one: &&Finding| one.topic == "quorum";
        let (all, of_nodes): (Vec<_>, Vec<_>) =
            findings.iter().filter(about).partition(|finding| finding.store.is_none());
        assert_eq!(of_nodes.len(), count, "{findings:?}");
        assert_eq!(all[0].severity, severity, "{findings:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_never_made_longer_than_a_restarted_node_is_kept_out() {
    let Faulty { quorum, .. } = faulty(3);
    let (key, day) = (key(), secs(24 * 60 * 60));
    let asked = wish(&key, secs(30));
    let fences = granted(&*quorum, &asked).await;
    let long = wish(&key, day);
    let renewals =
        [long.ttl, asked.ttl].map(|ttl| RenewRequest::new(key.clone(), asked.token, fences, ttl));
    let answers = quorum.renew(&renewals, CALL).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
    assert_eq!(*answers[1].as_ref().unwrap(), Renew::Renewed, "the others are none the worse");
    let shown = quorum.inspect(&key, CALL).await.unwrap().unwrap();
    assert!(shown.holders[0].remaining <= secs(30), "{shown:?}");
}

/// The warming node and a quick one grant first and decide on the fences; the slow one grants above
/// their decision.
#[tokio::test(start_paused = true)]
async fn a_node_that_warms_up_and_a_slow_one_stop_no_caller() {
    for (count, young, slow) in [(3, 1, 1), (5, 2, 2), (5, 1, 1)] {
        let Faulty { quorum, nodes, memories } = faulty(count);
        for node in nodes.iter().take(young) {
            node.decide(|call| match call.op {
                Op::RemembersFor => Fault::Refuse,
                _ => Fault::None,
            });
        }
        for node in nodes.iter().rev().take(slow) {
            node.always(Fault::Delay { before: ms(5), after: ms(5) });
        }
        let key = key();
        let mut last = None;
        for _ in 0..5 {
            let asked = wish(&key, secs(30));
            let fences = granted(&*quorum, &asked).await;
            assert!(last < Some(fences.first()), "{fences:?} after {last:?}");
            last = Some(fences.last());
            let other = quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
            assert!(matches!(other, Acquire::Busy(_)), "{other:?}");
            let release = ReleaseRequest::new(key.clone(), asked.token, fences);
            assert_eq!(quorum.release(&release, CALL).await.unwrap(), Release::Released);
        }
        assert!(memories.iter().all(|memory| memory.in_use() <= 1));
    }
}

/// Contenders with one node each must not all wait for the missing one, and then retry when others
/// have one node each.
#[tokio::test(start_paused = true)]
async fn many_who_want_a_lock_settle_it_though_a_node_is_gone() {
    for contenders in [2, 4, 8, 16] {
        fastrand::seed(contenders);
        let Faulty { quorum, nodes, .. } = faulty(3);
        for node in &nodes {
            let mut random = fastrand::Rng::with_seed(contenders);
            node.decide(move |_| {
                let mut some = || Duration::from_micros(random.u64(200..2_000));
                Fault::Delay { before: some(), after: some() }
            });
        }
        let key = key();
        let clock = tokio::time::Instant::now();
        let granted_at = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for _ in 0..contenders {
            let (quorum, key) = (Arc::clone(&quorum), key.clone());
            let granted_at = Arc::clone(&granted_at);
            tasks.spawn(async move {
                let pauses = Exponential::new(ms(5), ms(250)).jitter(0.25);
                loop {
                    for tries in 1.. {
                        let asked = wish(&key, secs(4));
                        if let Ok(Acquire::Granted(granted)) = quorum.acquire(&asked, secs(2)).await
                        {
                            granted_at.lock().unwrap().push(clock.elapsed());
                            tokio::time::sleep(ms(5)).await;
                            let fences = granted.fences;
                            let release = ReleaseRequest::new(key.clone(), asked.token, fences);
                            quorum.release(&release, secs(2)).await.unwrap();
                            break;
                        }
                        tokio::time::sleep(pauses.pause(tries).unwrap()).await;
                    }
                }
            });
        }
        tokio::time::sleep(secs(10)).await;
        nodes[0].black_out(true);
        tokio::time::sleep(secs(60)).await;
        let granted_at = granted_at.lock().unwrap();
        let pauses = granted_at.windows(2).map(|pair| pair[1] - pair[0]);
        let longest = pauses.max().unwrap_or(Duration::MAX);
        let last = clock.elapsed() - *granted_at.last().unwrap();
        println!("{contenders}: {} grants, longest {longest:?}", granted_at.len());
        assert!(longest.max(last) < secs(1), "{contenders}: {longest:?}, {last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_delays_no_look() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let key = key();
    granted(&*quorum, &wish(&key, secs(30))).await;
    nodes[2].black_out(true);
    let started = tokio::time::Instant::now();
    let shown = quorum.inspect(&key, CALL).await.unwrap();
    assert!(shown.is_some_and(|lock| lock.holders.len() == 1));
    assert!(started.elapsed() < ms(100), "{:?}", started.elapsed());
}

/// An inspection waits for a majority, and for other nodes only if they decide.
#[tokio::test(start_paused = true)]
async fn a_cooldown_of_a_majority_is_shown_whichever_nodes_answer_first() {
    let Faulty { quorum, nodes, .. } = faulty(3);
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&*quorum, &asked).await;
    nodes[2].black_out(true);
    let mut request = ReleaseRequest::new(key.clone(), asked.token, fences);
    request.cooldown = leasehold_core::Cooldown::new(secs(3600)).unwrap();
    assert_eq!(quorum.release(&request, CALL).await.unwrap(), Release::Released);
    nodes[2].black_out(false);
    nodes[0].always(Fault::Delay { before: secs(1), after: Duration::ZERO });
    let is_closed = |lock: &LockInfo| lock.closed_for.is_some_and(|rest| rest > secs(3500));
    let shown = quorum.inspect(&key, CALL).await.unwrap();
    assert!(shown.as_ref().is_some_and(is_closed), "{shown:?}");
    let listing = quorum.list(&ListRequest::default(), CALL).await.unwrap();
    assert!(listing.locks.first().is_some_and(is_closed), "{listing:?}");
    // The lock is not available either while only one of the answering nodes is open.
    nodes[0].black_out(true);
    let shown = quorum.inspect(&key, secs(5)).await.unwrap();
    assert!(shown.as_ref().is_some_and(is_closed), "{shown:?}");
    let busy = quorum.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
    assert!(matches!(busy, Acquire::Busy(_)), "{busy:?}");
}

/// Flips a bit after each copy of a name in a store's file, where its record is.
fn damage(path: &Path, name: &[u8]) {
    const USED: u64 = 256 * 1024;
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = Vec::new();
    (&file).take(USED).read_to_end(&mut bytes).unwrap();
    let copies: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!copies.is_empty());
    for at in copies {
        let at = at + name.len() + 40;
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    }
}

#[tokio::test]
async fn a_record_that_a_majority_can_read_is_listed_and_another_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let key = key();
    let open = |n: usize| {
        let path = dir.path().join(n.to_string());
        let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
        (Arc::new(store) as Arc<dyn Store>, path.join("data.mdb"))
    };
    let (stores, paths): (Vec<_>, Vec<_>) = (0..3).map(open).unzip();
    granted(&*Arc::new(QuorumStore::new(stores).unwrap()), &wish(&key, secs(60))).await;
    for (damaged, readable) in [(1, true), (2, false), (3, false)] {
        damage(&paths[damaged - 1], key.as_str().as_bytes());
        let stores = (0..3).map(|n| open(n).0).collect();
        let quorum = Arc::new(QuorumStore::new(stores).unwrap());
        let listing = quorum.list(&ListRequest::default(), CALL).await.unwrap();
        let told: Vec<_> = listing.unreadable.iter().filter_map(|error| error.key()).collect();
        if readable {
            assert_eq!((listing.locks[0].key.clone(), told.len()), (key.clone(), 0), "{listing:?}");
        } else {
            assert_eq!((listing.locks.len(), told), (0, vec![&key]), "{damaged}: {listing:?}");
            assert_eq!(listing.unreadable[0].kind(), ErrorKind::Corrupt);
            assert_eq!(listing.unreadable[0].nodes().len(), damaged);
        }
    }
}

/// A node that lacks a lease at first. The second request for it is delayed until a release.
#[derive(Clone, Debug, Default)]
struct HeldUp {
    inner: MemoryStore,
    asked: Arc<AtomicUsize>,
    given_back: Arc<(Mutex<bool>, Condvar)>,
}

impl StoreLayer for HeldUp {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        Box::pin(async move {
            let (given_back, told) = &*self.given_back;
            match C::METHOD {
                Op::Acquire if self.asked.fetch_add(1, Ordering::SeqCst) == 0 => {
                    return call.fail(Error::new(ErrorKind::Unavailable, "not yet"));
                }
                // Its thread is stopped before it sends, for as long as any request can overtake
                // it.
                Op::Acquire => {
                    let given_back = given_back.lock().unwrap();
                    drop(told.wait_timeout_while(given_back, ms(50), |given_back| !*given_back));
                }
                _ => {}
            }
            let answer = call.send(&self.inner, within).await;
            if C::METHOD == Op::Release {
                *given_back.lock().unwrap() = true;
                told.notify_all();
            }
            answer
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        "held up".to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_brings_a_lease_to_a_node_that_lacks_it_does_not_do_so_after_its_release() {
    let (mut nodes, last) = (memories(2), HeldUp::default());
    nodes.push(Arc::new(last.clone()));
    let quorum = QuorumStore::new(nodes).unwrap();
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&quorum, &asked).await;
    while last.asked.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    let request = ReleaseRequest::new(key.clone(), asked.token, fences);
    assert_eq!(quorum.release(&request, CALL).await.unwrap(), Release::Released);
    // The release at a node that the caller did not wait for continues.
    tokio::time::timeout(CALL, async {
        while !*last.given_back.0.lock().unwrap() {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await
    .unwrap();
    // Gives remaining requests time to arrive.
    for _ in 0..100 {
        let info = last.inner.inspect(&key, CALL).await.unwrap();
        assert!(info.is_none_or(|info| info.holders.is_empty()), "a lease that nobody gives back");
        tokio::time::sleep(ms(1)).await;
    }
}

#[test]
fn a_release_waits_for_no_idle_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let Faulty { quorum, nodes, .. } = faulty(3);
    // It lacks the lease, which a task on the first runtime will bring to it.
    nodes[2].always(Fault::Refuse);
    let (key, quorum) = (key(), &*quorum);
    let asked = wish(&key, secs(30));
    let fences = first.block_on(granted(quorum, &asked));
    let request = ReleaseRequest::new(key, asked.token, fences);
    let released =
        second.block_on(async { tokio::time::timeout(CALL, quorum.release(&request, CALL)).await });
    assert_eq!(released.unwrap().unwrap(), Release::Released);
    drop(first);
}
