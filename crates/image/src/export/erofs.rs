//! Packs an image's layers and its merged metadata as the [EROFS image specification][spec] has them.
//!
//! Each layer's image becomes a `device`, and fsmeta, whose files point into them, the filesystem that is mounted:
//! `[device, ..., device, fsmeta]`. The bytes are those of the store, so they depend on the layers' archives and on
//! [`identity::FORMAT`] alone. Behind each image is its dm-verity tree; both are compressed chunk by chunk, with zstd,
//! whose version is part of what makes the blobs.
//!
//! [spec]: https://github.com/erofs/erofs-image-spec

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use micabox_chunk::{Cuts, LARGEST, Writer};
use micabox_erofs::format::FileType;
use micabox_erofs::{BLOCK_SIZE, Cached, Reader};
use micabox_oci::json::{self, Json};
use micabox_oci::progress::{self, Event, LayerState, Phase, Progress};
use micabox_verity::Tree;
use serde_json::json;

use super::manifest::{MANIFEST_TYPE, config_descriptor};
use super::pack::{BUFFER, PackError, Packed, write_error};
use crate::identity;
use crate::manifest::erofs as names;
use crate::manifest::{Document, ManifestError};
use crate::store::{self, FileRecord, Image, Layer, Store};
use crate::{Descriptor, Digest, printable};
use micabox_oci::Hasher;

/// Media type of an index.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// A packed EROFS image: a layer's, or the merged metadata of an image.
#[derive(Debug)]
pub struct PackedErofs {
    /// The blob.
    pub packed: Packed,
    /// Its descriptor in a manifest.
    pub entry: ErofsEntry,
}

/// An EROFS image in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErofsEntry {
    /// The blob.
    pub blob: Descriptor,
    /// Digest of the image with its hash tree, uncompressed: the layer's diff ID.
    pub uncompressed: Digest,
    /// Length of the image with its hash tree, uncompressed, in bytes.
    pub uncompressed_size: u64,
    /// Annotations by name, in the order in which they are written.
    pub annotations: Vec<(&'static str, String)>,
}

/// The documents of an image whose layers are EROFS images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErofsDocuments {
    /// The config.
    pub config: Vec<u8>,
    /// The manifest, [`MANIFEST_TYPE`].
    pub manifest: Vec<u8>,
}

/// An image's other form, without its blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// The layers, bottom first, and the merged metadata.
    pub images: Vec<ErofsEntry>,
    /// The documents.
    pub documents: ErofsDocuments,
}

/// Why an image can't be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// A layer, or the merged metadata, can't be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The image's manifest or config can't be read.
    #[error("the image's documents: {0}")]
    Manifest(#[from] Box<ManifestError>),
}

impl From<store::Error> for ConversionError {
    fn from(error: store::Error) -> Self {
        Self::Pack(error.into())
    }
}

/// Converts an image, and keeps no blob: to see what becomes of it, or to check what was made of it elsewhere.
///
/// # Errors
///
/// [`ConversionError`].
pub fn convert_image(
    store: &Store,
    image: &Image,
    progress: &dyn Progress,
) -> Result<Conversion, ConversionError> {
    let _shared = store.shared()?;
    progress.event(Event::Phase(Phase::Layers));
    progress.event(Event::Layers(&transfers(store, image)?));
    let event = |id, state| {
        progress.event(Event::Layer {
            diff_id: &id,
            state,
        })
    };
    let packed = |id, bytes| {
        event(id, LayerState::Packed { bytes });
        true
    };
    let mut devices: HashMap<Digest, ErofsEntry> = HashMap::new();
    let mut images = Vec::with_capacity(image.layers.len() + 1);
    for layer in &image.layers {
        let id = device_id(layer);
        let entry = match devices.get(&layer.diff_id) {
            Some(entry) => entry.clone(),
            None => pack_device(store, layer, &mut |bytes| packed(id, bytes))?.entry,
        };
        event(id, LayerState::Done);
        devices.insert(layer.diff_id, entry.clone());
        images.push(entry);
    }
    let id = fsmeta_id(image);
    images.push(pack_fsmeta(store, image, &mut |bytes| packed(id, bytes))?.entry);
    event(id, LayerState::Done);
    let digest = &image.manifest_digest;
    let (manifest, config) = (store.manifest(digest)?, store.config(digest)?);
    let documents = erofs_documents(&manifest, &config, &images).map_err(Box::new)?;
    progress.event(Event::Phase(Phase::Done));
    Ok(Conversion { images, documents })
}

