//! TLS is enabled by the URL, and always verifies the certificate.

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
mod with_tls {
    use std::path::Path;

    use leasehold_core::{ClientId, Effect, ErrorKind, Store as _, Wake};
    use leasehold_redis::RedisStore;
    use leasehold_testkit::server::{ClientCertificate, RedisServer};
    use leasehold_testkit::tls::Pki;

    use crate::common::{Caller, WITHIN, key};

    fn url(server: &RedisServer, ca: &Path) -> String {
        format!("{}?cafile={}", server.tls_url(), ca.display())
    }

    #[tokio::test]
    async fn a_server_with_the_right_certificate_is_used_for_requests_and_messages() {
        let pki = Pki::generate();
        let server = RedisServer::builder().tls(&pki, ClientCertificate::Ignored).start();
        for scheme in ["rediss", "valkeys"] {
            let url = url(&server, pki.ca().certificate_path()).replace("rediss", scheme);
            let store = RedisStore::connect(&url).await.unwrap();
            assert!(store.location().starts_with("rediss://"), "{}", store.location());
            let client = ClientId::generate().unwrap();
            let mut listener = store.listen(client, WITHIN).await.unwrap();
            let holder = Caller::new(&store, &key());
            let fences = holder.take().await;
            Caller::patient(&store, &holder.request.key, client).wait().await;
            store.release(&holder.ending(fences), WITHIN).await.unwrap();
            let wake = tokio::time::timeout(WITHIN, listener.next()).await.unwrap();
            assert!(matches!(wake, Wake::Granted { .. }), "{wake:?}");
        }
    }

    #[tokio::test]
    async fn a_server_with_a_wrong_certificate_is_refused() {
        let pki = Pki::generate();
        let right = RedisServer::builder().tls(&pki, ClientCertificate::Ignored).start();
        let misnamed = RedisServer::builder()
            .tls_identity(&pki, pki.misnamed(), ClientCertificate::Ignored)
            .start();
        for (what, url) in [
            ("another authority", url(&right, pki.unrelated_ca().certificate_path())),
            ("the system's authorities", right.tls_url()),
            ("another host's name", url(&misnamed, pki.ca().certificate_path())),
        ] {
            let error = RedisStore::connect(&url).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
            assert_eq!(error.effect(), Effect::NotApplied, "{what}");
            assert!(!error.is_retryable(), "{what}");
        }
    }

    #[tokio::test]
    async fn a_port_without_tls_is_distinguished_from_a_wrong_certificate() {
        let pki = Pki::generate();
        let server = RedisServer::start();
        let ca = pki.ca().certificate_path().display();
        let url = format!("rediss://{}?cafile={ca}", server.addr());
        let soon = RedisStore::builder().connect_timeout(std::time::Duration::from_secs(1));
        let error = soon.connect(&url).await.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
        assert!(error.to_string().contains("if the port has no TLS"), "{error}");
    }

    #[tokio::test]
    async fn a_client_certificate_is_shown_where_one_is_asked_for() {
        let pki = Pki::generate();
        let server = RedisServer::builder().tls(&pki, ClientCertificate::Required).start();
        let without = url(&server, pki.ca().certificate_path());
        let error = RedisStore::connect(&without).await.map(drop).unwrap_err();
        assert_eq!(error.effect(), Effect::NotApplied, "{error}");
        let with = format!(
            "{without}&certfile={}&keyfile={}",
            pki.client().certificate_path().display(),
            pki.client().key_path().display()
        );
        Caller::new(&RedisStore::connect(&with).await.unwrap(), &key()).take().await;
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let pki = Pki::generate();
        let (key, ca) = (pki.ca().key_path().display(), pki.ca().certificate_path().display());
        for (file, query) in [
            ("/nonexistent/ca.pem", "cafile=/nonexistent/ca.pem".to_owned()),
            ("ca.key", format!("cafile={key}")),
            ("ca.pem", format!("cafile={ca}&certfile={ca}&keyfile={ca}")),
        ] {
            let error =
                RedisStore::connect_lazy(&format!("rediss://h?{query}")).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains(file), "{error}");
        }
    }
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
#[test]
fn a_build_without_tls_says_how_to_get_it() {
    let error = leasehold_redis::RedisStore::connect_lazy("rediss://localhost").unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unsupported);
    assert!(error.to_string().contains("tls-rustls"), "{error}");
}
