//! Sigstore's [bundles]: a signature with what it is checked with. In those that cosign 3 attaches to images an [envelope]
//! has a statement of in-toto's about digests. It names no image, so that there is no name to compare.
//!
//! [bundles]: https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_bundle.proto
//! [envelope]: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_ground::hex;
use micabox_oci::{Digest, printable};
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::keyless::{Entry, Hash, Rekor, decode, is_key, unread};
use crate::policy::{By, Sigstore};
use crate::strict::{Object, Once, object, some_object};
use crate::verify::Problem;
use crate::{Signer, Subject};

/// Type of a bundle, of its manifest as an artifact and of the layer that it is.
pub const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// Type of a statement in an envelope.
const IN_TOTO: &str = "application/vnd.in-toto+json";
/// What a statement is.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// What `cosign sign` states: others are about how an image was made, or what is in it.
const SIGNED: &str = "https://sigstore.dev/cosign/sign/v1";

/// Most notes of logs in a bundle that are looked at.
const MOST_NOTES: usize = 8;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    media_type: String,
    #[serde(deserialize_with = "object")]
    verification_material: Material,
    #[serde(default, deserialize_with = "some_object")]
    dsse_envelope: Option<Envelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Material {
    #[serde(default, deserialize_with = "some_object")]
    certificate: Option<Certificate>,
    #[serde(default)]
    tlog_entries: Vec<Object<Note>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Certificate {
    raw_bytes: String,
}

/// What a log says of the signature.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    #[serde(default, deserialize_with = "whole")]
    log_index: u64,
    #[serde(deserialize_with = "object")]
    log_id: LogId,
    #[serde(default, deserialize_with = "whole")]
    integrated_time: u64,
    #[serde(default, deserialize_with = "some_object")]
    inclusion_promise: Option<Promise>,
    canonicalized_body: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogId {
    key_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Promise {
    signed_entry_timestamp: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Object<EnvelopeSignature>>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

/// The kind of entry that an envelope has (`dsse` 0.0.1).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    api_version: String,
    kind: String,
    #[serde(deserialize_with = "object")]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(deserialize_with = "object")]
    payload_hash: Hash,
    signatures: Vec<Object<Noted>>,
}

#[derive(Deserialize)]
struct Noted {
    signature: String,
    verifier: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    predicate_type: String,
    subject: Vec<Object<About>>,
}

#[derive(Deserialize)]
struct About {
    digest: Once<String>,
}

/// A bundle, none of which is trusted.
pub(crate) struct Bundle {
    /// The statement.
    statement: Vec<u8>,
    /// What is signed: the statement with its type.
    message: Vec<u8>,
    signature: Vec<u8>,
    certificate: Option<CertificateDer<'static>>,
    notes: Vec<Note>,
}

/// Reads a number of 64 bits, which is text where protocol buffers are written as JSON.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    number.ok_or_else(|| serde::de::Error::custom("a number is no whole one"))
}

impl Bundle {
    /// Parses a bundle with a statement.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let document: Result<Object<Document>, _> = serde_json::from_slice(bytes);
        let Object(document) = document.map_err(|error| {
            let problem = printable(&error.to_string());
            format!("its bundle can't be read: {problem}")
        })?;
        if document.media_type != BUNDLE_TYPE {
            let kind = printable(&document.media_type);
            return Err(format!("its bundle is of the kind `{kind}`"));
        }
        let in_base64 = |text: &str| {
            let decoded = BASE64_STANDARD.decode(text);
            decoded.map_err(|_| "its bundle is not base64".to_owned())
        };
        let envelope = document.dsse_envelope;
        let envelope = envelope.ok_or("its bundle has no statement about an image")?;
        if envelope.payload_type != IN_TOTO {
            return Err("its bundle has something else than a statement".to_owned());
        }
        let [Object(signature)] = &*envelope.signatures else {
            return Err("its bundle has not one signature".to_owned());
        };
        let statement = in_base64(&envelope.payload)?;
        let certificate = document.verification_material.certificate;
        let certificate = certificate.map(|found| in_base64(&found.raw_bytes));
        let notes = document.verification_material.tlog_entries.into_iter();
        Ok(Self {
            message: message(&statement),
            statement,
            signature: in_base64(&signature.sig)?,
            certificate: certificate.transpose()?.map(CertificateDer::from),
            notes: notes.take(MOST_NOTES).map(|Object(note)| note).collect(),
        })
    }

    /// Returns when one of the policy's logs noted the signature by a key, or by a certificate's, both in DER.
    fn time(&self, rekor: &Rekor, key: &[u8]) -> Result<UnixTime, String> {
        let mut problem = "it is in no log".to_owned();
        for note in &self.notes {
            match self.noted(rekor, note, key) {
                Ok(time) => return Ok(time),
                Err(found) => problem = found,
            }
        }
        Err(problem)
    }

    fn noted(&self, rekor: &Rekor, note: &Note, key: &[u8]) -> Result<UnixTime, String> {
        let promise = note.inclusion_promise.as_ref();
        let promise = promise.ok_or("the log's note has no signed time (Rekor 2 has none)")?;
        let entry = Entry {
            body: note.canonicalized_body.clone(),
            integrated_time: note.integrated_time,
            log_id: hex(decode(&note.log_id.key_id)?),
            log_index: note.log_index,
        };
        let time = rekor.time(&entry, &decode(&promise.signed_entry_timestamp)?)?;
        self.check_body(&decode(&note.canonicalized_body)?, key)?;
        Ok(time)
    }

    /// Checks that what the log has noted is this signature by a key or certificate, in DER.
    pub(crate) fn check_body(&self, body: &[u8], key: &[u8]) -> Result<(), String> {
        let Object(body): Object<Body> =
            serde_json::from_slice(body).map_err(|error| unread(&error))?;
        if (&*body.kind, &*body.api_version) != ("dsse", "0.0.1") {
            return Err("the log's note is of another kind".to_owned());
        }
        let is_same = match &*body.spec.signatures {
            [Object(noted)] => {
                body.spec.payload_hash.is_of(&self.statement)
                    && decode(&noted.signature)? == self.signature
                    && is_key(&decode(&noted.verifier)?, key)
            }
            _ => false,
        };
        if is_same {
            Ok(())
        } else {
            Err("the log's note is about another signature".to_owned())
        }
    }

    /// Checks that the statement is that one of these manifests was signed.
    pub(crate) fn check_statement(&self, manifests: &[Digest]) -> Result<(), Problem> {
        let none = |problem: String| Problem::at(2, format!("what is signed is {problem}"));
        let statement: Result<Object<Statement>, _> = serde_json::from_slice(&self.statement);
        let Object(statement) = statement.map_err(|error| {
            let problem = printable(&error.to_string());
            none(format!("no statement about an image: {problem}"))
        })?;
        let kinds = [&*statement.kind, &*statement.predicate_type];
        if kinds != [STATEMENT, SIGNED] {
            let kind = printable(&statement.predicate_type);
            return Err(none(format!("a statement of the kind `{kind}`")));
        }
        let is_one = |Object(about): &Object<About>| {
            let digest = about.digest.0.get("sha256");
            digest.is_some_and(|digest| manifests.iter().any(|one| one.hex() == *digest))
        };
        if statement.subject.iter().any(is_one) {
            return Ok(());
        }
        Err(Problem::at(3, "it is about another image"))
    }
}

