//! The policy's file: JSON in which nothing is unknown, missing or there twice.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use crate::identity::SignedIdentity;
use crate::key::PublicKey;
use crate::keyless::{Fulcio, Rekor};
use crate::openpgp::Certificate;
use crate::policy::{By, Policy, Requirement, SignedBy, Sigstore};
use crate::strict::{Object, Once, object, some, some_object};

/// Largest file of keys or certificates, in bytes.
const LARGEST: u64 = 1 << 20;

/// Why a policy can't be used. No image may be used then.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file can't be read.
    #[error("cannot read the policy {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is no policy.
    #[error("the policy is wrong: {0}")]
    Invalid(String),
    /// The file is no policy.
    #[error("the policy {} is wrong: {problem}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl PolicyError {
    pub(crate) fn of(self, path: &Path) -> Self {
        match self {
            Self::Invalid(problem) => Self::InvalidFile {
                path: path.to_owned(),
                problem,
            },
            other => other,
        }
    }
}

fn invalid(problem: impl fmt::Display) -> PolicyError {
    PolicyError::Invalid(problem.to_string())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFile {
    default: Vec<Object<RequirementFile>>,
    #[serde(default)]
    transports: Once<Once<Vec<Object<RequirementFile>>>>,
}

/// A requirement as it is written down.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum RequirementFile {
    #[serde(rename = "insecureAcceptAnything")]
    AcceptAnything {},
    #[serde(rename = "reject")]
    Reject {},
    #[serde(rename = "signedBy")]
    SignedBy(Box<SignedByFile>),
    #[serde(rename = "signedBaseLayer", rename_all = "camelCase")]
    SignedBaseLayer {
        #[serde(rename = "baseLayerIdentity")]
        _base_layer_identity: serde_json::Value,
    },
    #[serde(rename = "sigstoreSigned")]
    SigstoreSigned(Box<SigstoreFile>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SignedByFile {
    key_type: KeyType,
    #[serde(default, deserialize_with = "some")]
    key_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "some")]
    key_paths: Option<Vec<PathBuf>>,
    #[serde(default, deserialize_with = "some")]
    key_data: Option<String>,
    #[serde(default, deserialize_with = "object")]
    signed_identity: SignedIdentity,
}

/// What the keys of `signedBy` are. The library of skopeo and podman knows only the first as well.
#[derive(Debug, Deserialize)]
enum KeyType {
    #[serde(rename = "GPGKeys")]
    Gpg,
    #[serde(
        rename = "signedByGPGKeys",
        alias = "X509Certificates",
        alias = "signedByX509CAs"
    )]
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SigstoreFile {
    #[serde(default, deserialize_with = "some")]
    key_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "some")]
    key_paths: Option<Vec<PathBuf>>,
    #[serde(default, deserialize_with = "some")]
    key_data: Option<String>,
    #[serde(default, deserialize_with = "some")]
    key_datas: Option<Vec<String>>,
    #[serde(default, deserialize_with = "some_object")]
    fulcio: Option<FulcioFile>,
    #[serde(default, deserialize_with = "some")]
    pki: Option<Once<serde_json::Value>>,
    #[serde(default, deserialize_with = "some")]
    rekor_public_key_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "some")]
    rekor_public_key_paths: Option<Vec<PathBuf>>,
    #[serde(default, deserialize_with = "some")]
    rekor_public_key_data: Option<String>,
    #[serde(default, deserialize_with = "some")]
    rekor_public_key_datas: Option<Vec<String>>,
    #[serde(default, deserialize_with = "object")]
    signed_identity: SignedIdentity,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FulcioFile {
    #[serde(default, deserialize_with = "some")]
    ca_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "some")]
    ca_data: Option<String>,
    oidc_issuer: String,
    subject_email: String,
}

