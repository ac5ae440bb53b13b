//! Whether a policy lets an image be used, and who signed it.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_oci::{Digest, Reference};

use crate::key::PublicKey;
use crate::payload::Payload;
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
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(name) => write!(f, "key {name}"),
            Self::Identity { email, issuer } => write!(f, "{email} ({issuer})"),
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
    /// Returns whether signatures of an image from `scope` matter.
    #[must_use]
    pub fn needs_signatures(&self, scope: Scope<'_>) -> bool {
        let (_, requirements) = self.requirements(scope);
        let needs = |requirement: &Requirement| matches!(requirement, Requirement::Sigstore(_));
        requirements.iter().any(needs)
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
        signatures: &[Signature],
    ) -> Result<Vec<Signer>, Refused> {
        let (scope, requirements) = self.requirements(scope);
        let mut signers = Vec::new();
        for requirement in requirements {
            let refusal = match requirement {
                Requirement::AcceptAnything => continue,
                Requirement::Reject => Refusal::Rejected,
                Requirement::Unsupported(what) => Refusal::Unsupported(what),
                Requirement::Sigstore(wanted) => match wanted.signer(subject, signatures) {
                    Ok(signer) => {
                        if !signers.contains(&signer) {
                            signers.push(signer);
                        }
                        continue;
                    }
                    Err(refusal) => refusal,
                },
            };
            return Err(Refused { scope, refusal });
        }
        Ok(signers)
    }
}

/// What is wrong with a signature. The later it is found, the nearer the signature came.
struct Problem {
    step: u8,
    text: String,
}

impl Sigstore {
    /// Returns who made the first signature that is as it has to be.
    fn signer(&self, subject: Subject<'_>, signatures: &[Signature]) -> Result<Signer, Refusal> {
        let mut nearest: Option<Problem> = None;
        for signature in signatures {
            match self.check(subject, signature) {
                Ok(signer) => return Ok(signer),
                Err(problem) => {
                    if nearest
                        .as_ref()
                        .is_none_or(|nearest| nearest.step < problem.step)
                    {
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
        let payload = Payload::parse(&signature.payload).map_err(at(2))?;
        if !subject.manifests.contains(&payload.manifest) {
            let text = format!("it is about another image, {}", payload.manifest);
            return Err(at(3)(text));
        }
        let is_allowed = subject
            .reference
            .is_some_and(|reference| self.identity.allows(reference, &payload.name));
        if !is_allowed {
            return Err(at(4)(format!("it is about the name {}", payload.name)));
        }
        Ok(signer)
    }
}
