//! Signatures without keys that last: a certificate that says whose a key is (Fulcio), valid for some minutes, and a
//! log that says when it was used (Rekor). Both are checked offline.

use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_oci::Digest;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use serde::{Deserialize, Serialize};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::{ObjectIdentifier, Utf8StringRef};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{
    BasicConstraints, ExtendedKeyUsage, KeyUsage as KeyUsageBits, SubjectAltName,
};
use x509_cert::time::Time;

use crate::key::{ALGORITHMS, PublicKey};
use crate::strict::{Object, object};
use crate::{Signature, Signer};

/// `id-kp-codeSigning` (RFC 5280, 4.2.1.12), as DER has it.
const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];

/// Extensions of Fulcio's certificates with who says whose a key is: the text as it is, and later in DER
/// (<https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md>).
const ISSUER: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57264.1.1");
const ISSUER_V2: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57264.1.8");

/// What an authority may be limited to, and `anyExtendedKeyUsage`, which is no limit.
const CODE_SIGNING_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.3");
const ANY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");

/// Most certificates of a chain, and most authorities.
const LONGEST_CHAIN: usize = 8;
const MOST_ROOTS: usize = 64;

/// Accepts signatures by a certificate that one of these authorities issued for this address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fulcio {
    roots: Vec<Root>,
    issuer: String,
    email: String,
}

/// An authority's own certificate, whose limits webpki does not apply.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Root {
    der: CertificateDer<'static>,
    /// Seconds since 1970 between which it is valid.
    valid: RangeInclusive<u64>,
    /// Most authorities between it and a certificate.
    longest: Option<u8>,
    /// What it vouches for, if that is limited.
    usages: Option<Vec<ObjectIdentifier>>,
}

/// A log of signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rekor {
    keys: Vec<PublicKey>,
}

impl Fulcio {
    /// Takes the certificates of authorities in PEM.
    pub(crate) fn new(pem: &[u8], issuer: String, email: String) -> Result<Self, String> {
        let roots = certificates(pem, MOST_ROOTS);
        let roots = roots.map_err(|problem| format!("fulcio's authority {problem}"))?;
        let roots = roots.into_iter().map(Root::new).collect::<Result<_, _>>();
        let roots = roots.map_err(|problem| format!("fulcio's authority {problem}"))?;
        Ok(Self {
            roots,
            issuer,
            email,
        })
    }

    /// Without an authority, for fuzz targets.
    pub(crate) fn of(issuer: &str, email: &str) -> Self {
        Self {
            roots: Vec::new(),
            issuer: issuer.to_owned(),
            email: email.to_owned(),
        }
    }

    /// Returns who signed, if it is who may have.
    pub(crate) fn signer(
        &self,
        rekor: &Rekor,
        signature: &Signature,
        bytes: &[u8],
    ) -> Result<Signer, String> {
        let pem = signature.certificate.as_deref();
        let pem = pem.ok_or("it has no certificate")?;
        let certificates_of = |pem: &str, what| {
            let found = certificates(pem.as_bytes(), LONGEST_CHAIN);
            found.map_err(|problem| format!("its {what} {problem}"))
        };
        let all = certificates_of(pem, "certificate")?;
        let [certificate] = &*all else {
            return Err("it has several certificates".to_owned());
        };
        let chain = match signature.chain.as_deref() {
            Some(pem) if !pem.is_empty() => certificates_of(pem, "chain")?,
            _ => Vec::new(),
        };
        let time = rekor.time_of(signature, bytes, certificate)?;
        self.holder(certificate, &chain, time, &signature.payload, bytes)
    }

    /// Returns the holder of a certificate, if that is who may have signed a message, and if they have with `signature` at
    /// this time.
    pub(crate) fn holder(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        time: UnixTime,
        message: &[u8],
        signature: &[u8],
    ) -> Result<Signer, String> {
        self.check_chain(certificate, chain, time)?;
        self.check_identity(certificate)?;
        let entity = entity(certificate)?;
        let is_signed = ALGORITHMS.iter().any(|algorithm| {
            let verified = entity.verify_signature(*algorithm, message, signature);
            verified.is_ok()
        });
        if !is_signed {
            return Err("it is not by the key of its certificate".to_owned());
        }
        Ok(Signer::Identity {
            email: self.email.clone(),
            issuer: self.issuer.clone(),
        })
    }

