//! Checks that all output is free of secrets.

use leasehold_core::{Error, Store as _};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;

use crate::common::{Caller, SHORT, WITHIN, all_words, key};

const SECRET: &str = "s3cr3t-sentinel";

fn check(what: &str, words: &str) {
    assert!(!words.contains(SECRET), "{what}: {words}");
    assert!(!words.contains("s3cr3t"), "{what}: {words}");
}

#[test]
fn a_url_that_cannot_be_used_is_not_repeated() {
    for url in [
        "SECRET",
        "redis://user:SECRET@",
        "redis://user:SECRET@:6379",
        "redis://user:SECRET@host:port",
        "redis://user:SECRET@host:99999",
        "redis://user:SECRET@host/database",
        "redis://user:SECRET@host/1/2",
        "redis://user:SECRET@host#insecure",
        "redis://user:SECRET@host?pass=SECRET",
        "redis://host?password=SECRET",
        "redis://host?SECRET=1",
        "redis://host?prefix=SECRET%20",
        "redis://host?protocol=SECRET",
        "redis://host?fence_retention=SECRET",
        "redis://host:6379:SECRET",
        "redis://user:SECRET%ff@host",
        "rediss://user:SECRET@host?insecure=true",
        "rediss://user:SECRET@host?certfile=/x",
        "SECRET://host",
        "http://user:SECRET@host",
        "redis+unix://user:SECRET@host/path",
        "redis+unix://?pass=SECRET",
        "redis:SECRET",
        "redis://[SECRET",
    ] {
        let url = url.replace("SECRET", SECRET);
        let error = RedisStore::connect_lazy(&url).unwrap_err();
        // The scheme is shown: the address begins with it, and it can't be a password.
        if !url.starts_with(SECRET) {
            check(&url, &all_words(&error));
        }
    }
}

#[tokio::test]
async fn no_failure_and_no_store_shows_a_password_or_a_token() {
    let server = RedisServer::builder().password(SECRET).start();
    let mut errors: Vec<Error> = Vec::new();
    let wrong = server.url().replace(SECRET, &format!("{SECRET}-wrong"));
    errors.push(RedisStore::connect(&wrong).await.unwrap_err());
    errors.push(RedisStore::connect(&server.url_for(SECRET, SECRET)).await.unwrap_err());
    errors.push(RedisStore::connect(&format!("{}/99", server.url())).await.unwrap_err());

    let store = RedisStore::connect(&server.url()).await.unwrap();
    check("store", &format!("{store:?} {store:#?} {}", store.location()));
    check("builder", &format!("{:?}", RedisStore::builder()));
    let caller = Caller::new(&store, &key());
    caller.take().await;
    server.pause();
    errors.push(store.acquire(&caller.request, SHORT).await.unwrap_err());
    server.kill();
    errors.push(caller.store.inspect(&caller.request.key, SHORT).await.unwrap_err());
    errors.push(
        store
            .listen(leasehold_core::ClientId::generate().unwrap(), WITHIN)
            .await
            .map(drop)
            .unwrap_err(),
    );
    for error in errors {
        let words = all_words(&error);
        check("error", &words);
        assert!(!words.contains(&caller.request.token.to_hex()), "{words}");
        assert!(error.to_string().contains(&server.addr().to_string()), "{error}");
    }
}
