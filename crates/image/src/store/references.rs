//! Names of images: a small file each, so that reads and writes of a name are atomic.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::durable;
use super::error::{Error, Result};
use super::last_use::note_use;
use super::{Image, ImageName, Store};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// Longest file name, in bytes, for an unshortened reference; Linux allows 255.
const NAME_MAX: usize = 180;

/// The image that a name refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tag {
    pub reference: Reference,
    /// Manifest digest.
    pub manifest: Digest,
    /// Who signed the image under this name, as it was found when the name was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
    /// The indexes that led from the name to the image, if they are kept: the first one has the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<Digest>,
}

/// How a name came to an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Digest of the document that has the name: the image's manifest, or an index that led to it.
    pub document: Digest,
    /// Who signed it, for people.
    pub signers: Vec<String>,
    /// Digests of the indexes from that document to the image, in this order, if they are kept.
    pub indexes: Vec<Digest>,
}

impl From<&Digest> for Origin {
    /// Without signers and indexes.
    fn from(document: &Digest) -> Self {
        Self {
            document: *document,
            signers: Vec::new(),
            indexes: Vec::new(),
        }
    }
}

/// A file in `refs` and its contents.
pub(crate) struct TagFile {
    pub path: PathBuf,
    pub tag: Result<Tag>,
}

impl Store {
    /// Makes `reference` a name of the image, and of no other one.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDigest`]; errors of [`Store::image_by_digest`], and of the disk.
    pub fn tag(&self, reference: &Reference, manifest: &Digest) -> Result<()> {
        self.tag_resolved(reference, manifest, &manifest.into())
    }

    /// Makes `reference` another name of an image: with the indexes that led to it from the name by which it was asked for,
    /// as far as they are kept, and without that name's signers.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::tag`].
    pub fn tag_as(&self, reference: &Reference, image: &Image) -> Result<()> {
        let manifest = &image.manifest_digest;
        let source = image.reference.as_ref();
        let tag = source.map(|source| self.read_tag(source)).transpose()?;
        let tag = tag.flatten().filter(|tag| tag.manifest == *manifest);
        let indexes = tag.map(|tag| tag.indexes).unwrap_or_default();
        let origin = Origin {
            document: *indexes.first().unwrap_or(manifest),
            signers: Vec::new(),
            indexes,
        };
        self.tag_resolved(reference, manifest, &origin)
    }

    /// Makes `reference` a name of the image to which a document has led.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::tag`].
    pub fn tag_resolved(
        &self,
        reference: &Reference,
        manifest: &Digest,
        origin: &Origin,
    ) -> Result<()> {
        let _shared = self.shared()?;
        // The image must exist, and can't be removed while we hold the lock.
        self.image_by_digest(manifest)?;
        check_digest(reference, manifest, &origin.document)?;
        self.write_tag(reference, manifest, origin)
    }

    /// Returns the signers of the image under a name, as found when the name was given; none of a name that the store
    /// does not have.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`], and errors of the disk.
    pub fn signers(&self, reference: &Reference) -> Result<Vec<String>> {
        let tag = self.read_tag(reference)?;
        Ok(tag.map(|tag| tag.signers).unwrap_or_default())
    }

    /// Returns the indexes that led from a name to its image, the one with the name first, as far as they are kept.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`], and errors of the disk.
    pub fn indexes(&self, reference: &Reference) -> Result<Vec<Digest>> {
        let tag = self.read_tag(reference)?;
        Ok(tag.map(|tag| tag.indexes).unwrap_or_default())
    }

    pub(super) fn write_tag(
        &self,
        reference: &Reference,
        manifest: &Digest,
        origin: &Origin,
    ) -> Result<()> {
        // A pull or a load under a name counts as a use.
        note_use(&self.layout.image(manifest));
        let path = self.tag_path(reference);
        let mut indexes = origin.indexes.clone();
        // What was kept before is not forgotten by a pull that keeps nothing and finds the same.
        if indexes.is_empty()
            && let Ok(Some(before)) = self.read_tag(reference)
            && before.manifest == *manifest
            && before.indexes.first() == Some(&origin.document)
        {
            indexes = before.indexes;
        }
        let tag = Tag {
            reference: reference.clone(),
            manifest: *manifest,
            signers: origin.signers.clone(),
            indexes,
        };
        durable::publish_json(&self.layout.tmp(), &path, &tag)
    }

    /// Removes a name; its image stays. Returns the image's manifest digest.
    ///
    /// # Errors
    ///
    /// [`Error::NoImage`], [`Error::Damaged`], and errors of the disk.
    pub fn untag(&self, reference: &Reference) -> Result<Digest> {
        let Some(tag) = self.read_tag(reference)? else {
            return Err(Error::NoImage {
                name: reference.familiar(),
            });
        };
        durable::remove_file(&self.tag_path(reference))?;
        Ok(tag.manifest)
    }