/// Returns an image's EROFS images as progress has them, each once: under names that the layers' archives don't have,
/// since a push may send both.
///
/// # Errors
///
/// Errors of the store.
pub fn transfers(store: &Store, image: &Image) -> Result<Vec<progress::Layer>, store::Error> {
    let fsmeta = store.fsmeta_size(&image.manifest_digest)?;
    let devices = image
        .layers
        .iter()
        .map(|layer| (device_id(layer), layer.image_size()));
    let mut seen = HashSet::new();
    let all = devices.chain([(fsmeta_id(image), fsmeta)]);
    let once = all.filter(|(id, _)| seen.insert(*id));
    let transfers = once.map(|(id, size)| progress::Layer {
        diff_id: id,
        blob: Descriptor {
            media_type: names::MEDIA_TYPE.to_owned(),
            digest: id,
            size,
        },
    });
    Ok(transfers.collect())
}

/// Returns the name of a layer's EROFS image in [`transfers`].
#[must_use]
pub fn device_id(layer: &Layer) -> Digest {
    Digest::of(format!("device {}", layer.diff_id).as_bytes())
}

/// Returns the name of an image's merged metadata in [`transfers`].
#[must_use]
pub fn fsmeta_id(image: &Image) -> Digest {
    Digest::of(format!("fsmeta {}", image.manifest_digest).as_bytes())
}

/// Packs a layer as a device. `watch` is called with the number of bytes of the image that are packed, and returns
/// whether to continue.
///
/// # Errors
///
/// [`PackError::Stopped`] if `watch` returned false; [`store::Error::Damaged`] if the layer can't be read.
pub fn pack_device(
    store: &Store,
    layer: &Layer,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    let image = Source {
        path: &layer.path,
        length: layer.image_size(),
        uuid: identity::layer_uuid(layer.identity()),
    };
    let mut annotations = vec![(names::ROLE, names::DEVICE.to_owned())];
    // A layer that was another tool's EROFS image has no archive.
    if layer.record.recipe.is_some() || layer.record.archive.is_some() {
        annotations.push((names::ARCHIVE, layer.identity().to_string()));
    }
    pack(store, &image, annotations, watch)
}

/// Packs an image's merged metadata, as [`pack_device`] packs a layer.
///
/// # Errors
///
/// Those of [`pack_device`].
pub fn pack_fsmeta(
    store: &Store,
    image: &Image,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    let diff_ids = image.layers.iter().map(Layer::identity);
    let source = Source {
        path: &image.fsmeta,
        length: store.fsmeta_size(&image.manifest_digest)?,
        uuid: identity::fsmeta_uuid(diff_ids),
    };
    pack(store, &source, Vec::new(), watch)
}

/// An image file of the store.
struct Source<'a> {
    path: &'a Path,
    /// Its length in bytes, without its padding.
    length: u64,
    uuid: [u8; 16],
}

/// Returns the digest of an image's merged metadata at `path`, with its hash tree: what [`pack_fsmeta`] gives as
/// uncompressed.
pub(crate) fn fsmeta_digest(
    path: &Path,
    fsmeta: &FileRecord,
    layers: &[Layer],
) -> Result<Digest, store::Error> {
    let image = File::open(path).map_err(|error| read_error(path, error))?;
    let mut tree = Tree::new(identity::fsmeta_uuid(layers.iter().map(Layer::identity)));
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; BUFFER];
    let length = fsmeta.blocks * BLOCK_SIZE;
    let mut at = 0;
    while at < length {
        let most = (length - at).min(BUFFER as u64) as usize;
        let bytes = buffer.get_mut(..most).unwrap_or_default();
        image
            .read_exact_at(bytes, at)
            .map_err(|error| read_error(path, error))?;
        tree.update(bytes);
        hasher.update(bytes);
        at += most as u64;
    }
    hasher.update(&tree.finish().1);
    Ok(hasher.finish())
}

