//! For fuzz targets: what comes behind a good signature.

use micabox_oci::Digest;
use rustls_pki_types::CertificateDer;

use crate::Signature;
use crate::bundle::Bundle;
use crate::keyless::{Fulcio, check_body};
use crate::openpgp::{Certificate, Message};
use crate::payload::{COSIGN, Payload};

/// Parses a statement. Returns the digest and the name in it.
pub fn payload(bytes: &[u8]) -> Option<(String, String)> {
    let payload = Payload::parse(bytes, COSIGN).ok()?;
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

/// Returns whether a bundle states that a manifest was signed, by any key.
pub fn states(bundle: &[u8], manifest: &Digest) -> bool {
    let bundle = Bundle::parse(bundle);
    bundle.is_ok_and(|bundle| bundle.check_statement(&[*manifest]).is_ok())
}

/// Returns whether a log's entry is about the signature in a bundle, by a key in DER.
pub fn is_about_bundle(body: &[u8], bundle: &[u8], key: &[u8]) -> bool {
    let bundle = Bundle::parse(bundle);
    bundle.is_ok_and(|bundle| bundle.check_body(body, key).is_ok())
}

/// Parses a file of OpenPGP keys and a message. Returns the document in it, if one of the keys has signed that.
pub fn signed_document(keys: &[u8], message: &[u8]) -> Option<Vec<u8>> {
    let keys = Certificate::parse_all(keys).ok()?;
    let message = Message::parse(message).ok()?;
    // None of what expires is good still.
    let is_by = |key: &Certificate| {
        let signer = key.signer(&message, u64::MAX);
        signer.is_some_and(|signed| signed.is_ok())
    };
    keys.iter().any(is_by).then_some(message.document)
}
