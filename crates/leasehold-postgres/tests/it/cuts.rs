//! Connections that are cut behind every byte of a call.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leasehold_core::{Effect, Key, Release, ReleaseRequest, Renew, RenewRequest, Store as _};
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

/// A store whose connections are cut, and another one that judges.
struct Cut {
    cutter: Arc<Cutter>,
    store: PostgresStore,
    judge: PostgresStore,
}

impl Cut {
    async fn start() -> Self {
        let schema = fresh("cut");
        let judge = store_at(&format!("{}?create=yes&schema={schema}", SERVER.url())).await;
        let (cutter, port) = Cutter::start().await;
        let url = format!("postgres://leasehold@127.0.0.1:{port}/postgres?schema={schema}");
        let store = store_at(&format!("{url}&connections=1&listen=none")).await;
        Self { cutter, store, judge }
    }

    async fn holders(&self, key: &Key) -> usize {
        self.judge.inspect(key, WITHIN).await.unwrap().map_or(0, |lock| lock.holders.len())
    }

    /// Carries a call out behind each cut, until no cut is left to make. `check` sees its outcome,
    /// and carries it out again.
    async fn everywhere<T>(
        &self,
        call: impl AsyncFn() -> leasehold_core::Result<T>,
        check: impl AsyncFn(leasehold_core::Result<T>),
    ) {
        for direction in [TO_SERVER, TO_CLIENT] {
            for bytes in 0.. {
                self.cutter.arm(direction, usize::MAX);
                // The connection is there.
                self.store.inspect(&key(), WITHIN).await.ok();
                self.store.inspect(&key(), WITHIN).await.unwrap();
                self.cutter.arm(direction, bytes);
                let outcome = call().await;
                let was_cut = self.cutter.was_cut.load(Ordering::SeqCst);
                self.cutter.arm(direction, usize::MAX);
                assert!(outcome.is_ok() || was_cut, "{:?}", outcome.err());
                check(outcome).await;
                if !was_cut {
                    assert!(bytes > 50, "{bytes} bytes were cut");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn an_acquisition_cut_behind_any_byte_is_granted_once_or_not_at_all() {
    let cut = Cut::start().await;
    let held = request(&key());
    cut.everywhere(
        async || cut.store.acquire(&held, WITHIN).await,
        async |outcome| {
            if outcome.is_err_and(|error| error.effect() == Effect::NotApplied) {
                assert_eq!(cut.holders(&held.key).await, 0);
            }
            let again = cut.store.acquire(&held, WITHIN).await.unwrap();
            let fences = again.fences().expect("it is granted");
            assert_eq!(cut.holders(&held.key).await, 1);
            let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
            cut.judge.release(&release, WITHIN).await.unwrap();
        },
    )
    .await;
}

#[tokio::test]
async fn a_renewal_cut_behind_any_byte_can_be_sent_again() {
    let cut = Cut::start().await;
    let held = request(&key());
    let fences = take(&cut.judge, &held).await;
    let renewal = [RenewRequest::new(held.key.clone(), held.token, fences, held.ttl)];
    let renew = async || cut.store.renew(&renewal, WITHIN).await.remove(0);
    cut.everywhere(renew, async |_| assert_eq!(renew().await.unwrap(), Renew::Renewed)).await;
}

#[tokio::test]
async fn a_release_cut_behind_any_byte_releases_once_and_says_so() {
    let cut = Cut::start().await;
    let name = key();
    let grant = async || {
        let held = request(&name);
        let fences = take(&cut.judge, &held).await;
        ReleaseRequest::new(name.clone(), held.token, fences)
    };
    let released = RefCell::new(grant().await);
    let release = async || {
        let release = released.borrow().clone();
        cut.store.release(&release, WITHIN).await
    };
    cut.everywhere(release, async |_| {
        assert_eq!(release().await.unwrap(), Release::Released);
        assert_eq!(cut.holders(&name).await, 0);
        let next = grant().await;
        released.replace(next);
    })
    .await;
}
