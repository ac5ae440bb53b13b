//! Whether a policy lets an image be used, and who signed it.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_oci::{Digest, Reference};

use crate::identity::SignedIdentity;
use crate::key::PublicKey;
use crate::payload::{COSIGN, Payload};
use crate::policy::{By, Requirement, Sigstore};
use crate::{Policy, Scope, Signature};

/// An image whose use is to be decided.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its name; none of one that has no name yet, which no signature is about.
    pub reference: Option<&'a Reference>,
    /// Digests of its manifest, and of the index that has its name.
    pub manifests: &'a [Digest],
}

/// The signatures of an image, none of which is trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signatures {
    /// Those that are attached to it in its registry.
    pub attached: Vec<Signature>,
    /// Bundles that refer to it there, each as its blob has it.
    pub bundles: Vec<Vec<u8>>,
    /// Those beside its registry, each as its file has it.
    pub lookaside: Vec<Vec<u8>>,
}

/// Which signatures of an image matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Those that are attached to it.
    pub attached: bool,
    /// Bundles that refer to it.
    pub bundles: bool,
    /// Those beside its registry.
    pub lookaside: bool,
}

/// Who signed an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signer {
    /// The owner of a key that the policy names.
    Key(String),
    /// Who had a certificate.
    Identity {
        /// Their address.
        email: String,
        /// Who says that it is theirs.
        issuer: String,
    },
    /// The owner of an OpenPGP key.
    OpenPgp {
        /// The primary key's fingerprint, in hexadecimal digits.
        fingerprint: String,
        /// Their name and address, as the key has it.
        user: String,
    },
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(name) => write!(f, "key {name}"),
            Self::Identity { email, issuer } => write!(f, "{email} ({issuer})"),
            Self::OpenPgp { fingerprint, user } => write!(f, "OpenPGP key {fingerprint} ({user})"),
        }
    }
}

/// An image that the policy does not let be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy's scope `{scope}` {refusal}")]
pub struct Refused {
    /// The scope of the policy that decides.
    pub scope: String,
    /// Why.
    pub refusal: Refusal,
}

/// Why an image may not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing from there may.
    #[error("rejects it")]
    Rejected,
    /// The policy asks for what can't be checked.
    #[error("asks for {0}, which mica does not support")]
    Unsupported(&'static str),
    /// It has no signature.
    #[error("asks for a signature, and it has none")]
    NoSignature,
    /// It has signatures, none of which is as the policy wants it.
    #[error("asks for a signature, and none of its {count} will do: {problem}")]
    NoGoodSignature {
        /// Number of signatures.
        count: usize,
        /// What is wrong with the one that came nearest, or the first of these.
        problem: String,
    },
}

impl Policy {
    /// Returns which signatures of an image from `scope` matter.
    #[must_use]
    pub fn needs(&self, scope: Scope<'_>) -> Needs {
        let (_, requirements) = self.requirements(scope);
        let needs = |is_kind: fn(&Requirement) -> bool| requirements.iter().any(is_kind);
        let attached = needs(|requirement| matches!(requirement, Requirement::Sigstore(_)));
        Needs {
            attached,
            bundles: attached && self.takes_bundles,
            lookaside: needs(|requirement| matches!(requirement, Requirement::OpenPgp(_))),
        }
    }