fn pack(
    store: &Store,
    source: &Source<'_>,
    mut annotations: Vec<(&'static str, String)>,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    let scratch = store.scratch()?;
    let path = scratch.path("blob");
    let failed = |error| write_error(&path, error);
    let file = scratch.create("blob")?;
    let image = File::open(source.path).map_err(|error| read_error(source.path, error))?;

    let out = BufWriter::with_capacity(BUFFER, file);
    let mut writer = Writer::new(out).map_err(failed)?;
    let mut tree = Tree::new(source.uuid);
    let mut buffer = vec![0; LARGEST as usize];
    for cut in Cuts::new(starts(source, &image)?, source.length) {
        let bytes = buffer
            .get_mut(..(cut.end - cut.start) as usize)
            .unwrap_or_default();
        image
            .read_exact_at(bytes, cut.start)
            .map_err(|error| read_error(source.path, error))?;
        tree.update(bytes);
        writer.chunk(bytes).map_err(failed)?;
        if !watch(cut.end) {
            return Err(PackError::Stopped);
        }
    }
    let (root, tree) = tree.finish();
    for part in tree.chunks(LARGEST as usize) {
        writer.chunk(part).map_err(failed)?;
    }
    let (out, written) = writer.finish().map_err(failed)?;
    let mut file = out
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.flush().and_then(|()| file.rewind()).map_err(failed)?;

    let Range { start, end } = written.index;
    let root: String = root.iter().map(|byte| format!("{byte:02x}")).collect();
    annotations.extend([
        (names::UNCOMPRESSED, written.uncompressed.to_string()),
        (names::INDEX_RANGE, format!("{start}:{end}")),
        (names::INDEX_DIGEST, written.index_digest.to_string()),
        (names::INDEX_TYPE, micabox_chunk::MEDIA_TYPE.to_owned()),
        (names::VERITY_OFFSET, source.length.to_string()),
        (names::VERITY_ROOT, format!("sha256:{root}")),
        (names::VERITY_BLOCK, micabox_verity::BLOCK.to_string()),
    ]);
    let blob = Descriptor {
        media_type: names::MEDIA_TYPE.to_owned(),
        digest: written.digest,
        size: written.size,
    };
    let entry = ErofsEntry {
        blob: blob.clone(),
        uncompressed: written.uncompressed,
        uncompressed_size: written.uncompressed_size,
        annotations,
    };
    let packed = Packed { file, blob };
    Ok(PackedErofs { packed, entry })
}

/// Returns where files' contents begin in an image, in ascending order.
fn starts(source: &Source<'_>, image: &File) -> Result<Vec<u64>, store::Error> {
    let damaged = |error: micabox_erofs::Error| store::Error::Damaged {
        path: source.path.to_owned(),
        problem: error.to_string(),
    };
    let image = image.try_clone().and_then(Cached::new);
    let image = image.map_err(|error| read_error(source.path, error))?;
    let reader = Reader::open(image).map_err(damaged)?;
    let mut starts = Vec::new();
    reader
        .walk(|_, inode| {
            if inode.kind == FileType::Regular {
                let extents = reader.extents(inode)?;
                // Those of fsmeta are in other images.
                let own = extents.iter().filter_map(|extent| extent.address);
                starts.extend(own.filter(|address| *address < source.length));
            }
            Ok(())
        })
        .map_err(damaged)?;
    starts.sort_unstable();
    starts.dedup();
    Ok(starts)
}

fn read_error(path: &Path, source: std::io::Error) -> store::Error {
    store::Error::Io {
        action: "read",
        path: PathBuf::from(path),
        source,
    }
}

/// Returns the documents of the image with `config` whose layers, bottom first, and merged metadata are `images`.
///
/// # Errors
///
/// [`ManifestError`]: `manifest` or `config` can't be read.
pub fn erofs_documents(
    manifest: &[u8],
    config: &[u8],
    images: &[ErofsEntry],
) -> Result<ErofsDocuments, ManifestError> {
    let malformed = |document| {
        move |error: json::Error| ManifestError::Malformed {
            document,
            message: printable(&error.to_string()),
        }
    };
    let diff_ids: Vec<_> = images.iter().map(|image| image.uncompressed).collect();
    let mut config: Json = json::from_slice(config).map_err(malformed("config"))?;
    let of = |value: &serde_json::Value| Json::of(value).map_err(malformed("config"));
    config.set_field(
        "rootfs",
        of(&json!({"type": "layers", "diff_ids": diff_ids}))?,
    );
    config.set_field("os.features", of(&json!([names::FEATURE]))?);
    if let Json::List(mut history) = config.field("history")
        && !history.is_empty()
    {
        // There is a layer more.
        history.push(of(&json!({"created_by": "merged metadata of the layers"}))?);
        config.set_field("history", Json::List(history));
    }
    let config = serde_json::to_vec(&config).map_err(malformed("config"))?;

    // Docker's manifests have no annotations.
    let annotations = match Document::parse(manifest, None)? {
        Document::Manifest(parsed) if parsed.media_type != MANIFEST_TYPE => Json::Null,
        _ => json::from_slice::<Json>(manifest)
            .map_err(malformed("manifest"))?
            .field("annotations"),
    };
    let layers: Vec<_> = images.iter().map(ErofsEntry::json).collect();
    let mut manifest = Json::of(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config_descriptor(&config),
        "layers": layers,
    }))
    .map_err(malformed("manifest"))?;
    let mut annotations = match annotations {
        Json::Object(fields) => Json::Object(fields),
        _ => Json::Object(Vec::new()),
    };
    annotations.set_field(names::FORMAT, Json::Text(identity::FORMAT.to_string()));
    annotations.set_field(names::ZSTD, Json::Text(micabox_chunk::zstd_version()));
    manifest.set_field("annotations", annotations);
    Ok(ErofsDocuments {
        config,
        manifest: serde_json::to_vec(&manifest).map_err(malformed("manifest"))?,
    })
}