    /// Returns the image that a name refers to.
    pub(crate) fn read_tag(&self, reference: &Reference) -> Result<Option<Tag>> {
        let path = self.tag_path(reference);
        match durable::read_json::<Tag>(&path)? {
            Some(tag) if tag.reference != *reference => Err(Error::Damaged {
                path,
                problem: format!("it is about `{}`", tag.reference),
            }),
            tag => Ok(tag),
        }
    }

    /// Returns all names, sorted, including unreadable ones.
    pub(crate) fn tag_files(&self) -> Result<Vec<TagFile>> {
        let refs = self.layout.refs();
        let names = durable::list(&refs)?;
        Ok(names
            .into_iter()
            .map(|name| refs.join(name))
            .filter_map(|path| {
                // `None` if the name was removed meanwhile.
                let tag = durable::read_json::<Tag>(&path)
                    .transpose()?
                    .and_then(|tag| {
                        if self.tag_path(&tag.reference) == path {
                            Ok(tag)
                        } else {
                            Err(Error::Damaged {
                                path: path.clone(),
                                problem: format!("it is about `{}`", tag.reference),
                            })
                        }
                    });
                Some(TagFile { path, tag })
            })
            .collect())
    }

    fn tag_path(&self, reference: &Reference) -> PathBuf {
        self.layout.refs().join(file_name(&reference.to_string()))
    }

    /// Resolves a user's text, in Docker's order: a digest, a name, or the beginning of a digest.
    pub(crate) fn resolve(&self, name: &str) -> Result<ImageName> {
        if let Ok(digest) = name.parse::<Digest>() {
            return Ok(ImageName {
                reference: None,
                manifest: digest,
            });
        }
        if let Ok(reference) = name.parse::<Reference>()
            && let Some(tag) = self.read_tag(&reference)?
        {
            return Ok(ImageName {
                reference: Some(tag.reference),
                manifest: tag.manifest,
            });
        }
        let mut found = Vec::new();
        let digits = name.strip_prefix("sha256:").unwrap_or(name);
        if is_short_digest(digits) {
            found = durable::list(&self.layout.images())?;
            found.retain(|hex| hex.starts_with(digits));
            found.sort();
        }
        let error = || Error::NoImage {
            name: name.to_owned(),
        };
        match &found[..] {
            [hex] => {
                let manifest = Digest::from_hex(hex).map_err(|_| error())?;
                Ok(ImageName {
                    reference: None,
                    manifest,
                })
            }
            [] => Err(error()),
            _ => Err(Error::Ambiguous {
                name: name.to_owned(),
                images: found,
            }),
        }
    }
}

/// Checks that a name's digest is the manifest's or that of the document that led to it. A name
/// with a digest stands for those bytes, wherever it came from: a registry isn't asked again.
pub(super) fn check_digest(
    reference: &Reference,
    manifest: &Digest,
    resolved: &Digest,
) -> Result<()> {
    match reference.digest() {
        Some(digest) if ![manifest, resolved].contains(&digest) => Err(Error::OtherDigest {
            name: reference.familiar(),
            image: *manifest,
        }),
        _ => Ok(()),
    }
}

/// Returns whether `name` may be the beginning of a digest: long enough not to be one by chance. As with Docker, a
/// name that an image has is meant first, and a name that none has yet last.
fn is_short_digest(name: &str) -> bool {
    (3..=64).contains(&name.len()) && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns a reference as a file name: percent-encoded, and shortened to its digest if it is long.
fn file_name(reference: &str) -> String {
    let mut name = String::with_capacity(reference.len());
    for byte in reference.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                name.push(char::from(byte));
            }
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > NAME_MAX {
        name.truncate(NAME_MAX - 65);
        // A tilde is always percent-encoded, so no reference has this name itself.
        name.push('~');
        name.push_str(&Digest::of(reference.as_bytes()).hex());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_a_file_name_of_its_own() {
        assert_eq!(
            file_name("docker.io/library/a:b"),
            "docker.io%2Flibrary%2Fa%3Ab"
        );
        let long = "x/".repeat(150);
        let name = file_name(&long);
        assert_eq!(name.len(), NAME_MAX);
        assert_ne!(name, file_name(&format!("{long}x")));
        assert!(!name.contains('/'));
    }

    #[test]
    fn short_digests_are_told_from_names() {
        assert!(is_short_digest("0123ab") && is_short_digest("01a"));
        for name in ["01", "0123AB", "debian", &"a".repeat(65)] {
            assert!(!is_short_digest(name));
        }
    }
}
