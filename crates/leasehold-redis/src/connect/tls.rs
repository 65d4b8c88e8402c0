//! Secures connections with the TLS library of this build.
//!
//! Certificates and host names are always verified; this can't be turned off.

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
use leasehold_core::Reason;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::classify::Verdict;
use crate::topology::address::{Endpoint, TlsFiles};

/// A socket of any type, secured or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// The TCP connection below, if there is one.
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}

impl Stream for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

#[cfg(unix)]
impl Stream for tokio::net::UnixStream {}

#[cfg(test)]
impl Stream for tokio::io::DuplexStream {}

#[cfg(feature = "tls-rustls")]
impl Stream for tokio_rustls::client::TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

#[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
impl Stream for tokio_native_tls::TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().get_ref().get_ref())
    }
}

/// The security of the sockets to one server.
#[derive(Clone)]
pub(crate) enum Tls {
    Off,
    #[cfg(feature = "tls-rustls")]
    Rustls(tokio_rustls::TlsConnector),
    #[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
    Native(tokio_native_tls::TlsConnector),
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            #[cfg(feature = "tls-rustls")]
            Self::Rustls(_) => "Rustls",
            #[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
            Self::Native(_) => "Native",
        })
    }
}

/// The security according to the last read of the files.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub(crate) connector: Tls,
    /// How many reads came before.
    pub(crate) number: u64,
}

/// The files that secure sockets, read again after a refusal.
#[derive(Debug)]
pub(crate) struct Security {
    files: Option<TlsFiles>,
    current: Mutex<(Current, Vec<Vec<u8>>)>,
}

impl Security {
    /// Reads the files that the endpoint names.
    pub(crate) fn of(endpoint: &Endpoint) -> Result<Self> {
        let files = match endpoint {
            Endpoint::Tcp { tls, .. } => tls.clone(),
            Endpoint::Unix(_) => None,
        };
        let (connector, bytes) = match &files {
            Some(files) => (Tls::with(files)?, contents(files)?),
            None => (Tls::Off, Vec::new()),
        };
        Ok(Self { files, current: Mutex::new((Current { connector, number: 0 }, bytes)) })
    }

