//! Public keys.

use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;

/// What sigstore's tools sign with; all over SHA-256, but for Ed25519.
pub(crate) const ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 4] = [
    webpki::ring::ECDSA_P256_SHA256,
    webpki::ring::ECDSA_P384_SHA256,
    webpki::ring::ED25519,
    webpki::ring::RSA_PKCS1_2048_8192_SHA256,
];

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicKey {
    /// Where it came from.
    pub(crate) name: Arc<str>,
    /// Its `SubjectPublicKeyInfo`, in DER.
    info: SubjectPublicKeyInfoDer<'static>,
}

impl PublicKey {
    /// Parses a key in PEM (`PUBLIC KEY`).
    pub(crate) fn parse(pem: &[u8], name: &str) -> Result<Self, String> {
        let info = SubjectPublicKeyInfoDer::from_pem_slice(pem)
            .map_err(|_| format!("{name} has no PUBLIC KEY in PEM"))?;
        let key = Self {
            name: name.into(),
            info,
        };
        // The signature is none, but its algorithm would be the key's.
        let is_known = ALGORITHMS.iter().any(|algorithm| {
            !matches!(
                key.verify(*algorithm, b"", b""),
                Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_))
            )
        });
        if !is_known {
            return Err(format!(
                "{name} is no key of ECDSA (P-256, P-384), Ed25519 or RSA (2048 to 8192 bits)"
            ));
        }
        Ok(key)
    }

    /// Returns the key in DER.
    pub(crate) fn der(&self) -> &[u8] {
        &self.info
    }

    /// Returns whether its owner has signed the message.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = |algorithm: &&dyn SignatureVerificationAlgorithm| {
            self.verify(*algorithm, message, signature).is_ok()
        };
        ALGORITHMS.iter().any(verified)
    }

    fn verify(
        &self,
        algorithm: &dyn SignatureVerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), webpki::Error> {
        RawPublicKeyEntity::try_from(&self.info)?.verify_signature(algorithm, message, signature)
    }
}
