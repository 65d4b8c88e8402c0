//! Drops a future at every one of its awaits.

use std::pin::pin;
use std::task::Poll;

/// Polls a future `n` times and then drops it, for `n` = 1, 2, … until one completes by itself.
///
/// `make` builds a new future for every cut. `after_each` runs after every drop, with the number of
/// polls that the dropped future had. It can wait for background work, and check that all is
/// cleaned up. Returns the output of the completed future, and its number of polls. Every smaller
/// number of polls has been cut.
///
/// The future is polled only after it was woken, so the work that it waits for can run between two
/// polls. On a current-thread runtime with paused time the cuts are the same in every run;
/// elsewhere the number of polls may differ from run to run.
///
/// # Panics
///
/// When a future is not complete after 10 000 polls.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use leasehold_testkit::cut::cut_at_every_await;
///
/// let mut cuts = Vec::new();
/// let (answer, polls) = cut_at_every_await(
///     || async {
///         tokio::task::yield_now().await;
///         tokio::task::yield_now().await;
///         42
///     },
///     async |polls| cuts.push(polls),
/// )
/// .await;
/// assert_eq!((answer, polls, cuts), (42, 3, vec![1, 2]));
/// # }
/// ```
pub async fn cut_at_every_await<F: Future>(
    mut make: impl FnMut() -> F,
    mut after_each: impl AsyncFnMut(u32),
) -> (F::Output, u32) {
    for polls_max in 1..=10_000 {
        if let Some(done) = poll_at_most(make(), polls_max).await {
            return done;
        }
        after_each(polls_max).await;
    }
    panic!("not complete after 10000 polls; does it wait for something that cannot happen?");
}

/// Polls a future at most `polls_max` times and then drops it. Returns its output and the number of
/// polls, or `None` if it was dropped.
pub async fn poll_at_most<F: Future>(future: F, polls_max: u32) -> Option<(F::Output, u32)> {
    let mut future = pin!(future);
    let mut polls = 0;
    std::future::poll_fn(move |cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some((output, polls))),
            Poll::Pending if polls >= polls_max => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_await_is_cut_once_and_the_cuts_are_the_same_in_every_run() {
        for _ in 0..3 {
            let reached = Cell::new(0);
            let mut at_cut = Vec::new();
            let make = || async {
                reached.set(0);
                for _ in 0..4 {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    reached.set(reached.get() + 1);
                }
            };
            let ((), polls) = cut_at_every_await(make, async |_| at_cut.push(reached.get())).await;
            assert_eq!((polls, reached.get()), (5, 4));
            assert_eq!(at_cut, [0, 1, 2, 3]);
        }
    }

    #[tokio::test]
    async fn what_the_future_held_is_dropped_before_the_check_runs() {
        struct Held<'a>(&'a Cell<u32>);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        let held = Cell::new(0);
        let make = || async {
            held.set(held.get() + 1);
            let _held = Held(&held);
            tokio::task::yield_now().await;
        };
        cut_at_every_await(make, async |_| assert_eq!(held.get(), 0)).await;
    }

    #[tokio::test]
    async fn a_future_that_needs_no_await_is_not_cut() {
        let (answer, polls) = cut_at_every_await(|| async { 7 }, async |_| unreachable!()).await;
        assert_eq!((answer, polls), (7, 1));
    }
}
