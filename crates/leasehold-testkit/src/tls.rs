//! Makes certificates for tests: one authority to trust, one not to, and what they sign.
//!
//! Each [`Pki`] makes new ones, in memory and in a temporary folder; they protect no real data.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

/// A certificate and its private key, both PEM, in memory and on disk.
#[derive(Clone, Debug)]
pub struct Identity {
    certificate: String,
    certificate_path: PathBuf,
    key: String,
    key_path: PathBuf,
}

impl Identity {
    /// The certificate.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Where the certificate is.
    #[must_use]
    pub fn certificate_path(&self) -> &Path {
        &self.certificate_path
    }

    /// The private key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where the private key is.
    #[must_use]
    pub fn key_path(&self) -> &Path {
        &self.key_path
    }
}

/// A certificate authority, another unrelated one, and certificates for tests.
///
/// The files are removed with this value; the caller may keep the PEM texts.
#[derive(Debug)]
pub struct Pki {
    ca: Identity,
    client: Identity,
    misnamed: Identity,
    server: Identity,
    unrelated_ca: Identity,
    // Dropped last: the paths above point into it.
    _dir: TempDir,
}

impl Pki {
    /// Makes a new set.
    ///
    /// # Panics
    ///
    /// When the temporary folder cannot be written.
    #[must_use]
    pub fn generate() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("leasehold-pki-")
            .tempdir()
            .expect("the temporary folder is writable");
        let (ca, issuer) = authority(dir.path(), "ca");
        let (unrelated_ca, _) = authority(dir.path(), "unrelated-ca");
        let local = ["localhost", "127.0.0.1", "::1"];
        let server_auth = ExtendedKeyUsagePurpose::ServerAuth;
        Self {
            client: leaf(
                dir.path(),
                "client",
                &["client.test"],
                ExtendedKeyUsagePurpose::ClientAuth,
                &issuer,
            ),
            misnamed: leaf(
                dir.path(),
                "misnamed",
                &["elsewhere.test"],
                server_auth.clone(),
                &issuer,
            ),
            server: leaf(dir.path(), "server", &local, server_auth, &issuer),
            ca,
            unrelated_ca,
            _dir: dir,
        }
    }

    /// The authority a client should trust.
    #[must_use]
    pub fn ca(&self) -> &Identity {
        &self.ca
    }

    /// A client certificate, for servers that demand one.
    #[must_use]
    pub fn client(&self) -> &Identity {
        &self.client
    }

    /// A server certificate signed by [`ca`](Self::ca), but for a host called `elsewhere.test`.
    #[must_use]
    pub fn misnamed(&self) -> &Identity {
        &self.misnamed
    }

    /// A server certificate for `localhost`, `127.0.0.1` and `::1`.
    #[must_use]
    pub fn server(&self) -> &Identity {
        &self.server
    }

    /// An unrelated authority: a client that trusts only this one must refuse the server.
    #[must_use]
    pub fn unrelated_ca(&self) -> &Identity {
        &self.unrelated_ca
    }
}

const PARAMS_VALID: &str = "the names of test certificates are valid";

fn authority(dir: &Path, name: &str) -> (Identity, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().expect("a key can be made");
    let mut params = CertificateParams::new(Vec::new()).expect(PARAMS_VALID);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // If both authorities had one name, only their keys would distinguish them. Some clients then
    // report a broken signature instead of an unknown authority.
    params.distinguished_name.push(DnType::CommonName, format!("leasehold test {name}"));
    let certificate = params.self_signed(&key).expect(PARAMS_VALID).pem();
    let identity = write(dir, name, certificate, &key);
    (identity, Issuer::new(params, key))
}

fn leaf(
    dir: &Path,
    name: &str,
    hosts: &[&str],
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Identity {
    let key = KeyPair::generate().expect("a key can be made");
    let hosts: Vec<String> = hosts.iter().copied().map(str::to_owned).collect();
    let mut params = CertificateParams::new(hosts).expect(PARAMS_VALID);
    params.distinguished_name.push(DnType::CommonName, format!("leasehold test {name}"));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    let certificate = params.signed_by(&key, issuer).expect(PARAMS_VALID).pem();
    write(dir, name, certificate, &key)
}

fn write(dir: &Path, name: &str, certificate: String, key: &KeyPair) -> Identity {
    let key = key.serialize_pem();
    let certificate_path = dir.join(format!("{name}.pem"));
    let key_path = dir.join(format!("{name}.key"));
    fs::write(&certificate_path, &certificate).expect("the temporary folder is writable");
    fs::write(&key_path, &key).expect("the temporary folder is writable");
    Identity { certificate, certificate_path, key, key_path }
}
