//! For fuzz targets: what comes behind a good signature.

use rustls_pki_types::CertificateDer;

use crate::Signature;
use crate::keyless::{Fulcio, check_body};
use crate::payload::Payload;

/// Parses a statement. Returns the digest and the name in it.
pub fn payload(bytes: &[u8]) -> Option<(String, String)> {
    let payload = Payload::parse(bytes).ok()?;
    Some((payload.manifest.to_string(), payload.name.to_string()))
}

/// Returns whether a certificate, in DER, is `email`'s by the word of `issuer`.
pub fn is_of(certificate: &[u8], email: &str, issuer: &str) -> bool {
    let fulcio = Fulcio::of(issuer, email);
    fulcio
        .check_identity(&CertificateDer::from(certificate))
        .is_ok()
}

/// Returns whether a log's entry is about a signature of `payload`, by a key in DER.
pub fn is_about(body: &[u8], payload: &[u8], signature: &[u8], key: &[u8]) -> bool {
    let of = Signature {
        payload: payload.to_vec(),
        signature: String::new(),
        certificate: None,
        chain: None,
        bundle: None,
    };
    check_body(body, &of, signature, key).is_ok()
}
