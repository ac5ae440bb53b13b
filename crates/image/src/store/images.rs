//! Images: assembled in `tmp`, published by one rename.

use std::fs;
use std::io;
use std::path::Path;

use micabox_erofs::BLOCK_SIZE;
use micabox_ground::locked::Mode;
use micabox_oci::ImageConfiguration;
use serde::Serialize;

use super::durable;
use super::error::{Context, Error, Result};
use super::image::{Fixup, Image};
use super::image_record::{
    CONFIG, FIXUP, FSMETA, FileRecord, ImageRecord, LayerUse, MANIFEST, RECORD, VMDK,
};
use super::layers::{Layer, LayerRecord, padded_blocks};
use super::layout;
use super::lock::Lock;
use super::merged;
use super::references::{Origin, check_digest};
use super::scratch::Scratch;
use super::vmdk::{self, Extent};
use super::{ImageName, Store};
use crate::Limits;
use crate::Platform;
use crate::Trim;
use crate::convert::LayerKind;
use crate::identity;
use crate::manifest::{self, Document, LayerSource};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// An image in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageSummary {
    /// Names of the image, sorted.
    pub references: Vec<Reference>,
    /// Digest of the manifest.
    pub manifest_digest: Digest,
    /// Digest of the config.
    pub config_digest: Digest,
    /// Operating system, architecture and variant, from the config.
    pub platform: String,
    /// When the image was built, in RFC 3339, if the config has it.
    pub created: Option<String>,
    /// Number of layers.
    pub layers: usize,
    /// Size of all layers' images in bytes, shared ones included.
    pub size: u64,
}

impl Store {
    /// Returns the image that `name` refers to: a reference, a manifest digest or the beginning of
    /// one.
    ///
    /// # Errors
    ///
    /// [`Error::NoImage`] and [`Error::Ambiguous`]; [`Error::Unusable`] if a part of the image is
    /// missing or was made by another version.
    pub fn image(&self, name: &str) -> Result<Image> {
        self.load(self.resolve(name)?)
    }

    /// Returns the image with this manifest digest.
    ///
    /// # Errors
    ///
    /// [`Error::NoImage`], and [`Error::Unusable`] as for [`Store::image`].
    pub fn image_by_digest(&self, manifest: &Digest) -> Result<Image> {
        self.load(ImageName {
            reference: None,
            manifest: *manifest,
        })
    }

    pub(super) fn load(&self, name: ImageName) -> Result<Image> {
        let manifest_digest = name.manifest;
        let directory = self.layout.image(&manifest_digest);
        let Some(record) = self.image_record(&manifest_digest)? else {
            let name = match &name.reference {
                Some(reference) => reference.familiar(),
                None => manifest_digest.to_string(),
            };
            return Err(Error::NoImage { name });
        };
        let unusable = |problem| Error::Unusable {
            image: manifest_digest,
            problem,
        };
        let layers = self.usable_layers(&record).map_err(unusable)?;
        let config = durable::read(&directory.join(CONFIG))?
            .ok_or_else(|| unusable("its config is missing".into()))?;
        let config = manifest::parse_config(&config).map_err(|e| unusable(e.to_string()))?;
        Ok(Image {
            store: self.clone(),
            reference: name.reference,
            manifest_digest,
            config_digest: record.config,
            config,
            layers,
            fsmeta: directory.join(FSMETA),
            fsmeta_blocks: padded_blocks(record.fsmeta.blocks),
            first_layer: record.first_layer,
            fixup: record.fixup.map(|fixup| Fixup {
                path: directory.join(FIXUP),
                blocks: padded_blocks(fixup.blocks),
            }),
            vmdk: directory.join(VMDK),
            trim: Trim::default(),
        })
    }

    /// Returns all images, by manifest digest, including unusable ones, as they take space, too.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the store can't be listed.
    pub fn images(&self) -> Result<Vec<ImageSummary>> {
        let tags: Vec<_> = self
            .tag_files()?
            .into_iter()
            .filter_map(|file| file.tag.ok())
            .collect();
        let mut images = Vec::new();
        for hex in durable::list(&self.layout.images())? {
            let Ok(manifest_digest) = Digest::from_hex(&hex) else {
                continue;
            };
            let Ok(Some(record)) = self.image_record(&manifest_digest) else {
                continue;
            };
            let mut references: Vec<_> = tags
                .iter()
                .filter(|tag| tag.manifest == manifest_digest)
                .map(|tag| tag.reference.clone())
                .collect();
            references.sort_unstable();
            let mut size = 0;
            for layer in &record.layers {
                let record = self.layout.layer_record(&layer.diff_id);
                if let Ok(Some(record)) = durable::read_json::<LayerRecord>(&record) {
                    size += record.blocks * BLOCK_SIZE;
                }
            }
            images.push(ImageSummary {
                references,
                manifest_digest,
                config_digest: record.config,
                platform: record.platform,
                created: record.created,
                layers: record.layers.len(),
                size,
            });
        }
        Ok(images)
    }

