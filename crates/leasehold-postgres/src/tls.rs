//! Secures connections. Certificates and host names are always verified.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use leasehold_core::{BoxFuture, Error, ErrorKind, Reason, Result, escape};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::address::TlsFiles;

/// The TLS settings of a connection, read from their files.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    pub(crate) fn read(files: &TlsFiles) -> Result<Self> {
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
                        "no certificate authorities on this system; install ca-certificates, or name one with \
                         sslrootcert",
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
        Ok(Self(Arc::new(config)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let shown = path.to_string_lossy();
        Error::new(ErrorKind::Config, format!("can't read the file {}", escape::terminal(&shown)))
            .with_reason(Reason::StoreSettings)
            .caused_by(error)
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all: Option<Vec<_>> =
        CertificateDer::pem_slice_iter(&read(path)?).map(|one| one.ok()).collect();
    all.filter(|all| !all.is_empty()).ok_or_else(|| unreadable(path, "certificate"))
}

fn unreadable(path: &Path, what: &str) -> Error {
    let shown = path.to_string_lossy();
    let shown = escape::terminal(&shown);
    Error::new(ErrorKind::Config, format!("the file {shown} has no {what} in PEM form; correct it"))
        .with_reason(Reason::StoreSettings)
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Secured<S>;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connect> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Connect { config: Arc::clone(&self.0), name })
    }
}

/// A handshake to come.
pub(crate) struct Connect {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect {
    type Stream = Secured<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Secured<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            TlsConnector::from(self.config)
                .connect(self.name, stream)
                .await
                .map(Box::new)
                .map(Secured)
        })
    }
}

/// A connection with TLS.
pub(crate) struct Secured<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secured<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        certificate
            .and_then(|certificate| end_point(certificate))
            .map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// The hash of a server's certificate to which a login is bound (`tls-server-end-point` of RFC
/// 5929): by the hash function of its signature, or SHA-256 for older ones. `None` if the signature
/// has no hash function of its own.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    const ECDSA: [u8; 6] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4];
    // A certificate is a sequence: its body, then the algorithm of its signature, which begins with
    // an identifier.
    let (fields, _) = der_value(certificate)?;
    let (_, behind_body) = der_value(fields)?;
    let (algorithm, _) = der_value(behind_body)?;
    let (identifier, _) = der_value(algorithm)?;
    let of_rsa = identifier.strip_prefix(&RSA);
    let of_ecdsa = identifier.strip_prefix(&ECDSA);
    match (of_rsa, of_ecdsa) {
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => {
            Some(Sha256::digest(certificate).to_vec())
        }
        (Some([12]), _) | (_, Some([3, 3])) => Some(Sha384::digest(certificate).to_vec()),
        (Some([13]), _) | (_, Some([3, 4])) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The content of the first value in DER, and what follows the value.
fn der_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[_, length], rest) = bytes.split_first_chunk()?;
    if length < 0x80 {
        return rest.split_at_checked(usize::from(length));
    }
    let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f).min(4))?;
    let length = length.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
    rest.split_at_checked(length)
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, to)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
