//! Image references with Docker's defaults: `python:3.12-slim` means
//! `docker.io/library/python:3.12-slim`.
//!
//! The grammar is the one of the [distribution project][grammar]; the defaults (registry,
//! `library/`, `latest`) are those of `docker pull`.
//!
//! [grammar]: https://pkg.go.dev/github.com/distribution/reference

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Digest, ParseError, printable};

/// The registry of a reference that names none.
pub const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_TAG: &str = "latest";
/// The namespace that the default registry gives to images that belong to no user.
const DEFAULT_NAMESPACE: &str = "library";
/// An older name of the default registry, still seen in references and configuration.
const LEGACY_DEFAULT_REGISTRY: &str = "index.docker.io";

/// Repository of `sha256:…` when parsed as a name.
const DIGEST_LIKE: &str = "library/sha256";

/// Longest `registry/repository`, in bytes.
const MAX_NAME: usize = 255;
/// Longest tag, in bytes.
const MAX_TAG: usize = 128;

/// Why a string is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text, or the part before the tag or digest, is empty.
    #[error("`{0}` names no image: expected [REGISTRY/]REPOSITORY[:TAG][@DIGEST]")]
    Empty(String),
    /// Docker and OCI allow lower-case repositories only.
    #[error("`{0}` is not an image reference: a repository name is lower case")]
    UpperCase(String),
    /// The part before the first slash is not a host name.
    #[error(
        "`{reference}` is not an image reference: `{registry}` is not a registry's host[:port]"
    )]
    Registry {
        /// The text that was parsed.
        reference: String,
        /// The part that is wrong.
        registry: String,
    },
    /// A component between slashes is invalid.
    #[error(
        "`{reference}` is not an image reference: `{component}` in the repository is not letters \
         and digits joined by `.`, `_`, `__` or dashes"
    )]
    Repository {
        /// The text that was parsed.
        reference: String,
        /// The part that is wrong.
        component: String,
    },
    /// The tag is invalid.
    #[error(
        "`{reference}` is not an image reference: tag `{tag}` is not 1 to 128 letters, digits, \
         `_`, `.` or `-` with a letter, digit or `_` first"
    )]
    Tag {
        /// The text that was parsed.
        reference: String,
        /// The part that is wrong.
        tag: String,
    },
    /// The digest is invalid.
    #[error("`{reference}` is not an image reference: {source}")]
    Digest {
        /// The text that was parsed.
        reference: String,
        /// What is wrong with the digest.
        source: ParseError,
    },
    /// 64 hexadecimal digits are an image's digest, so they can't be a name.
    #[error("`{0}` is not an image reference: for an image by digest write REPOSITORY@sha256:{0}")]
    BareDigest(String),
    /// Docker Hub's `library/sha256` can't be told from a digest when the defaults are left out.
    #[error(
        "`{0}` looks like a digest, not a name: for an image by digest write \
         REPOSITORY@sha256:DIGEST"
    )]
    LooksLikeDigest(String),
    /// Longer than any registry accepts.
    #[error("`{0}` is not an image reference: registry and repository are over 255 bytes long")]
    TooLong(String),
}

