//! Passes values to one waiting future from any number of senders.
//!
//! Each wait has two, and few get more than one message. So there is room for one, and more is
//! allocated when needed. A channel of the runtime makes room for thirty-two at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An empty mailbox: its sending and its receiving end.
pub(crate) fn mailbox<T>() -> (Sender<T>, Receiver<T>) {
    let content = Content { first: None, more: VecDeque::new(), waker: None, closed: false };
    let shared = Arc::new(Shared(Mutex::new(content)));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// Dropping it closes the mailbox, and drops what is in it.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T>(Mutex<Content<T>>);

#[derive(Debug)]
struct Content<T> {
    first: Option<T>,
    /// Those after the first; senders decide how many there can be.
    more: VecDeque<T>,
    /// Wakes the receiver for the next message.
    waker: Option<Waker>,
    closed: bool,
}

impl<T> Shared<T> {
    fn content(&self) -> MutexGuard<'_, Content<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Content<T> {
    fn push(&mut self, message: T) {
        if self.first.is_none() && self.more.is_empty() {
            self.first = Some(message);
        } else {
            self.more.push_back(message);
        }
    }

    fn pop(&mut self) -> Option<T> {
        self.first.take().or_else(|| self.more.pop_front())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Sender<T> {
    /// Adds a message after those that are there. Returns it when the other end is gone.
    pub(crate) fn send(&self, message: T) -> Result<(), T> {
        let mut content = self.0.content();
        if content.closed {
            drop(content);
            return Err(message);
        }
        content.push(message);
        let waker = content.waker.take();
        drop(content);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// The next message; pending while there is none, even when all senders are gone. Cancel safe.
    pub(crate) async fn recv(&mut self) -> T {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        let mut content = self.0.content();
        if let Some(message) = content.pop() {
            return Poll::Ready(message);
        }
        if !content.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            content.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The next message, if it is there already.
    pub(crate) fn try_recv(&mut self) -> Option<T> {
        self.0.content().pop()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut content = self.0.content();
        content.closed = true;
        let left = (content.first.take(), std::mem::take(&mut content.more), content.waker.take());
        // Dropping a message may use this mailbox again.
        drop(content);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn messages_come_in_their_order_and_wake_who_waits() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let (sender, mut receiver) = mailbox();
        assert_eq!(pin!(receiver.recv()).poll(&mut cx), Poll::Pending);
        for number in 0..3 {
            sender.send(number).unwrap();
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(pin!(receiver.recv()).poll(&mut cx), Poll::Ready(0));
        sender.send(3).unwrap();
        let rest: Vec<_> = std::iter::from_fn(|| receiver.try_recv()).collect();
        assert_eq!(rest, [1, 2, 3]);
        drop(sender);
        assert_eq!(pin!(receiver.recv()).poll(&mut cx), Poll::Pending);
    }

    #[test]
    fn a_dropped_wait_loses_no_message_and_the_next_waker_is_notified() {
        let (early, late) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let (sender, mut receiver) = mailbox();
        for woken in [&early, &late] {
            let waker = Waker::from(Arc::clone(woken));
            let poll = pin!(receiver.recv()).poll(&mut Context::from_waker(&waker));
            assert_eq!(poll, Poll::Pending);
        }
        sender.send("here").unwrap();
        assert_eq!((early.0.load(Ordering::Relaxed), late.0.load(Ordering::Relaxed)), (0, 1));
        assert_eq!(receiver.try_recv(), Some("here"));
    }

    #[test]
    fn an_offer_without_a_taker_is_dropped_or_released() {
        let message = Arc::new(());
        let (sender, receiver) = mailbox();
        sender.send(Arc::clone(&message)).unwrap();
        sender.send(Arc::clone(&message)).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&message), 1);
        assert!(sender.send(Arc::clone(&message)).is_err());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_message_of_another_thread_is_missed() {
        let (sender, mut receiver) = mailbox();
        let sending = std::thread::spawn(move || {
            for number in 0..20_000 {
                sender.send(number).unwrap();
            }
        });
        for number in 0..20_000 {
            assert_eq!(receiver.recv().await, number);
        }
        sending.join().unwrap();
    }
}
