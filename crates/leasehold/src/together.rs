//! Awaits several futures at the same time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Returns when any of these does.
pub(crate) async fn any<'a, F: Future<Output = ()> + Send + 'a>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        let done = futures.iter_mut().any(|future| future.as_mut().poll(cx).is_ready());
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// What all of these return, each polled while the others wait.
pub(crate) async fn all<F: Future<Output: Send> + Send>(
    futures: impl Iterator<Item = F> + Send,
) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(done) = future.as_mut().poll(cx)
            {
                *output = Some(done);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