    /// Returns the manifest's bytes as they were pulled.
    ///
    /// # Errors
    ///
    /// [`Error::NoImage`], and errors of the disk.
    pub fn manifest(&self, image: &Digest) -> Result<Vec<u8>> {
        let path = self.layout.image(image).join(MANIFEST);
        durable::read(&path)?.ok_or_else(|| Error::NoImage {
            name: image.to_string(),
        })
    }

    /// Returns the config's bytes as they were pulled.
    ///
    /// # Errors
    ///
    /// [`Error::NoImage`], and errors of the disk.
    pub fn config(&self, image: &Digest) -> Result<Vec<u8>> {
        let path = self.layout.image(image).join(CONFIG);
        durable::read(&path)?.ok_or_else(|| Error::NoImage {
            name: image.to_string(),
        })
    }

    /// Returns the length of an image's merged metadata in bytes, without its padding.
    ///
    /// # Errors
    ///
    /// [`Error::NoImage`], and errors of the disk.
    pub fn fsmeta_size(&self, image: &Digest) -> Result<u64> {
        Ok(self.fsmeta_record(image)?.blocks * BLOCK_SIZE)
    }

    /// Returns the record of an image's merged metadata.
    pub(crate) fn fsmeta_record(&self, image: &Digest) -> Result<FileRecord> {
        let record = self.image_record(image)?.ok_or_else(|| Error::NoImage {
            name: image.to_string(),
        })?;
        Ok(record.fsmeta)
    }

    /// Publishes an image of layers in the store, and gives it names.
    ///
    /// `manifest` and `config` are the documents' bytes: their digests are the image's and its
    /// config's, and together they name its layers. The caller must have held [`Store::shared`]
    /// since before it looked for the first layer.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the documents don't belong together, [`Error::NoLayer`] if a layer is
    /// missing, [`Error::OtherDigest`].
    pub fn publish_image(
        &self,
        manifest: &[u8],
        config: &[u8],
        references: &[Reference],
    ) -> Result<Image> {
        let origin = Origin::from(&Digest::of(manifest));
        self.publish_resolved(manifest, config, references, &origin)
    }

    /// Publishes an image like [`Store::publish_image`], to which a document has led, so that a name may have that
    /// one's digest.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::publish_image`].
    pub fn publish_resolved(
        &self,
        manifest: &[u8],
        config: &[u8],
        references: &[Reference],
        origin: &Origin,
    ) -> Result<Image> {
        let _shared = self.shared()?;
        let digest = Digest::of(manifest);
        for reference in references {
            check_digest(reference, &digest, &origin.document)?;
        }
        let config_digest = Digest::of(config);
        let invalid = |what, e: manifest::ManifestError| Error::Invalid {
            what,
            problem: e.to_string(),
        };
        let parsed =
            manifest::parse_config(config).map_err(|e| invalid("the image's config", e))?;
        let (sources, fsmeta) = sources(manifest, &config_digest, &parsed)
            .map_err(|e| invalid("the image's manifest", e))?;
        let mut layers = Vec::new();
        for LayerSource {
            diff_id,
            archive,
            blob,
            ..
        } in sources
        {
            let layer = self.layer(&diff_id)?;
            // One that was converted elsewhere is not another archive's, but as good as a copy of its tree.
            let is_erofs = LayerKind::of(Some(&blob.media_type)) == Ok(LayerKind::Erofs);
            let layer = layer.filter(|Layer { record, .. }| {
                let is_copy = is_erofs && archive.is_none() && record.recipe.is_none();
                record.archive == archive || is_copy
            });
            layers.push(layer.ok_or(Error::NoLayer { diff_id })?);
        }

        let lock = Lock::wait(&self.layout.image_lock(&digest), Mode::Exclusive)?;
        if self
            .load(ImageName {
                reference: None,
                manifest: digest,
            })
            .is_err()
        {
            let documents = Documents {
                manifest,
                digest,
                config,
                config_digest,
                platform: manifest::platform_of(&parsed),
                created: parsed.created().clone(),
                fsmeta,
            };
            self.make_image(&documents, &layers)?;
        }
        drop(lock);
        for reference in references {
            self.write_tag(reference, &digest, origin)?;
        }
        self.load(ImageName {
            reference: references.first().cloned(),
            manifest: digest,
        })
    }