    /// Checks that an authority vouched for the key when it was used.
    fn check_chain(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        time: UnixTime,
    ) -> Result<(), String> {
        let roots = self.roots.iter().filter(|root| root.vouches(time));
        let roots: Vec<&Root> = roots.collect();
        let anchors = roots.iter().map(|root| anchor_from_trusted_cert(&root.der));
        let anchors: Result<Vec<_>, _> = anchors.collect();
        let anchors = anchors.map_err(|error| error.to_string())?;
        let may_sign = |certificate: &CertificateDer<'_>| {
            Certificate::from_der(certificate).is_ok_and(|parsed| may_sign_certificates(&parsed))
        };
        if !chain.iter().all(may_sign) {
            return Err("its chain has a certificate that is no authority's".to_owned());
        }
        let entity = entity(certificate)?;
        let verified = entity.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            chain,
            time,
            KeyUsage::required(CODE_SIGNING),
            None,
            None,
        );
        let problem = match verified {
            Ok(path) => {
                let between = path.intermediate_certificates().count();
                let is_its = |(_, anchor): &(&&Root, &TrustAnchor<'_>)| *anchor == path.anchor();
                match roots.iter().zip(&anchors).find(is_its) {
                    Some((root, _)) if root.may_be_above(between) => return Ok(()),
                    _ => "there are more authorities between them than it allows".to_owned(),
                }
            }
            Err(error) => why(&error),
        };
        Err(format!(
            "its certificate is not by the policy's authority: {problem}"
        ))
    }

    /// Checks whose key it is, and who says so.
    pub(crate) fn check_identity(&self, certificate: &CertificateDer<'_>) -> Result<(), String> {
        let certificate = Certificate::from_der(certificate)
            .map_err(|error| format!("its certificate can't be read: {error}"))?;
        let issuer = issuer(&certificate)?;
        if issuer != self.issuer {
            let issuer = micabox_oci::printable(&issuer);
            return Err(format!("its certificate's issuer is `{issuer}`"));
        }
        let names = certificate.tbs_certificate.get::<SubjectAltName>();
        let names = names.map_err(|error| format!("its certificate's names: {error}"))?;
        let names = names.map(|(_, names)| names.0).unwrap_or_default();
        let is_theirs = |name: &GeneralName| match name {
            GeneralName::Rfc822Name(email) => email.as_str() == self.email,
            _ => false,
        };
        if !names.iter().any(is_theirs) {
            return Err(format!("its certificate is not of {}", self.email));
        }
        Ok(())
    }
}

impl Root {
    fn new(der: CertificateDer<'static>) -> Result<Self, String> {
        let unusable = |error: &dyn std::fmt::Display| format!("is no certificate: {error}");
        anchor_from_trusted_cert(&der).map_err(|error| unusable(&error))?;
        let parsed = Certificate::from_der(&der).map_err(|error| unusable(&error))?;
        let fields = &parsed.tbs_certificate;
        let is_ca = fields.get::<BasicConstraints>();
        let is_ca = is_ca.ok().flatten().map(|(_, constraints)| constraints);
        let Some(constraints) = is_ca.filter(|constraints| constraints.ca) else {
            return Err("is the certificate of no authority".to_owned());
        };
        if !may_sign_certificates(&parsed) {
            return Err("may sign no certificates".to_owned());
        }
        let usages = fields.get::<ExtendedKeyUsage>();
        let usages = usages.map_err(|error| unusable(&error))?;
        let seconds = |time: &Time| time.to_unix_duration().as_secs();
        let valid = seconds(&fields.validity.not_before)..=seconds(&fields.validity.not_after);
        Ok(Self {
            longest: constraints.path_len_constraint,
            usages: usages.map(|(_, usages)| usages.0),
            valid,
            der,
        })
    }

