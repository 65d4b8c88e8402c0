//! The layer for tower's services.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::tower::{SingleFlight, SingleFlightError, SingleFlightLayer};
use leasehold::{Client, ErrorKind};
use tokio::sync::Semaphore;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::support::ms;

/// How many requests are at it, and the most there were. Each waits for a permit.
#[derive(Debug)]
struct Kitchen {
    now: AtomicU32,
    most: AtomicU32,
    may_go: Semaphore,
}

impl Kitchen {
    fn new(may_go: usize) -> Arc<Self> {
        Arc::new(Self { now: 0.into(), most: 0.into(), may_go: Semaphore::new(may_go) })
    }

    async fn cook(&self, dish: &str) -> Result<String, String> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.may_go.acquire().await.unwrap().forget();
        self.now.fetch_sub(1, Ordering::SeqCst);
        if dish.ends_with("burnt") { Err(dish.to_owned()) } else { Ok(dish.to_owned()) }
    }
}

type KeyOf = fn(&String) -> Option<String>;

fn layer(client: &Client) -> SingleFlightLayer<KeyOf> {
    SingleFlightLayer::new(client, |dish| {
        dish.split_once('/').map(|(stove, _)| format!("stove/{stove}"))
    })
}

fn service(
    layer: &SingleFlightLayer<KeyOf>,
    kitchen: &Arc<Kitchen>,
) -> SingleFlight<
    impl Service<String, Response = String, Error = String, Future: Send> + Clone + Send + 'static,
    KeyOf,
> {
    let kitchen = Arc::clone(kitchen);
    layer.layer(service_fn(move |dish: String| {
        let kitchen = Arc::clone(&kitchen);
        async move { kitchen.cook(&dish).await }
    }))
}

#[tokio::test]
async fn requests_for_one_key_are_served_one_after_the_other() {
    let client = Client::connect("memory:").await.unwrap();
    let kitchen = Kitchen::new(3);
    let service = service(&layer(&client), &kitchen);
    let call = |dish: &str| service.clone().oneshot(dish.to_owned());
    let (a, b, c) = tokio::join!(call("1/soup"), call("1/rice"), call("1/burnt"));
    assert_eq!((a.unwrap().as_str(), b.unwrap().as_str()), ("1/soup", "1/rice"));
    assert!(matches!(c, Err(SingleFlightError::Service(dish)) if dish == "1/burnt"));
    assert_eq!(kitchen.most.load(Ordering::SeqCst), 1);
    client.close().await.unwrap();
}

#[tokio::test]
async fn other_keys_and_none_are_not_delayed() {
    let client = Client::connect("memory:").await.unwrap();
    let kitchen = Kitchen::new(0);
    let service = service(&layer(&client), &kitchen);
    let call = |dish: &str| service.clone().oneshot(dish.to_owned());
    let all_at_it = async {
        while kitchen.now.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
        kitchen.may_go.add_permits(3);
    };
    let (a, b, c, ()) = tokio::join!(call("1/soup"), call("2/rice"), call("salad"), all_at_it);
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
}

#[tokio::test]
async fn a_request_that_waits_for_too_long_is_refused() {
    let client = Client::connect("memory:").await.unwrap();
    let service = service(&layer(&client).within(Duration::ZERO), &Kitchen::new(1));
    let guard = client.mutex("stove/1").lock().await.unwrap();
    let refused = service.clone().oneshot("1/soup".to_owned()).await.unwrap_err();
    let SingleFlightError::Lock(error) = &refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(refused.to_string(), error.to_string());
    guard.release().await.unwrap();
    assert_eq!(service.oneshot("1/soup".to_owned()).await.unwrap(), "1/soup");
}

#[tokio::test]
async fn a_service_whose_lease_is_lost_is_cut_short() {
    let client = Client::builder().ttl(ms(300)).connect("memory:").await.unwrap();
    let kitchen = Kitchen::new(0);
    let service = service(&layer(&client), &kitchen);
    let taken_away = async {
        loop {
            if let Some(lock) = client.inspect("stove/1").await.unwrap()
                && let Some(holder) = lock.holders.first()
            {
                return client.force_release("stove/1", holder.fence).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    let (answer, _) = tokio::join!(service.oneshot("1/soup".to_owned()), taken_away);
    let Err(SingleFlightError::Lock(error)) = answer else { panic!("{answer:?}") };
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_nothing() {
    let client = Client::connect("memory:").await.unwrap();
    let kitchen = Kitchen::new(0);
    let service = service(&layer(&client), &kitchen);
    let request = tokio::spawn(service.oneshot("1/soup".to_owned()));
    while kitchen.now.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    let guard = client.mutex("stove/1").lock().await.unwrap();
    guard.release().await.unwrap();
    client.close().await.unwrap();
}
