//! Public keys of version 4, and whether they have signed something (RFC 9580, sections 5.5.2 and 5.2.4).

use std::fmt;

use ring::digest::{self, Context};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519,
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

use super::packet::Fields;
use super::signature::{Signature, hex};

/// Algorithms of keys (RFC 9580, section 9.1).
const RSA: u8 = 1;
const RSA_SIGN_ONLY: u8 = 3;
const ECDSA: u8 = 19;
const EDDSA_LEGACY: u8 = 22;
const ED25519_KEY: u8 = 27;

/// Algorithms of digests (RFC 9580, section 9.5).
const SHA1: u8 = 2;
const SHA256: u8 = 8;
const SHA384: u8 = 9;
const SHA512: u8 = 10;

/// Curves (RFC 9580, section 9.2), as they are written in keys.
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[0x2b, 0x81, 4, 0, 0x22];
const ED25519_LEGACY: &[u8] = &[0x2b, 6, 1, 4, 1, 0xda, 0x47, 0x0f, 1];

/// Bytes of an RSA modulus.
const SMALLEST_RSA: usize = 256;
const LARGEST_RSA: usize = 1024;

/// A public key or subkey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The packet's body.
    body: Vec<u8>,
    /// Seconds since 1970.
    pub(super) created: u64,
    algorithm: u8,
    material: Material,
    pub(super) fingerprint: [u8; 20],
}

/// The numbers of a key that can check signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    /// Modulus and exponent.
    Rsa(Vec<u8>, Vec<u8>),
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519([u8; 32]),
    /// What it is instead.
    Unsupported(String),
}

/// What a signature is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// About a document, which a stranger may have chosen.
    Document,
    /// Of a key, about itself and its subkeys: the policy has it in a file of its own.
    Binding,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.fingerprint))
    }
}