/// Returns an index of an image's two manifests, the one of archives first: clients that know nothing of EROFS take the
/// first for their platform.
///
/// # Errors
///
/// [`ManifestError::Malformed`]: `config` can't be read.
pub fn erofs_index(
    archives: &Descriptor,
    images: &Descriptor,
    config: &[u8],
) -> Result<Vec<u8>, ManifestError> {
    let malformed = |error: json::Error| ManifestError::Malformed {
        document: "config",
        message: printable(&error.to_string()),
    };
    let config: Json = json::from_slice(config).map_err(malformed)?;
    let mut platform = serde_json::Map::new();
    for name in ["architecture", "os", "os.version", "variant"] {
        if let Json::Text(value) = config.field(name)
            && !value.is_empty()
        {
            platform.insert(name.to_owned(), json!(value));
        }
    }
    let entry = |of: &Descriptor, features: &[&str]| {
        let mut platform = platform.clone();
        if !features.is_empty() {
            platform.insert("os.features".to_owned(), json!(features));
        }
        json!({"mediaType": of.media_type, "digest": of.digest, "size": of.size, "platform": platform})
    };
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [entry(archives, &[]), entry(images, &[names::FEATURE])],
    });
    serde_json::to_vec(&index).map_err(malformed)
}

impl ErofsEntry {
    fn json(&self) -> serde_json::Value {
        let annotations = self.annotations.iter();
        let annotations: serde_json::Map<_, _> = annotations
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        json!({
            "mediaType": self.blob.media_type,
            "digest": self.blob.digest,
            "size": self.blob.size,
            "annotations": annotations,
        })
    }
}