/// Returns what is signed of a statement: its type and itself, each behind its length.
fn message(statement: &[u8]) -> Vec<u8> {
    let (kind, length) = (IN_TOTO.len(), statement.len());
    let mut message = format!("DSSEv1 {kind} {IN_TOTO} {length} ").into_bytes();
    message.extend(statement);
    message
}

impl Sigstore {
    /// Returns who signed the subject with the signature in a bundle.
    pub(crate) fn check_bundle(
        &self,
        subject: Subject<'_>,
        bundle: &[u8],
    ) -> Result<Signer, Problem> {
        let at = |step| move |text: String| Problem::at(step, text);
        let bundle = Bundle::parse(bundle).map_err(at(0))?;
        let signer = match &self.by {
            By::Keys(keys, rekor) => {
                let mut keys = keys.iter();
                let key = keys.find(|key| key.has_signed(&bundle.message, &bundle.signature));
                let key = key.ok_or_else(|| Problem::at(0, "it is not by the policy's key"))?;
                if let Some(rekor) = rekor {
                    bundle.time(rekor, key.der()).map_err(at(1))?;
                }
                Signer::Key(key.name.to_string())
            }
            By::Fulcio(fulcio, rekor) => {
                let certificate = bundle.certificate.as_ref();
                let certificate =
                    certificate.ok_or_else(|| Problem::at(1, "it has no certificate"))?;
                let time = bundle.time(rekor, certificate).map_err(at(1))?;
                let signer =
                    fulcio.holder(certificate, &[], time, &bundle.message, &bundle.signature);
                signer.map_err(at(1))?
            }
        };
        bundle.check_statement(subject.manifests)?;
        Ok(signer)
    }
}
