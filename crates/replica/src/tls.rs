//! TLS: this server's certificate, and those of clients.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// How connections are encrypted.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    knows_clients: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("knows_clients", &self.knows_clients)
            .finish_non_exhaustive()
    }
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or has something else.
    #[error("cannot use {}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Certificate and key don't belong together, or are of a kind that isn't supported.
    #[error("certificate and key can't be used together: {0}")]
    Pair(#[source] rustls::Error),
}

impl Tls {
    /// Reads a chain of certificates, the server's first, and its key, from PEM files. With `client_ca` a client needs
    /// a certificate of one of these authorities.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn from_files(
        certificates: &Path,
        key: &Path,
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = read(certificates)?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                wrong(key, &"it has no private key in PEM that is not encrypted")
            }
            error => wrong(key, &error),
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Pair)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in read(path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| wrong(path, &error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| wrong(path, &error))?,
                )
            }
        };
        let mut config = builder
            .with_single_cert(chain, secret)
            .map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            knows_clients: client_ca.is_some(),
        })
    }

    /// Returns whether clients need certificates.
    #[must_use]
    pub fn knows_clients(&self) -> bool {
        self.knows_clients
    }
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(path, &error))?;
    if certificates.is_empty() {
        return Err(wrong(path, &"it has no certificate in PEM"));
    }
    Ok(certificates)
}

fn wrong(path: &Path, problem: &dyn fmt::Display) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}