impl PolicyFile {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        let parsed: Result<Object<Self>, _> = serde_json::from_slice(text);
        parsed.map(|Object(file)| file).map_err(invalid)
    }

    pub(crate) fn policy(self) -> Result<Policy, PolicyError> {
        let default = requirements(self.default, "default")?;
        let mut transports = BTreeMap::new();
        for (transport, scopes) in self.transports.0 {
            let mut all = BTreeMap::new();
            for (scope, list) in scopes.0 {
                check_scope(&transport, &scope)?;
                let found = requirements(list, &format!("{transport} `{scope}`"))?;
                all.insert(scope, found);
            }
            transports.insert(transport, all);
        }
        Ok(Policy {
            takes_bundles: false,
            default,
            transports,
        })
    }
}

/// Checks that a scope is one that something can be in.
fn check_scope(transport: &str, scope: &str) -> Result<(), PolicyError> {
    let is_scope = match transport {
        _ if scope.is_empty() => true,
        "docker-archive" => false,
        "oci" | "oci-archive" | "dir" => {
            let is_part = |part: &str| !matches!(part, "" | "." | "..");
            let parts = scope.strip_prefix('/');
            parts.is_some_and(|parts| parts.split('/').all(is_part))
        }
        _ => true,
    };
    if is_scope {
        return Ok(());
    }
    Err(invalid(format!(
        "nothing of {transport} is in the scope `{scope}`"
    )))
}

fn requirements(
    list: Vec<Object<RequirementFile>>,
    scope: &str,
) -> Result<Vec<Requirement>, PolicyError> {
    if list.is_empty() {
        return Err(invalid(format!("{scope} has no requirements")));
    }
    let requirement = |Object(requirement): Object<RequirementFile>| match requirement {
        RequirementFile::AcceptAnything {} => Ok(Requirement::AcceptAnything),
        RequirementFile::Reject {} => Ok(Requirement::Reject),
        RequirementFile::SignedBy(file) => file
            .requirement()
            .map_err(|problem| invalid(format!("{scope}: signedBy: {problem}"))),
        RequirementFile::SignedBaseLayer { .. } => Ok(Requirement::Unsupported("signedBaseLayer")),
        RequirementFile::SigstoreSigned(file) => file
            .requirement()
            .map_err(|problem| invalid(format!("{scope}: sigstoreSigned: {problem}"))),
    };
    list.into_iter().map(requirement).collect()
}

impl SignedByFile {
    fn requirement(self) -> Result<Requirement, String> {
        if let Some(problem) = self.signed_identity.problem() {
            return Err(problem);
        }
        let sources = Sources {
            names: &["keyPath", "keyPaths", "keyData"],
            path: self.key_path,
            paths: self.key_paths,
            data: self.key_data,
            datas: None,
        };
        if let KeyType::Other = self.key_type {
            return Ok(Requirement::Unsupported(
                "signedBy of another keyType than GPGKeys",
            ));
        }
        let files = sources.read()?;
        let files = files.ok_or("it needs one of keyPath, keyPaths, keyData")?;
        let mut keys = Vec::new();
        for (name, file) in &files {
            let unusable = |problem| format!("{name} is no file of OpenPGP keys: {problem}");
            let found = Certificate::parse_all(file).map_err(unusable)?;
            if found.is_empty() {
                return Err(format!("{name} has no public key of OpenPGP"));
            }
            keys.extend(found);
        }
        Ok(Requirement::OpenPgp(Box::new(SignedBy {
            keys,
            identity: self.signed_identity,
        })))
    }
}

