//! Connections that are cut behind every byte of a call.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leasehold_core::{Effect, Release, ReleaseRequest, Renew, RenewRequest, Store as _};
use leasehold_postgres::PostgresStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{SERVER, WITHIN, fresh, key, request, store_at, take};

/// Cuts connections behind a number of bytes in one direction.
#[derive(Default)]
struct Cutter {
    /// Bytes that still pass to the server, and to the client.
    left: [AtomicUsize; 2],
    was_cut: AtomicBool,
}

const TO_SERVER: usize = 0;
const TO_CLIENT: usize = 1;

impl Cutter {
    async fn start() -> (Arc<Self>, u16) {
        let cutter = Arc::new(Self::default());
        cutter.arm(TO_SERVER, usize::MAX);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::clone(&cutter);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", SERVER.port())).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let cutter = Arc::clone(&shared);
                tokio::spawn(async move {
                    // The end of one ends the other.
                    tokio::select! {
                        () = cutter.pass(TO_SERVER, from_client, to_server) => {}
                        () = cutter.pass(TO_CLIENT, from_server, to_client) => {}
                    }
                });
            }
        });
        (cutter, port)
    }

    /// Lets this number of bytes pass in one direction, and all in the other.
    fn arm(&self, direction: usize, bytes: usize) {
        for left in &self.left {
            left.store(usize::MAX, Ordering::SeqCst);
        }
        self.left[direction].store(bytes, Ordering::SeqCst);
        self.was_cut.store(false, Ordering::SeqCst);
    }

    async fn pass(&self, direction: usize, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = [0; 4_096];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let left = self.left[direction].load(Ordering::SeqCst);
            let passes = left.min(count);
            if left != usize::MAX {
                self.left[direction].store(left - passes, Ordering::SeqCst);
            }
            if to.write_all(&buffer[..passes]).await.is_err() {
                return;
            }
            if passes < count {
                self.was_cut.store(true, Ordering::SeqCst);
                return;
            }
        }
    }
}

/// Carries a call out behind each cut, until no cut is left to make. `check` sees its outcome, and carries it out again.
async fn cut_everywhere<T>(
    cutter: &Cutter,
    store: &PostgresStore,
    mut call: impl AsyncFnMut() -> leasehold_core::Result<T>,
    mut check: impl AsyncFnMut(leasehold_core::Result<T>),
) -> [u64; 2] {
    let mut cuts = [0; 2];
    for direction in [TO_SERVER, TO_CLIENT] {
        for bytes in 0.. {
            cutter.arm(direction, usize::MAX);
            // The connection is there.
            store.inspect(&key(), WITHIN).await.ok();
            store.inspect(&key(), WITHIN).await.unwrap();
            cutter.arm(direction, bytes);
            let outcome = call().await;
            let was_cut = cutter.was_cut.load(Ordering::SeqCst);
            cutter.arm(direction, usize::MAX);
            assert!(outcome.is_ok() || was_cut, "{:?}", outcome.err());
            check(outcome).await;
            if !was_cut {
                break;
            }
            cuts[direction] += 1;
        }
    }
    cuts
}

#[tokio::test]
async fn a_connection_cut_behind_any_byte_leaves_each_call_done_once_or_not_at_all() {
    let schema = fresh("cut");
    let judge = store_at(&format!("{}?create=yes&schema={schema}", SERVER.url())).await;
    let (cutter, port) = Cutter::start().await;
    let url = format!("postgres://leasehold@127.0.0.1:{port}/postgres?schema={schema}");
    let store = store_at(&format!("{url}&connections=1&listen=none")).await;
    let holders =
        async |key| judge.inspect(key, WITHIN).await.unwrap().map_or(0, |lock| lock.holders.len());

    let held = request(&key());
    let cuts = cut_everywhere(
        &cutter,
        &store,
        async || store.acquire(&held, WITHIN).await,
        async |outcome| {
            if outcome.is_err_and(|error| error.effect() == Effect::NotApplied) {
                assert_eq!(holders(&held.key).await, 0);
            }
            let again = store.acquire(&held, WITHIN).await.unwrap();
            let fences = again.fences().expect("it is granted");
            assert_eq!(holders(&held.key).await, 1);
            let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
            judge.release(&release, WITHIN).await.unwrap();
        },
    )
    .await;
    assert!(cuts.iter().all(|cuts| *cuts > 50), "{cuts:?}");

    let held = request(&key());
    let fences = take(&judge, &held).await;
    let renewal = [RenewRequest::new(held.key.clone(), held.token, fences, held.ttl)];
    let cuts = cut_everywhere(
        &cutter,
        &store,
        async || store.renew(&renewal, WITHIN).await.remove(0),
        async |_| {
            let again = store.renew(&renewal, WITHIN).await.remove(0).unwrap();
            assert_eq!(again, Renew::Renewed);
        },
    )
    .await;
    assert!(cuts.iter().all(|cuts| *cuts > 50), "{cuts:?}");

    let name = key();
    let grant = async || {
        let held = request(&name);
        let fences = take(&judge, &held).await;
        ReleaseRequest::new(name.clone(), held.token, fences)
    };
    let released = RefCell::new(grant().await);
    let release = async || {
        let release = released.borrow().clone();
        store.release(&release, WITHIN).await
    };
    let cuts = cut_everywhere(&cutter, &store, release, async |_| {
        assert_eq!(release().await.unwrap(), Release::Released);
        assert_eq!(holders(&name).await, 0);
        let next = grant().await;
        released.replace(next);
    })
    .await;
    assert!(cuts.iter().all(|cuts| *cuts > 50), "{cuts:?}");
}