    /// Decides whether an image from `scope` that has `signatures` may be used. Returns who signed it, as far as the
    /// policy asks.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check(
        &self,
        scope: Scope<'_>,
        subject: Subject<'_>,
        signatures: &Signatures,
    ) -> Result<Vec<Signer>, Refused> {
        let (scope, requirements) = self.requirements(scope);
        let mut signers = Vec::new();
        for requirement in requirements {
            let refusal = match requirement {
                Requirement::AcceptAnything => continue,
                Requirement::Reject => Refusal::Rejected,
                Requirement::Unsupported(what) => Refusal::Unsupported(what),
                Requirement::Sigstore(wanted) => {
                    let attached = signatures.attached.iter().map(Sigstores::Attached);
                    let bundles = signatures
                        .bundles
                        .iter()
                        .map(|bundle| Sigstores::Bundle(bundle));
                    let bundles = bundles.filter(|_| self.takes_bundles);
                    let all: Vec<_> = attached.chain(bundles).collect();
                    let check = |found: &Sigstores<'_>| match *found {
                        Sigstores::Attached(signature) => wanted.check(subject, signature),
                        Sigstores::Bundle(bundle) => wanted.check_bundle(subject, bundle),
                    };
                    match first_good(&all, check) {
                        Ok(signer) => {
                            add(&mut signers, signer);
                            continue;
                        }
                        Err(refusal) => refusal,
                    }
                }
                Requirement::OpenPgp(wanted) => {
                    let check = |file: &Vec<u8>| wanted.check(subject, file);
                    match first_good(&signatures.lookaside, check) {
                        Ok(signer) => {
                            add(&mut signers, signer);
                            continue;
                        }
                        Err(refusal) => refusal,
                    }
                }
            };
            return Err(Refused { scope, refusal });
        }
        Ok(signers)
    }
}

/// A signature of sigstore's, in either form.
enum Sigstores<'a> {
    Attached(&'a Signature),
    Bundle(&'a [u8]),
}

fn add(signers: &mut Vec<Signer>, signer: Signer) {
    if !signers.contains(&signer) {
        signers.push(signer);
    }
}

/// What is wrong with a signature. The later it is found, the nearer the signature came.
pub(crate) struct Problem {
    step: u8,
    text: String,
}

impl Problem {
    pub(crate) fn at(step: u8, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { step, text }
    }
}

/// Returns who made the first signature that is as it has to be.
fn first_good<T>(
    signatures: &[T],
    check: impl Fn(&T) -> Result<Signer, Problem>,
) -> Result<Signer, Refusal> {
    let mut nearest: Option<Problem> = None;
    for signature in signatures {
        match check(signature) {
            Ok(signer) => return Ok(signer),
            Err(problem) => {
                let is_nearer = |nearest: &Problem| nearest.step < problem.step;
                if nearest.as_ref().is_none_or(is_nearer) {
                    nearest = Some(problem);
                }
            }
        }
    }
    Err(match nearest {
        None => Refusal::NoSignature,
        Some(Problem { text: problem, .. }) => Refusal::NoGoodSignature {
            count: signatures.len(),
            problem,
        },
    })
}

/// Checks that a statement is about the image and about a name that stands for it.
pub(crate) fn check_payload(
    payload: &Payload,
    subject: Subject<'_>,
    identity: &SignedIdentity,
) -> Result<(), Problem> {
    if !subject.manifests.contains(&payload.manifest) {
        let text = format!("it is about another image, {}", payload.manifest);
        return Err(Problem::at(3, text));
    }
    let is_allowed = subject
        .reference
        .is_some_and(|reference| identity.allows(reference, &payload.name));
    if !is_allowed {
        return Err(Problem::at(
            4,
            format!("it is about the name {}", payload.name),
        ));
    }
    Ok(())
}

impl Sigstore {
    fn check(&self, subject: Subject<'_>, signature: &Signature) -> Result<Signer, Problem> {
        let at = |step| move |text: String| Problem { step, text };
        let bytes = BASE64_STANDARD.decode(&signature.signature);
        let bytes = bytes.map_err(|_| at(0)("it is not base64".to_owned()))?;
        let signer = match &self.by {
            By::Keys(keys, rekor) => {
                let has_signed = |key: &&PublicKey| key.has_signed(&signature.payload, &bytes);
                let Some(key) = keys.iter().find(has_signed) else {
                    return Err(at(0)("it is not by the policy's key".to_owned()));
                };
                if let Some(rekor) = rekor {
                    rekor.time_of(signature, &bytes, key.der()).map_err(at(1))?;
                }
                Signer::Key(key.name.to_string())
            }
            By::Fulcio(fulcio, rekor) => fulcio.signer(rekor, signature, &bytes).map_err(at(1))?,
        };
        let payload = Payload::parse(&signature.payload, COSIGN).map_err(at(2))?;
        check_payload(&payload, subject, &self.identity)?;
        Ok(signer)
    }
}
