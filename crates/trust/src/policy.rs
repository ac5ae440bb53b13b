//! What a policy asks of an image: the requirements of the most specific scope that has it.
//!
//! The format is that of [containers-policy.json(5)][man].
//!
//! [man]: https://github.com/containers/image/blob/main/docs/containers-policy.json.5.md

use std::collections::BTreeMap;
use std::path::Path;

use micabox_oci::Reference;

use crate::PolicyError;
use crate::file::{PolicyFile, read_within};
use crate::identity::SignedIdentity;
use crate::key::PublicKey;
use crate::keyless::{Fulcio, Rekor};
use crate::openpgp::Certificate;

/// Largest policy, in bytes.
const LARGEST: u64 = 1 << 20;

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Whether signatures in bundles count.
    pub(crate) takes_bundles: bool,
    pub(crate) default: Vec<Requirement>,
    /// Requirements by transport and scope.
    pub(crate) transports: BTreeMap<String, BTreeMap<String, Vec<Requirement>>>,
}

/// Something that an image has to have. All requirements of a scope have to be met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// Nothing.
    AcceptAnything,
    /// What no image has.
    Reject,
    /// A sigstore signature.
    Sigstore(Box<Sigstore>),
    /// A signature of OpenPGP ("simple signing").
    OpenPgp(Box<SignedBy>),
    /// What this program can't check, so that no image has it.
    Unsupported(&'static str),
}

/// What a sigstore signature has to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sigstore {
    pub(crate) by: By,
    pub(crate) identity: SignedIdentity,
}

/// What a signature of OpenPGP has to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedBy {
    /// By one of these keys or of their subkeys.
    pub(crate) keys: Vec<Certificate>,
    pub(crate) identity: SignedIdentity,
}

/// Whose signature it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum By {
    /// The owner's of one of these keys; noted in a log, if there is one.
    Keys(Vec<PublicKey>, Option<Rekor>),
    /// The holder of a short-lived certificate; the log has the time of the signature.
    Fulcio(Fulcio, Rekor),
}

/// Where an image comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// A registry.
    Registry(&'a Reference),
    /// A file or directory of this machine, as the transport (`oci`, `oci-archive`, `docker-archive`) has it.
    Path(&'static str, &'a Path),
}

impl Policy {
    /// Reads a policy and the keys that it names.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let text = read_within(path, LARGEST).map_err(|source| PolicyError::Read {
            path: path.to_owned(),
            source,
        })?;
        let too_long = || PolicyError::Invalid(format!("it has over {LARGEST} bytes"));
        text.ok_or_else(too_long)
            .and_then(|text| Self::parse(&text))
            .map_err(|error| error.of(path))
    }

    /// Parses a policy, and reads the keys that it names.
    ///
    /// # Errors
    /// [`PolicyError::Invalid`]: it is not JSON, has a field that is unknown, missing or there twice, or names a key
    /// that can't be read.
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        PolicyFile::parse(text)?.policy()
    }

    /// Sets whether sigstore's bundles count as signatures. By default they don't: they are about a digest and not about a
    /// name, so that whatever a policy says of names (`signedIdentity`) can't be compared.
    #[must_use]
    pub fn with_bundles(self, takes_bundles: bool) -> Self {
        Self {
            takes_bundles,
            ..self
        }
    }

    /// Returns the requirements for what comes from `scope`, and the name of the scope of the policy that has them.
    pub(crate) fn requirements(&self, scope: Scope<'_>) -> (String, &[Requirement]) {
        let transport = scope.transport();
        if let Some(scopes) = self.transports.get(transport) {
            let names = scope.names().into_iter().chain([String::new()]);
            for name in names {
                if let Some(requirements) = scopes.get(&name) {
                    let name = match &*name {
                        "" => transport.to_owned(),
                        name => format!("{transport} {name}"),
                    };
                    return (name, requirements);
                }
            }
        }
        ("default".to_owned(), &self.default)
    }
}

impl Scope<'_> {
    fn transport(self) -> &'static str {
        match self {
            Self::Registry(_) => "docker",
            Self::Path(transport, _) => transport,
        }
    }

    /// Returns the scopes that have it, the most specific one first.
    fn names(self) -> Vec<String> {
        match self {
            Self::Registry(reference) => registry_names(reference),
            // It has none but that of all.
            Self::Path("docker-archive", _) => Vec::new(),
            Self::Path(_, path) => {
                let parents = path.ancestors().filter(|path| path.parent().is_some());
                parents
                    .map(|path| path.to_string_lossy().into_owned())
                    .collect()
            }
        }
    }
}

/// Returns the image itself, its repository, what that is in, its host, and the domains that its host is in.
pub(crate) fn registry_names(reference: &Reference) -> Vec<String> {
    let mut name = format!("{}/{}", reference.registry(), reference.repository());
    let by_digest = reference.digest().map(|digest| format!("{name}@{digest}"));
    let by_tag = reference.tag().map(|tag| format!("{name}:{tag}"));
    let mut names: Vec<String> = by_digest.into_iter().chain(by_tag).collect();
    names.push(name.clone());
    while let Some((parent, _)) = name.rsplit_once('/') {
        name.truncate(parent.len());
        names.push(name.clone());
    }
    let mut domain = reference.registry();
    if let Some((host, _)) = domain.split_once(':') {
        domain = host;
    }
    while let Some((_, parent)) = domain.split_once('.') {
        names.push(format!("*.{parent}"));
        domain = parent;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(reference: &str) -> Vec<String> {
        registry_names(&reference.parse().unwrap())
    }

    #[test]
    fn scopes_go_from_the_image_to_the_domains_of_its_host() {
        assert_eq!(
            names("busybox"),
            [
                "docker.io/library/busybox:latest",
                "docker.io/library/busybox",
                "docker.io/library",
                "docker.io",
                "*.io",
            ]
        );
        let digest = format!("sha256:{}", "0".repeat(64));
        assert_eq!(
            names(&format!("a.b.example:5000/x@{digest}")),
            [
                format!("a.b.example:5000/x@{digest}").as_str(),
                "a.b.example:5000/x",
                "a.b.example:5000",
                "*.b.example",
                "*.example",
            ]
        );
    }

    #[test]
    fn the_most_specific_scope_counts() {
        let policy = Policy::parse(
            br#"{"default": [{"type": "reject"}], "transports": {
                "docker": {
                    "": [{"type": "insecureAcceptAnything"}],
                    "docker.io/library": [{"type": "reject"}],
                    "docker.io/library/busybox:latest": [{"type": "insecureAcceptAnything"}],
                    "*.example": [{"type": "reject"}]},
                "oci": {"/images": [{"type": "insecureAcceptAnything"}]}}}"#,
        )
        .unwrap();
        let scope = |reference: &str| {
            let reference = reference.parse().unwrap();
            policy.requirements(Scope::Registry(&reference)).0
        };
        assert_eq!(scope("busybox"), "docker docker.io/library/busybox:latest");
        assert_eq!(scope("busybox:1"), "docker docker.io/library");
        assert_eq!(scope("someone/image"), "docker");
        assert_eq!(scope("r.example:443/x/y"), "docker *.example");
        let path = |transport, path| {
            let scope = Scope::Path(transport, Path::new(path));
            policy.requirements(scope).0
        };
        assert_eq!(path("oci", "/images/a/b"), "oci /images");
        assert_eq!(path("oci", "/other"), "default");
        assert_eq!(path("docker-archive", "/images/a"), "default");
    }
}
