//! What the other side of a TLS connection says when it ends it.

/// Whether the server has ended a connection for want of this side's certificate, which servers do after
/// the handshake.
#[cfg(feature = "tls-rustls")]
pub(crate) fn wants_certificate(error: &std::io::Error) -> bool {
    use tokio_rustls::rustls::{AlertDescription, Error};

    let said = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(said, Some(Error::AlertReceived(AlertDescription::CertificateRequired)))
}

#[cfg(not(feature = "tls-rustls"))]
pub(crate) const fn wants_certificate(_error: &std::io::Error) -> bool {
    false
}