impl SigstoreFile {
    fn requirement(self) -> Result<Requirement, String> {
        if let Some(problem) = self.signed_identity.problem() {
            return Err(problem);
        }
        let keys = Sources {
            names: &["keyPath", "keyPaths", "keyData", "keyDatas"],
            path: self.key_path,
            paths: self.key_paths,
            data: self.key_data,
            datas: self.key_datas,
        };
        let rekor = Sources {
            names: &[
                "rekorPublicKeyPath",
                "rekorPublicKeyPaths",
                "rekorPublicKeyData",
                "rekorPublicKeyDatas",
            ],
            path: self.rekor_public_key_path,
            paths: self.rekor_public_key_paths,
            data: self.rekor_public_key_data,
            datas: self.rekor_public_key_datas,
        };
        let (keys, rekor) = (keys.keys()?, rekor.keys()?.map(Rekor::new).transpose()?);
        let by = match (keys, self.fulcio, self.pki) {
            (Some(keys), None, None) => By::Keys(keys, rekor),
            (None, Some(fulcio), None) => {
                let rekor = rekor.ok_or(
                    "fulcio needs a rekorPublicKey…: only the log shows when a certificate was used",
                )?;
                By::Fulcio(fulcio.read()?, rekor)
            }
            (None, None, Some(_)) => return Ok(Requirement::Unsupported("sigstoreSigned by pki")),
            _ => return Err("it needs one of keyPath, keyPaths, keyData, keyDatas, fulcio".into()),
        };
        Ok(Requirement::Sigstore(Box::new(Sigstore {
            by,
            identity: self.signed_identity,
        })))
    }
}

impl FulcioFile {
    fn read(self) -> Result<Fulcio, String> {
        let pem = match (self.ca_path, self.ca_data) {
            (Some(path), None) => read(&path)?,
            (None, Some(data)) => decode(&data, "caData")?,
            _ => return Err("fulcio needs either caPath or caData".into()),
        };
        if self.oidc_issuer.is_empty() || self.subject_email.is_empty() {
            return Err("fulcio needs an oidcIssuer and a subjectEmail".into());
        }
        Fulcio::new(&pem, self.oidc_issuer, self.subject_email)
    }
}

/// The contents of a file, with what errors call it.
type Named = (String, Vec<u8>);

/// The ways to give keys, of which one may be used.
struct Sources {
    /// Their names, in the order of the fields.
    names: &'static [&'static str],
    path: Option<PathBuf>,
    paths: Option<Vec<PathBuf>>,
    data: Option<String>,
    datas: Option<Vec<String>>,
}

impl Sources {
    fn keys(self) -> Result<Option<Vec<PublicKey>>, String> {
        let Some(files) = self.read()? else {
            return Ok(None);
        };
        let key = |(name, pem): &Named| PublicKey::parse(pem, name);
        files.iter().map(key).collect::<Result<_, _>>().map(Some)
    }

    /// Returns each file; none if no field is there.
    fn read(self) -> Result<Option<Vec<Named>>, String> {
        let named = |path: &PathBuf| Ok((path.display().to_string(), read(path)?));
        let name = |at: usize| self.names.get(at).copied().unwrap_or_default();
        let given = |at: usize, data: &String| {
            let name = name(at);
            Ok((name.to_owned(), decode(data, name)?))
        };
        let files: Result<Vec<_>, String> = match (self.path, self.paths, self.data, self.datas) {
            (None, None, None, None) => return Ok(None),
            (Some(path), None, None, None) => Ok(vec![named(&path)?]),
            (None, Some(paths), None, None) => {
                not_empty(&paths, name(1))?;
                paths.iter().map(named).collect()
            }
            (None, None, Some(data), None) => Ok(vec![given(2, &data)?]),
            (None, None, None, Some(datas)) => {
                not_empty(&datas, name(3))?;
                datas.iter().map(|data| given(3, data)).collect()
            }
            _ => return Err(format!("it may have one of {}", self.names.join(", "))),
        };
        files.map(Some)
    }
}

fn not_empty<T>(list: &[T], name: &str) -> Result<(), String> {
    match list {
        [] => Err(format!("{name} is empty")),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    if !path.is_absolute() {
        return Err(format!("{} is not an absolute path", path.display()));
    }
    match read_within(path, LARGEST) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(format!("{} has over {LARGEST} bytes", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Reads a file; none if it has more than `most` bytes.
pub(crate) fn read_within(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

fn decode(data: &str, name: &str) -> Result<Vec<u8>, String> {
    let decoded = BASE64_STANDARD.decode(data);
    decoded.map_err(|error| format!("{name} is not base64: {error}"))
}
