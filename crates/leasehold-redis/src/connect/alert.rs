//! Reads why the server ended a TLS connection.

/// Whether the server has ended a connection because this side showed no certificate. Servers do so
/// after the handshake.
#[cfg(feature = "tls-rustls")]
pub(crate) fn wants_certificate(error: &std::io::Error) -> bool {
    use tokio_rustls::rustls::{AlertDescription, Error};

    let said = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(said, Some(Error::AlertReceived(AlertDescription::CertificateRequired)))
}

/// Whether the server has ended a connection because of this side's certificate.
#[cfg(feature = "tls-rustls")]
pub(crate) fn refuses_certificate(error: &std::io::Error) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRevoked, CertificateUnknown,
        DecryptError, UnknownCA, UnsupportedCertificate,
    };
    use tokio_rustls::rustls::{AlertDescription, Error};

    let said = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(
        said,
        Some(Error::AlertReceived(
            AccessDenied
                | BadCertificate
                | CertificateExpired
                | CertificateRevoked
                | CertificateUnknown
                | DecryptError
                | UnknownCA
                | UnsupportedCertificate
        ))
    )
}

/// The system's library reports it by words only.
#[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
pub(crate) fn refuses_certificate(error: &std::io::Error) -> bool {
    let said = error.to_string();
    said.contains("alert") && (said.contains("certificate") || said.contains("unknown ca"))
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
pub(crate) const fn refuses_certificate(_error: &std::io::Error) -> bool {
    false
}

#[cfg(not(feature = "tls-rustls"))]
pub(crate) const fn wants_certificate(_error: &std::io::Error) -> bool {
    false
}
