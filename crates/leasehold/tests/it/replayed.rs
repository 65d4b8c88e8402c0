//! A client on a store that brings its own clock, time of day and tokens has no other source of
//! chance: its requests are the same, byte for byte, in every run.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Client;
use leasehold::clock::{ManualClock, TokioClock};
use leasehold::store::{BoxFuture, Call, Capability, LockLog, Method, Store, StoreLayer};
use leasehold_core::{Result, Token};
use leasehold_embedded::MemoryStore;

/// Writes down the tokens of all calls, and gives those of acquisitions.
#[derive(Debug)]
struct Recorded {
    inner: MemoryStore,
    drawn: AtomicU8,
    calls: Mutex<Vec<(Method, Vec<Token>)>>,
}

impl StoreLayer for Recorded {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        let tokens = call.targets().into_iter().filter_map(|(_, token)| token.copied());
        self.calls.lock().unwrap().push((C::METHOD, tokens.collect()));
        call.send(&self.inner, within)
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn token(&self) -> Result<Token> {
        Ok(Token::from_bytes([self.drawn.fetch_add(1, Ordering::Relaxed); 16]))
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        "recorded".to_owned()
    }
}

/// One run: the calls that reached the store, and the fences.
async fn run() -> (Vec<(Method, Vec<Token>)>, Vec<u64>) {
    let clock = Arc::new(TokioClock::new());
    let inner = MemoryStore::with_clocks(clock, Arc::new(ManualClock::new()));
    let recorded = Arc::new(Recorded { inner, drawn: AtomicU8::new(0), calls: Mutex::default() });
    let store: Arc<dyn Store> = Arc::<Recorded>::clone(&recorded);
    let client = Client::builder().tokio_time().store(store).unwrap();
    let mut fences = Vec::new();
    let lease = client.mutex("a").lock().await.unwrap().detach().await.unwrap();
    let guard = client.adopt(&lease).await.unwrap();
    fences.push(guard.fence().unwrap().value());
    let others = (0..4).map(|_| {
        let mutex = client.mutex("a");
        tokio::spawn(async move { mutex.lock_within(Duration::from_secs(100)).await })
    });
    let others: Vec<_> = others.collect();
    tokio::time::sleep(Duration::from_secs(40)).await;
    guard.release().await.unwrap();
    for other in others {
        let guard = other.await.unwrap().unwrap();
        fences.push(guard.fence().unwrap().value());
        guard.release().await.unwrap();
    }
    client.close().await.unwrap();
    (std::mem::take(&mut *recorded.calls.lock().unwrap()), fences)
}

#[test]
fn a_store_that_brings_clock_time_of_day_and_tokens_sees_the_same_calls_in_every_run() {
    let runs = [(); 2].map(|()| {
        fastrand::seed(7);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run())
    });
    let [first, second] = runs;
    assert_eq!(first, second);
    let given = |token: &Token| token.as_bytes().iter().all(|byte| byte == &token.as_bytes()[0]);
    let (calls, _) = first;
    assert!(calls.iter().flat_map(|(_, tokens)| tokens).all(given), "{calls:?}");
    assert!(calls.iter().any(|(method, _)| *method == Method::Listen));
    // The first that is drawn is the client's name, which proves nothing.
    assert!(calls.iter().flat_map(|(_, tokens)| tokens).all(|token| token.as_bytes() != &[0; 16]));
}
