//! Public keys.

use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;
use x509_cert::der::asn1::UintRef;
use x509_cert::der::{Decode, Reader, SliceReader};
use x509_cert::spki::SubjectPublicKeyInfoRef;

/// What sigstore's tools sign with; all over SHA-256, but for Ed25519.
pub(crate) const ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 4] = [
    webpki::ring::ECDSA_P256_SHA256,
    webpki::ring::ECDSA_P384_SHA256,
    webpki::ring::ED25519,
    webpki::ring::RSA_PKCS1_2048_8192_SHA256,
];

/// How many of them, the first ones, are of ECDSA.
const ECDSA: usize = 2;

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicKey {
    /// Where it came from.
    pub(crate) name: Arc<str>,
    /// Its `SubjectPublicKeyInfo`, in DER.
    info: SubjectPublicKeyInfoDer<'static>,
    /// Its algorithm, by its place.
    algorithm: usize,
}

impl PublicKey {
    /// Parses a key in PEM (`PUBLIC KEY`).
    pub(crate) fn parse(pem: &[u8], name: &str) -> Result<Self, String> {
        let info = SubjectPublicKeyInfoDer::from_pem_slice(pem)
            .map_err(|_| format!("{name} has no PUBLIC KEY in PEM"))?;
        let parsed = SubjectPublicKeyInfoRef::from_der(&info);
        let parsed = parsed.map_err(|error| format!("{name} is no public key: {error}"))?;
        let entity = RawPublicKeyEntity::try_from(&info);
        let entity = entity.map_err(|_| format!("{name} is no public key"))?;
        // The signature is none, but its algorithm would be the key's.
        let is_its = |algorithm: &&dyn SignatureVerificationAlgorithm| {
            !matches!(
                entity.verify_signature(*algorithm, b"", b""),
                Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_))
            )
        };
        let algorithm = ALGORITHMS.iter().position(is_its);
        let bytes = parsed.subject_public_key.raw_bytes();
        let algorithm = algorithm.filter(|algorithm| has_size(*algorithm, bytes));
        let algorithm = algorithm.ok_or_else(|| {
            format!("{name} is no key of ECDSA (P-256, P-384), Ed25519 or RSA (2048 to 8192 bits)")
        })?;
        Ok(Self {
            name: name.into(),
            info,
            algorithm,
        })
    }

    /// Returns the key in DER.
    pub(crate) fn der(&self) -> &[u8] {
        &self.info
    }

    pub(crate) fn is_ecdsa(&self) -> bool {
        self.algorithm < ECDSA
    }

    /// Returns whether its owner has signed the message.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let entity = RawPublicKeyEntity::try_from(&self.info);
        let algorithm = ALGORITHMS.get(self.algorithm);
        entity
            .ok()
            .zip(algorithm)
            .is_some_and(|(entity, algorithm)| {
                let verified = entity.verify_signature(*algorithm, message, signature);
                verified.is_ok()
            })
    }
}

/// Returns whether a key is as long as its algorithm wants it.
fn has_size(algorithm: usize, key: &[u8]) -> bool {
    match (algorithm, key) {
        // Points that are not compressed.
        (0, [4, rest @ ..]) => rest.len() == 64,
        (1, [4, rest @ ..]) => rest.len() == 96,
        (2, key) => key.len() == 32,
        (3, key) => modulus(key).is_ok_and(|bytes| (256..=1024).contains(&bytes)),
        _ => false,
    }
}

/// Returns the bytes of an RSA key's modulus (RFC 8017, A.1.1).
fn modulus(key: &[u8]) -> x509_cert::der::Result<usize> {
    SliceReader::new(key)?.sequence(|fields| {
        let modulus = UintRef::decode(fields)?;
        UintRef::decode(fields)?;
        Ok(modulus.as_bytes().len())
    })
}
