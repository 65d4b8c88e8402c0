//! From a URL to a store: what opening may hold up, and which URLs mean nothing.

use std::fs::File;
use std::future::Future as _;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Client, ErrorKind};

/// How many files of a directory this process has open, where the system shows it.
fn open_files_below(directory: &Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(directory)).count()
}

#[tokio::test]
async fn opening_a_directory_delays_nothing_else_on_the_runtime() {
    let place = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("embedded:{}", place.path().join(name).display());
    drop(Client::connect(url("locks")).await.unwrap());
    // The client's background tasks drop the store a moment later.
    while open_files_below(&place.path().join("locks")) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Another process is inside, and does not go on for now.
    let gate = File::open(place.path().join("locks/gate")).unwrap();
    gate.lock().unwrap();
    let mut connecting = pin!(Client::connect(url("locks")));
    let mut turns = 0;
    while turns < 100 {
        let waits =
            std::future::poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx).is_pending()));
        assert!(waits.await, "it did not wait for the one inside");
        tokio::task::yield_now().await;
        turns += 1;
    }
    // Another directory is another store.
    drop(Client::connect(url("other")).await.unwrap());
    gate.unlock().unwrap();
    connecting.await.unwrap();
}

#[tokio::test]
async fn a_url_of_a_directory_that_means_nothing_for_sure_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display();
    for (url, says) in [
        (format!("embedded:{path}/locks?group=yes"), "\"group=yes\""),
        (format!("embedded:{path}/locks?"), "unknown setting"),
        ("embedded:locks".to_owned(), "is relative"),
        ("embedded:~/locks".to_owned(), "tilde"),
        ("embedded://localhost/locks".to_owned(), "names a host"),
    ] {
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
    drop(Client::connect(format!("embedded://{path}/locks")).await.unwrap());
    assert!(place.path().join("locks/store").is_file());
}
