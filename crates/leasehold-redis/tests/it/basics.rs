//! One holder, one lock.

use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, Key, Release, ReleaseRequest, Renew, RenewRequest, Store as _, Token,
    Ttl,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server;

const WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_lock_is_taken_renewed_and_released() {
    let store = RedisStore::connect(&server::shared().url()).await.unwrap();
    let key = Key::new("basics/taken").unwrap();
    let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
    let request = AcquireRequest::new(key.clone(), Token::generate().unwrap(), ttl);
    let Acquire::Granted(granted) = store.acquire(&request, WITHIN).await.unwrap() else {
        panic!("nobody else is here");
    };
    let other = AcquireRequest::new(key.clone(), Token::generate().unwrap(), ttl);
    assert!(matches!(store.acquire(&other, WITHIN).await.unwrap(), Acquire::Busy(_)));
    let renewal = RenewRequest::new(key.clone(), request.token, granted.fences, ttl);
    assert_eq!(store.renew(&[renewal], WITHIN).await[0].as_ref().unwrap(), &Renew::Renewed);
    let release = ReleaseRequest::new(key.clone(), request.token, granted.fences);
    assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    let Acquire::Granted(next) = store.acquire(&other, WITHIN).await.unwrap() else {
        panic!("it was released");
    };
    assert!(next.fences.first() > granted.fences.last());
}