    fn lock(&self) -> MutexGuard<'_, (Current, Vec<Vec<u8>>)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Current {
        self.lock().0.clone()
    }

    /// The files' content, if it has changed since the read with this number. Blocks.
    pub(crate) fn renewed(&self, seen: u64) -> std::result::Result<Option<Current>, Verdict> {
        let Some(files) = &self.files else { return Ok(None) };
        let mut current = self.lock();
        if current.0.number > seen {
            return Ok(Some(current.0.clone()));
        }
        let unread = |error: Error| Verdict::misconfigured(error.to_string());
        let bytes = contents(files).map_err(unread)?;
        // The bytes exclude the system's authorities.
        if files.authorities.is_some() && bytes == current.1 {
            return Ok(None);
        }
        let connector = Tls::with(files).map_err(unread)?;
        let newer = Current { connector, number: seen.saturating_add(1) };
        *current = (newer.clone(), bytes);
        Ok(Some(newer))
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn contents(files: &TlsFiles) -> Result<Vec<Vec<u8>>> {
    let TlsFiles { authorities, certificate, key } = files;
    [authorities, certificate, key].into_iter().flatten().map(|path| read(path)).collect()
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
const fn contents(_files: &TlsFiles) -> Result<Vec<Vec<u8>>> {
    Ok(Vec::new())
}

impl Tls {
    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
    fn with(_files: &TlsFiles) -> Result<Self> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this build has no TLS; build it with the feature tls-rustls or tls-native",
        ))
    }

    #[cfg(feature = "tls-rustls")]
    fn with(files: &TlsFiles) -> Result<Self> {
        use std::sync::Arc;

        use tokio_rustls::rustls::crypto::ring;
        use tokio_rustls::rustls::pki_types::pem::PemObject as _;
        use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
        use tokio_rustls::rustls::{ClientConfig, RootCertStore};

        let certificates = |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>> {
            let certificates: Option<Vec<_>> = CertificateDer::pem_slice_iter(&read(path)?)
                .map(|certificate| certificate.ok())
                .collect();
            certificates
                .filter(|certificates| !certificates.is_empty())
                .ok_or_else(|| unreadable(path, "certificate"))
        };
        let mut roots = RootCertStore::empty();
        match &files.authorities {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|_| unreadable(path, "certificate"))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(Error::new(
                        ErrorKind::Config,
                        "no certificate authorities on this system; install ca-certificates, or \
                         name one with cafile",
                    )
                    .with_reason(Reason::StoreSettings));
                }
            }
        }
        // The provider is set here, independent of what the process has installed.
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| Error::new(ErrorKind::Unsupported, "this build has no TLS version"))?
            .with_root_certificates(roots);
        let config = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => {
                let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|_| unreadable(key, "private key"))?;
                config
                    .with_client_auth_cert(certificates(certificate)?, secret)
                    .map_err(|_| unreadable(certificate, "certificate for this key"))?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(Self::Rustls(Arc::new(config).into()))
    }

    #[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
    fn with(files: &TlsFiles) -> Result<Self> {
        let mut builder = native_tls::TlsConnector::builder();
        if let Some(path) = &files.authorities {
            let authority = native_tls::Certificate::from_pem(&read(path)?)
                .map_err(|_| unreadable(path, "certificate"))?;
            builder.disable_built_in_roots(true).add_root_certificate(authority);
        }
        if let (Some(certificate), Some(key)) = (&files.certificate, &files.key) {
            let identity = native_tls::Identity::from_pkcs8(&read(certificate)?, &read(key)?)
                .map_err(|_| unreadable(key, "PKCS #8 key for this certificate"))?;
            builder.identity(identity);
        }
        match builder.build() {
            Ok(connector) => Ok(Self::Native(connector.into())),
            Err(_) => Err(Error::new(ErrorKind::Unsupported, "the system's TLS can't be used")),
        }
    }

    /// Secures a socket.
    #[cfg_attr(
        not(any(feature = "tls-rustls", feature = "tls-native")),
        expect(clippy::unused_async, reason = "it waits where there is TLS")
    )]
    pub(crate) async fn wrap(
        &self,
        host: &str,
        socket: TcpStream,
    ) -> Result<Box<dyn Stream>, Verdict> {
        match self {
            Self::Off => {
                let _ = host;
                Ok(Box::new(socket))
            }
            #[cfg(feature = "tls-rustls")]
            Self::Rustls(connector) => {
                let name = tokio_rustls::rustls::pki_types::ServerName::try_from(host.to_owned())
                    .map_err(|_| {
                    Verdict::misconfigured("the name of the host can't be in a certificate")
                        .because(Reason::Certificate)
                })?;
                match connector.connect(name, socket).await {
                    Ok(stream) => Ok(Box::new(stream)),
                    Err(error) => Err(failed(&error)),
                }
            }
            #[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
            Self::Native(connector) => match connector.connect(host, socket).await {
                Ok(stream) => Ok(Box::new(stream)),
                Err(error) => Err(untrusted(&error)),
            },
        }
    }
}

/// Judges a failed handshake: either its content was refused, or the network failed.
#[cfg(feature = "tls-rustls")]
fn failed(error: &std::io::Error) -> Verdict {
    use crate::classify::{Stage, io_error};

    let said =
        error.get_ref().and_then(|inner| inner.downcast_ref::<tokio_rustls::rustls::Error>());
    match said {
        Some(said) => untrusted(said),
        None => io_error(error, Stage::Connecting),
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn untrusted(error: &dyn std::fmt::Display) -> Verdict {
    Verdict::misconfigured(format!(
        "no TLS connection: {}; check the server's certificate and name, cafile, and that the port \
         has TLS",
        leasehold_core::escape::terminal(&error.to_string())
    ))
    .because(Reason::Certificate)
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn read(path: &std::path::Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let shown = path.to_string_lossy();
        let shown = leasehold_core::escape::terminal(&shown);
        Error::new(ErrorKind::Config, format!("can't read the file {shown}"))
            .with_reason(Reason::StoreSettings)
            .caused_by(error)
    })
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn unreadable(path: &std::path::Path, what: &str) -> Error {
    let shown = path.to_string_lossy();
    let shown = leasehold_core::escape::terminal(&shown);
    Error::new(ErrorKind::Config, format!("the file {shown} has no {what} in PEM form; correct it"))
        .with_reason(Reason::StoreSettings)
}