    /// Returns whether it may vouch at `time` for who signs code.
    fn vouches(&self, time: UnixTime) -> bool {
        let is_usage = |usage: &ObjectIdentifier| [CODE_SIGNING_ID, ANY_USAGE].contains(usage);
        let usages = self.usages.as_deref();
        self.valid.contains(&time.as_secs())
            && usages.is_none_or(|usages| usages.iter().any(is_usage))
    }

    /// Returns whether so many authorities may be between it and a certificate.
    fn may_be_above(&self, between: usize) -> bool {
        self.longest
            .is_none_or(|longest| between <= usize::from(longest))
    }
}

/// Returns whether a certificate's key may sign certificates: whether it says nothing else.
fn may_sign_certificates(certificate: &Certificate) -> bool {
    match certificate.tbs_certificate.get::<KeyUsageBits>() {
        Ok(Some((_, usage))) => usage.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Says why a certificate is not an authority's.
fn why(error: &webpki::Error) -> String {
    use webpki::Error;
    match error {
        Error::UnknownIssuer => "none of its authorities has issued it",
        Error::CertExpired { .. } => "it had expired when it was used",
        Error::CertNotValidYet { .. } => "it was not valid yet when it was used",
        Error::RequiredEkuNotFoundContext(_) => "it is not for signing code",
        other => return other.to_string(),
    }
    .to_owned()
}

fn entity<'a>(certificate: &'a CertificateDer<'_>) -> Result<EndEntityCert<'a>, String> {
    EndEntityCert::try_from(certificate)
        .map_err(|error| format!("its certificate can't be used: {error}"))
}

/// Returns who says whose a certificate's key is.
fn issuer(certificate: &Certificate) -> Result<String, String> {
    let extensions = certificate.tbs_certificate.extensions.as_deref();
    let values = |id| {
        let extensions = extensions.unwrap_or_default().iter();
        extensions
            .filter(move |extension| extension.extn_id == id)
            .map(|extension| extension.extn_value.as_bytes())
    };
    let plain = values(ISSUER).map(|text| str::from_utf8(text).map(str::to_owned).ok());
    let encoded = values(ISSUER_V2).map(|der| {
        let text = Utf8StringRef::from_der(der).ok()?;
        Some(text.as_str().to_owned())
    });
    let mut all: Vec<_> = plain.chain(encoded).collect();
    all.dedup();
    match all.pop() {
        Some(Some(issuer)) if all.is_empty() => Ok(issuer),
        Some(_) => Err("its certificate names its issuer in two ways, or wrongly".to_owned()),
        None => Err("its certificate names no issuer".to_owned()),
    }
}

/// Returns the certificates in a text, of which there is at least one.
fn certificates(pem: &[u8], most: usize) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).take(most + 1).collect();
    match all {
        Ok(all) if all.is_empty() => Err("has no CERTIFICATE in PEM".to_owned()),
        Ok(all) if all.len() > most => Err(format!("has over {most} certificates")),
        Ok(all) if all.len() != sections(pem) => Err("has more than certificates".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("is not PEM: {error}")),
    }
}

/// Returns how many sections a text in PEM has.
fn sections(pem: &[u8]) -> usize {
    const BEGIN: &[u8] = b"-----BEGIN";
    pem.windows(BEGIN.len())
        .filter(|part| *part == BEGIN)
        .count()
}

/// What cosign keeps of the log's answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Bundle {
    signed_entry_timestamp: String,
    #[serde(deserialize_with = "object")]
    payload: Entry,
}

/// What the log has signed. Serialized it is the canonical JSON (RFC 8785) over which it has: names sorted, no blanks.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) body: String,
    #[serde(rename = "integratedTime")]
    pub(crate) integrated_time: u64,
    #[serde(rename = "logID")]
    pub(crate) log_id: String,
    #[serde(rename = "logIndex")]
    pub(crate) log_index: u64,
}

/// The kind of entry that a signature has (`hashedrekord` 0.0.1).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    api_version: String,
    kind: String,
    #[serde(deserialize_with = "object")]
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(deserialize_with = "object")]
    data: Data,
    #[serde(deserialize_with = "object")]
    signature: Noted,
}

#[derive(Deserialize)]
struct Data {
    #[serde(deserialize_with = "object")]
    hash: Hash,
}

#[derive(Deserialize)]
pub(crate) struct Hash {
    algorithm: String,
    value: String,
}

