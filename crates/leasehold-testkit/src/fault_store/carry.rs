//! Carries a call to the inner store, through its fault.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    BoxFuture, Call, Capability, Effect, Error, ErrorKind, Key, Listener, LockLog, Reason, Store,
    StoreLayer, Token, VALID_FOR,
};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Fault, FaultStore, Target, listener};

impl StoreLayer for FaultStore {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        Box::pin(async move {
            let fault = self.shared.meet(C::METHOD, targets(call), within);
            let inner = Arc::clone(&self.shared.inner);
            match fault {
                Fault::None => call.send(&*inner, within).await,
                Fault::DropRequest => {
                    sleep(within).await;
                    call.fail(self.no_answer(call, within))
                }
                Fault::DropReply => {
                    let until = tokio::time::Instant::now() + within;
                    drop(call.send(&*inner, within).await);
                    tokio::time::sleep_until(until).await;
                    call.fail(self.no_answer(call, within))
                }
                Fault::Delay { before, after } => {
                    let task = arrives::<C>(call.to_owned(), inner, before, within, after);
                    match timeout(within, task).await {
                        Ok(answer) => answer.expect("a store does not panic"),
                        Err(_) => call.fail(self.no_answer(call, within)),
                    }
                }
                Fault::Break { before } => {
                    let arrival =
                        arrives::<C>(call.to_owned(), inner, before, within, Duration::ZERO);
                    // The request continues on its way.
                    drop(arrival);
                    let error = Error::new(ErrorKind::Unavailable, "the connection broke")
                        .with_effect(Effect::Unknown)
                        .with_reason(Reason::Disconnected);
                    call.fail(self.named(call, error))
                }
                Fault::Refuse => {
                    let error = Error::new(ErrorKind::Unavailable, "refused on purpose");
                    call.fail(self.named(call, error))
                }
                Fault::Fail(error) => call.fail(self.named(call, error)),
                Fault::Hang { applied } => {
                    if applied {
                        drop(call.send(&*inner, within).await);
                    }
                    std::future::pending().await
                }
                Fault::Duplicate => {
                    drop(call.send(&*inner, within).await);
                    call.send(&*inner, within).await
                }
                Fault::Echo { after } => {
                    let answer = call.send(&*inner, within).await;
                    let again = arrives::<C>(call.to_owned(), inner, after, within, Duration::ZERO);
                    drop(again);
                    answer
                }
            }
        })
    }

    fn listener(&self, inner: Box<dyn Listener>) -> Box<dyn Listener> {
        listener::wrap(inner, &self.shared)
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        self.shared.inner.log()
    }

    fn capability(&self) -> Capability {
        self.shared.inner.capability()
    }

    fn location(&self) -> String {
        self.shared.inner.location()
    }
}

impl FaultStore {
    fn no_answer<C: Call + ?Sized>(&self, call: &C, within: Duration) -> Error {
        let error = Error::new(ErrorKind::Unavailable, format!("no answer within {within:?}"))
            .with_effect(Effect::Unknown);
        self.named(call, error)
    }

    fn named<C: Call + ?Sized>(&self, call: &C, error: Error) -> Error {
        let error = error.during(C::METHOD.name()).at_store(self.shared.inner.location());
        match call.targets().as_slice() {
            [(key, _)] => error.on_key(key),
            _ => error,
        }
    }
}

/// A travelling request and its reply. A request that arrives after its time is not carried out.
fn arrives<C: Call + ?Sized>(
    travels: C::Owned,
    store: Arc<dyn Store>,
    before: Duration,
    within: Duration,
    after: Duration,
) -> JoinHandle<C::Answer> {
    tokio::spawn(async move {
        sleep(before).await;
        if before > within.min(VALID_FOR) && !C::METHOD.gives_back() {
            return std::future::pending().await;
        }
        let answer = Borrow::<C>::borrow(&travels).send(&*store, within).await;
        sleep(after).await;
        answer
    })
}

fn targets<C: Call + ?Sized>(call: &C) -> Vec<Target> {
    let target = |(key, token): (&Key, Option<&Token>)| Target {
        key: key.clone(),
        token: token.map(Token::fingerprint),
    };
    call.targets().into_iter().map(target).collect()
}
