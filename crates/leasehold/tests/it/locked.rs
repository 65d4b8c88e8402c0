//! Functions under the attribute `locked`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Client, ErrorKind, LockOptions};

use crate::support::{ms, secs};

/// An error of a program's own.
#[derive(Debug, PartialEq)]
enum Wrong {
    Lock(ErrorKind),
    Work(&'static str),
}

impl From<leasehold::Error> for Wrong {
    fn from(error: leasehold::Error) -> Self {
        Self::Lock(error.kind())
    }
}

#[derive(Debug, Default)]
struct Busy {
    now: AtomicU32,
    most: AtomicU32,
}

#[leasehold::locked("page/{}", name.to_lowercase())]
async fn one_at_a_time(client: Client, name: &str, busy: &Busy) -> Result<u32, Wrong> {
    let now = busy.now.fetch_add(1, Ordering::SeqCst) + 1;
    busy.most.fetch_max(now, Ordering::SeqCst);
    tokio::task::yield_now().await;
    busy.now.fetch_sub(1, Ordering::SeqCst);
    // It is the function's own parameter still.
    drop(client);
    Ok(now)
}

#[leasehold::locked("work/{id}", within = Duration::ZERO, lease = held)]
async fn work(client: &Client, id: u32, held_up: &mut u32, fail: bool) -> Result<u64, Wrong> {
    *held_up += 1;
    if fail {
        return Err(Wrong::Work("no paper"));
    }
    // `?` turns the lease's error into the function's.
    Ok(held.fence()?.value())
}

#[leasehold::locked("mine", client = locks, ttl = secs(5), options = &LockOptions::new().owner("me"))]
async fn mine(locks: &Client) -> leasehold::Result<(String, Duration)> {
    let holder = locks.inspect("mine").await?.unwrap().holders.remove(0);
    Ok((holder.owner.as_str().to_owned(), holder.remaining))
}

#[leasehold::locked("taken", lease = lease)]
async fn taken_away(client: &Client, fail: bool) -> Result<(), Wrong> {
    client.force_release("taken", lease.fence()?).await?;
    if fail {
        return Err(Wrong::Work("no paper"));
    }
    lease.lost().await;
    Ok(())
}

#[tokio::test]
async fn calls_with_the_same_name_run_one_after_the_other() {
    let client = Client::connect("memory:").await.unwrap();
    let busy = Busy::default();
    let call = |name| one_at_a_time(client.clone(), name, &busy);
    let (a, b, c) = tokio::join!(call("Home"), call("home"), call("HOME"));
    assert_eq!((a, b, c), (Ok(1), Ok(1), Ok(1)));
    assert_eq!(busy.most.load(Ordering::SeqCst), 1);
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_function_that_gets_no_lock_does_not_begin() {
    let client = Client::connect("memory:").await.unwrap();
    let mut begun = 0;
    let guard = client.mutex("work/7").lock().await.unwrap();
    let refused = work(&client, 7, &mut begun, false).await;
    assert_eq!(refused, Err(Wrong::Lock(ErrorKind::Timeout)));
    assert_eq!(begun, 0);

    // Another name is free, and so is this one once it is released.
    let other = work(&client, 8, &mut begun, false).await.unwrap();
    assert!(other > 0);
    guard.release().await.unwrap();
    assert!(work(&client, 7, &mut begun, false).await.is_ok());
    assert_eq!(begun, 2);
}

#[tokio::test]
async fn an_error_of_the_body_comes_out_and_the_lock_is_released() {
    let client = Client::connect("memory:").await.unwrap();
    let mut begun = 0;
    assert_eq!(work(&client, 7, &mut begun, true).await, Err(Wrong::Work("no paper")));
    assert!(work(&client, 7, &mut begun, false).await.is_ok());
}

#[tokio::test]
async fn options_and_ttl_are_the_locks() {
    let client = Client::connect("memory:").await.unwrap();
    let (owner, remaining) = mine(&client).await.unwrap();
    assert_eq!(owner, "me");
    assert!(remaining <= secs(5), "{remaining:?}");
}

#[tokio::test]
async fn a_lost_lease_is_an_error_unless_the_body_has_one() {
    let client = Client::builder().ttl(ms(300)).connect("memory:").await.unwrap();
    assert_eq!(taken_away(&client, false).await, Err(Wrong::Lock(ErrorKind::Lost)));
    assert_eq!(taken_away(&client, true).await, Err(Wrong::Work("no paper")));
}

#[test]
fn threads_have_it_too() {
    use leasehold::Wait as _;

    #[leasehold::locked("sum/{}", id, lease = lease)]
    fn sum(client: &Client, id: u32, parts: &[u32]) -> Result<u32, Wrong> {
        lease.check()?;
        if parts.is_empty() {
            return Err(Wrong::Work("nothing to add"));
        }
        Ok(parts.iter().sum())
    }

    let client = Client::connect("memory:").wait().unwrap();
    assert_eq!(sum(&client, 7, &[1, 2]), Ok(3));
    assert_eq!(sum(&client, 7, &[]), Err(Wrong::Work("nothing to add")));
    client.close().wait().unwrap();
}