/// Location of an image: a registry, a repository there, and a tag, a digest or both.
///
/// A value always has a tag or a digest; with both, the digest decides and the tag is only a name.
/// [`fmt::Display`] writes every part, [`Self::familiar`] leaves the defaults out as Docker does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Returns the host and, if given, the port: `docker.io`, `localhost:5000`, `[::1]:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the path within the registry: `library/python`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag; `latest` when the text had neither tag nor digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest of a manifest or an index.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns the shortest spelling with the same meaning: `python:3.12-slim`.
    pub fn familiar(&self) -> String {
        let whole = self.to_string();
        let Some(path) = whole
            .strip_prefix(DEFAULT_REGISTRY)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            return whole;
        };
        let short = path.strip_prefix("library/").unwrap_or(path);
        // A path may begin like a registry's name, and would then parse as that registry.
        let means_the_same = |text: &&str| text.parse().as_ref() == Ok(self);
        let found = [short, path].into_iter().find(means_the_same);
        found.unwrap_or(&whole).to_owned()
    }

    /// Returns the same repository with another digest and no tag.
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self {
            tag: None,
            digest: Some(digest),
            ..self.clone()
        }
    }

    fn suffix(&self) -> String {
        let mut suffix = String::new();
        if let Some(tag) = &self.tag {
            suffix = format!(":{tag}");
        }
        if let Some(digest) = &self.digest {
            suffix += &format!("@{digest}");
        }
        suffix
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.registry, self.repository, self.suffix())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let (rest, digest) = match text.split_once('@') {
            None => (text, None),
            Some((rest, digest)) => (
                rest,
                Some(digest.parse().map_err(|source| ReferenceError::Digest {
                    reference: printable(text),
                    source,
                })?),
            ),
        };
        if rest.is_empty() {
            return Err(ReferenceError::Empty(printable(text)));
        }
        if digest.is_none() && Digest::from_hex(rest).is_ok() {
            return Err(ReferenceError::BareDigest(printable(text)));
        }

        // A slash follows a port's colon somewhere, a tag's never.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if name.is_empty() {
            return Err(ReferenceError::Empty(printable(text)));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(ReferenceError::Tag {
                reference: printable(text),
                tag: printable(tag),
            });
        }

        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if names_registry(first) => (first, path),
            _ => (DEFAULT_REGISTRY, name),
        };
        if !is_registry(registry) {
            return Err(ReferenceError::Registry {
                reference: printable(text),
                registry: printable(registry),
            });
        }
        let registry = if registry == LEGACY_DEFAULT_REGISTRY {
            DEFAULT_REGISTRY
        } else {
            registry
        };
        if let Some(component) = path.split('/').find(|component| !is_component(component)) {
            if is_component(&component.to_lowercase()) {
                return Err(ReferenceError::UpperCase(printable(text)));
            }
            return Err(ReferenceError::Repository {
                reference: printable(text),
                component: printable(component),
            });
        }
        let repository = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("{DEFAULT_NAMESPACE}/{path}")
        } else {
            path.to_owned()
        };
        if registry == DEFAULT_REGISTRY && repository == DIGEST_LIKE {
            return Err(ReferenceError::LooksLikeDigest(printable(text)));
        }
        if registry.len() + 1 + repository.len() > MAX_NAME {
            return Err(ReferenceError::TooLong(printable(text)));
        }

        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_TAG.to_owned()),
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Returns whether `registry` (host and optional port) is this machine, so that plain HTTP doesn't
/// leave it.
pub fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns whether the part before the first slash is a registry, by Docker's rule: it is if it
/// couldn't be part of a repository name at the default one.
fn names_registry(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Returns whether `text` is `host[:port]`, the host being a name, an IPv4 address or an IPv6
/// address in brackets.
fn is_registry(text: &str) -> bool {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((address, after)) = rest.split_once(']') else {
            return false;
        };
        let port = match after.strip_prefix(':') {
            None if after.is_empty() => None,
            None => return false,
            port => port,
        };
        if address.parse::<Ipv6Addr>().is_err() {
            return false;
        }
        ("", port)
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let label = |label: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        edge(label.as_bytes().first())
            && edge(label.as_bytes().last())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let port_is_number = |port: &str| {
        !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok()
    };
    port.is_none_or(port_is_number) && (text.starts_with('[') || host.split('.').all(label))
}

/// Returns whether `text` is lower-case letters and digits, joined by one `.`, one or two `_`, or
/// any number of `-`.
fn is_component(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| word(*byte));
    edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text
            .split(|c: char| c.is_ascii() && word(c as u8))
            .all(|joint| {
                matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-')
            })
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(word)
        && text
            .bytes()
            .all(|byte| word(byte) || byte == b'.' || byte == b'-')
}