impl Key {
    /// Parses a packet's body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Fields::new(body);
        if fields.u8()? != 4 {
            return Err("it has a key of another version than 4");
        }
        let length = u16::try_from(body.len()).map_err(|_| "it has a key that is too long")?;
        let (created, algorithm) = (fields.u32()?.into(), fields.u8()?);
        let material = Material::parse(algorithm, fields)?;
        let mut hashed = Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        hashed.update(&[0x99]);
        hashed.update(&length.to_be_bytes());
        hashed.update(body);
        let mut fingerprint = [0; 20];
        fingerprint.copy_from_slice(hashed.finish().as_ref());
        Ok(Self {
            body: body.to_vec(),
            created,
            algorithm,
            material,
            fingerprint,
        })
    }

    /// Returns what signatures about the key hash of it.
    pub(super) fn hashed(&self) -> Vec<u8> {
        // Its length was checked.
        let length = u16::try_from(self.body.len()).unwrap_or_default();
        [&[0x99], &length.to_be_bytes()[..], &self.body].concat()
    }

    /// Returns whether keys of its algorithm sign, where no flag says.
    pub(super) fn can_sign(&self) -> bool {
        !matches!(self.material, Material::Unsupported(_))
    }

    /// Checks that its signatures can be checked.
    pub(super) fn check_supported(&self) -> Result<(), String> {
        match &self.material {
            Material::Unsupported(what) => Err(format!(
                "the key {self} is of {what}, which is not supported"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that its owner has signed `signed`.
    pub(super) fn check(
        &self,
        signature: &Signature,
        signed: &[u8],
        purpose: Use,
    ) -> Result<(), String> {
        self.check_supported()?;
        let is_rsa = |algorithm| matches!(algorithm, RSA | RSA_SIGN_ONLY);
        let is_same = self.algorithm == signature.algorithm
            || is_rsa(self.algorithm) && is_rsa(signature.algorithm);
        if !is_same {
            return Err(format!("it is of another algorithm than the key {self}"));
        }
        if !matches!(signature.hash, SHA256 | SHA384 | SHA512)
            && (signature.hash != SHA1 || purpose == Use::Document)
        {
            let hash = name_of_hash(signature.hash);
            return Err(format!(
                "it is over a digest of {hash}, which is too weak or unknown"
            ));
        }
        let message = [signed, &signature.trailer()].concat();
        let Some(is_good) = self.verify(signature, &message) else {
            let hash = name_of_hash(signature.hash);
            return Err(format!(
                "it is over a digest of {hash}, not the one of the key {self}"
            ));
        };
        if is_good {
            Ok(())
        } else {
            Err(format!("the key {self} has signed something else"))
        }
    }

    /// Returns whether the signature is the key's; none if the key does not sign such digests.
    fn verify(&self, signature: &Signature, message: &[u8]) -> Option<bool> {
        let mut values = Fields::new(&signature.values);
        let hash = signature.hash;
        Some(match &self.material {
            Material::Rsa(modulus, exponent) => {
                let parameters = match hash {
                    SHA1 => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
                    SHA256 => &RSA_PKCS1_2048_8192_SHA256,
                    SHA384 => &RSA_PKCS1_2048_8192_SHA384,
                    SHA512 => &RSA_PKCS1_2048_8192_SHA512,
                    _ => return None,
                };
                let (n, e) = (modulus, exponent);
                let key = RsaPublicKeyComponents { n, e };
                let padded = values.number().ok().and_then(|s| padded(s, n.len()));
                let verified = padded.filter(|_| values.is_empty());
                verified.is_some_and(|bytes| key.verify(parameters, message, &bytes).is_ok())
            }
            Material::P256(point) if hash == SHA256 => {
                has_signed(&ECDSA_P256_SHA256_FIXED, point, message, two(values, 32))
            }
            Material::P384(point) if hash == SHA384 => {
                has_signed(&ECDSA_P384_SHA384_FIXED, point, message, two(values, 48))
            }
            Material::Ed25519(key) => {
                let bytes = if self.algorithm == EDDSA_LEGACY {
                    two(values, 32)
                } else {
                    Some(signature.values.clone())
                };
                let algorithm = match hash {
                    SHA1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
                    SHA256 => &digest::SHA256,
                    SHA384 => &digest::SHA384,
                    SHA512 => &digest::SHA512,
                    _ => return None,
                };
                let digest = digest::digest(algorithm, message);
                has_signed(&ED25519, key, digest.as_ref(), bytes)
            }
            Material::P256(_) | Material::P384(_) | Material::Unsupported(_) => return None,
        })
    }
}

fn has_signed(
    algorithm: &'static dyn VerificationAlgorithm,
    key: &[u8],
    message: &[u8],
    signature: Option<Vec<u8>>,
) -> bool {
    let key = UnparsedPublicKey::new(algorithm, key);
    signature.is_some_and(|signature| key.verify(message, &signature).is_ok())
}

/// Returns two numbers of `length` bytes each, one after the other, if there is nothing else.
fn two(mut values: Fields<'_>, length: usize) -> Option<Vec<u8>> {
    let (first, second) = (values.number().ok()?, values.number().ok()?);
    let both = [padded(first, length)?, padded(second, length)?].concat();
    values.is_empty().then_some(both)
}

/// Returns a number with zeros in front, `length` bytes in all.
fn padded(number: &[u8], length: usize) -> Option<Vec<u8>> {
    let zeros = length.checked_sub(number.len())?;
    Some([&vec![0; zeros], number].concat())
}

impl Material {
    fn parse(algorithm: u8, mut fields: Fields<'_>) -> Result<Self, &'static str> {
        let unsupported = |what: &str| Ok(Self::Unsupported(what.to_owned()));
        let material = match algorithm {
            RSA | RSA_SIGN_ONLY => {
                let (modulus, exponent) = (fields.number()?, fields.number()?);
                if !(SMALLEST_RSA..=LARGEST_RSA).contains(&modulus.len()) {
                    return Ok(Self::Unsupported(format!(
                        "RSA of {} bits",
                        modulus.len() * 8
                    )));
                }
                Self::Rsa(modulus.to_vec(), exponent.to_vec())
            }
            ECDSA | EDDSA_LEGACY => {
                let length = fields.u8()?;
                let curve = fields.take(usize::from(length))?;
                let point = fields.number()?;
                match (algorithm, curve, point) {
                    // Points that are not compressed.
                    (ECDSA, P256, [4, ..]) => Self::P256(point.to_vec()),
                    (ECDSA, P384, [4, ..]) => Self::P384(point.to_vec()),
                    (EDDSA_LEGACY, ED25519_LEGACY, [0x40, key @ ..]) => {
                        let key = key
                            .try_into()
                            .map_err(|_| "it has a key that is too short")?;
                        Self::Ed25519(key)
                    }
                    _ => return unsupported("another curve than P-256, P-384 and Ed25519"),
                }
            }
            ED25519_KEY => Self::Ed25519(fields.array()?),
            2 => return unsupported("RSA that only encrypts"),
            16 => return unsupported("Elgamal"),
            17 => return unsupported("DSA"),
            18 | 25 | 26 => return unsupported("a kind that only encrypts"),
            other => return unsupported(&format!("the algorithm {other}")),
        };
        if fields.is_empty() {
            Ok(material)
        } else {
            Err("it has more behind a key's numbers")
        }
    }
}

fn name_of_hash(hash: u8) -> String {
    match hash {
        1 => "MD5".to_owned(),
        SHA1 => "SHA-1".to_owned(),
        3 => "RIPEMD-160".to_owned(),
        SHA256 => "SHA-256".to_owned(),
        SHA384 => "SHA-384".to_owned(),
        SHA512 => "SHA-512".to_owned(),
        11 => "SHA-224".to_owned(),
        other => format!("kind {other}"),
    }
}
