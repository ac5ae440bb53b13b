//! Which name in a signature stands for an image.

use std::fmt;

use micabox_oci::{Digest, Reference};
use serde::Deserialize;

/// How the name that was signed has to relate to the image's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub(crate) enum SignedIdentity {
    /// It is the same, tag or digest included.
    #[serde(rename = "matchExact")]
    Exact {},
    /// It is the same; of an image that is named by its digest, any in the same repository.
    #[serde(rename = "matchRepoDigestOrExact")]
    RepositoryOfDigestOrExact {},
    /// It is in the same repository.
    #[serde(rename = "matchRepository")]
    Repository {},
    /// It is this one.
    #[serde(rename = "exactReference", rename_all = "camelCase")]
    ExactReference { docker_reference: SignedName },
    /// It is in this repository.
    #[serde(rename = "exactRepository", rename_all = "camelCase")]
    ExactRepository { docker_repository: SignedName },
    /// It is the same as by default, once what the image's name begins with is replaced.
    #[serde(rename = "remapIdentity", rename_all = "camelCase")]
    Remap {
        prefix: String,
        signed_prefix: String,
    },
}

/// A name with what Docker adds to it, but without a tag where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct SignedName {
    /// Registry and repository.
    name: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Default for SignedIdentity {
    fn default() -> Self {
        Self::RepositoryOfDigestOrExact {}
    }
}

impl fmt::Display for SignedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl TryFrom<String> for SignedName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let reference: Reference = text.parse().map_err(|error| format!("{error}"))?;
        let mut name = Self::of(&reference);
        let (_, last) = text.rsplit_once('/').unwrap_or(("", &text));
        if !last.contains([':', '@']) {
            name.tag = None;
        }
        Ok(name)
    }
}

impl SignedName {
    fn of(reference: &Reference) -> Self {
        Self {
            name: format!("{}/{}", reference.registry(), reference.repository()),
            tag: reference.tag().map(str::to_owned),
            digest: reference.digest().copied(),
        }
    }

    fn is_repository(&self) -> bool {
        self.tag.is_none() && self.digest.is_none()
    }

    /// Returns whether `signed` is this name; of one with a digest and no tag, whether it is in the same repository.
    fn is_or_has(&self, signed: &Self) -> bool {
        if signed.is_repository() {
            false
        } else if self.digest.is_some() && self.tag.is_none() {
            signed.name == self.name
        } else {
            signed == self
        }
    }
}

impl SignedIdentity {
    /// Returns whether the name `signed` stands for an image.
    pub(crate) fn allows(&self, image: &Reference, signed: &SignedName) -> bool {
        let image = SignedName::of(image);
        match self {
            Self::Exact {} => !signed.is_repository() && *signed == image,
            Self::RepositoryOfDigestOrExact {} => image.is_or_has(signed),
            Self::Repository {} => signed.name == image.name,
            Self::ExactReference { docker_reference } => {
                !signed.is_repository() && signed == docker_reference
            }
            Self::ExactRepository { docker_repository } => signed.name == docker_repository.name,
            Self::Remap {
                prefix,
                signed_prefix,
            } => match image.name.strip_prefix(&**prefix) {
                Some(rest) if rest.is_empty() || rest.starts_with('/') => SignedName {
                    name: format!("{signed_prefix}{rest}"),
                    ..image
                }
                .is_or_has(signed),
                _ => image.is_or_has(signed),
            },
        }
    }

    /// Returns what is wrong with it, as it stands in a policy.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::ExactReference { docker_reference } if docker_reference.is_repository() => {
                Some("exactReference has neither tag nor digest".to_owned())
            }
            Self::ExactRepository { docker_repository } if !docker_repository.is_repository() => {
                Some("exactRepository has a tag or digest".to_owned())
            }
            Self::Remap {
                prefix,
                signed_prefix,
            } => [prefix, signed_prefix]
                .into_iter()
                .find(|prefix| !is_prefix(prefix))
                .map(|prefix| format!("remapIdentity: `{prefix}` is no host and no repository")),
            _ => None,
        }
    }
}

/// Returns whether a text is a registry's host, or that and the beginning of a repository.
fn is_prefix(text: &str) -> bool {
    let name = if text.contains('/') {
        text.to_owned()
    } else {
        // Docker Hub's images have two parts.
        format!("{text}/x/y")
    };
    SignedName::try_from(name.clone())
        .is_ok_and(|parsed| parsed.is_repository() && parsed.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(identity: &str, image: &str, signed: &str) -> bool {
        let identity: SignedIdentity = serde_json::from_str(identity).unwrap();
        assert_eq!(identity.problem(), None);
        identity.allows(
            &image.parse().unwrap(),
            &SignedName::try_from(signed.to_owned()).unwrap(),
        )
    }

    #[test]
    fn names_match_as_the_policy_says() {
        let digest = format!("r.example/a/b@sha256:{}", "1".repeat(64));
        let exact = r#"{"type": "matchExact"}"#;
        let default = r#"{"type": "matchRepoDigestOrExact"}"#;
        let repository = r#"{"type": "matchRepository"}"#;
        for (identity, image, signed, expected) in [
            (exact, "busybox", "docker.io/library/busybox:latest", true),
            (exact, "busybox", "busybox", false),
            (exact, "r.example/a/b:1", "r.example/a/b:2", false),
            (exact, &digest, "r.example/a/b:1", false),
            (exact, &digest, &digest, true),
            (default, "r.example/a/b:1", "r.example/a/b:1", true),
            (default, "r.example/a/b:1", "r.example/a/b:2", false),
            (default, "r.example/a/b:1", "r.example/a/b", false),
            (default, &digest, "r.example/a/b:7", true),
            (default, &digest, "r.example/a/b", false),
            (default, &digest, "r.example/a/c:7", false),
            (repository, "r.example/a/b:1", "r.example/a/b", true),
            (repository, "r.example/a/b:1", "r.example/a:1", false),
        ] {
            assert_eq!(
                allows(identity, image, signed),
                expected,
                "{identity} {image} {signed}"
            );
        }
        let exact = r#"{"type": "exactReference", "dockerReference": "r.example/x:1"}"#;
        assert!(allows(exact, "other:2", "r.example/x:1"));
        assert!(!allows(exact, "r.example/x:1", "r.example/x:2"));
        let within = r#"{"type": "exactRepository", "dockerRepository": "r.example/x"}"#;
        assert!(allows(within, "other:2", "r.example/x:9"));
        let remap = r#"{"type": "remapIdentity", "prefix": "mirror.example/hub", "signedPrefix": "docker.io"}"#;
        assert!(allows(remap, "mirror.example/hub/library/x:1", "x:1"));
        assert!(!allows(remap, "mirror.example/hubs/library/x:1", "x:1"));
        assert!(allows(remap, "r.example/x:1", "r.example/x:1"));
    }

    #[test]
    fn identities_that_mean_nothing_are_refused() {
        for (identity, part) in [
            (
                r#"{"type": "exactReference", "dockerReference": "r.example/x"}"#,
                "neither tag",
            ),
            (
                r#"{"type": "exactRepository", "dockerRepository": "r.example/x:1"}"#,
                "has a tag",
            ),
            (
                r#"{"type": "remapIdentity", "prefix": "a b", "signedPrefix": "docker.io"}"#,
                "`a b`",
            ),
            (
                r#"{"type": "remapIdentity", "prefix": "r.example", "signedPrefix": "x/y:1"}"#,
                "`x/y:1`",
            ),
        ] {
            let identity: SignedIdentity = serde_json::from_str(identity).unwrap();
            let problem = identity.problem().unwrap();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