impl Hash {
    /// Returns whether it is the SHA-256 of these bytes.
    pub(crate) fn is_of(&self, bytes: &[u8]) -> bool {
        let digest = Digest::of(bytes).hex();
        self.algorithm == "sha256" && self.value.eq_ignore_ascii_case(&digest)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Noted {
    content: String,
    #[serde(deserialize_with = "object")]
    public_key: Noter,
}

#[derive(Deserialize)]
struct Noter {
    content: String,
}

impl Rekor {
    /// Takes a log's keys, which are of ECDSA.
    pub(crate) fn new(keys: Vec<PublicKey>) -> Result<Self, String> {
        match keys.iter().find(|key| !key.is_ecdsa()) {
            Some(key) => Err(format!("{} is no log's key: it is not of ECDSA", key.name)),
            None => Ok(Self { keys }),
        }
    }

    /// Returns when the log noted a signature of its payload by a key, or by a certificate's, both in DER.
    pub(crate) fn time_of(
        &self,
        signature: &Signature,
        bytes: &[u8],
        key: &[u8],
    ) -> Result<UnixTime, String> {
        let bundle = signature.bundle.as_deref().ok_or("it is in no log")?;
        let Object(bundle): Object<Bundle> =
            serde_json::from_str(bundle).map_err(|error| unread(&error))?;
        let entry = bundle.payload;
        let time = self.time(&entry, &decode(&bundle.signed_entry_timestamp)?)?;
        check_body(&decode(&entry.body)?, signature, bytes, key)?;
        Ok(time)
    }

    /// Returns when an entry was noted, if the log has signed that.
    pub(crate) fn time(&self, entry: &Entry, timestamp: &[u8]) -> Result<UnixTime, String> {
        let signed = serde_json::to_vec(entry).map_err(|error| error.to_string())?;
        let mut keys = self.keys.iter();
        if !keys.any(|key| key.has_signed(&signed, timestamp)) {
            return Err("the log's note is not by the policy's log".to_owned());
        }
        let since = Duration::from_secs(entry.integrated_time);
        Ok(UnixTime::since_unix_epoch(since))
    }
}

pub(crate) fn unread(error: &serde_json::Error) -> String {
    let problem = micabox_oci::printable(&error.to_string());
    format!("the log's note can't be read: {problem}")
}

pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    let decoded = BASE64_STANDARD.decode(text);
    decoded.map_err(|_| "the log's note is not base64".to_owned())
}

/// Checks that what the log has noted is a signature of its payload by a key or certificate, in DER.
pub(crate) fn check_body(
    body: &[u8],
    signature: &Signature,
    bytes: &[u8],
    key: &[u8],
) -> Result<(), String> {
    let Object(body): Object<Body> =
        serde_json::from_slice(body).map_err(|error| unread(&error))?;
    if (&*body.kind, &*body.api_version) != ("hashedrekord", "0.0.1") {
        return Err("the log's note is of another kind".to_owned());
    }
    let Spec {
        data,
        signature: noted,
    } = body.spec;
    let is_same = data.hash.is_of(&signature.payload)
        && decode(&noted.content)? == bytes
        && is_key(&decode(&noted.public_key.content)?, key);
    if is_same {
        Ok(())
    } else {
        Err("the log's note is about another signature".to_owned())
    }
}

/// Returns whether a text is nothing but one key or certificate in PEM, and the same as one in DER.
pub(crate) fn is_key(pem: &[u8], der: &[u8]) -> bool {
    const END: &[u8] = b"-----END";
    let pem = pem.trim_ascii();
    let begins = pem.starts_with(b"-----BEGIN") && sections(pem) == 1;
    let end = pem.windows(END.len()).position(|part| part == END);
    let is_all = end.is_some_and(|end| !pem.get(end..).unwrap_or_default().contains(&b'\n'));
    if !begins || !is_all {
        return false;
    }
    let is_certificate = CertificateDer::from_pem_slice(pem).is_ok_and(|found| *found == *der);
    is_certificate || SubjectPublicKeyInfoDer::from_pem_slice(pem).is_ok_and(|found| *found == *der)
}