    /// Returns the layers that an image was made of, or why it is unusable.
    pub(crate) fn usable_layers(&self, record: &ImageRecord) -> Result<Vec<Layer>, String> {
        if record.format != identity::FORMAT {
            return Err(format!(
                "it was made in format {}, this version has {}",
                record.format,
                identity::FORMAT
            ));
        }
        record
            .layers
            .iter()
            .map(|used| match self.layer(&used.diff_id) {
                Ok(Some(layer)) if layer.record.checksum == used.checksum => Ok(layer),
                Ok(Some(_)) => Err(format!("layer {} was replaced", used.diff_id)),
                Ok(None) => Err(format!("layer {} is missing", used.diff_id)),
                Err(error) => Err(error.to_string()),
            })
            .collect()
    }

    fn make_image(&self, documents: &Documents<'_>, layers: &[Layer]) -> Result<()> {
        let scratch = Scratch::new(&self.layout.tmp())?;
        durable::write(&scratch, MANIFEST, documents.manifest)?;
        durable::write(&scratch, CONFIG, documents.config)?;
        let merged = merged::make(self, &scratch, &documents.digest, layers)?;
        if let Some(expected) = documents.fsmeta {
            let actual = merged::fsmeta_digest(&scratch.path(FSMETA), &merged.fsmeta, layers)?;
            if actual != expected {
                return Err(Error::Invalid {
                    what: "the image's manifest",
                    problem: format!(
                        "it has the merged metadata {expected}, and that of its layers is {actual}"
                    ),
                });
            }
        }
        let vmdk = descriptor(&merged.fsmeta, layers, Path::new(""))?;
        durable::write(&scratch, VMDK, vmdk.as_bytes())?;
        let record = ImageRecord {
            format: identity::FORMAT,
            manifest: documents.digest,
            config: documents.config_digest,
            platform: documents.platform.to_string(),
            created: documents.created.clone(),
            layers: layers.iter().map(LayerUse::from).collect(),
            fsmeta: merged.fsmeta,
            fixup: merged.fixup,
            first_layer: merged.first_layer,
        };
        durable::write_json(&scratch, RECORD, &record)?;
        durable::sync_directory(scratch.directory())?;
        put(scratch, &self.layout.image(&documents.digest))
    }
}

/// The documents of a new image.
struct Documents<'a> {
    manifest: &'a [u8],
    digest: Digest,
    config: &'a [u8],
    config_digest: Digest,
    platform: Platform,
    created: Option<String>,
    /// Digest that the merged metadata has to have, if the manifest says.
    fsmeta: Option<Digest>,
}

/// Renames a scratch directory to `to`, in place of an unusable one.
pub(super) fn put(scratch: Scratch, to: &Path) -> Result<()> {
    let directory = to.parent().unwrap_or(to);
    durable::create_directories(directory)?;
    let from = scratch.directory();
    match fs::rename(from, to) {
        Err(error) if is_occupied(&error) => {
            // The old directory takes the new one's place, and is removed with the scratch
            // directory.
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)
                .map_err(io::Error::from)
                .context("replace", to)?;
        }
        renamed => renamed.context("publish", to)?,
    }
    durable::sync_directory(directory)
}

fn is_occupied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
    )
}

/// Returns the VMDK descriptor of the disk `[fsmeta | layer | …]`, with paths relative to its directory,
/// from which `image` leads to the image's directory.
pub(super) fn descriptor(fsmeta: &FileRecord, layers: &[Layer], image: &Path) -> Result<String> {
    let paths: Vec<_> = layers
        .iter()
        .map(|layer| image.join(layout::layer_from_image(&layer.diff_id)))
        .collect();
    let mut extents = vec![Extent {
        path: Path::new(FSMETA),
        length: padded_blocks(fsmeta.blocks) * BLOCK_SIZE,
    }];
    extents.extend(paths.iter().zip(layers).map(|(path, layer)| Extent {
        path,
        length: layer.blocks * BLOCK_SIZE,
    }));
    vmdk::descriptor(&extents)
}

/// Returns the layers of an image, and the digest of its merged metadata if the manifest says, after checking that the config is the manifest's.
pub(super) fn sources(
    manifest: &[u8],
    actual: &Digest,
    config: &ImageConfiguration,
) -> Result<(Vec<LayerSource>, Option<Digest>), manifest::ManifestError> {
    let malformed = |message| manifest::ManifestError::Malformed {
        document: "manifest",
        message,
    };
    let Document::Manifest(manifest) = Document::parse(manifest, None)? else {
        return Err(malformed("it is an index of manifests".into()));
    };
    let named = manifest::digest_of(&manifest.config, "manifest", "config")?;
    if named != *actual {
        let problem = format!("it names the config {named} and comes with {actual}");
        return Err(malformed(problem));
    }
    // The blobs are here.
    let limits = Limits {
        layer_size: u64::MAX,
        ..Limits::default()
    };
    let layers = manifest::layers_of(&manifest, config, &limits)?;
    Ok((layers, manifest::fsmeta_of(&manifest)?))
}
